// One run: what it is, how its training goes or went, and what to do with it.
import { html, useEffect, useState } from "./vendor/preact.js";
import { get, post, watch } from "./net.js";
import { Code, Number_, Problem, Progress, ago, bytes, clock, count } from "./parts.js";
import { Chart } from "./plots.js";
import { go } from "./state.js";

/** What is known of a run; read again when another is chosen. */
export function useRun(id) {
  const [run, set] = useState(null);
  useEffect(() => {
    set(null);
    if (!id) return undefined;
    let here = true;
    get(`/api/runs/${id}`).then((found) => here && set(found), () => here && set(null));
    return () => {
      here = false;
    };
  }, [id]);
  return run && run.id === id ? run : null;
}

/** Whether a training waits for others to end. */
const queued = (run) => run.queued !== null && run.queued !== undefined;

const LEVELS = ["little noise", "some noise", "much noise", "nearly all noise"];

export function Curves({ run }) {
  const rows = run.rows || [];
  const [checked, x] = [rows.filter((r) => r.held_out !== undefined), rows.map((r) => r.i)];
  if (!rows.length) return null;
  const unit = checked.find((r) => r.unit)?.unit;
  const held = rows.map((r) => r.held_out ?? null);
  return html`<div class="charts">
    <${Chart} title=${unit ? `Training loss, and what held-out data cost in ${unit}` : "Loss on training batches, and on held-out data"} x=${x} xlabel="step" log=${!unit}
      series=${[{ name: "training", y: rows.map((r) => r.loss ?? null), k: 7 }, { name: "held out", y: held, k: 0, width: 2.5 }]} />
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
  return html`<section class="panel"><div class="row"><h2>Previews</h2><span class="soft">the same seeds at step ${count(step)}; average weights, raw weights, nearest training data</span></div>
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
      (found) => {
        set(found);
        if (found.training || queued(found)) stop = watch(id, (next) => (set(next), next.training || queued(next) || refresh()));
      },
      (error) => setProblem(error.message),
    );
    return () => stop();
  }, [id, again]);
  const act = (what, body) => post(`/api/runs/${id}/${what}`, body).then(() => (setProblem(""), setTimeout(() => setAgain(again + 1), 1500)), (e) => setProblem(e.message));
  if (!run) return html`<${Problem} message=${problem} />${!problem && html`<p class="loading">Loading …</p>`}`;
  const last = run.rows?.[run.rows.length - 1];
  const finished = run.fraction === 1;
  const waits = queued(run);
  const cancel = () => post(`/api/runs/${id}/stop`).then(() => (refresh(), go("runs", "", {})), (e) => setProblem(e.message));
  return html`
    <div class="pagehead"><h1>${run.name}</h1>
      <p class="lead">${waits && run.preparing ? "This training is queued until others have ended." : run.preparing ? "The data are being read and the model is planned." : html`${run.family} of ${run.data}, ${count(run.count)} ${run.kind}${run.labels?.length ? ` in ${run.labels.length} classes` : ""}`}</p></div>
    <${Problem} message=${problem} /><${Problem} message=${run.failed} /><${Problem} message=${run.training ? "" : run.problem} />
    <section class="panel status" aria-label="State">
      <div class="figures">
        <div><b>${run.training ? "training" : waits ? "queued" : run.failed ? "failed" : finished ? "finished" : run.preparing ? "stopped" : "paused"}</b><span>state</span></div>
        ${last && html`<div><b>${count(last.i)}</b><span>steps</span></div><div><b>${clock(last.seconds)}</b><span>of training</span></div>`}
        ${run.held_out !== undefined && run.held_out !== null && html`<div><b>${Number(run.held_out.toPrecision(4))}</b><span>held out ${run.unit}</span></div>`}
        ${run.bytes !== undefined && html`<div><b>${bytes(run.bytes)}</b><span>${ago(run.age)}</span></div>`}
      </div>
      ${run.training && html`<${Progress} what=${last ? `${Math.round(last.fraction * 100)} %, ${clock((last.seconds * (1 - last.fraction)) / Math.max(last.fraction, 1e-6) + (last.finishing ?? 0))} left` : "beginning"} done=${last?.fraction ?? 0} of=${1} />`}
      <div class="actions">
        ${waits && html`<span class="soft">${run.queued ? `${run.queued} queued before it` : "the next in the queue"}</span><button type="button" onClick=${cancel}>Cancel</button>`}
        ${run.training && html`<button type="button" onClick=${() => act("stop")}>Stop, and keep what is learned</button>`}
        ${!run.training && !waits && !run.preparing && !finished && html`<button type="button" class="main" onClick=${() => act("resume", { options: {} })}>Go on</button>`}
        ${!run.training && !waits && finished && run.learns_by_steps && html`<${Number_} label="Go on for, minutes" value=${more} low=${0.1} step=${0.5} change=${setMore} />
          <button type="button" onClick=${() => act("resume", { options: { minutes: more } })}>Train longer</button>`}
        ${run.ready && html`<a class="button main" href="#/${run.kind === "points" && run.shape[0] === 2 ? "points" : "draw"}?run=${id}">Draw</a><a class="button" href="#/formulas?run=${id}">Formulas on it</a>`}
      </div>
      ${run.verdict && html`<p class="verdict">${run.verdict}</p>`}
      ${run.findings?.length > 0 && html`<div class="findings"><h2>What the doctor found</h2><ul>${run.findings.map((f) => html`<li>${f}</li>`)}</ul></div>`}
    </section>
    <${Curves} run=${run} />
    <${Previews} run=${run} />
    ${run.settings && html`<details class="panel more"><summary>How it was made</summary><dl class="settings">
      ${Object.entries({ ...run.settings, ...run.training_settings }).filter(([, v]) => v !== null && v !== undefined).map(([k, v]) => html`<dt>${k.replaceAll("_", " ")}</dt><dd>${typeof v === "object" ? JSON.stringify(v) : String(v)}</dd>`)}</dl></details>`}
    ${run.said && html`<details class="panel more"><summary>What the training printed</summary><pre class="log" tabindex="0">${run.said}</pre></details>`}
    ${run.here && html`<${Code} title="The same in a terminal" text=${`reverie inspect ${run.here}\nreverie evaluate ${run.here}`} />`}`;
}
