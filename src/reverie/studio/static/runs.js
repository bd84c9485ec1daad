// The runs of the folder: a table to search, to choose from and to compare.
import { html, useState } from "./vendor/preact.js";
import { Empty, Progress, ago, bytes, clock, count } from "./parts.js";
import { choose, go } from "./state.js";

export function Runs({ here, runs }) {
  const [picked, pick] = useState([]);
  const search = here.query.search || "";
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const found = runs.filter((run) => words.every((w) => `${run.name} ${run.data} ${run.family} ${run.verdict} ${run.kind}`.toLowerCase().includes(w)));
  const fine = found.filter((run) => !run.problem || run.training || run.preparing);
  const broken = found.filter((run) => run.problem && !run.training && !run.preparing);
  const turn = (id) => pick(picked.includes(id) ? picked.filter((p) => p !== id) : [...picked, id]);
  return html`
    <div class="pagehead"><h1>Runs</h1><p class="lead">Models of your own data: watch them learn, draw from them, understand them.</p></div>
    <div class="row wide"><input type="search" class="search" aria-label="Search runs" placeholder="Search by name, data, family, verdict" value=${search} onInput=${(e) => choose({ search: e.target.value })} />
      <div class="actions">
        <button type="button" disabled=${picked.length < 2} onClick=${() => go("compare", "", { runs: picked.join(",") })}>Compare ${picked.length || ""}</button>
        <a class="button main" href="#/train">New training</a></div></div>
    ${!runs.length && html`<${Empty} title="No runs here yet"><p>Train one: small digits take two minutes. <a href="#/train">Start a training</a>, or in a terminal: <code>reverie train digits8</code></p><//>`}
    ${fine.length > 0 && html`<div class="tablewrap" tabindex="0" role="region" aria-label="Table of runs"><table class="runs">
      <thead><tr><th scope="col"><span class="hidden">Compare</span></th><th scope="col"><span class="hidden">Preview</span></th><th scope="col">Run</th><th scope="col">Data</th><th scope="col">Family</th><th scope="col">Length</th><th scope="col">Held out</th><th scope="col">Verdict</th><th scope="col">Age, size</th></tr></thead>
      <tbody>${fine.map((run) => html`<tr key=${run.id}>
        <td><input type="checkbox" aria-label="Compare ${run.name}" checked=${picked.includes(run.id)} onChange=${() => turn(run.id)} disabled=${!!run.problem || run.preparing} /></td>
        <td>${run.preview ? html`<img class="thumb" src="/api/runs/${run.id}/preview/${run.preview}" alt="" />` : html`<span class="thumb"></span>`}</td>
        <th scope="row"><a href="#/run/${run.id}">${run.name}</a>${(run.training || run.preparing || run.queued !== null) && html` <span class="live">${run.training ? "training" : run.queued !== null ? "queued" : "failed"}</span>`}</th>
        <td>${run.data} <span class="soft">${run.count ? count(run.count) : ""}</span></td>
        <td>${run.family} <span class="soft">${run.kind ?? ""}</span></td>
        <td>${run.steps ? html`${count(run.steps)} steps, ${clock(run.seconds)}` : ""}${run.training && run.fraction > 0 ? html`<${Progress} what="" done=${run.fraction} of=${1} />` : ""}</td>
        <td class="number">${run.held_out !== undefined && run.held_out !== null ? `${Number(run.held_out.toPrecision(4))} ${run.unit}` : ""}</td>
        <td>${run.failed || run.verdict || ""}</td>
        <td class="soft">${run.bytes ? html`${ago(run.age)}<br />${bytes(run.bytes)}` : ""}</td></tr>`)}</tbody></table></div>`}
    ${runs.length > 0 && !found.length && html`<p>No run has all of these words.</p>`}
    ${broken.length > 0 && html`<details class="panel more"><summary>${broken.length} folder${broken.length > 1 ? "s" : ""} that cannot be used</summary><ul>${broken.map((run) => html`<li><b>${run.name}</b>: ${run.problem}</li>`)}</ul></details>`}`;
}
