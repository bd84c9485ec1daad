// Data: what a scan finds, a sheet of some, and what is broken.
import { html, useEffect, useState } from "./vendor/preact.js";
import { get, work } from "./net.js";
import { Code, Notes, Picture, Problem, Working, Select, count, useRunning } from "./parts.js";
import { Bars } from "./plots.js";
import { choose } from "./state.js";

function plain(value) {
  if (Array.isArray(value)) return value.map(plain).join(", ");
  if (value && typeof value === "object") return Object.entries(value).map(([k, v]) => `${k} ${plain(v)}`).join(", ");
  return typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(4))) : String(value ?? "–");
}

export function Data({ here }) {
  const [data, setData] = useState(null);
  const [found, setFound] = useState(null);
  const running = useRunning();
  useEffect(() => {
    get("/api/data").then(setData, () => setData({ named: [], found: [] }));
  }, []);
  const chosen = here.query.data || "";
  const look = (key) => {
    choose({ data: key });
    setFound(null);
    running.begin(work("inspect", { data: key }, running.on), setFound);
  };
  useEffect(() => {
    if (data && chosen && !found && !running.busy) look(chosen);
  }, [data]);
  const facts = found?.found;
  const broken = facts?.broken ?? [];
  const labels = Object.entries(facts?.labels ?? {});
  const rest = facts && Object.entries(facts).filter(([k]) => !["labels", "notes", "broken", "data"].includes(k));
  return html`
    <div class="pagehead"><h1>Data</h1><p class="lead">What is there before anything is trained: sizes, classes, and what is broken.</p></div>
    <div class="panel narrow">
      ${data && html`<${Select} label="Data" value=${chosen} change=${look} options=${[["", "choose"], ...data.found.map((d) => [d.id, `${d.name} (in this folder)`]), ...data.named.map((d) => [d.name, d.name])]} hint=${data.named.find((d) => d.name === chosen)?.about} />`}
      ${running.busy && html`<${Working} running=${running} what="reading" />`}
      <${Problem} message=${running.problem} /><${Notes} notes=${running.notes} />
    </div>
    ${facts && html`<div class="split">
      <section class="panel"><h2>${facts.data}</h2><${Picture} src=${found.sheet} class="sheet" alt="Some of ${facts.data}" /></section>
      <div><section class="panel"><h2>What was found</h2>
        <dl class="settings">${rest.map(([k, v]) => html`<dt>${k.replaceAll("_", " ")}</dt><dd>${plain(v)}</dd>`)}</dl>
        <${Notes} notes=${facts.notes} /></section>
      ${labels.length > 0 && html`<section class="panel"><${Bars} title="${count(labels.length)} classes" items=${labels.slice(0, 40).map(([name, value]) => ({ name, value }))} /></section>`}
      ${broken.length > 0 && html`<section class="panel findings"><h2>${count(broken.length)} broken file${broken.length > 1 ? "s" : ""}</h2><ul>${broken.map((one) => html`<li>${plain(one)}</li>`)}</ul></section>`}
      <div class="actions"><a class="button main" href="#/train?data=${encodeURIComponent(chosen)}">Train on these</a></div></div>
    </div><${Code} title="The same in a terminal" text=${found.command} />`}`;
}
