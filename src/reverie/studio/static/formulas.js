// Formulas: a chapter for each idea, acting on the chosen run or on what is moved by hand.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { picture, work } from "./net.js";
import { Code, Empty, Notes, Number_, Picture, Problem, Progress, RunSelect, Select, Slider, Text, Unfit, chosenRun, useRunning } from "./parts.js";
import { Bars, Chart, Plane } from "./plots.js";
import { address, choose } from "./state.js";
import { useRun } from "./run.js";
import { usePicture } from "./steer.js";

const sampled = (run) => (run.can.includes("sampler") ? "" : `the family ${run.family} is not drawn by a sampler`);
/** Why a chapter cannot act on a run, or "", by what the chapter is of. */
const LACKS = {
  any: () => "", nothing: () => "", diffusion: sampled,
  labels: (run) => sampled(run) || (run.can.includes("guidance") && run.classes > 0 ? "" : "it was trained without labels"),
  points2d: (run) => sampled(run) || (run.kind === "points" && run.shape[0] === 2 ? "" : "its data are not points of two columns"),
};

function Draggable({ control, value, change, colour }) {
  const scene = { limits: [control.low, control.high], dots: [{ points: value.flat(), colour, size: 6 }] };
  const held = useRef(-1);
  const at = (event) => {
    const box = event.currentTarget.querySelector("canvas").getBoundingClientRect();
    const span = control.high - control.low;
    return [control.low + ((event.clientX - box.left) / box.width) * span, control.high - ((event.clientY - box.top) / box.height) * span];
  };
  const down = (event) => {
    const [x, y] = at(event);
    const off = value.map(([u, v]) => Math.hypot(u - x, v - y));
    held.current = held.last = off.indexOf(Math.min(...off));
    event.currentTarget.setPointerCapture(event.pointerId);
  };
  const move = (event) => {
    if (held.current < 0) return;
    const clamp = (v) => Math.round(1000 * Math.max(control.low, Math.min(control.high, v))) / 1000;
    change(value.map((p, k) => (k === held.current ? at(event).map(clamp) : p)));
  };
  const key = (event) => {
    const step = { ArrowLeft: [-0.05, 0], ArrowRight: [0.05, 0], ArrowUp: [0, 0.05], ArrowDown: [0, -0.05] }[event.key];
    if (!step) return;
    event.preventDefault();
    const k = held.last ?? 0;
    change(value.map((p, j) => (j === k ? [p[0] + step[0], p[1] + step[1]].map((v) => Math.max(control.low, Math.min(control.high, v))) : p)));
  };
  return html`<div class="drag" tabindex="0" role="application" aria-label="${control.label}: drag a point, or move the first one by arrow keys" onPointerDown=${down} onPointerMove=${move} onPointerUp=${() => (held.current = -1)} onKeyDown=${key}>
    <${Plane} scene=${scene} title="${control.label}, drag" /></div>`;
}

function Cells({ control, value, change }) {
  const turn = (i, j) => change(value.map((row, k) => row.map((c, l) => (k === i && l === j ? 1 - c : c))));
  return html`<div class="field"><span class="hint">${control.label}: press to mark or clear</span><div class="cells" style=${{ gridTemplateColumns: `repeat(${value[0].length}, 1fr)` }}>
    ${value.map((row, i) => row.map((c, j) => html`<button type="button" aria-pressed=${!!c} aria-label="Row ${i + 1}, column ${j + 1}" onClick=${() => turn(i, j)}></button>`))}</div></div>`;
}

