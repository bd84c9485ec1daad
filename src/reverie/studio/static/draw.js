// Draw: images appear while they are drawn; afterwards the slider goes back and forth through time.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { floats, picture, work } from "./net.js";
import { Code, Empty, Notes, Number_, Picture, Problem, Working, RunSelect, Select, Slider, Spec, Text, Tile, Unfit, chosenRun, download, useRunning } from "./parts.js";
import { Plane, axesOf, inPlane, limitsOf } from "./plots.js";
import { choose, useKept } from "./state.js";
import { useRun } from "./run.js";

const NUMBERS = ["n", "steps", "seed", "guidance", "guidance_rescale", "autoguidance", "classifier_guidance", "low", "high"];

/** The labels that can be asked for. */
const labelsOf = (run) => (run.can?.includes("labels") ? run.labels ?? [] : []);

/** What is chosen in the address, as the server takes it. */
export function wished(query, run) {
  const has = (name) => run.options?.includes(name);
  const wish = { run: query.run, n: query.n ?? (run.kind === "images" ? 16 : 2000), seed: query.seed ?? 0 };
  if (labelsOf(run).length) wish.label = query.sum || query.label || "";
  if (run.captions) for (const name of ["prompt", "negative_prompt"]) if (query[name]) wish[name] = query[name];
  for (const name of ["sampler", "grid", "steps", "guidance", "guidance_rescale", "autoguidance", "classifier_guidance"])
    if (has(name) && query[name] !== undefined) wish[name] = query[name];
  if (has("guidance_interval") && (query.low || query.high)) wish.guidance_interval = [Number(query.low || 0), Number(query.high || 1)];
  for (const name of NUMBERS) if (wish[name] !== undefined && wish[name] !== "") wish[name] = Number(wish[name]);
  if (wish.guidance === 1 || wish.guidance === undefined) {
    delete wish.guidance;
    delete wish.guidance_interval;
    delete wish.guidance_rescale;
  }
  return wish;
}

export function SamplingControls({ query, run, studio, few = false }) {
  const has = (name) => run.options?.includes(name);
  const set = (name) => (value) => choose({ [name]: value });
  const labels = labelsOf(run), steered = labels.length > 0 || run.captions;
  return html`
    ${run.captions && html`<${Text} label="Prompt" value=${query.prompt || ""} change=${set("prompt")} placeholder="what to draw, in words" />
      <${Text} label="Negative prompt" value=${query.negative_prompt || ""} change=${set("negative_prompt")} placeholder="words that guidance moves away from" />`}
    ${labels.length > 0 && html`<${Select} label="Label" value=${query.label || ""} change=${set("label")}
      options=${[["", few ? "none" : "as often as in the data"], ...(few ? [] : [["all", "each in turn"]]), ...labels]} />`}
    ${labels.length > 0 && !few && html`<${Text} label="Or a sum of labels" value=${query.sum || ""} change=${set("sum")}
      placeholder=${`${labels[0]}:1.5,${labels[1] ?? labels[0]}:-1`} />`}
    ${has("guidance") && steered && html`<${Slider} label="Guidance" value=${Number(query.guidance ?? 1)} low=${0} high=${8} step=${0.1}
      change=${set("guidance")} hint="1 is none; more insists on the ${labels.length ? "label" : "prompt"}" />`}
    <details class="more"><summary>Sampler, grid, steps${has("guidance") && steered ? ", limits of guidance" : ""}</summary>
      ${has("sampler") && html`<${Spec} label="Sampler" table=${studio.tables.samplers} value=${query.sampler || ""} change=${set("sampler")} />`}
      ${has("grid") && html`<${Spec} label="Grid of times" table=${studio.tables.grids} value=${query.grid || ""} change=${set("grid")} />`}
      ${has("guidance_interval") && steered && html`
        <${Slider} label="Guidance from t" value=${Number(query.low ?? 0)} change=${set("low")} />
        <${Slider} label="Guidance up to t" value=${Number(query.high ?? 1)} change=${set("high")} />
        <${Slider} label="Contrast taken back" value=${Number(query.guidance_rescale ?? 0)} change=${set("guidance_rescale")} />`}
      ${has("autoguidance") && html`<${Number_} label="Autoguidance" value=${query.autoguidance ?? ""} step=${0.1} low=${0} change=${set("autoguidance")}
        placeholder="what the training chose" />`}
    </details>
    ${has("steps") && html`<${Number_} label="Steps" value=${query.steps ?? ""} low=${1} high=${1000} change=${set("steps")} placeholder="as usual" />`}
    <${Number_} label="Seed" value=${query.seed ?? 0} low=${0} change=${set("seed")} />`;
}

