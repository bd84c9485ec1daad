// Components that all pages share.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { setQuery } from "./state.js";

let ids = 0;
const useId = () => useRef(`f${++ids}`).current;

/** Text with x_t, x̂_0, sigma and the like as mathematical symbols. */
export const withSymbols = (text) => (text ?? "").replace(/\bsigma(?![a-z])/g, "σ").replace(/\balpha(?![a-z])/g, "α").split(/((?:x̂?|σ|α)_[a-z0-9])/).map((part, k) => {
  if (k % 2 === 0) return part;
  const [symbol, index] = part.split("_");
  return html`<i>${symbol}</i><sub>${index}</sub>`;
});

export const count = (n) => (n ?? 0).toLocaleString("en");

export function ago(seconds) {
  if (seconds < 60) return "just now";
  for (const [size, name] of [[86400, "day"], [3600, "hour"], [60, "minute"]]) {
    const n = Math.floor(seconds / size);
    if (n) return `${n} ${name}${n > 1 ? "s" : ""} ago`;
  }
  return "";
}

export function bytes(n) {
  return n >= 1e9 ? `${(n / 1e9).toFixed(1)} GB` : n >= 1e6 ? `${(n / 1e6).toFixed(1)} MB` : `${Math.ceil(n / 1e3)} kB`;
}

export function duration(seconds) {
  const s = Math.round(seconds);
  return s < 60 ? `${s} s` : `${Math.floor(s / 60)}:${String(s % 60).padStart(2, "0")}`;
}

export function Field({ label, hint, children, id }) {
  return html`<div class="field">
    <label for=${id}>${label}</label>
    ${children}
    ${hint && html`<p class="hint" id="${id}-hint">${hint}</p>`}
  </div>`;
}

export function Slider({ label, value, low = 0, high = 1, step = 0.01, change, hint, disabled }) {
  const id = useId();
  const onInput = (event) => {
    const number = Number(event.target.value);
    if (event.target.value !== "" && Number.isFinite(number)) change(number);
  };
  return html`<${Field} label=${label} hint=${hint} id=${id}>
    <div class="slider">
      <input type="range" id=${id} min=${low} max=${high} step=${step} value=${value} onInput=${onInput} disabled=${disabled} />
      <input type="number" aria-label="${label}, as a number" min=${low} max=${high} step=${step} value=${value}
        onChange=${onInput} disabled=${disabled} />
    </div>
  <//>`;
}

export function NumberInput({ label, value, change, hint, low, high, step = 1, placeholder }) {
  const id = useId();
  return html`<${Field} label=${label} hint=${hint} id=${id}>
    <input type="number" id=${id} min=${low} max=${high} step=${step} value=${value} placeholder=${placeholder}
      onInput=${(e) => change(e.target.value === "" ? "" : Number(e.target.value))} />
  <//>`;
}

export function TextInput({ label, value, change, hint, placeholder }) {
  const id = useId();
  return html`<${Field} label=${label} hint=${hint} id=${id}>
    <input type="text" id=${id} value=${value} placeholder=${placeholder} spellcheck=${false} autocomplete="off"
      onInput=${(e) => change(e.target.value)} />
  <//>`;
}

/** options: [value, text] pairs, or strings. */
export function Select({ label, value, options, change, hint }) {
  const id = useId();
  const pairs = options.map((o) => (Array.isArray(o) ? o : [o, o]));
  return html`<${Field} label=${label} hint=${hint} id=${id}>
    <select id=${id} value=${value} onChange=${(e) => change(e.target.value)}>
      ${pairs.map(([v, text]) => html`<option value=${v} selected=${v === value}>${text}</option>`)}
    </select>
  <//>`;
}

/** A spec of the command line, name:key=value: a name of a table and its options. */
export function Spec({ label, table, value = "", change, none = "default" }) {
  const [name, ...rest] = value.split(":");
  const entry = table.find((e) => e.name === name);
  const options = entry ? Object.entries(entry.options) : [];
  const defaults = options.map(([k, v]) => `${k}=${v ?? "…"}`).join(",");
  return html`<div class="spec">
    <${Select} label=${label} value=${name} options=${[["", none], ...table.map((e) => [e.name, e.name])]}
      change=${change} hint=${entry?.about} />
    ${options.length > 0 && html`<${TextInput} label="Options of ${name}" value=${rest.join(":")} placeholder=${defaults}
      change=${(text) => change(text ? `${name}:${text}` : name)} />`}
  </div>`;
}

export function Check({ label, value, change }) {
  const id = useId();
  return html`<div class="check">
    <input type="checkbox" id=${id} checked=${value} onChange=${(e) => change(e.target.checked)} />
    <label for=${id}>${label}</label>
  </div>`;
}

export function Tabs({ label, tabs, value, change }) {
  return html`<div class="tabs" role="group" aria-label=${label}>
    ${tabs.map(([v, text]) => html`<button type="button" aria-pressed=${v === value} onClick=${() => change(v)}>${text}</button>`)}
  </div>`;
}

export function Progress({ label, done, total }) {
  const share = total ? Math.min(1, done / total) : 0;
  return html`<div class="progress">
    <div class="bar" role="progressbar" aria-label=${label || "progress"} aria-valuemin="0" aria-valuemax="100"
      aria-valuenow=${Math.round(share * 100)}><div style=${{ width: `${share * 100}%` }}></div></div>
    <span class="soft">${label}</span>
  </div>`;
}

