// Two or more runs side by side: curves, the same seeds, and what is measured of them.
import { html, useEffect, useState } from "./vendor/preact.js";
import { get, picture, work } from "./net.js";
import { Code, Empty, Notes, Number_, Problem, Working, Tile, useRunning } from "./parts.js";
import { Chart, Plane, limitsOf } from "./plots.js";
import { floats } from "./net.js";
import { choose } from "./state.js";

function Seeds({ runs, seed }) {
  const running = useRunning();
  const [drawn, set] = useState({});
  const draw = async () => {
    set({});
    for (const run of runs) {
      const wish = { run: run.id, n: run.kind === "images" ? 16 : 1500, seed, ...(run.labels?.length ? { label: "all" } : {}) };
      const found = await running.begin(work("draw", wish, { ...running.on, frame: (f) => running.on.progress({ what: run.name, done: f.i + 1, of: f.of }) }));
      if (!found) return;
      const shown = found.image ? await picture(found.image) : floats(found.points);
      set((before) => ({ ...before, [run.id]: shown }));
    }
  };
  return html`<section class="panel"><div class="row wide"><h2>The same seeds</h2><div class="actions"><${Number_} label="Seed" value=${seed} low=${0} change=${(v) => choose({ seed: v })} />
    <button type="button" class="main" onClick=${draw} disabled=${running.busy}>Draw</button></div></div>
    ${running.busy && html`<${Working} running=${running} />`}<${Problem} message=${running.problem} />
    <div class="sides">${runs.map((run) => drawn[run.id] && html`<div><h3>${run.name}</h3>${run.kind === "images"
      ? html`<div class="tiles" style=${{ gridTemplateColumns: "repeat(4, 1fr)" }}>${Array.from({ length: 16 }, (_, k) => html`<span class="tile"><${Tile} image=${drawn[run.id]} k=${k} width=${run.shape[2]} height=${run.shape[1]} alt="${run.name}, image ${k}" /></span>`)}</div>`
      : html`<${Plane} title="" scene=${{ limits: limitsOf(drawn[run.id]), dots: [{ points: drawn[run.id] }] }} />`}</div>`)}</div></section>`;
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
  const steps = [...new Set(runs.flatMap((r) => r.rows.filter((row) => row.held_out !== undefined).map((row) => row.i)))].sort((a, b) => a - b);
  const series = runs.map((run, k) => {
    const by = Object.fromEntries(run.rows.filter((r) => r.held_out !== undefined).map((r) => [r.i, r.held_out]));
    return { name: run.name, y: steps.map((i) => by[i] ?? null), k };
  });
  const measure = () => running.begin(work("evaluate", { runs: ids }, { ...running.on, run: (r) => running.on.progress({ what: r.name, done: 0, of: 1 }) }), setFigures);
  return html`
    <div class="pagehead"><h1>Compare</h1><p class="lead">${runs.map((r) => r.name).join(", ")}</p></div>
    <div class="charts"><${Chart} title="Held-out figure" x=${steps} series=${series} xlabel="step" /></div>
    <${Seeds} runs=${runs} seed=${Number(here.query.seed ?? 0)} />
    <section class="panel"><div class="row wide"><h2>Measured</h2><button type="button" class="main" onClick=${measure} disabled=${running.busy}>Measure, 256 samples each</button></div>
      ${running.busy && html`<${Working} running=${running} />`}<${Problem} message=${running.problem} /><${Notes} notes=${running.notes} />
      ${figures && html`<ul class="notes">${figures.verdict.map((v) => html`<li>${v}</li>`)}</ul>
        <div class="tablewrap" tabindex="0" role="region" aria-label="Figures"><table><thead><tr><th scope="col">Figure</th>${figures.names.map((n) => html`<th scope="col">${n}</th>`)}</tr></thead>
        <tbody>${figures.rows.map(([title, cells]) => html`<tr><th scope="row">${title}</th>${cells.map((c) => html`<td class="number">${c}</td>`)}</tr>`)}</tbody></table></div>
        <p class="soft">* is the best, ~ as good within noise.</p><${Code} title="The same in a terminal" text=${figures.command} />`}
    </section>`;
}
