// The page Points: an animation from noise to data, vector fields, the density, and trajectories of single points.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { startJob, unpackFloats } from "./client.js";
import { Code, Empty, JobProgress, Notes, NumberInput, Problem, RunSelect, Tabs, Unsuitable, selectRun, useJob, withSymbols } from "./components.js";
import { axesOf, limitsOf, paint } from "./plots.js";
import { setQuery } from "./state.js";
import { DemoControl, Panels, Plot2DPanel, useDemo } from "./demos.js";
import { SamplingControls, sampleRequest } from "./sample.js";
import { useRun } from "./run.js";

const SECONDS = 3.5; // of an animation

function Animation({ frames, scene, at, setAt, playing, play }) {
  const canvas = useRef();
  const latest = useRef({});
  latest.current = { frames, scene, at };
  const show = (position) => canvas.current && latest.current.frames.length && paint(canvas.current, latest.current.scene(interpolate(latest.current.frames, position)));
  useEffect(() => {
    if (!playing) show(at);
  });
  useEffect(() => {
    if (!playing) return undefined;
    let position = latest.current.at;
    let before = performance.now();
    let updated = before;
    let request = requestAnimationFrame(function move(time) {
      const last = latest.current.frames.length - 1;
      position = Math.min(last, position + (Math.max(0, time - before) / 1000 / SECONDS) * last);
      before = time;
      show(position);
      if (position >= last || time - updated > 100) {
        setAt(position); // the slider moves ten times a second, the points at every frame
        updated = time;
      }
      if (position < last) request = requestAnimationFrame(move);
      else play(false);
    });
    return () => cancelAnimationFrame(request);
  }, [playing]);
  useEffect(() => {
    const repaint = () => show(latest.current.at);
    const observer = new ResizeObserver(repaint);
    observer.observe(canvas.current);
    addEventListener("themechange", repaint);
    return () => (observer.disconnect(), removeEventListener("themechange", repaint));
  }, []);
  return html`<figure class="plot2d"><canvas ref=${canvas} role="img" aria-label="Trajectories of points from noise to data"></canvas></figure>`;
}

/** The points at a position between two frames. */
function interpolate(frames, position) {
  const k = Math.min(frames.length - 1, Math.floor(position));
  const share = position - k;
  const [a, b] = [frames[k].x, frames[Math.min(frames.length - 1, k + 1)].x];
  if (!share || a.length !== b.length) return a;
  const out = new Float32Array(a.length);
  for (let i = 0; i < a.length; i++) out[i] = a[i] + share * (b[i] - a[i]);
  return out;
}

function AnimationTab({ run, query, studio }) {
  const job = useJob();
  const [frames, setFrames] = useState([]);
  const [at, setAt] = useState(0);
  const [playing, play] = useState(false);
  const [limits, setLimits] = useState([-3, 3]);
  const [start, setStart] = useState(null);
  const sample = () => {
    const request = sampleRequest({ ...query, n: query.n ?? 2000 }, run);
    const received = [];
    play(false);
    setFrames([]);
    job.run(startJob("sample", request, {
      ...job.on, start: setStart,
      frame: (f) => {
        received.push({ t: f.t, x: unpackFloats(f.x) });
        if (received.length === 1) setLimits(limitsOf(received[0].x));
        job.on.progress({ label: `t = ${f.t.toFixed(2)}`, done: f.step + 1, total: f.steps });
        setFrames([...received]);
        setAt(received.length - 1);
      },
    }), (result) => {
      setFrames([...received, { t: 0, x: unpackFloats(result.points) }]);
      setAt(0);
      play(true);
    });
  };
  const scene = (points) => ({ limits, axes: axesOf(run), dots: [{ points, colour: 0, size: 2, alpha: 0.75 }] });
  const t = frames.length ? frames[Math.min(frames.length - 1, Math.round(at))].t : 1;
  return html`<div class="columns">
    <form class="panel controls" onSubmit=${(e) => (e.preventDefault(), sample())}>
      <${NumberInput} label="Points" value=${query.n ?? 2000} low=${1} high=${5000} change=${(v) => setQuery({ n: v })} />
      <${SamplingControls} query=${query} run=${run} studio=${studio} />
      <div class="actions"><button type="submit" class="main">Sample</button>${job.busy && html`<button type="button" onClick=${job.cancel}>Stop</button>`}</div>
      <${JobProgress} job=${job} />
    </form>
    <div class="results"><${Problem} message=${job.problem} /><${Notes} notes=${job.warnings} />
      ${frames.length ? html`<section class="panel narrow"><${Animation} frames=${frames} scene=${scene} at=${at} setAt=${setAt} playing=${playing} play=${play} />
        <div class="time"><button type="button" class="quiet" aria-label=${playing ? "Pause" : "Play"} onClick=${() => (at >= frames.length - 1 && setAt(0), play(!playing))}>${playing ? "❚❚" : "▶"}</button>
        <input type="range" min="0" max=${frames.length - 1} step="0.01" value=${at} aria-label="Time" aria-valuetext="t = ${t.toFixed(2)}" onInput=${(e) => (play(false), setAt(Number(e.target.value)))} /><output>t = ${t.toFixed(2)}</output></div></section>
        <${Code} title="Command" text=${start?.command} />`
      : !job.busy && html`<div class="panel quietpanel"><p>Press <b>Sample</b> to see points move from noise at t = 1 to data at t = 0.</p></div>`}
    </div></div>`;
}