export function Draw({ here, studio, runs }) {
  const chosen = chosenRun(runs, here.query.run);
  useEffect(() => {
    if (chosen.id && chosen.id !== here.query.run) choose({ run: chosen.id });
  }, [chosen.id, here.query.run]);
  const run = useRun(chosen.id);
  if (chosen.why) return html`<div class="pagehead"><h1>Draw</h1></div><${Unfit} chosen=${chosen} />`;
  if (!chosen.id) return html`<${Empty} title="Nothing to draw from yet"><p>Train a run first: <a href="#/train">start a training</a>.</p><//>`;
  if (!run) return html`<p class="loading">Loading …</p>`;
  return html`<${Drawing} key=${chosen.id} run=${run} query=${{ ...here.query, run: chosen.id }} studio=${studio} chosen=${chosen} />`;
}

function Drawing({ run, query, studio, chosen }) {
  const running = useRunning();
  const frames = useRef([]);
  const [count, setCount] = useState(0);
  const [at, setAt] = useState(-1);
  const [start, setStart] = useState(null);
  const [result, setResult] = useState(null);
  const [selected, select] = useState(0);
  const drawn = useRef(null);
  const images = run.kind === "images";
  const [height, width] = images ? run.shape.slice(1) : [0, 0];
  const draw = (change = {}) => {
    const wish = wished({ ...query, ...change }, run);
    if (Object.keys(change).length) choose(change);
    drawn.current = wish;
    frames.current = [];
    setCount(0);
    setAt(-1);
    setResult(null);
    select(0);
    const mine = frames.current;
    const arrive = async (frame) => {
      running.on.progress({ what: `t = ${frame.t.toFixed(2)}`, done: frame.i + 1, of: frame.of });
      const k = mine.push({ t: frame.t, i: frame.i }) - 1;
      mine[k] = images ? { ...mine[k], image: await picture(frame.image) } : { ...mine[k], x: floats(frame.x), x0: floats(frame.x0), wide: frame.x.shape[1] };
      if (mine === frames.current) setCount(mine.length);
    };
    running.begin(work("draw", wish, { ...running.on, start: setStart, frame: arrive }), async (found) => {
      const whole = images ? await picture(found.image) : null;
      if (mine === frames.current) setResult({ ...found, whole, wish });
    });
  };
  const ready = frames.current.filter((f) => f.image || f.x);
  const k = at < 0 || at >= ready.length ? ready.length - 1 : at;
  const frame = ready[k];
  const n = drawn.current?.n ?? 0;
  return html`
    <div class="pagehead"><h1>Draw</h1><p class="lead">New data from <a href="#/run/${run.id}">${run.name}</a>, from pure noise to what the model expects.</p></div>
    <div class="columns">
      <form class="panel controls" onSubmit=${(e) => (e.preventDefault(), draw())}>
        <${RunSelect} chosen=${chosen} change=${(id) => choose({ run: id, label: "", sum: "" })} />
        <${Number_} label=${images ? "How many" : "How many points"} value=${query.n ?? (images ? 16 : 2000)} low=${1} high=${images ? 64 : 5000} change=${(v) => choose({ n: v })} />
        <${SamplingControls} query=${query} run=${run} studio=${studio} />
        <div class="actions"><button type="submit" class="main">Draw</button>
          ${running.busy && html`<button type="button" onClick=${running.cancel}>Stop</button>`}</div>
        <${Working} running=${running} />
      </form>
      <div class="results">
        <${Problem} message=${running.problem} /><${Notes} notes=${running.notes} />
        ${!frame && !running.busy && html`<div class="panel quietpanel"><p>Choose what to draw and press <b>Draw</b>. While it works you see <i>x</i>, the data on their way out of the noise,
          and beside it <i>x₀</i>, what the model expects them to become.</p></div>`}
        ${frame && html`<section class="panel" aria-label="Drawing">
          <div class="pair">
            ${images ? html`
              <${Tiles} title="x, what is there" frame=${frame} row=${0} n=${n} width=${width} height=${height} selected=${selected} select=${select} />
              <${Tiles} title="x₀, what is expected" frame=${frame} row=${1} n=${n} width=${width} height=${height} selected=${selected} select=${select} labels=${result?.labels} />`
              : html`<${Cloud} frames=${ready} frame=${frame} of="x" axes=${axesOf(run)} title="x, what is there" /><${Cloud} frames=${ready} frame=${frame} of="x0" axes=${axesOf(run)} title="x₀, what is expected" />`}
          </div>
          <${Time} frames=${ready} k=${k} change=${setAt} />
        </section>`}
        ${result && images && html`<${Inspector} key=${result.drawing} result=${result} k=${selected} width=${width} height=${height} frame=${frame} again=${draw} />`}
        ${start && frame && html`<div class="codes"><${Code} title="The same in a terminal" text=${start.command} /><${Code} title="In Python" text=${start.python} /></div>`}
        <${Kept} />
      </div>
    </div>`;
}

