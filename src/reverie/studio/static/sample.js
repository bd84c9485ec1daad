// The page Sample: images appear while they are sampled; afterwards a slider moves through the trajectory.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { loadImage, startJob, unpackFloats } from "./client.js";
import { Code, Empty, JobProgress, Notes, NumberInput, Picture, Problem, RunSelect, Select, Slider, Spec, TextInput, Tile, Unsuitable, download, selectRun, useJob, withSymbols } from "./components.js";
import { Plot2D, axesOf, firstTwoColumns, limitsOf } from "./plots.js";
import { setQuery, useStored } from "./state.js";
import { useRun } from "./run.js";

const NUMBERS = ["n", "steps", "seed", "guidance", "guidance_rescale", "autoguidance", "classifier_guidance", "low", "high"];
export const NOISY = "Noisy sample x_t";
export const PREDICTED = "Predicted clean sample x̂_0";

/** The labels that a run can be conditioned on. */
const labelsOf = (run) => (run.abilities?.includes("labels") ? run.labels ?? [] : []);

/** The request of the chosen options. */
export function sampleRequest(query, run) {
  const has = (name) => run.options?.includes(name);
  const request = { run: query.run, n: query.n ?? (run.kind === "images" ? 16 : 2000), seed: query.seed ?? 0 };
  if (labelsOf(run).length) request.label = query.sum || query.label || "";
  if (run.has_captions) for (const name of ["prompt", "negative_prompt"]) if (query[name]) request[name] = query[name];
  for (const name of ["sampler", "grid", "steps", "guidance", "guidance_rescale", "autoguidance", "classifier_guidance"])
    if (has(name) && query[name] !== undefined) request[name] = query[name];
  if (has("guidance_interval") && (query.low || query.high)) request.guidance_interval = [Number(query.low || 0), Number(query.high || 1)];
  for (const name of NUMBERS) if (request[name] !== undefined && request[name] !== "") request[name] = Number(request[name]);
  if (request.guidance === 1 || request.guidance === undefined) {
    delete request.guidance;
    delete request.guidance_interval;
    delete request.guidance_rescale;
  }
  return request;
}

export function SamplingControls({ query, run, studio, few = false }) {
  const has = (name) => run.options?.includes(name);
  const set = (name) => (value) => setQuery({ [name]: value });
  const labels = labelsOf(run), isConditional = labels.length > 0 || run.has_captions;
  return html`
    ${run.has_captions && html`<${TextInput} label="Prompt" value=${query.prompt || ""} change=${set("prompt")} placeholder="text to condition on" />
      <${TextInput} label="Negative prompt" value=${query.negative_prompt || ""} change=${set("negative_prompt")} placeholder="text that guidance moves away from" />`}
    ${labels.length > 0 && html`<${Select} label="Label" value=${query.label || ""} change=${set("label")}
      options=${[["", few ? "none" : "by frequency in the data"], ...(few ? [] : [["all", "all in turn"]]), ...labels]} />`}
    ${labels.length > 0 && !few && html`<${TextInput} label="Or weighted labels" value=${query.sum || ""} change=${set("sum")}
      placeholder=${`${labels[0]}:1.5,${labels[1] ?? labels[0]}:-1`} />`}
    ${has("guidance") && isConditional && html`<${Slider} label="Guidance scale" value=${Number(query.guidance ?? 1)} low=${0} high=${8} step=${0.1}
      change=${set("guidance")} hint="1 is no guidance; larger scales follow the ${labels.length ? "label" : "prompt"} more strongly" />`}
    <details class="more"><summary>Sampler, time grid${has("guidance") && isConditional ? ", guidance interval" : ""}</summary>
      ${has("sampler") && html`<${Spec} label="Sampler" table=${studio.tables.samplers} value=${query.sampler || ""} change=${set("sampler")} />`}
      ${has("grid") && html`<${Spec} label="Time grid" table=${studio.tables.grids} value=${query.grid || ""} change=${set("grid")} />`}
      ${has("guidance_interval") && isConditional && html`
        <${Slider} label="Guidance from t" value=${Number(query.low ?? 0)} change=${set("low")} />
        <${Slider} label="Guidance up to t" value=${Number(query.high ?? 1)} change=${set("high")} />
        <${Slider} label="Guidance rescale" value=${Number(query.guidance_rescale ?? 0)} change=${set("guidance_rescale")} />`}
      ${has("autoguidance") && html`<${NumberInput} label="Autoguidance scale" value=${query.autoguidance ?? ""} step=${0.1} low=${0} change=${set("autoguidance")}
        placeholder="default of the run" />`}
    </details>
    ${has("steps") && html`<${NumberInput} label="Steps" value=${query.steps ?? ""} low=${1} high=${1000} change=${set("steps")} placeholder="default" />`}
    <${NumberInput} label="Seed" value=${query.seed ?? 0} low=${0} change=${set("seed")} />`;
}