export function LessonControl({ control, value, change, run, index }) {
  switch (control.kind) {
    case "slider": return html`<${Slider} label=${control.label} value=${value} low=${control.low} high=${control.high} step=${control.step} change=${change} />`;
    case "integer": return control.high - control.low > 200 ? html`<${Number_} label=${control.label} value=${value} low=${control.low} high=${control.high} change=${(v) => v !== "" && change(v)} />`
      : html`<${Slider} label=${control.label} value=${value} low=${control.low} high=${control.high} step=${1} change=${change} />`;
    case "text": return html`<${Text} label=${control.label} value=${value} change=${change} />`;
    case "points": return html`<${Draggable} control=${control} value=${value} change=${change} colour=${index % 2} />`;
    case "matrix": return html`<${Cells} control=${control} value=${value} change=${change} />`;
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

/** A plane that may have a picture below it, which must be loaded first. */
export function PlanePanel({ panel, click }) {
  const [background, set] = useState(null);
  useEffect(() => {
    if (panel.background) picture(panel.background).then(set, () => set(null));
  }, [panel.background]);
  return html`<${Plane} title=${panel.title} scene=${{ ...panel, background }} click=${click} />`;
}

export function Panels({ panels }) {
  return html`<div class="panels">${panels.map((p) => {
    switch (p.kind) {
      case "images": return html`<div>${p.title && html`<h2>${p.title}</h2>`}<div class="items ${p.large ? "large" : ""}">${p.items.map((i) => html`<figure><${Picture} src=${i.image} alt=${i.title} /><figcaption>${i.title}</figcaption></figure>`)}</div></div>`;
      case "curves": return html`<${Chart} title=${p.title} x=${p.x} series=${p.series} xlabel=${p.xlabel} log=${p.log} mark=${p.mark ?? undefined} />`;
      case "bars": return html`<${Bars} title=${p.title} items=${p.items} unit=${p.unit} />`;
      case "text": return html`<ul class="sayings">${p.lines.map((l) => html`<li>${l}</li>`)}</ul>`;
      case "plot2d": return html`<div class="items large"><${PlanePanel} panel=${p} /></div>`;
      case "plots2d": return html`<div class="items large">${p.items.map((one) => html`<${PlanePanel} panel=${one} />`)}</div>`;
      case "formula": return html`<${Formula} source=${p.formula} />`;
      case "graph": return html`<${Graph} panel=${p} />`;
      default: return null;
    }
  })}</div>`;
}

function Formula({ source }) {
  const place = useRef();
  useEffect(() => {
    place.current.replaceChildren(new DOMParser().parseFromString(source, "text/html").body);
    place.current.replaceChildren(...place.current.firstChild.childNodes);
  }, [source]);
  return html`<div class="formula" ref=${place} tabindex="0" role="group" aria-label="Formula"></div>`;
}

/** Values of controls in the address, where they are short; changed ones are worked out at once. */
export function useLesson(lesson, query, run, own_picture = "") {
  const [own, setOwn] = useState({});
  const running = useRunning();
  const [found, setFound] = useState(null);
  const values = Object.fromEntries(lesson.controls.map((c) => {
    if (own[c.name] !== undefined) return [c.name, own[c.name]];
    const given = query[c.name];
    const number = c.kind === "slider" || c.kind === "integer";
    return [c.name, given === undefined || c.kind === "points" || c.kind === "matrix" ? c.default : number ? Math.max(c.low, Math.min(c.high, Number(given))) : given];
  }));
  const set = (name, kind) => (value) => {
    setOwn((before) => ({ ...before, [name]: value }));
    if (kind !== "points" && kind !== "matrix") choose({ [name]: value });
  };
  const key = JSON.stringify([lesson.name, run?.id, values, own_picture]);
  const timer = useRef();
  useEffect(() => {
    if (lesson.requires !== "nothing" && !run) return undefined;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => {
      const wish = { lesson: lesson.name, values, ...(lesson.requires === "nothing" ? {} : { run: run.id, picture: own_picture }) };
      running.begin(work("lesson", wish, running.on), setFound);
    }, 120);
    return () => clearTimeout(timer.current);
  }, [key]);
  return { values, set, found, running };
}

function Chapter({ lesson, query, runs, studio }) {
  const chosen = chosenRun(runs, lesson.requires === "nothing" ? "" : query.run, LACKS[lesson.requires]);
  const run = useRun(lesson.requires === "nothing" ? "" : chosen.id);
  const mine = usePicture(run?.kind === "images" ? run : null, "lesson");
  const { values, set, found, running } = useLesson(lesson, query, run, mine.own?.picture ?? "");
  const missing = lesson.requires !== "nothing" && !chosen.id;
  const command = lesson.command.replace("RUN", run?.here ?? "RUN").replace("DATA", run?.data ?? "DATA");
  return html`<article class="chapter">
    <h1>${lesson.title}</h1>
    <p class="words">${lesson.text}</p>
    <${Formula} source=${lesson.formula} />${lesson.more_formulas.map((f) => html`<${Formula} source=${f} />`)}
    ${chosen.why ? html`<${Unfit} chosen=${chosen} />` : missing ? html`<${Empty} title="This chapter acts on a run"><p>It needs one that is drawn by a sampler${{ points2d: ", of points in the plane", labels: ", with labels" }[lesson.requires] ?? ""}. <a href="#/train">Train one</a>.</p><//>` : html`
    <div class="panel">
      <div class="chaptercontrols">${lesson.requires !== "nothing" && html`<${RunSelect} chosen=${chosen} />`}
        ${lesson.controls.map((c, k) => html`<${LessonControl} key=${c.name} control=${c} value=${values[c.name]} change=${set(c.name, c.kind)} run=${run} index=${k} />`)}
        ${run?.kind === "images" && lesson.controls.some((c) => c.name === "number") && html`<div class="field"><label for="own">Or an image of your own</label><input type="file" id="own" accept="image/*" onChange=${(e) => mine.take(e.target.files[0])} /></div>`}</div>
      <${Problem} message=${running.problem || mine.running.problem} />
      ${running.busy && !found && html`<${Progress} what="working it out" done=${0} of=${1} />`}
    </div>
    ${found && html`<section class="panel" aria-label="The formula at work" aria-busy=${running.busy}><${Panels} panels=${found.panels} /><${Notes} notes=${found.notes} /></section>`}`}
    <${Code} title="The same in a terminal" text=${command} />
  </article>`;
}

export function Formulas({ here, studio, runs }) {
  const lessons = studio.lessons.filter((l) => !l.hidden);
  const lesson = lessons.find((l) => l.name === here.arg) || lessons[0];
  return html`<div class="chapters">
    <nav aria-label="Chapters">${lessons.map((l) => html`<a href=${address("formulas", l.name, here.query.run ? { run: here.query.run } : {})} aria-current=${l === lesson ? "page" : undefined}>${l.title}</a>`)}</nav>
    <${Chapter} key=${lesson.name} lesson=${lesson} query=${here.query} runs=${runs} studio=${studio} /></div>`;
}