/** The progress of a job; its space stays reserved without a job, so that the layout does not shift. */
export function JobProgress({ job, label = "starting" }) {
  return html`<div class="slot">${job.busy && html`<${Progress} ...${job.progress || { label, done: 0, total: 1 }} />`}</div>`;
}

export function Problem({ message, children }) {
  return message ? html`<div class="problem" role="alert"><p>${message}</p>${children}</div>` : null;
}

export function Notes({ notes }) {
  return notes?.length ? html`<ul class="notes">${notes.map((n) => html`<li>${n}</li>`)}</ul>` : null;
}

export function Code({ title, text }) {
  const [copied, set] = useState(false);
  if (!text) return null;
  const copy = async () => {
    await navigator.clipboard?.writeText(text);
    set(true);
    setTimeout(() => set(false), 1500);
  };
  return html`<figure class="code">
    <figcaption>${title}<button type="button" class="quiet" onClick=${copy} aria-label="Copy: ${title}">
      ${copied ? "Copied" : "Copy"}</button></figcaption>
    <pre tabindex="0"><code>${text}</code></pre>
  </figure>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><h2>${title}</h2>${children}</div>`;
}

/** Why a run cannot be used at all, or "". */
const unusable = (run) => (run.problem ? `it cannot be loaded: ${run.problem}` : run.preparing ? "its training has not written a model yet" : "");

/**
 * The run that the address names, or the first suitable run if it names none.  An unsuitable run is never
 * replaced silently.  unsuitable: returns why a run is unsuitable, or "".
 */
export function selectRun(runs, requested, unsuitable = () => "") {
  const suitable = runs.filter((run) => !unusable(run) && !unsuitable(run));
  const match = runs.find((run) => run.id === requested);
  const why = !requested ? "" : match ? unusable(match) || unsuitable(match) : "it is no longer in the folder";
  return { id: why ? "" : match?.id ?? suitable[0]?.id ?? "", suitable, why, name: match?.name ?? "The run" };
}

/** Why the run in the address is unsuitable, with a button for each suitable one. */
export function Unsuitable({ selection }) {
  return html`<div class="problem" role="alert"><p><b>${selection.name}</b> cannot be used here: ${selection.why}.</p>
    ${selection.suitable.length ? html`<p>Choose another run:</p><div class="actions">${selection.suitable.slice(0, 12).map((run) => html`<button type="button" onClick=${() => setQuery({ run: run.id })}>${run.name}</button>`)}</div>`
      : html`<p>The folder has no suitable run. <a href="#/train">Train one</a>.</p>`}</div>`;
}

/** A menu of the suitable runs. */
export function RunSelect({ selection, change = (run) => setQuery({ run }) }) {
  return html`<${Select} label="Run" value=${selection.id} change=${change} options=${selection.suitable.map((run) => [run.id, run.name])} />`;
}

/** One image of an atlas, by its row and column k, each height x width. */
export function Tile({ image, k, row = 0, width, height, alt }) {
  const canvas = useRef();
  useEffect(() => {
    if (!image || !canvas.current) return;
    const context = canvas.current.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.clearRect(0, 0, width, height);
    context.drawImage(image, k * width, row * height, width, height, 0, 0, width, height);
  }, [image, k, row, width, height]);
  const aria = alt ? { role: "img", "aria-label": alt } : { "aria-hidden": "true" }; // without alt, the enclosing button has the label
  return html`<canvas class="pixels" ref=${canvas} width=${width} height=${height} ...${aria}></canvas>`;
}

/** An image from the server, enlarged without smoothing. */
export function Picture({ src, alt, class: extra = "" }) {
  return src ? html`<img class="pixels ${extra}" src=${src} alt=${alt} />` : null;
}

export function download(href, name) {
  const link = document.createElement("a");
  link.href = href;
  link.download = name;
  link.click();
}

/** At most one job at a time: its progress, its warnings and its error. */
export function useJob() {
  const [state, set] = useState({ busy: false, progress: null, problem: "", warnings: [] });
  const current = useRef(null);
  useEffect(() => () => current.current?.cancel(), []);
  const run = async (started, onDone = () => {}) => {
    current.current?.cancel();
    current.current = started;
    set({ busy: true, progress: null, problem: "", warnings: [] });
    try {
      const result = await started.done;
      if (current.current === started) set({ busy: false, progress: null, problem: "", warnings: result.warnings ?? [] });
      onDone(result);
      return result;
    } catch (error) {
      if (error.name !== "AbortError" && current.current === started)
        set({ busy: false, progress: null, problem: error.message, warnings: [] });
      return null;
    }
  };
  const progress = (value) => set((s) => ({ ...s, progress: value }));
  const cancel = () => {
    current.current?.cancel();
    set({ busy: false, progress: null, problem: "", warnings: [] });
  };
  const queued = ({ ahead }) => ahead > 0 && progress({ label: `queued, ${ahead} job${ahead > 1 ? "s" : ""} ahead`, done: 0, total: 1 });
  return { ...state, run, cancel, on: { progress, queued } };
}