export function Sample({ here, studio, runs }) {
  const selection = selectRun(runs, here.query.run);
  useEffect(() => {
    if (selection.id && selection.id !== here.query.run) setQuery({ run: selection.id });
  }, [selection.id, here.query.run]);
  const run = useRun(selection.id);
  if (selection.why) return html`<div class="pagehead"><h1>Sample</h1></div><${Unsuitable} selection=${selection} />`;
  if (!selection.id) return html`<${Empty} title="No run to sample from"><p><a href="#/train">Train a run</a> first.</p><//>`;
  if (!run) return html`<p class="loading">Loading …</p>`;
  return html`<${Sampling} key=${selection.id} run=${run} query=${{ ...here.query, run: selection.id }} studio=${studio} selection=${selection} />`;
}

function Sampling({ run, query, studio, selection }) {
  const job = useJob();
  const frames = useRef([]);
  const [, setCount] = useState(0);
  const [at, setAt] = useState(-1);
  const [start, setStart] = useState(null);
  const [result, setResult] = useState(null);
  const [selected, select] = useState(0);
  const lastRequest = useRef(null);
  const images = run.kind === "images";
  const [height, width] = images ? run.shape.slice(1) : [0, 0];
  const sample = (change = {}) => {
    const request = sampleRequest({ ...query, ...change }, run);
    if (Object.keys(change).length) setQuery(change);
    lastRequest.current = request;
    frames.current = [];
    setCount(0);
    setAt(-1);
    setResult(null);
    select(0);
    const received = frames.current;
    const onFrame = async (frame) => {
      job.on.progress({ label: `t = ${frame.t.toFixed(2)}`, done: frame.step + 1, total: frame.steps });
      const k = received.push({ t: frame.t }) - 1;
      received[k] = images ? { ...received[k], image: await loadImage(frame.image) } : { ...received[k], x: unpackFloats(frame.x), x0: unpackFloats(frame.x0), columns: frame.x.shape[1] };
      if (received === frames.current) setCount(received.length);
    };
    job.run(startJob("sample", request, { ...job.on, start: setStart, frame: onFrame }), async (response) => {
      const atlas = images ? await loadImage(response.image) : null;
      if (received === frames.current) setResult({ ...response, atlas, request });
    });
  };
  const ready = frames.current.filter((f) => f.image || f.x);
  const k = at < 0 || at >= ready.length ? ready.length - 1 : at;
  const frame = ready[k];
  const n = lastRequest.current?.n ?? 0;
  return html`
    <div class="pagehead"><h1>Sample</h1><p class="lead">Samples from <a href="#/run/${run.id}">${run.name}</a>, from noise at t = 1 to data at t = 0.</p></div>
    <div class="columns">
      <form class="panel controls" onSubmit=${(e) => (e.preventDefault(), sample())}>
        <${RunSelect} selection=${selection} change=${(id) => setQuery({ run: id, label: "", sum: "" })} />
        <${NumberInput} label=${images ? "Images" : "Points"} value=${query.n ?? (images ? 16 : 2000)} low=${1} high=${images ? 64 : 5000} change=${(v) => setQuery({ n: v })} />
        <${SamplingControls} query=${query} run=${run} studio=${studio} />
        <div class="actions"><button type="submit" class="main">Sample</button>
          ${job.busy && html`<button type="button" onClick=${job.cancel}>Stop</button>`}</div>
        <${JobProgress} job=${job} />
      </form>
      <div class="results">
        <${Problem} message=${job.problem} /><${Notes} notes=${job.warnings} />
        ${!frame && !job.busy && html`<div class="panel quietpanel"><p>Choose options and press <b>Sample</b>. ${withSymbols("Every step shows the noisy sample x_t and the clean sample x̂_0 that the model predicts from it.")}</p></div>`}
        ${frame && html`<section class="panel" aria-label="Samples">
          <div class="pair">
            ${images ? html`
              <${Tiles} title=${NOISY} frame=${frame} row=${0} n=${n} width=${width} height=${height} selected=${selected} select=${select} />
              <${Tiles} title=${PREDICTED} frame=${frame} row=${1} n=${n} width=${width} height=${height} selected=${selected} select=${select} labels=${result?.labels} />`
              : html`<${Scatter} frames=${ready} frame=${frame} field="x" axes=${axesOf(run)} title=${NOISY} /><${Scatter} frames=${ready} frame=${frame} field="x0" axes=${axesOf(run)} title=${PREDICTED} />`}
          </div>
          <${TimeSlider} frames=${ready} k=${k} change=${setAt} />
        </section>`}
        ${result && images && html`<${Inspector} key=${result.samples} result=${result} k=${selected} width=${width} height=${height} frame=${frame} sampleAgain=${sample} />`}
        ${start && frame && html`<div class="codes"><${Code} title="Command" text=${start.command} /><${Code} title="Python" text=${start.python} /></div>`}
        <${Saved} />
      </div>
    </div>`;
}

