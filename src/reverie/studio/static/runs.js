// The page Runs: a table of the runs in the folder, to search and compare.
import { html, useState } from "./vendor/preact.js";
import { Empty, Progress, ago, bytes, count, duration } from "./components.js";
import { go, setQuery } from "./state.js";

export function Runs({ here, runs }) {
  const [selected, select] = useState([]);
  const search = here.query.search || "";
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = runs.filter((run) => words.every((w) => `${run.name} ${run.data} ${run.family} ${run.verdict} ${run.kind}`.toLowerCase().includes(w)));
  const usable = matches.filter((run) => !run.problem || run.training || run.preparing);
  const broken = matches.filter((run) => run.problem && !run.training && !run.preparing);
  const toggle = (id) => select(selected.includes(id) ? selected.filter((p) => p !== id) : [...selected, id]);
  return html`
    <div class="pagehead"><h1>Runs</h1><p class="lead">Train models on your data, compare them and sample from them.</p></div>
    <div class="row wide"><input type="search" class="search" aria-label="Search runs" placeholder="Search by name, data, family, verdict" value=${search} onInput=${(e) => setQuery({ search: e.target.value })} />
      <div class="actions">
        <button type="button" disabled=${selected.length < 2} onClick=${() => go("compare", "", { runs: selected.join(",") })}>Compare ${selected.length || ""}</button>
        <a class="button main" href="#/train">New training</a></div></div>
    ${!runs.length && html`<${Empty} title="No runs in this folder"><p><a href="#/train">Train one</a>, for example on 8 × 8 digits in two minutes, or run <code>reverie train digits8</code> in a terminal.</p><//>`}
    ${usable.length > 0 && html`<div class="tablewrap" tabindex="0" role="region" aria-label="Table of runs"><table class="runs">
      <thead><tr><th scope="col"><span class="hidden">Compare</span></th><th scope="col"><span class="hidden">Preview</span></th><th scope="col">Run</th><th scope="col">Data</th><th scope="col">Family</th><th scope="col">Training</th><th scope="col">Held-out set</th><th scope="col">Verdict</th><th scope="col">Changed, size</th></tr></thead>
      <tbody>${usable.map((run) => html`<tr key=${run.id}>
        <td><input type="checkbox" aria-label="Compare ${run.name}" checked=${selected.includes(run.id)} onChange=${() => toggle(run.id)} disabled=${!!run.problem || run.preparing} /></td>
        <td>${run.preview ? html`<img class="thumb" src="/api/runs/${run.id}/preview/${run.preview}" alt="" />` : html`<span class="thumb"></span>`}</td>
        <th scope="row"><a href="#/run/${run.id}">${run.name}</a>${(run.training || run.preparing || run.queued !== null) && html` <span class="live">${run.training ? "training" : run.queued !== null ? "queued" : "failed"}</span>`}</th>
        <td>${run.data} <span class="soft">${run.count ? count(run.count) : ""}</span></td>
        <td>${run.family} <span class="soft">${run.kind ?? ""}</span></td>
        <td>${run.steps ? html`${count(run.steps)} steps, ${duration(run.seconds)}` : ""}${run.training && run.fraction > 0 ? html`<${Progress} label="" done=${run.fraction} total=${1} />` : ""}</td>
        <td class="number">${run.held_out !== undefined && run.held_out !== null ? `${Number(run.held_out.toPrecision(4))} ${run.unit}` : ""}</td>
        <td>${run.failed || run.verdict || ""}</td>
        <td class="soft">${run.bytes ? html`${ago(run.age)}<br />${bytes(run.bytes)}` : ""}</td></tr>`)}</tbody></table></div>`}
    ${runs.length > 0 && !matches.length && html`<p>No run matches all of these words.</p>`}
    ${broken.length > 0 && html`<details class="panel more"><summary>${broken.length} folder${broken.length > 1 ? "s" : ""} that cannot be loaded</summary><ul>${broken.map((run) => html`<li><b>${run.name}</b>: ${run.problem}</li>`)}</ul></details>`}`;
}
