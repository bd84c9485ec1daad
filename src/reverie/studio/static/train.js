// The page New training: a form of the options of `reverie train`.
import { html, useEffect, useState } from "./vendor/preact.js";
import { get, post } from "./client.js";
import { Check, Code, NumberInput, Problem, Select, Spec, TextInput } from "./components.js";
import { go, setQuery } from "./state.js";

const ACRONYMS = { Ema: "EMA", Kl: "KL", Lora: "LoRA" };
const FIRST = ["minutes", "family", "size", "seed"];

/** The kind of the data, which options can change. */
function kindOf(dataKind, options) {
  if (options.pairs) return "pairs";
  if (options.text) return "text";
  return options.window && dataKind === "points" ? "series" : dataKind;
}

export function FormField({ field, value, change, studio, kind }) {
  const label = (field.name[0].toUpperCase() + field.name.slice(1).replaceAll("-", " ")).replace(/^(Ema|Kl|Lora)\b/, (word) => ACRONYMS[word]);
  if (field.name === "family" && kind) {
    const [best, ...others] = studio.families[kind];
    const table = [best, ...others].map((name) => studio.tables.families.find((family) => family.name === name));
    return html`<${Spec} label=${label} table=${table} value=${value ?? ""} change=${change} none="${best}, the default for ${kind}" />`;
  }
  if (field.table && studio.tables[field.table]) return html`<${Spec} label=${label} table=${studio.tables[field.table]} value=${value ?? ""} change=${change} none="chosen for the data" />`;
  if (field.kind === "switch") return html`<${Check} label=${field.help} value=${!!value} change=${change} />`;
  if (field.kind === "text") return html`<${TextInput} label=${label} value=${value ?? ""} change=${change} hint=${field.help} />`;
  return html`<${NumberInput} label=${label} value=${value ?? ""} change=${change} hint=${field.help} step=${field.kind === "integer" ? 1 : "any"} />`;
}

export function Train({ here, studio, runs, refresh }) {
  const [data, setData] = useState(null);
  const [options, setOptions] = useState({ minutes: 2 });
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const [description, setDescription] = useState({});
  const selected = here.query.data || "digits8";
  const localData = data?.local.find((d) => d.id === selected);
  const base = (localData ? localData.name.split("/").pop() : selected).replace(/[^A-Za-z0-9._=-]+/g, "-").replace(/^[^A-Za-z0-9]+/, "") || "run";
  const usedNames = runs.map((r) => r.name.split("/").pop());
  const defaultName = [base, ...Array.from({ length: 99 }, (_, k) => `${base}-${k + 2}`)].find((candidate) => !usedNames.includes(candidate));
  const [name, setName] = useState("");
  useEffect(() => {
    get("/api/data").then(setData, (e) => setProblem(e.message));
  }, []);
  useEffect(() => {
    let current = true;
    get(`/api/data/${encodeURIComponent(selected)}`).then((about) => current && setDescription({ ...about, data: selected }), (e) => current && setProblem(e.message));
    return () => {
      current = false;
    };
  }, [selected]);
  const kind = description.data === selected ? kindOf(description.kind, options) : null;
  const families = kind ? studio.families[kind] : [];
  const isSupported = families.includes((options.family ?? "").split(":")[0]);
  const settings = { ...options, family: isSupported || !kind ? options.family ?? "" : families[0] };
  const set = (key) => (value) => setOptions({ ...options, [key]: value });
  const start = async (event) => {
    event.preventDefault();
    setBusy(true);
    setProblem("");
    try {
      const values = Object.fromEntries(Object.entries(settings).filter(([, v]) => v !== "" && v !== false && v !== null));
      const run = await post("/api/trainings", { data: selected, name: name || defaultName, options: values });
      refresh();
      go("run", run.id);
    } catch (error) {
      setProblem(error.message);
    }
    setBusy(false);
  };
  const flags = Object.entries(settings).filter(([, v]) => v !== "" && v !== false && v !== null).map(([k, v]) => (v === true ? `--${k}` : `--${k} ${v}`));
  const fields = studio.form.filter((f) => !FIRST.includes(f.name));
  const groups = [...(data?.local.length ? data.local.map((d) => [d.id, `${d.name} (in this folder)`]) : []), ...(data?.builtin ?? []).map((d) => [d.name, d.name])];
  return html`
    <div class="pagehead"><h1>New training</h1><p class="lead">Training runs in its own process and continues when the page or the studio is closed.</p></div>
    <${Problem} message=${problem} />
    <form class="panel formpage" onSubmit=${start}>
      <div class="fields">
        <${Select} label="Data" value=${selected} options=${groups.length ? groups : [selected]} change=${(v) => setQuery({ data: v })} hint=${description.problem ?? [data?.builtin.find((d) => d.name === selected)?.about, kind && `Kind of data: ${kind}.`].filter(Boolean).join(" ")} />
        <${TextInput} label="Run name" value=${name} placeholder=${defaultName} change=${setName} />
        ${studio.form.filter((f) => FIRST.includes(f.name)).map((f) => html`<${FormField} key=${f.name} field=${f} value=${f.name === "family" && !isSupported ? "" : options[f.name]} change=${set(f.name)} studio=${studio} kind=${kind} />`)}
      </div>
      <details class="more"><summary>Other options</summary><div class="fields">${fields.map((f) => html`<${FormField} key=${f.name} field=${f} value=${options[f.name]} change=${set(f.name)} studio=${studio} />`)}</div></details>
      <div class="actions"><button type="submit" class="main" disabled=${busy || description.data !== selected}>Start training</button></div>
    </form>
    <${Code} title="Command" text=${`reverie train ${localData ? localData.name : selected} --out runs/${name || defaultName} ${flags.join(" ")}`} />`;
}