export function TimeSlider({ frames, k, change }) {
  const [playing, play] = useState(false);
  useEffect(() => {
    if (!playing) return undefined;
    let next = 0;
    const timer = setInterval(() => {
      change(next);
      if (++next >= frames.length) play(false);
    }, Math.max(40, 2400 / frames.length));
    return () => clearInterval(timer);
  }, [playing]);
  const t = frames[k]?.t ?? 1;
  return html`<div class="time">
    <button type="button" class="quiet" onClick=${() => play(!playing)} aria-label=${playing ? "Pause" : "Play"}>${playing ? "❚❚" : "▶"}</button>
    <input type="range" min="0" max=${Math.max(0, frames.length - 1)} value=${k} onInput=${(e) => (play(false), change(Number(e.target.value)))}
      aria-label="Time" aria-valuetext="t = ${t.toFixed(2)}" />
    <output>t = ${t.toFixed(2)}</output></div>`;
}

function Tiles({ title, frame, row, n, width, height, selected, select, labels }) {
  const across = Math.ceil(Math.sqrt(n));
  return html`<div class="pane"><h2>${withSymbols(title)}</h2>
    <div class="tiles" style=${{ gridTemplateColumns: `repeat(${across}, 1fr)` }}>
      ${Array.from({ length: n }, (_, k) => html`<button type="button" class="tile" aria-pressed=${k === selected} onClick=${() => select(k)}
        aria-label="${row ? "Predicted clean" : "Noisy"} image ${k}${labels ? `, ${labels[k]}` : ""}"><${Tile} image=${frame.image} k=${k} row=${row} width=${width} height=${height} alt="" /></button>`)}
    </div></div>`;
}

