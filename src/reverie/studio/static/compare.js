// The page Compare: curves, samples of the same seeds, and evaluation of two or more runs.
import { html, useEffect, useState } from "./vendor/preact.js";
import { get, loadImage, startJob, unpackFloats } from "./client.js";
import { Code, Empty, JobProgress, Notes, NumberInput, Problem, Tile, useJob } from "./components.js";
import { Chart, Plot2D, axesOf, firstTwoColumns, limitsOf } from "./plots.js";
import { setQuery } from "./state.js";

/** The held-out metrics of a run with their measure and their data, or null. */
function heldOut(run) {
  const rows = (run.metrics || []).filter((row) => row.held_out !== undefined);
  const unit = rows[rows.length - 1]?.unit;
  const same = rows.filter((row) => row.unit === unit);
  return same.length ? { run, rows: same, measure: unit || run.measure, data: run.fingerprint } : null;
}

/** One chart per measure and dataset, because only these metrics are comparable, and notes on runs that cannot be compared. */
function Curves({ runs }) {
  const results = runs.map(heldOut);
  const byMeasure = {};
  for (const result of results.filter(Boolean)) (byMeasure[`${result.measure} ${result.data}`] ??= []).push(result);
  const groups = Object.values(byMeasure);
  const single = (group) => {
    const others = results.filter((result) => result && result !== group[0]);
    const reason = others.some((result) => result.measure === group[0].measure) ? "the other runs use other data" : "the other runs use another measure";
    return `${group[0].run.name} (${group[0].measure} on ${group[0].run.data}) cannot be compared with another run: ${reason}.`;
  };
  const notes = [
    ...groups.filter((group) => group.length === 1 && results.length > 1).map(single),
    ...runs.filter((_, k) => !results[k]).map((run) => `${run.name} has no held-out metrics, so it has no curve.`),
  ];
  return html`<div class="charts">${groups.map((group) => {
    const steps = [...new Set(group.flatMap((result) => result.rows.map((row) => row.i)))].sort((a, b) => a - b);
    const series = group.map(({ run, rows }) => {
      const at = Object.fromEntries(rows.map((row) => [row.i, row.held_out]));
      return { name: run.name, y: steps.map((i) => at[i] ?? null), k: runs.indexOf(run) };
    });
    return html`<${Chart} key=${group[0].measure + group[0].data} title="Held-out set of ${group[0].run.data}: ${group[0].measure}" x=${steps} series=${series} xlabel="step" />`;
  })}</div><${Notes} notes=${notes} />`;
}

/** Whether the page can show samples of a run. */
const canShow = (run) => ["images", "points"].includes(run.kind);

function SameSeeds({ runs, seed }) {
  const job = useJob();
  const [samples, set] = useState({});
  const sample = async () => {
    set({});
    for (const run of runs.filter(canShow)) {
      const request = { run: run.id, n: run.kind === "images" ? 16 : 1500, seed, ...(run.labels?.length ? { label: "all" } : {}) };
      const result = await job.run(startJob("sample", request, { ...job.on, frame: (f) => job.on.progress({ label: run.name, done: f.step + 1, total: f.steps }) }));
      if (!result) return;
      const shown = result.image ? await loadImage(result.image) : firstTwoColumns(unpackFloats(result.points), result.points.shape[1]);
      set((before) => ({ ...before, [run.id]: shown }));
    }
  };
  return html`<section class="panel"><div class="row wide"><h2>Samples of the same seed</h2><div class="actions"><${NumberInput} label="Seed" value=${seed} low=${0} change=${(v) => setQuery({ seed: v })} />
    <button type="button" class="main" onClick=${sample} disabled=${job.busy}>Sample</button></div></div>
    ${job.busy && html`<${JobProgress} job=${job} />`}<${Problem} message=${job.problem} />
    <${Notes} notes=${runs.filter((run) => !canShow(run)).map((run) => `${run.name} is omitted: the studio cannot show ${run.kind}.`)} />
    <div class="sides">${runs.map((run) => samples[run.id] && html`<div><h3>${run.name}</h3>${run.kind === "images"
      ? html`<div class="tiles" style=${{ gridTemplateColumns: "repeat(4, 1fr)" }}>${Array.from({ length: 16 }, (_, k) => html`<span class="tile"><${Tile} image=${samples[run.id]} k=${k} width=${run.shape[2]} height=${run.shape[1]} alt="${run.name}, image ${k}" /></span>`)}</div>`
      : html`<${Plot2D} title="" scene=${{ limits: limitsOf(samples[run.id]), axes: axesOf(run), dots: [{ points: samples[run.id] }] }} />`}</div>`)}</div></section>`;
}

export function Compare({ here }) {
  const ids = (here.query.runs || "").split(",").filter(Boolean).slice(0, 6);
  const [runs, set] = useState(null);
  const [problem, setProblem] = useState("");
  const [report, setReport] = useState(null);
  const job = useJob();
  useEffect(() => {
    Promise.all(ids.map((id) => get(`/api/runs/${id}`))).then(set, (e) => setProblem(e.message));
  }, [here.query.runs]);
  if (problem) return html`<${Problem} message=${problem} />`;
  if (!runs) return html`<p class="loading">Loading …</p>`;
  if (runs.length < 2) return html`<${Empty} title="Select at least two runs"><p>Select them in the <a href="#/runs">table of runs</a> and press Compare.</p><//>`;
  const evaluate = () => job.run(startJob("evaluate", { runs: ids }, { ...job.on, run: (r) => job.on.progress({ label: r.name, done: 0, total: 1 }) }), setReport);
  return html`
    <div class="pagehead"><h1>Compare</h1><p class="lead">${runs.map((r) => r.name).join(", ")}</p></div>
    <${Curves} runs=${runs} />
    <${SameSeeds} runs=${runs} seed=${Number(here.query.seed ?? 0)} />
    <section class="panel"><div class="row wide"><h2>Evaluation</h2><button type="button" class="main" onClick=${evaluate} disabled=${job.busy}>Evaluate, 256 samples per run</button></div>
      ${job.busy && html`<${JobProgress} job=${job} />`}<${Problem} message=${job.problem} /><${Notes} notes=${job.warnings} />
      ${report && html`<ul class="notes">${report.verdict.map((v) => html`<li>${v}</li>`)}</ul>
        <div class="tablewrap" tabindex="0" role="region" aria-label="Metrics"><table><thead><tr><th scope="col">Metric</th>${report.names.map((n) => html`<th scope="col">${n}</th>`)}</tr></thead>
        <tbody>${report.rows.map(([title, cells]) => html`<tr><th scope="row">${title}</th>${cells.map((c) => html`<td class="number">${c}</td>`)}</tr>`)}</tbody></table></div>
        <p class="soft">* best, ~ equal within the error bars</p><${Code} title="Command" text=${report.command} />`}
    </section>`;
}
