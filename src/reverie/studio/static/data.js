// The page Data: the description of a dataset, a sheet of examples, and its unreadable files.
import { html, useEffect, useState } from "./vendor/preact.js";
import { get, startJob } from "./client.js";
import { Code, JobProgress, Notes, Picture, Problem, Select, count, useJob } from "./components.js";
import { Bars } from "./plots.js";
import { setQuery } from "./state.js";

function format(value) {
  if (Array.isArray(value)) return value.map(format).join(", ");
  if (value && typeof value === "object") return Object.entries(value).map(([k, v]) => `${k} ${format(v)}`).join(", ");
  return typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(4))) : String(value ?? "–");
}

export function Data({ here }) {
  const [data, setData] = useState(null);
  const [result, setResult] = useState(null);
  const job = useJob();
  useEffect(() => {
    get("/api/data").then(setData, () => setData({ builtin: [], local: [] }));
  }, []);
  const selected = here.query.data || "";
  const inspect = (key) => {
    setQuery({ data: key });
    setResult(null);
    if (key) job.run(startJob("inspect", { data: key }, job.on), setResult);
  };
  useEffect(() => {
    if (data && selected && !result && !job.busy) inspect(selected);
  }, [data]);
  const report = result?.report;
  const broken = report?.broken ?? [];
  const labels = Object.entries(report?.labels ?? {});
  const rest = report && Object.entries(report).filter(([k]) => !["labels", "notes", "broken", "data"].includes(k));
  return html`
    <div class="pagehead"><h1>Data</h1><p class="lead">Inspect a dataset before training: sizes, classes, examples, unreadable files.</p></div>
    <div class="panel narrow">
      ${data && html`<${Select} label="Data" value=${selected} change=${inspect} options=${[["", "select a dataset"], ...data.local.map((d) => [d.id, `${d.name} (in this folder)`]), ...data.builtin.map((d) => [d.name, d.name])]} hint=${data.builtin.find((d) => d.name === selected)?.about} />`}
      ${job.busy && html`<${JobProgress} job=${job} label="reading" />`}
      <${Problem} message=${job.problem} /><${Notes} notes=${job.warnings} />
    </div>
    ${report && html`<div class="split">
      <section class="panel"><h2>${report.data}</h2><${Picture} src=${result.sheet} class="sheet" alt="Examples of ${report.data}" /></section>
      <div><section class="panel"><h2>Summary</h2>
        <dl class="settings">${rest.map(([k, v]) => html`<dt>${k.replaceAll("_", " ")}</dt><dd>${format(v)}</dd>`)}</dl>
        <${Notes} notes=${report.notes} /></section>
      ${labels.length > 0 && html`<section class="panel"><${Bars} title="${count(labels.length)} classes" items=${labels.slice(0, 40).map(([name, value]) => ({ name, value }))} /></section>`}
      ${broken.length > 0 && html`<section class="panel findings"><h2>${count(broken.length)} unreadable file${broken.length > 1 ? "s" : ""}</h2><ul>${broken.map((file) => html`<li>${format(file)}</li>`)}</ul></section>`}
      <div class="actions"><a class="button main" href="#/train?data=${encodeURIComponent(selected)}">Train on this dataset</a></div></div>
    </div><${Code} title="Command" text=${result.command} />`}`;
}