function Scatter({ frames, frame, field, title, axes }) {
  const points = (f, name) => firstTwoColumns(f[name], f.columns);
  const limits = limitsOf(points(frames[0], "x")); // the same for both plots, as wide as the noise
  return html`<div class="pane"><${Plot2D} format=${withSymbols} title=${title} scene=${{ limits, axes, dots: [{ points: points(frame, field) }] }} /></div>`;
}

function Inspector({ result, k, width, height, frame, sampleAgain }) {
  const [nearest, setNearest] = useState(null);
  const job = useJob();
  const [saved, save] = useStored("kept", []); // the key and its fields are stored in browsers
  const request = result.request;
  const single = { ...request, n: 1, first: k };
  const label = result.labels?.[k];
  const crop = () => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [width, height];
    canvas.getContext("2d").drawImage(result.atlas, k * width, 0, width, height, 0, 0, width, height);
    return canvas.toDataURL("image/png");
  };
  const findNearest = () => job.run(startJob("nearest", { samples: result.samples }, job.on), async (response) => setNearest({ ...response, atlas: await loadImage(response.image) }));
  const downloadAs = (format) => job.run(startJob("sample-file", { ...single, format }, job.on), (file) => download(file.url, file.name));
  return html`<section class="panel inspector" aria-label="Selected image">
    <div class="trio">
      <figure><${Tile} image=${frame?.image} k=${k} row=${0} width=${width} height=${height} alt="Noisy sample at this time" /><figcaption>noisy sample, t = ${frame?.t.toFixed(2)}</figcaption></figure>
      <figure><${Tile} image=${result.atlas} k=${k} width=${width} height=${height} alt="Final sample" /><figcaption>final sample</figcaption></figure>
      ${nearest && html`<figure><${Tile} image=${nearest.atlas} k=${k} width=${width} height=${height} alt="Nearest training image" />
        <figcaption>nearest training image${nearest.labels ? `, ${nearest.labels[k]}` : ""}, RMS distance ${nearest.distances[k].toFixed(3)}</figcaption></figure>`}
    </div>
    <div class="details"><h2>Image ${k} of seed ${request.seed}${label !== undefined ? html`, <span class="accent">${label}</span>` : ""}</h2>
      <p class="soft">${request.n} image${request.n > 1 ? "s" : ""} in ${result.seconds.toFixed(1)} s. The same seed, index and options always give the same image.</p>
      <div class="actions">
        <button type="button" onClick=${() => save([{ src: crop(), seed: request.seed, k, label, run: request.run, query: location.hash }, ...saved].slice(0, 48))}>Save</button>
        <button type="button" onClick=${() => download(crop(), `seed-${request.seed}-${k}.png`)}>PNG</button>
        <button type="button" onClick=${() => downloadAs("gif")} disabled=${job.busy}>GIF</button>
        <button type="button" onClick=${() => downloadAs("mp4")} disabled=${job.busy}>MP4</button>
        ${!nearest && html`<button type="button" onClick=${findNearest} disabled=${job.busy}>Nearest training image</button>`}
        <button type="button" onClick=${() => sampleAgain({ seed: Number(request.seed) + 1 })}>Next seed</button>
        <a class="button" href="#/steer?run=${request.run}" onClick=${() => sessionStorage.setItem("image", crop())}>Steer</a>
      </div>
      ${job.busy && html`<${JobProgress} job=${job} />`}
      <${Problem} message=${job.problem} />
    </div></section>`;
}

function Saved() {
  const [saved, save] = useStored("kept", []);
  if (!saved.length) return null;
  return html`<section class="panel" aria-label="Saved images"><div class="row"><h2>Saved images</h2><button type="button" class="quiet" onClick=${() => save([])}>Remove all</button></div>
    <div class="saved">${saved.map((item) => html`<a href=${item.query} title="seed ${item.seed}, image ${item.k}"><${Picture} src=${item.src} alt="Saved: seed ${item.seed}, image ${item.k}" /></a>`)}</div></section>`;
}
