// The page of a run: its state, its curves, previews and settings.
import { html, useEffect, useState } from "./vendor/preact.js";
import { get, monitor, post } from "./client.js";
import { Code, NumberInput, Problem, Progress, ago, bytes, count, duration } from "./components.js";
import { Chart } from "./plots.js";
import { go } from "./state.js";

/** The details of a run, reloaded when the id changes. */
export function useRun(id) {
  const [run, set] = useState(null);
  useEffect(() => {
    set(null);
    if (!id) return undefined;
    let here = true;
    get(`/api/runs/${id}`).then((details) => here && set(details), () => here && set(null));
    return () => {
      here = false;
    };
  }, [id]);
  return run && run.id === id ? run : null;
}

/** A setting as text; nested settings as key=value. */
const format = (v) => (Array.isArray(v) ? v.map(format).join(", ") || "none" : v && typeof v === "object" ? Object.entries(v).map(([k, value]) => `${k}=${format(value)}`).join(", ") : String(v));

/** Whether the training of a run is queued. */
const isQueued = (run) => run.queued !== null && run.queued !== undefined;

const LEVELS = ["low noise", "medium noise", "high noise", "almost pure noise"];

export function Curves({ run }) {
  const rows = run.metrics || [];
  const [checked, x] = [rows.filter((r) => r.held_out !== undefined), rows.map((r) => r.i)];
  if (!rows.length) return null;
  const unit = checked.find((r) => r.unit)?.unit;
  const held = rows.map((r) => r.held_out ?? null);
  return html`<div class="charts">
    <${Chart} title=${unit ? `Training loss, and held-out set in ${unit}` : "Loss on training batches and on the held-out set"} x=${x} xlabel="step" log=${!unit}
      series=${[{ name: "training", y: rows.map((r) => r.loss ?? null), k: 7 }, { name: "held-out set", y: held, k: 0, width: 2.5 }]} />
    ${checked[0]?.held_out_levels && html`<${Chart} title="Held-out loss by noise level" x=${checked.map((r) => r.i)} xlabel="step" log
      series=${LEVELS.map((name, k) => ({ name, y: checked.map((r) => r.held_out_levels?.[k] ?? null), k }))} />`}
  </div>`;
}

function Previews({ run }) {
  const [k, set] = useState(-1);
  const names = run.previews || [];
  if (!names.length) return null;
  const at = k < 0 || k >= names.length ? names.length - 1 : k;
  const step = Number(names[at].match(/\d+/)[0]);
  return html`<section class="panel"><div class="row"><h2>Previews</h2><span class="soft">the same seeds at step ${count(step)}: EMA weights, raw weights, nearest training data</span></div>
    <img class="sheet" src="/api/runs/${run.id}/preview/${names[at]}" alt="Previews at step ${step}" />
    ${names.length > 1 && html`<div class="time"><input type="range" min="0" max=${names.length - 1} value=${at} aria-label="Step of the preview" aria-valuetext="step ${step}" onInput=${(e) => set(Number(e.target.value))} /><output>step ${count(step)}</output></div>`}
  </section>`;
}