function DemoTab({ name, run, query, studio }) {
  const demo = studio.demos.find((d) => d.name === name);
  const { values, set, result, job } = useDemo(demo, query, run);
  const [first, ...rest] = result?.panels ?? [];
  const noiseOf = (v, k) => Math.max(-3, Math.min(3, (v - first.origin[k]) / first.unit[k])); // in standard deviations
  const click = name === "paths" ? (point) => set("noise", "points")([point.map(noiseOf)]) : undefined;
  const controls = demo.controls.filter((c) => c.kind !== "points");
  return html`<div class="columns">
    <div class="panel controls">${controls.map((c, k) => html`<${DemoControl} key=${c.name} control=${c} value=${values[c.name]} change=${set(c.name, c.kind)} run=${run} index=${k} />`)}
      <p class="hint">${withSymbols(demo.text)}</p><${JobProgress} job=${job} label=${name === "density" ? "integrating the probability flow" : "computing"} /></div>
    <div class="results"><${Problem} message=${job.problem} />
      ${first && html`<section class="panel ${first.kind === "plot2d" ? "narrow" : ""}">${first.kind === "plot2d" ? html`<${Plot2DPanel} panel=${first} click=${click} />` : html`<${Panels} panels=${[first]} />`}${name === "paths" && html`<p class="hint">Click the plot to choose the initial noise.</p>`}<${Panels} panels=${rest} /></section>`}
      <${Code} title="Command" text=${demo.command.replace("RUN", run.path)} /></div></div>`;
}

/** Why a run cannot be shown in 2-D, or "". */
const unsuitable = (run) => (run.kind === "points" && run.shape[0] === 2 ? "" : `its data are ${run.kind === "points" ? `points with ${run.shape[0]} columns` : run.kind}, and this page needs points with two columns`);

export function Points({ here, studio, runs }) {
  const selection = selectRun(runs, here.query.run, unsuitable);
  const run = useRun(selection.id);
  const tabs = [["animation", "Animation"], ["field", "Vector fields"], ["density", "Density"], ["paths", "Trajectories"]].filter(([t]) => t === "animation" || run?.abilities.includes("sampler"));
  const requested = here.query.tab || "animation";
  const tab = !run || tabs.some(([t]) => t === requested) ? requested : "animation";
  const head = html`<div class="pagehead"><h1>Points</h1><p class="lead">How a model of 2-D points turns noise into data.</p></div>`;
  if (selection.why) return html`${head}<${Unsuitable} selection=${selection} />`;
  if (!selection.id) return html`<${Empty} title="No run of 2-D points"><p><a href="#/train?data=spiral">Train one on the dataset spiral</a>.</p><//>`;
  return html`${head}
    <div class="row wide"><${Tabs} label="View" tabs=${tabs} value=${tab} change=${(v) => setQuery({ tab: v })} /><${RunSelect} selection=${selection} /></div>
    ${tab !== requested && html`<${Notes} notes=${[`The family ${run.family} does not use a sampler, so this tab is not available: ${requested}.`]} />`}
    ${run && (tab === "animation" ? html`<${AnimationTab} key=${selection.id} run=${run} query=${{ ...here.query, run: selection.id }} studio=${studio} />` : html`<${DemoTab} key=${tab + selection.id} name=${tab} run=${run} query=${here.query} studio=${studio} />`)}`;
}