export function Time({ frames, k, change }) {
  const [playing, play] = useState(false);
  useEffect(() => {
    if (!playing) return undefined;
    let now = 0;
    const timer = setInterval(() => {
      change(now);
      if (++now >= frames.length) play(false);
    }, Math.max(40, 2400 / frames.length));
    return () => clearInterval(timer);
  }, [playing]);
  const t = frames[k]?.t ?? 1;
  return html`<div class="time">
    <button type="button" class="quiet" onClick=${() => play(!playing)} aria-label=${playing ? "Stop the film" : "Play the film"}>${playing ? "❚❚" : "▶"}</button>
    <input type="range" min="0" max=${Math.max(0, frames.length - 1)} value=${k} onInput=${(e) => (play(false), change(Number(e.target.value)))}
      aria-label="Time" aria-valuetext="t = ${t.toFixed(2)}" />
    <output>t = ${t.toFixed(2)}</output></div>`;
}

function Tiles({ title, frame, row, n, width, height, selected, select, labels }) {
  const across = Math.ceil(Math.sqrt(n));
  return html`<div class="pane"><h2>${title}</h2>
    <div class="tiles" style=${{ gridTemplateColumns: `repeat(${across}, 1fr)` }}>
      ${Array.from({ length: n }, (_, k) => html`<button type="button" class="tile" aria-pressed=${k === selected} onClick=${() => select(k)}
        aria-label="${row ? "Expected" : "Present"} image ${k}${labels ? `, ${labels[k]}` : ""}"><${Tile} image=${frame.image} k=${k} row=${row} width=${width} height=${height} alt="" /></button>`)}
    </div></div>`;
}

function Cloud({ frames, frame, of, title, axes }) {
  const flat = (f) => inPlane(f[of], f.wide);
  const limits = limitsOf(inPlane(frames[0].x, frames[0].wide)); // the same for both, as far as noise reaches
  return html`<div class="pane"><${Plane} title=${title} scene=${{ limits, axes, dots: [{ points: flat(frame) }] }} /></div>`;
}

function Inspector({ result, k, width, height, frame, again }) {
  const [near, setNear] = useState(null);
  const running = useRunning();
  const [kept, keep] = useKept("kept", []);
  const wish = result.wish;
  const one = { ...wish, n: 1, first: k };
  const label = result.labels?.[k];
  const cut = () => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [width, height];
    canvas.getContext("2d").drawImage(result.whole, k * width, 0, width, height, 0, 0, width, height);
    return canvas.toDataURL("image/png");
  };
  const find = () => running.begin(work("nearest", { drawing: result.drawing }, running.on), async (found) => setNear({ ...found, whole: await picture(found.image) }));
  const film = (form) => running.begin(work("film", { ...one, form }, running.on), (found) => download(found.file, found.name));
  return html`<section class="panel inspector" aria-label="Chosen image">
    <div class="trio">
      <figure><${Tile} image=${frame?.image} k=${k} row=${0} width=${width} height=${height} alt="x at this time" /><figcaption>x at t = ${frame?.t.toFixed(2)}</figcaption></figure>
      <figure><${Tile} image=${result.whole} k=${k} width=${width} height=${height} alt="The finished image" /><figcaption>finished</figcaption></figure>
      ${near && html`<figure><${Tile} image=${near.whole} k=${k} width=${width} height=${height} alt="The nearest training image" />
        <figcaption>nearest training image${near.labels ? `, ${near.labels[k]}` : ""}, off by ${near.off[k].toFixed(3)}</figcaption></figure>`}
    </div>
    <div class="facts"><h2>Image ${k} of seed ${wish.seed}${label !== undefined ? html`, <span class="accent">${label}</span>` : ""}</h2>
      <p class="soft">Drawn in ${result.seconds.toFixed(1)} s with all others. The same seed and number always give this image.</p>
      <div class="actions">
        <button type="button" onClick=${() => keep([{ src: cut(), seed: wish.seed, k, label, run: wish.run, query: location.hash }, ...kept].slice(0, 48))}>Keep</button>
        <button type="button" onClick=${() => download(cut(), `seed-${wish.seed}-${k}.png`)}>PNG</button>
        <button type="button" onClick=${() => film("gif")} disabled=${running.busy}>GIF</button>
        <button type="button" onClick=${() => film("mp4")} disabled=${running.busy}>MP4</button>
        ${!near && html`<button type="button" onClick=${find} disabled=${running.busy}>Nearest training image</button>`}
        <button type="button" onClick=${() => again({ seed: Number(wish.seed) + 1 })}>Next seed</button>
        <a class="button" href="#/steer?run=${wish.run}" onClick=${() => sessionStorage.setItem("picture", cut())}>Steer this</a>
      </div>
      ${running.busy && html`<${Working} running=${running} what="working" />`}
      <${Problem} message=${running.problem} />
    </div></section>`;
}

function Kept() {
  const [mine, keep] = useKept("kept", []);
  if (!mine.length) return null;
  return html`<section class="panel" aria-label="Kept images"><div class="row"><h2>Kept</h2><button type="button" class="quiet" onClick=${() => keep([])}>forget all</button></div>
    <div class="kept">${mine.map((one) => html`<a href=${one.query} title="seed ${one.seed}, image ${one.k}"><${Picture} src=${one.src} alt="Kept: seed ${one.seed}, image ${one.k}" /></a>`)}</div></section>`;
}
