// The page Demos: a formula with controls for each idea, evaluated on a run or on typed input.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { loadImage, startJob } from "./client.js";
import { Code, Empty, Notes, NumberInput, Picture, Problem, Progress, RunSelect, Select, Slider, TextInput, Unsuitable, selectRun, useJob, withSymbols } from "./components.js";
import { Bars, Chart, Plot2D } from "./plots.js";
import { address, setQuery } from "./state.js";
import { useRun } from "./run.js";
import { useUpload } from "./steer.js";

const withoutSampler = (run) => (run.abilities.includes("sampler") ? "" : `the family ${run.family} does not use a sampler`);
/** Why a run does not meet a requirement of a demo, or "". */
const UNSUITABLE = {
  any: () => "", nothing: () => "", diffusion: withoutSampler,
  labels: (run) => withoutSampler(run) || (run.abilities.includes("guidance") && run.classes > 0 ? "" : "it was trained without labels"),
  points2d: (run) => withoutSampler(run) || (run.kind === "points" && run.shape[0] === 2 ? "" : "its data are not points with two columns"),
};

function Draggable({ control, value, change, colour }) {
  const scene = { limits: [control.low, control.high], dots: [{ points: value.flat(), colour, size: 6 }] };
  const dragged = useRef(-1);
  const at = (event) => {
    const box = event.currentTarget.querySelector("canvas").getBoundingClientRect();
    const span = control.high - control.low;
    return [control.low + ((event.clientX - box.left) / box.width) * span, control.high - ((event.clientY - box.top) / box.height) * span];
  };
  const down = (event) => {
    const [x, y] = at(event);
    const distances = value.map(([u, v]) => Math.hypot(u - x, v - y));
    dragged.current = dragged.last = distances.indexOf(Math.min(...distances));
    event.currentTarget.setPointerCapture(event.pointerId);
  };
  const move = (event) => {
    if (dragged.current < 0) return;
    const clamp = (v) => Math.round(1000 * Math.max(control.low, Math.min(control.high, v))) / 1000;
    change(value.map((p, k) => (k === dragged.current ? at(event).map(clamp) : p)));
  };
  const key = (event) => {
    const step = { ArrowLeft: [-0.05, 0], ArrowRight: [0.05, 0], ArrowUp: [0, 0.05], ArrowDown: [0, -0.05] }[event.key];
    if (!step) return;
    event.preventDefault();
    const k = dragged.last ?? 0;
    change(value.map((p, j) => (j === k ? [p[0] + step[0], p[1] + step[1]].map((v) => Math.max(control.low, Math.min(control.high, v))) : p)));
  };
  return html`<div class="drag" tabindex="0" role="application" aria-label="${control.label}: drag a point, or move the last dragged one with the arrow keys" onPointerDown=${down} onPointerMove=${move} onPointerUp=${() => (dragged.current = -1)} onKeyDown=${key}>
    <${Plot2D} scene=${scene} title="${control.label}, drag to move" /></div>`;
}

function Matrix({ control, value, change }) {
  const toggle = (i, j) => change(value.map((row, k) => row.map((c, l) => (k === i && l === j ? 1 - c : c))));
  return html`<div class="field"><span class="hint">${control.label}: click to toggle entries</span><div class="matrix" style=${{ gridTemplateColumns: `repeat(${value[0].length}, 1fr)` }}>
    ${value.map((row, i) => row.map((c, j) => html`<button type="button" aria-pressed=${!!c} aria-label="Row ${i + 1}, column ${j + 1}" onClick=${() => toggle(i, j)}></button>`))}</div></div>`;
}

export function DemoControl({ control, value, change, run, index }) {
  switch (control.kind) {
    case "slider": return html`<${Slider} label=${control.label} value=${value} low=${control.low} high=${control.high} step=${control.step} change=${change} />`;
    case "integer": return control.high - control.low > 200 ? html`<${NumberInput} label=${control.label} value=${value} low=${control.low} high=${control.high} change=${(v) => v !== "" && change(v)} />`
      : html`<${Slider} label=${control.label} value=${value} low=${control.low} high=${control.high} step=${1} change=${change} />`;
    case "text": return html`<${TextInput} label=${control.label} value=${value} change=${change} />`;
    case "points": return html`<${Draggable} control=${control} value=${value} change=${change} colour=${index % 2} />`;
    case "matrix": return html`<${Matrix} control=${control} value=${value} change=${change} />`;
    default: {
      const options = control.choices.length ? control.choices : [["", "none"], ...(run?.labels ?? [])];
      return control.choices.length || run?.labels?.length ? html`<${Select} label=${control.label} value=${value} options=${options} change=${change} />` : null;
    }
  }
}

