// Start a training: the fields are the options of `reverie train`.
import { html, useEffect, useState } from "./vendor/preact.js";
import { get, post } from "./net.js";
import { Check, Code, Number_, Problem, Select, Spec, Text } from "./parts.js";
import { choose, go } from "./state.js";

const FIRST = ["minutes", "family", "size", "seed"];

/** What the data are taken as: their own kind, or that which the options make of them. */
function kindOf(known, options) {
  if (options.pairs) return "pairs";
  if (options.text) return "text";
  return options.window && known === "points" ? "series" : known;
}

export function FormField({ field, value, change, studio, kind }) {
  const label = field.name[0].toUpperCase() + field.name.slice(1).replaceAll("-", " ");
  if (field.name === "family" && kind) {
    const [best, ...others] = studio.families[kind];
    const table = [best, ...others].map((name) => studio.tables.families.find((family) => family.name === name));
    return html`<${Spec} label=${label} table=${table} value=${value ?? ""} change=${change} none="${best}, the default for ${kind}" />`;
  }
  if (field.table && studio.tables[field.table]) return html`<${Spec} label=${label} table=${studio.tables[field.table]} value=${value ?? ""} change=${change} none="chosen for the data" />`;
  if (field.kind === "switch") return html`<${Check} label=${field.help} value=${!!value} change=${change} />`;
  if (field.kind === "text") return html`<${Text} label=${label} value=${value ?? ""} change=${change} hint=${field.help} />`;
  return html`<${Number_} label=${label} value=${value ?? ""} change=${change} hint=${field.help} step=${field.kind === "whole" ? 1 : "any"} />`;
}

export function Train({ here, studio, runs, refresh }) {
  const [data, setData] = useState(null);
  const [options, setOptions] = useState({ minutes: 2 });
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const [known, setKnown] = useState({});
  const chosen = here.query.data || "digits8";
  const found = data?.found.find((d) => d.id === chosen);
  const plain = (found ? found.name.split("/").pop() : chosen).replace(/[^A-Za-z0-9._=-]+/g, "-").replace(/^[^A-Za-z0-9]+/, "") || "run";
  const taken = runs.map((r) => r.name.split("/").pop());
  const usual = [plain, ...Array.from({ length: 99 }, (_, k) => `${plain}-${k + 2}`)].find((one) => !taken.includes(one));
  const [name, setName] = useState("");
  useEffect(() => {
    get("/api/data").then(setData, (e) => setProblem(e.message));
  }, []);
  useEffect(() => {
    let current = true;
    get(`/api/data/${encodeURIComponent(chosen)}`).then((about) => current && setKnown({ ...about, data: chosen }), (e) => current && setProblem(e.message));
    return () => {
      current = false;
    };
  }, [chosen]);
  const kind = known.data === chosen ? kindOf(known.kind, options) : null;
  const families = kind ? studio.families[kind] : [];
  const fits = families.includes((options.family ?? "").split(":")[0]);
  const settings = { ...options, family: fits || !kind ? options.family ?? "" : families[0] };
  const set = (key) => (value) => setOptions({ ...options, [key]: value });
  const start = async (event) => {
    event.preventDefault();
    setBusy(true);
    setProblem("");
    try {
      const given = Object.fromEntries(Object.entries(settings).filter(([, v]) => v !== "" && v !== false && v !== null));
      const run = await post("/api/trainings", { data: chosen, name: name || usual, options: given });
      refresh();
      go("run", run.id);
    } catch (error) {
      setProblem(error.message);
    }
    setBusy(false);
  };
  const words = Object.entries(settings).filter(([, v]) => v !== "" && v !== false && v !== null).map(([k, v]) => (v === true ? `--${k}` : `--${k} ${v}`));
  const fields = studio.form.filter((f) => !FIRST.includes(f.name));
  const groups = [...(data?.found.length ? data.found.map((d) => [d.id, `${d.name} (in this folder)`]) : []), ...(data?.named ?? []).map((d) => [d.name, d.name])];
  return html`
    <div class="pagehead"><h1>New training</h1><p class="lead">It runs in a process of its own: close the page or the studio, and it goes on.</p></div>
    <${Problem} message=${problem} />
    <form class="panel formpage" onSubmit=${start}>
      <div class="fields">
        <${Select} label="Data" value=${chosen} options=${groups.length ? groups : [chosen]} change=${(v) => choose({ data: v })} hint=${known.problem ?? [data?.named.find((d) => d.name === chosen)?.about, kind && `Taken as ${kind}.`].filter(Boolean).join(" ")} />
        <${Text} label="Name of the run" value=${name} placeholder=${usual} change=${setName} />
        ${studio.form.filter((f) => FIRST.includes(f.name)).map((f) => html`<${FormField} key=${f.name} field=${f} value=${f.name === "family" && !fits ? "" : options[f.name]} change=${set(f.name)} studio=${studio} kind=${kind} />`)}
      </div>
      <details class="more"><summary>All other options</summary><div class="fields">${fields.map((f) => html`<${FormField} key=${f.name} field=${f} value=${options[f.name]} change=${set(f.name)} studio=${studio} />`)}</div></details>
      <div class="actions"><button type="submit" class="main" disabled=${busy || known.data !== chosen}>Start training</button></div>
    </form>
    <${Code} title="The same in a terminal" text=${`reverie train ${found ? found.name : chosen} --out runs/${name || usual} ${words.join(" ")}`} />`;
}
