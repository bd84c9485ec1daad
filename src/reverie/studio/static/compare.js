// Two or more runs side by side: curves, the same seeds, and what is measured of them.
import { html, useEffect, useState } from "./vendor/preact.js";
import { get, picture, work } from "./net.js";
import { Code, Empty, Notes, Number_, Problem, Working, Tile, useRunning } from "./parts.js";
import { Chart, Plane, axesOf, inPlane, limitsOf } from "./plots.js";
import { floats } from "./net.js";
import { choose } from "./state.js";

/** What the held-out figures of a run are: their rows, what they measure, and of which data; null where there are none. */
function heldOut(run) {
  const rows = (run.rows || []).filter((row) => row.held_out !== undefined);
  const unit = rows[rows.length - 1]?.unit;
  const same = rows.filter((row) => row.unit === unit);
  return same.length ? { run, rows: same, measure: unit || run.measure, data: run.fingerprint } : null;
}

/** A panel for each measure on the same data, as only equal ones can be compared, and why a run stands alone or nowhere. */
function Curves({ runs }) {
  const found = runs.map(heldOut);
  const by = {};
  for (const one of found.filter(Boolean)) (by[`${one.measure} ${one.data}`] ??= []).push(one);
  const groups = Object.values(by);
  const alone = (group) => {
    const others = found.filter((one) => one && one !== group[0]);
    const elsewhere = others.some((one) => one.measure === group[0].measure) ? "on other data" : "by another measure";
    return `${group[0].run.name} is compared with no other run: its held-out figures are ${group[0].measure} of ${group[0].run.data}, and the others are ${elsewhere}.`;
  };
  const notes = [
    ...groups.filter((group) => group.length === 1 && found.length > 1).map(alone),
    ...runs.filter((_, k) => !found[k]).map((run) => `${run.name} has no held-out figures, so it has no curve.`),
  ];
  return html`<div class="charts">${groups.map((group) => {
    const steps = [...new Set(group.flatMap((one) => one.rows.map((row) => row.i)))].sort((a, b) => a - b);
    const series = group.map(({ run, rows }) => {
      const at = Object.fromEntries(rows.map((row) => [row.i, row.held_out]));
      return { name: run.name, y: steps.map((i) => at[i] ?? null), k: runs.indexOf(run) };
    });
    return html`<${Chart} key=${group[0].measure + group[0].data} title="Held out, ${group[0].run.data}: ${group[0].measure}" x=${steps} series=${series} xlabel="step" />`;
  })}</div><${Notes} notes=${notes} />`;
}

/** Whether the page can show what a run draws. */
const shows = (run) => ["images", "points"].includes(run.kind);

function Seeds({ runs, seed }) {
  const running = useRunning();
  const [drawn, set] = useState({});
  const draw = async () => {
    set({});
    for (const run of runs.filter(shows)) {
      const wish = { run: run.id, n: run.kind === "images" ? 16 : 1500, seed, ...(run.labels?.length ? { label: "all" } : {}) };
      const found = await running.begin(work("draw", wish, { ...running.on, frame: (f) => running.on.progress({ what: run.name, done: f.i + 1, of: f.of }) }));
      if (!found) return;
      const shown = found.image ? await picture(found.image) : inPlane(floats(found.points), found.points.shape[1]);
      set((before) => ({ ...before, [run.id]: shown }));
    }
  };
  return html`<section class="panel"><div class="row wide"><h2>The same seeds</h2><div class="actions"><${Number_} label="Seed" value=${seed} low=${0} change=${(v) => choose({ seed: v })} />
    <button type="button" class="main" onClick=${draw} disabled=${running.busy}>Draw</button></div></div>
    ${running.busy && html`<${Working} running=${running} />`}<${Problem} message=${running.problem} />
    <${Notes} notes=${runs.filter((run) => !shows(run)).map((run) => `${run.name} is left out: the page cannot show ${run.kind} yet.`)} />
    <div class="sides">${runs.map((run) => drawn[run.id] && html`<div><h3>${run.name}</h3>${run.kind === "images"
      ? html`<div class="tiles" style=${{ gridTemplateColumns: "repeat(4, 1fr)" }}>${Array.from({ length: 16 }, (_, k) => html`<span class="tile"><${Tile} image=${drawn[run.id]} k=${k} width=${run.shape[2]} height=${run.shape[1]} alt="${run.name}, image ${k}" /></span>`)}</div>`
      : html`<${Plane} title="" scene=${{ limits: limitsOf(drawn[run.id]), axes: axesOf(run), dots: [{ points: drawn[run.id] }] }} />`}</div>`)}</div></section>`;
}

export function Compare({ here }) {
  const ids = (here.query.runs || "").split(",").filter(Boolean).slice(0, 6);
  const [runs, set] = useState(null);
  const [problem, setProblem] = useState("");
  const [figures, setFigures] = useState(null);
  const running = useRunning();
  useEffect(() => {
    Promise.all(ids.map((id) => get(`/api/runs/${id}`))).then(set, (e) => setProblem(e.message));
  }, [here.query.runs]);
  if (problem) return html`<${Problem} message=${problem} />`;
  if (!runs) return html`<p class="loading">Loading …</p>`;
  if (runs.length < 2) return html`<${Empty} title="Choose two runs"><p>Mark them in the <a href="#/runs">table of runs</a> and press Compare.</p><//>`;
  const measure = () => running.begin(work("evaluate", { runs: ids }, { ...running.on, run: (r) => running.on.progress({ what: r.name, done: 0, of: 1 }) }), setFigures);
  return html`
    <div class="pagehead"><h1>Compare</h1><p class="lead">${runs.map((r) => r.name).join(", ")}</p></div>
    <${Curves} runs=${runs} />
    <${Seeds} runs=${runs} seed=${Number(here.query.seed ?? 0)} />
    <section class="panel"><div class="row wide"><h2>Measured</h2><button type="button" class="main" onClick=${measure} disabled=${running.busy}>Measure, 256 samples each</button></div>
      ${running.busy && html`<${Working} running=${running} />`}<${Problem} message=${running.problem} /><${Notes} notes=${running.notes} />
      ${figures && html`<ul class="notes">${figures.verdict.map((v) => html`<li>${v}</li>`)}</ul>
        <div class="tablewrap" tabindex="0" role="region" aria-label="Figures"><table><thead><tr><th scope="col">Figure</th>${figures.names.map((n) => html`<th scope="col">${n}</th>`)}</tr></thead>
        <tbody>${figures.rows.map(([title, cells]) => html`<tr><th scope="row">${title}</th>${cells.map((c) => html`<td class="number">${c}</td>`)}</tr>`)}</tbody></table></div>
        <p class="soft">* is the best, ~ as good within noise.</p><${Code} title="The same in a terminal" text=${figures.command} />`}
    </section>`;
}