export function RunPage({ here, refresh }) {
  const [run, set] = useState(null);
  const [problem, setProblem] = useState("");
  const [more, setMore] = useState(5);
  const [again, setAgain] = useState(0);
  const id = here.arg;
  useEffect(() => {
    let stop = () => {};
    get(`/api/runs/${id}`).then(
      (details) => {
        set(details);
        if (details.training || isQueued(details)) stop = monitor(id, (next) => (set(next), next.training || isQueued(next) || refresh()));
      },
      (error) => setProblem(error.message),
    );
    return () => stop();
  }, [id, again]);
  const act = (what, body) => post(`/api/runs/${id}/${what}`, body).then(() => (setProblem(""), setTimeout(() => setAgain(again + 1), 1500)), (e) => setProblem(e.message));
  if (!run) return html`<${Problem} message=${problem} />${!problem && html`<p class="loading">Loading …</p>`}`;
  const last = run.metrics?.[run.metrics.length - 1];
  const finished = run.fraction === 1;
  const queued = isQueued(run);
  const cancel = () => post(`/api/runs/${id}/stop`).then(() => (refresh(), go("runs", "", {})), (e) => setProblem(e.message));
  return html`
    <div class="pagehead"><h1>${run.name}</h1>
      <p class="lead">${queued && run.preparing ? "The training is queued." : run.preparing ? "Reading the data and planning the model." : html`${run.family} on ${run.data}, ${count(run.count)} ${run.kind}${run.labels?.length ? ` in ${run.labels.length} classes` : ""}`}</p></div>
    <${Problem} message=${problem} /><${Problem} message=${run.failed} /><${Problem} message=${run.training ? "" : run.problem} />
    <section class="panel status" aria-label="State">
      <div class="figures">
        <div><b>${run.training ? "training" : queued ? "queued" : run.failed ? "failed" : finished ? "finished" : run.preparing ? "stopped" : "paused"}</b><span>state</span></div>
        ${last && html`<div><b>${count(last.i)}</b><span>steps</span></div><div><b>${duration(last.seconds)}</b><span>training time</span></div>`}
        ${run.held_out !== undefined && run.held_out !== null && html`<div><b>${Number(run.held_out.toPrecision(4))}</b><span>held-out ${run.unit || "loss"}</span></div>`}
        ${run.bytes !== undefined && html`<div><b>${bytes(run.bytes)}</b><span>changed ${ago(run.age)}</span></div>`}
      </div>
      ${run.training && html`<${Progress} label=${last ? `${Math.round(last.fraction * 100)} %, ${duration((last.seconds * (1 - last.fraction)) / Math.max(last.fraction, 1e-6) + (last.finishing ?? 0))} left` : "starting"} done=${last?.fraction ?? 0} total=${1} />`}
      <div class="actions">
        ${queued && html`<span class="soft">${run.queued ? `${run.queued} training${run.queued > 1 ? "s" : ""} ahead in the queue` : "next in the queue"}</span><button type="button" onClick=${cancel}>Cancel</button>`}
        ${run.training && html`<button type="button" onClick=${() => act("stop")}>Stop and save</button>`}
        ${!run.training && !queued && !run.preparing && !finished && html`<button type="button" class="main" onClick=${() => act("resume", { options: {} })}>Resume</button>`}
        ${!run.training && !queued && finished && run.learns_by_steps && html`<${NumberInput} label="Additional minutes" value=${more} low=${0.1} step=${0.5} change=${setMore} />
          <button type="button" onClick=${() => act("resume", { options: { minutes: more } })}>Extend training</button>`}
        ${run.has_weights && html`<a class="button main" href="#/${run.kind === "points" && run.shape[0] === 2 ? "points" : "sample"}?run=${id}">Sample</a><a class="button" href="#/demos?run=${id}">Demos</a>`}
      </div>
      ${run.verdict && html`<p class="verdict">${run.verdict}</p>`}
      ${run.findings?.length > 0 && html`<div class="findings"><h2>Findings of the doctor</h2><ul>${run.findings.map((f) => html`<li>${f}</li>`)}</ul></div>`}
    </section>
    <${Curves} run=${run} />
    <${Previews} run=${run} />
    ${run.settings && html`<details class="panel more"><summary>Settings</summary><dl class="settings">
      ${Object.entries({ ...run.settings, ...run.training_settings }).filter(([, v]) => v !== null && v !== undefined).map(([k, v]) => html`<dt>${k.replaceAll("_", " ")}</dt><dd>${format(v)}</dd>`)}</dl></details>`}
    ${run.log && html`<details class="panel more"><summary>Log</summary><pre class="log" tabindex="0">${run.log}</pre></details>`}
    ${run.path && html`<${Code} title="Commands" text=${`reverie inspect ${run.path}\nreverie evaluate ${run.path}`} />`}`;
}
