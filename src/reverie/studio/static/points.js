// Points: thousands of them move from noise to data; the field, the density, and the ways of one point.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { floats, work } from "./net.js";
import { Code, Empty, Notes, Number_, Problem, Working, RunSelect, Tabs, Unfit, chosenRun, useRunning } from "./parts.js";
import { axesOf, limitsOf, paint } from "./plots.js";
import { choose } from "./state.js";
import { LessonControl, Panels, PlanePanel, useLesson } from "./formulas.js";
import { SamplingControls, wished } from "./draw.js";
import { useRun } from "./run.js";

const SECONDS = 3.5; // that the film of a drawing takes

function Film({ frames, scene, at, setAt, playing, play }) {
  const canvas = useRef();
  const now = useRef({});
  now.current = { frames, scene, at };
  const show = (place) => canvas.current && now.current.frames.length && paint(canvas.current, now.current.scene(between(now.current.frames, place)));
  useEffect(() => {
    if (!playing) show(at);
  });
  useEffect(() => {
    if (!playing) return undefined;
    let place = now.current.at;
    let before = performance.now();
    let told = before;
    let request = requestAnimationFrame(function move(time) {
      const last = now.current.frames.length - 1;
      place = Math.min(last, place + (Math.max(0, time - before) / 1000 / SECONDS) * last);
      before = time;
      show(place);
      if (place >= last || time - told > 100) {
        setAt(place); // the slider follows ten times a second, the points at every frame
        told = time;
      }
      if (place < last) request = requestAnimationFrame(move);
      else play(false);
    });
    return () => cancelAnimationFrame(request);
  }, [playing]);
  useEffect(() => {
    const again = () => show(now.current.at);
    const observer = new ResizeObserver(again);
    observer.observe(canvas.current);
    addEventListener("recoloured", again);
    return () => (observer.disconnect(), removeEventListener("recoloured", again));
  }, []);
  return html`<figure class="plane"><canvas ref=${canvas} role="img" aria-label="Points on their way from noise to data"></canvas></figure>`;
}

/** Where the points are between two frames. */
function between(frames, place) {
  const k = Math.min(frames.length - 1, Math.floor(place));
  const share = place - k;
  const [a, b] = [frames[k].x, frames[Math.min(frames.length - 1, k + 1)].x];
  if (!share || a.length !== b.length) return a;
  const out = new Float32Array(a.length);
  for (let i = 0; i < a.length; i++) out[i] = a[i] + share * (b[i] - a[i]);
  return out;
}

function Moving({ run, query, studio }) {
  const running = useRunning();
  const [frames, setFrames] = useState([]);
  const [at, setAt] = useState(0);
  const [playing, play] = useState(false);
  const [limits, setLimits] = useState([-3, 3]);
  const [start, setStart] = useState(null);
  const draw = () => {
    const wish = wished({ ...query, n: query.n ?? 2000 }, run);
    const mine = [];
    play(false);
    setFrames([]);
    running.begin(work("draw", wish, {
      ...running.on, start: setStart,
      frame: (f) => {
        mine.push({ t: f.t, x: floats(f.x), x0: floats(f.x0) });
        if (mine.length === 1) setLimits(limitsOf(mine[0].x));
        running.on.progress({ what: `t = ${f.t.toFixed(2)}`, done: f.i + 1, of: f.of });
        setFrames([...mine]);
        setAt(mine.length - 1);
      },
    }), (found) => {
      setFrames([...mine, { t: 0, x: floats(found.points) }]);
      setAt(0);
      play(true);
    });
  };
  const scene = (points) => ({ limits, axes: axesOf(run), dots: [{ points, colour: 0, size: 2, alpha: 0.75 }] });
  const t = frames.length ? frames[Math.min(frames.length - 1, Math.round(at))].t : 1;
  return html`<div class="columns">
    <form class="panel controls" onSubmit=${(e) => (e.preventDefault(), draw())}>
      <${Number_} label="How many points" value=${query.n ?? 2000} low=${1} high=${5000} change=${(v) => choose({ n: v })} />
      <${SamplingControls} query=${query} run=${run} studio=${studio} />
      <div class="actions"><button type="submit" class="main">Draw</button>${running.busy && html`<button type="button" onClick=${running.cancel}>Stop</button>`}</div>
      <${Working} running=${running} />
    </form>
    <div class="results"><${Problem} message=${running.problem} /><${Notes} notes=${running.notes} />
      ${frames.length ? html`<section class="panel narrow"><${Film} frames=${frames} scene=${scene} at=${at} setAt=${setAt} playing=${playing} play=${play} />
        <div class="time"><button type="button" class="quiet" aria-label=${playing ? "Stop the film" : "Play the film"} onClick=${() => (at >= frames.length - 1 && setAt(0), play(!playing))}>${playing ? "❚❚" : "▶"}</button>
        <input type="range" min="0" max=${frames.length - 1} step="0.01" value=${at} aria-label="Time" aria-valuetext="t = ${t.toFixed(2)}" onInput=${(e) => (play(false), setAt(Number(e.target.value)))} /><output>t = ${t.toFixed(2)}</output></div></section>
        <${Code} title="The same in a terminal" text=${start?.command} />`
      : !running.busy && html`<div class="panel quietpanel"><p>Press <b>Draw</b>: every point starts as noise and follows the model to where the data are.</p></div>`}
    </div></div>`;
}