function Graph({ panel }) {
  const xs = panel.nodes.map((n) => n.x);
  const ys = [...panel.nodes.map((n) => n.y), ...panel.edges.map((e) => e.middle[1])];
  const box = [Math.min(...xs) - 0.6, Math.min(...ys) - 0.5, Math.max(...xs) - Math.min(...xs) + 1.2, Math.max(...ys) - Math.min(...ys) + 1];
  const S = 62;
  const r = 0.26;
  const short = (e) => {
    const mid = [2 * e.middle[0] - (e.from[0] + e.to[0]) / 2, 2 * e.middle[1] - (e.from[1] + e.to[1]) / 2];
    const cut = (p, q) => { const d = Math.hypot(q[0] - p[0], q[1] - p[1]); return [p[0] + ((q[0] - p[0]) * r) / d, p[1] + ((q[1] - p[1]) * r) / d]; };
    const [a, b] = [cut(e.from, mid), cut(e.to, mid)];
    return `M${a[0] * S} ${a[1] * S} Q${mid[0] * S} ${mid[1] * S} ${b[0] * S} ${b[1] * S}`;
  };
  const name = (n) => { const [stem, index] = n.split("_"); return html`${stem}${index && html`<tspan dy="4" font-size="10">${index}</tspan>`}`; };
  return html`<figure><svg class="graph" viewBox=${box.map((v) => v * S).join(" ")} role="img" aria-label="${panel.title}: ${panel.nodes.map((n) => n.name).join(", ")}">
    <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" /></marker></defs>
    ${panel.edges.map((e) => html`<path class=${e.dashed ? "dashed" : ""} d=${short(e)} marker-end="url(#tip)" />${e.elided && !e.dashed && html`<text class="small" x=${e.middle[0] * S} y=${e.middle[1] * S - 9}>…</text>`}`)}
    ${panel.nodes.map((n) => html`<circle class=${n.observed ? "observed" : ""} cx=${n.x * S} cy=${n.y * S} r=${r * S} /><text x=${n.x * S} y=${n.y * S}>${name(n.name)}</text>`)}
  </svg><figcaption>${panel.title}</figcaption></figure>`;
}

/** A 2-D plot, whose background image may still have to load. */
export function Plot2DPanel({ panel, click }) {
  const [background, set] = useState(null);
  useEffect(() => {
    if (panel.background) loadImage(panel.background).then(set, () => set(null));
  }, [panel.background]);
  return html`<${Plot2D} format=${withSymbols} title=${panel.title} scene=${{ ...panel, background }} click=${click} />`;
}

export function Panels({ panels }) {
  return html`<div class="panels">${panels.map((p) => {
    switch (p.kind) {
      case "images": return html`<div>${p.title && html`<h2>${withSymbols(p.title)}</h2>`}<div class="items ${p.large ? "large" : ""}">${p.items.map((i) => html`<figure><${Picture} src=${i.image} alt=${i.title} /><figcaption>${withSymbols(i.title)}</figcaption></figure>`)}</div></div>`;
      case "curves": return html`<${Chart} format=${withSymbols} title=${p.title} x=${p.x} series=${p.series} xlabel=${p.xlabel} log=${p.log} mark=${p.mark ?? undefined} />`;
      case "bars": return html`<${Bars} format=${withSymbols} title=${p.title} items=${p.items} unit=${p.unit} />`;
      case "text": return html`<ul class="textlines">${p.lines.map((l) => html`<li>${withSymbols(l)}</li>`)}</ul>`;
      case "plot2d": return html`<div class="items large"><${Plot2DPanel} panel=${p} /></div>`;
      case "plots2d": return html`<div class="items large">${p.items.map((plot) => html`<${Plot2DPanel} panel=${plot} />`)}</div>`;
      case "formula": return html`<${Formula} source=${p.formula} />`;
      case "graph": return html`<${Graph} panel=${p} />`;
      default: return null;
    }
  })}</div>`;
}

