// The parts that every page is made of.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { choose } from "./state.js";

let numbers = 0;
const useId = () => useRef(`f${++numbers}`).current;

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

export function clock(seconds) {
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
  const take = (event) => {
    const number = Number(event.target.value);
    if (event.target.value !== "" && Number.isFinite(number)) change(number);
  };
  return html`<${Field} label=${label} hint=${hint} id=${id}>
    <div class="slider">
      <input type="range" id=${id} min=${low} max=${high} step=${step} value=${value} onInput=${take} disabled=${disabled} />
      <input type="number" aria-label="${label}, as a number" min=${low} max=${high} step=${step} value=${value}
        onChange=${take} disabled=${disabled} />
    </div>
  <//>`;
}

export function Number_({ label, value, change, hint, low, high, step = 1, placeholder }) {
  const id = useId();
  return html`<${Field} label=${label} hint=${hint} id=${id}>
    <input type="number" id=${id} min=${low} max=${high} step=${step} value=${value} placeholder=${placeholder}
      onInput=${(e) => change(e.target.value === "" ? "" : Number(e.target.value))} />
  <//>`;
}

export function Text({ label, value, change, hint, placeholder }) {
  const id = useId();
  return html`<${Field} label=${label} hint=${hint} id=${id}>
    <input type="text" id=${id} value=${value} placeholder=${placeholder} spellcheck=${false} autocomplete="off"
      onInput=${(e) => change(e.target.value)} />
  <//>`;
}

/** options: [value, text] pairs, or words. */
export function Select({ label, value, options, change, hint }) {
  const id = useId();
  const pairs = options.map((o) => (Array.isArray(o) ? o : [o, o]));
  return html`<${Field} label=${label} hint=${hint} id=${id}>
    <select id=${id} value=${value} onChange=${(e) => change(e.target.value)}>
      ${pairs.map(([v, text]) => html`<option value=${v} selected=${v === value}>${text}</option>`)}
    </select>
  <//>`;
}

/** A name of a table with its options, as the command line takes it: name:key=value. */
export function Spec({ label, table, value = "", change, none = "what suits the run" }) {
  const [name, ...rest] = value.split(":");
  const entry = table.find((e) => e.name === name);
  const options = entry ? Object.entries(entry.options) : [];
  const shown = options.map(([k, v]) => `${k}=${v ?? "…"}`).join(",");
  return html`<div class="spec">
    <${Select} label=${label} value=${name} options=${[["", none], ...table.map((e) => [e.name, e.name])]}
      change=${change} hint=${entry?.about} />
    ${options.length > 0 && html`<${Text} label="Options of ${name}" value=${rest.join(":")} placeholder=${shown}
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

export function Progress({ what, done, of }) {
  const share = of ? Math.min(1, done / of) : 0;
  return html`<div class="progress">
    <div class="bar" role="progressbar" aria-label=${what || "progress"} aria-valuemin="0" aria-valuemax="100"
      aria-valuenow=${Math.round(share * 100)}><div style=${{ width: `${share * 100}%` }}></div></div>
    <span class="soft">${what}</span>
  </div>`;
}

/** How far the work is; the place is kept free when there is none, so that nothing jumps. */
export function Working({ running, what = "beginning" }) {
  return html`<div class="slot">${running.busy && html`<${Progress} ...${running.progress || { what, done: 0, of: 1 }} />`}</div>`;
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
      ${copied ? "copied" : "copy"}</button></figcaption>
    <pre tabindex="0"><code>${text}</code></pre>
  </figure>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><h2>${title}</h2>${children}</div>`;
}

/** Why a run cannot be used at all, or "". */
const unusable = (run) => (run.problem ? `it cannot be used: ${run.problem}` : run.preparing ? "its training has not got so far yet" : "");

/**
 * The run that a page works on: that of the address, or the first that fits where the address has none.  A run that does not
 * fit is never replaced by another one.  lacks: says why a run does not fit, "" where it does.
 */
export function chosenRun(runs, asked, lacks = () => "") {
  const fitting = runs.filter((run) => !unusable(run) && !lacks(run));
  const found = runs.find((run) => run.id === asked);
  const why = !asked ? "" : found ? unusable(found) || lacks(found) : "it is no longer in the folder";
  return { id: why ? "" : found?.id ?? fitting[0]?.id ?? "", fitting, why, name: found?.name ?? "This run" };
}

/** Says why the run of the address does not fit, and offers those that do. */
export function Unfit({ chosen }) {
  return html`<div class="problem" role="alert"><p><b>${chosen.name}</b> does not fit here: ${chosen.why}.</p>
    ${chosen.fitting.length ? html`<p>Choose one that does:</p><div class="actions">${chosen.fitting.slice(0, 12).map((run) => html`<button type="button" onClick=${() => choose({ run: run.id })}>${run.name}</button>`)}</div>`
      : html`<p>No run in the folder does. <a href="#/train">Train one</a>.</p>`}</div>`;
}

/** The choice of one of the runs that fit. */
export function RunSelect({ chosen, change = (run) => choose({ run }) }) {
  return html`<${Select} label="Run" value=${chosen.id} change=${change} options=${chosen.fitting.map((run) => [run.id, run.name])} />`;
}

/** One image of an atlas: row and column k, each height x width. */
export function Tile({ image, k, row = 0, width, height, alt }) {
  const canvas = useRef();
  useEffect(() => {
    if (!image || !canvas.current) return;
    const context = canvas.current.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.clearRect(0, 0, width, height);
    context.drawImage(image, k * width, row * height, width, height, 0, 0, width, height);
  }, [image, k, row, width, height]);
  const told = alt ? { role: "img", "aria-label": alt } : { "aria-hidden": "true" }; // what holds it says what it is
  return html`<canvas class="pixels" ref=${canvas} width=${width} height=${height} ...${told}></canvas>`;
}

/** A picture as the server sent it, enlarged without blur. */
export function Picture({ src, alt, class: extra = "" }) {
  return src ? html`<img class="pixels ${extra}" src=${src} alt=${alt} />` : null;
}

export function download(href, name) {
  const link = document.createElement("a");
  link.href = href;
  link.download = name;
  link.click();
}

export function useRunning() {
  const [state, set] = useState({ busy: false, progress: null, problem: "", notes: [] });
  const current = useRef(null);
  useEffect(() => () => current.current?.cancel(), []);
  const begin = async (started, on = () => {}) => {
    current.current?.cancel();
    current.current = started;
    set({ busy: true, progress: null, problem: "", notes: [] });
    try {
      const found = await started.done;
      if (current.current === started) set({ busy: false, progress: null, problem: "", notes: found.notes ?? [] });
      on(found);
      return found;
    } catch (error) {
      if (error.name !== "AbortError" && current.current === started)
        set({ busy: false, progress: null, problem: error.message, notes: [] });
      return null;
    }
  };
  const progress = (value) => set((s) => ({ ...s, progress: value }));
  const cancel = () => {
    current.current?.cancel();
    set({ busy: false, progress: null, problem: "", notes: [] });
  };
  const waits = (q) => q.before > 0 && progress({ what: `waiting for ${q.before} before`, done: 0, of: 1 });
  return { ...state, begin, cancel, on: { progress, queued: waits } };
}