function LessonPart({ name, run, query, studio }) {
  const lesson = studio.lessons.find((l) => l.name === name);
  const { values, set, found, running } = useLesson(lesson, query, run);
  const [first, ...rest] = found?.panels ?? [];
  const noise = (v, k) => (v - first.origin[k]) / first.unit[k]; // in standard deviations of the noise
  const click = name === "paths" ? (p) => set("noise", "points")([p.map((v, k) => Math.max(-3, Math.min(3, noise(v, k))))]) : undefined;
  const controls = lesson.controls.filter((c) => c.kind !== "points");
  return html`<div class="columns">
    <div class="panel controls">${controls.map((c, k) => html`<${LessonControl} key=${c.name} control=${c} value=${values[c.name]} change=${set(c.name, c.kind)} run=${run} index=${k} />`)}
      <p class="hint">${lesson.text}</p><${Working} running=${running} what=${name === "density" ? "following the flow" : "working it out"} /></div>
    <div class="results"><${Problem} message=${running.problem} />
      ${first && html`<section class="panel ${first.kind === "plot2d" ? "narrow" : ""}">${first.kind === "plot2d" ? html`<${PlanePanel} panel=${first} click=${click} />` : html`<${Panels} panels=${[first]} />`}${name === "paths" && html`<p class="hint">Press anywhere to start there.</p>`}<${Panels} panels=${rest} /></section>`}
      <${Code} title="The same in a terminal" text=${lesson.command.replace("RUN", run.here)} /></div></div>`;
}

/** Why a run is not shown in the plane, or "". */
const unplanar = (run) => (run.kind === "points" && run.shape[0] === 2 ? "" : `it draws ${run.kind === "points" ? `points of ${run.shape[0]} columns` : run.kind}, and this page needs points of two columns`);

export function Points({ here, studio, runs }) {
  const chosen = chosenRun(runs, here.query.run, unplanar);
  const run = useRun(chosen.id);
  const tabs = [["moving", "Moving"], ["field", "Field"], ["density", "Density"], ["paths", "Ways of one point"]].filter(([t]) => t === "moving" || run?.can.includes("sampler"));
  const asked = here.query.show || "moving";
  const show = !run || tabs.some(([t]) => t === asked) ? asked : "moving";
  const head = html`<div class="pagehead"><h1>Points</h1><p class="lead">Noise becomes data, in the open.</p></div>`;
  if (chosen.why) return html`${head}<${Unfit} chosen=${chosen} />`;
  if (!chosen.id) return html`<${Empty} title="No run of points yet"><p>Points in the plane show everything at once. <a href="#/train?data=spiral">Train one on the spiral</a>.</p><//>`;
  return html`${head}
    <div class="row wide"><${Tabs} label="What is shown" tabs=${tabs} value=${show} change=${(v) => choose({ show: v })} /><${RunSelect} chosen=${chosen} /></div>
    ${show !== asked && html`<${Notes} notes=${[`The family ${run.family} is not drawn by a sampler, which this needs: ${asked}.`]} />`}
    ${run && (show === "moving" ? html`<${Moving} key=${chosen.id} run=${run} query=${{ ...here.query, run: chosen.id }} studio=${studio} />` : html`<${LessonPart} key=${show + chosen.id} name=${show} run=${run} query=${here.query} studio=${studio} />`)}`;
}