function Formula({ source }) {
  const element = useRef();
  useEffect(() => {
    element.current.replaceChildren(...new DOMParser().parseFromString(source, "text/html").body.childNodes);
  }, [source]);
  return html`<div class="formula" ref=${element} tabindex="0" role="group" aria-label="Formula"></div>`;
}

/** The control values of a demo, stored in the address except for points and matrices, and its result, recomputed after each change. */
export function useDemo(demo, query, run, image = "") {
  const [own, setOwn] = useState({});
  const job = useJob();
  const [result, setResult] = useState(null);
  const isInAddress = (kind) => kind !== "points" && kind !== "matrix";
  const values = Object.fromEntries(demo.controls.map((c) => {
    if (own[c.name] !== undefined) return [c.name, own[c.name]];
    const text = query[c.name];
    const isNumber = c.kind === "slider" || c.kind === "integer";
    return [c.name, text === undefined || !isInAddress(c.kind) ? c.default : isNumber ? Math.max(c.low, Math.min(c.high, Number(text))) : text];
  }));
  const set = (name, kind) => (value) => {
    setOwn((before) => ({ ...before, [name]: value }));
    if (isInAddress(kind)) setQuery({ [name]: value });
  };
  const key = JSON.stringify([demo.name, run?.id, values, image]);
  const timer = useRef();
  useEffect(() => {
    if (demo.requires !== "nothing" && !run) return undefined;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => {
      const request = { demo: demo.name, values, ...(demo.requires === "nothing" ? {} : { run: run.id, image }) };
      job.run(startJob("demo", request, job.on), setResult);
    }, 120);
    return () => clearTimeout(timer.current);
  }, [key]);
  return { values, set, result, job };
}

function Demo({ demo, query, runs }) {
  const needsRun = demo.requires !== "nothing";
  const selection = selectRun(runs, needsRun ? query.run : "", UNSUITABLE[demo.requires]);
  const run = useRun(needsRun ? selection.id : "");
  const upload = useUpload(run?.kind === "images" ? run : null, "demo");
  const { values, set, result, job } = useDemo(demo, query, run, upload.image?.id ?? "");
  const command = demo.command.replace("RUN", run?.path ?? "RUN").replace("DATA", run?.data ?? "DATA");
  return html`<article class="demo">
    <h1>${demo.title}</h1>
    <p class="demotext">${withSymbols(demo.text)}</p>
    <${Formula} source=${demo.formula} />${demo.more_formulas.map((f) => html`<${Formula} source=${f} />`)}
    ${selection.why ? html`<${Unsuitable} selection=${selection} />` : needsRun && !selection.id ? html`<${Empty} title="This demo needs a run"><p>Train one of a diffusion model${{ points2d: " on points with two columns", labels: " with labels" }[demo.requires] ?? ""}: <a href="#/train">new training</a>.</p><//>` : html`
    <div class="panel">
      <div class="democontrols">${needsRun && html`<${RunSelect} selection=${selection} />`}
        ${demo.controls.map((c, k) => html`<${DemoControl} key=${c.name} control=${c} value=${values[c.name]} change=${set(c.name, c.kind)} run=${run} index=${k} />`)}
        ${run?.kind === "images" && demo.controls.some((c) => c.name === "number") && html`<div class="field"><label for="own">Or upload an image</label><input type="file" id="own" accept="image/*" onChange=${(e) => upload.fromFile(e.target.files[0])} /></div>`}</div>
      <${Problem} message=${job.problem || upload.job.problem} />
      ${job.busy && !result && html`<${Progress} label="computing" done=${0} total=${1} />`}
    </div>
    ${result && html`<section class="panel" aria-label="Result" aria-busy=${job.busy}><${Panels} panels=${result.panels} /><${Notes} notes=${result.warnings} /></section>`}`}
    <${Code} title="Command" text=${command} />
  </article>`;
}

export function Demos({ here, studio, runs }) {
  const demos = studio.demos.filter((d) => !d.hidden);
  const demo = demos.find((d) => d.name === here.arg) || demos[0];
  return html`<div class="demos">
    <nav aria-label="Interactive demos">${demos.map((d) => html`<a href=${address("demos", d.name, here.query.run ? { run: here.query.run } : {})} aria-current=${d === demo ? "page" : undefined}>${d.title}</a>`)}</nav>
    <${Demo} key=${demo.name} demo=${demo} query=${here.query} runs=${runs} /></div>`;
}
