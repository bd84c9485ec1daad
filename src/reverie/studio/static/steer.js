// The page Steer: inpainting, editing, interpolation, illusions and restoration.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { loadImage, startJob } from "./client.js";
import { Code, Empty, JobProgress, Notes, NumberInput, Picture, Problem, RunSelect, Select, Slider, Spec, Tabs, Tile, Unsuitable, selectRun, useJob } from "./components.js";
import { setQuery } from "./state.js";
import { SamplingControls, sampleRequest } from "./sample.js";
import { useRun } from "./run.js";

const MODES = [["inpaint", "Inpaint"], ["edit", "Edit"], ["interpolate", "Interpolate"], ["illusion", "Illusion"], ["restore", "Restore"]];

async function base64(blob) {
  const url = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = reject;
    reader.readAsDataURL(blob);
  });
  return url.slice(url.indexOf(",") + 1);
}

/** An input image: uploaded, or sampled from the run; storageKey: session storage key of an image from another page. */
export function useUpload(run, storageKey) {
  const [image, set] = useState(null);
  const job = useJob();
  const upload = (content) => job.run(startJob("upload", { run: run.id, content }, job.on), set);
  const fromFile = async (file) => file && upload(await base64(file));
  const fromRun = (seed, label) => job.run(startJob("sample", { run: run.id, n: 1, seed, label, ...(run.options.includes("autoguidance") ? { autoguidance: 1 } : {}) }, {}), (result) => upload(result.image.split(",")[1]));
  useEffect(() => {
    set(null);
    if (!run) return;
    const url = sessionStorage.getItem(storageKey);
    if (url) upload(url.slice(url.indexOf(",") + 1));
    sessionStorage.removeItem(storageKey);
  }, [run?.id]);
  return { image, fromFile, fromRun, job };
}

function ImageInput({ input, title, seed }) {
  const { fromFile, fromRun, job } = input;
  const id = `file-${title.replaceAll(" ", "-")}`;
  return html`<div class="drop" onDragOver=${(e) => e.preventDefault()} onDrop=${(e) => (e.preventDefault(), fromFile(e.dataTransfer.files[0]))}>
    <label for=${id}>${title}</label>
    <input type="file" id=${id} accept="image/png,image/jpeg,image/webp,image/bmp,image/gif,image/tiff" onChange=${(e) => fromFile(e.target.files[0])} />
    <p>or <button type="button" class="quiet accent" onClick=${() => fromRun(seed, "")} disabled=${job.busy}>sample one from the run</button></p>
    ${job.busy && html`<p>loading …</p>`}<${Problem} message=${job.problem} />
  </div>`;
}

/** An image with a mask to paint by pointer or keys; mask: 0 or 1 for each pixel. */
function MaskEditor({ image, width, height, mask, change }) {
  const [imageLayer, maskLayer] = [useRef(), useRef()];
  const [size, setSize] = useState(Math.max(2, Math.round(width / 5)));
  const [history, setHistory] = useState([]);
  const [cursor, setCursor] = useState([Math.floor(width / 2), Math.floor(height / 2)]);
  const stroke = useRef(null);
  useEffect(() => {
    loadImage(image).then((p) => imageLayer.current?.getContext("2d").drawImage(p, 0, 0, width, height));
  }, [image]);
  useEffect(() => {
    const context = maskLayer.current.getContext("2d");
    const pixels = context.createImageData(width, height);
    for (let i = 0; i < mask.length; i++) pixels.data.set(mask[i] ? [226, 88, 44, 255] : [0, 0, 0, 0], 4 * i);
    context.putImageData(pixels, 0, 0);
  }, [mask]);
  const dab = (from, x, y) => {
    const next = Uint8Array.from(from);
    const r = size / 2;
    for (let v = Math.max(0, Math.floor(y - r)); v <= Math.min(height - 1, y + r); v++)
      for (let u = Math.max(0, Math.floor(x - r)); u <= Math.min(width - 1, x + r); u++)
        if (Math.hypot(u + 0.5 - x, v + 0.5 - y) <= Math.max(r, 0.75)) next[v * width + u] = 1;
    return next;
  };
  const at = (event) => {
    const box = maskLayer.current.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * width, ((event.clientY - box.top) / box.height) * height];
  };
  const push = () => setHistory([...history.slice(-30), mask]);
  const down = (event) => {
    push();
    event.currentTarget.setPointerCapture(event.pointerId);
    stroke.current = dab(mask, ...at(event));
    change(stroke.current);
  };
  const move = (event) => {
    if (!stroke.current) return;
    stroke.current = dab(stroke.current, ...at(event));
    change(stroke.current);
  };
  const key = (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (step) {
      event.preventDefault();
      setCursor([Math.max(0, Math.min(width - 1, cursor[0] + step[0])), Math.max(0, Math.min(height - 1, cursor[1] + step[1]))]);
    }
    if (event.key === " ") {
      event.preventDefault();
      push();
      change(dab(mask, cursor[0] + 0.5, cursor[1] + 0.5));
    }
  };
  const undo = () => {
    if (!history.length) return;
    change(history[history.length - 1]);
    setHistory(history.slice(0, -1));
  };
  const all = (value) => (push(), change(value));
  return html`<div>
    <div class="brush" tabindex="0" role="application" aria-label="Paint the mask; arrow keys move the cursor, space paints at row ${cursor[1] + 1}, column ${cursor[0] + 1}"
      onPointerDown=${down} onPointerMove=${move} onPointerUp=${() => (stroke.current = null)} onKeyDown=${key}>
      <canvas ref=${imageLayer} width=${width} height=${height}></canvas><canvas ref=${maskLayer} width=${width} height=${height}></canvas></div>
    <p class="hint">Paint over the pixels to generate.</p><div class="brushcontrols">
    <${Slider} label="Brush size" value=${size} low=${1} high=${Math.max(2, Math.round(width / 2))} step=${1} change=${setSize} /></div>
    <div class="actions brushcontrols"><button type="button" onClick=${undo} disabled=${!history.length}>Undo</button>
      <button type="button" onClick=${() => all(new Uint8Array(width * height))}>Clear</button>
      <button type="button" onClick=${() => all(mask.map((m) => 1 - m))}>Invert</button></div></div>`;
}

function Row({ image, n, run, titles, alt }) {
  const [height, width] = run.shape.slice(1);
  return image && html`<div class="items">${Array.from({ length: n }, (_, k) => html`<figure><${Tile} image=${image} k=${k} width=${width} height=${height} alt="${alt} ${k + 1}" /><figcaption>${titles ? titles[k] : `${alt} ${k + 1}`}</figcaption></figure>`)}</div>`;
}

/** An animated transition between views: a rotation if both views are rotations, else a permutation of the pixels. */
function ViewTransition({ views, k, run }) {
  const canvas = useRef();
  const [height, width] = run.shape.slice(1);
  const [to, setTo] = useState(1 % views.length);
  const [moving, setMoving] = useState(false);
  const sources = useRef([]);
  const scale = Math.max(1, Math.round(280 / Math.max(width, height)));
  const show = (a, b, share) => {
    const c = canvas.current?.getContext("2d");
    if (!c || !sources.current[a]) return;
    const [W, H] = [width * scale, height * scale];
    c.imageSmoothingEnabled = false;
    c.setTransform(1, 0, 0, 1, 0, 0);
    c.clearRect(0, 0, W, H);
    if (share === 0 || share === 1) {
      c.drawImage(sources.current[share ? b : a], k * width, 0, width, height, 0, 0, W, H);
      return;
    }
    const [va, vb] = [views[a], views[b]];
    if (va.rotation !== null && vb.rotation !== null) {
      const angle = ((((vb.rotation - va.rotation + 179) % 360) + 360) % 360) - 179;
      c.translate(W / 2, H / 2);
      c.rotate((-angle * share * Math.PI) / 180);
      c.drawImage(sources.current[a], k * width, 0, width, height, -W / 2, -H / 2, W, H);
      return;
    }
    const pixels = sources.current[`${a}:pixels`];
    const positions = sources.current[`${b}:positions`];
    const negative = va.sign * vb.sign < 0 ? share : 0;
    for (let i = 0; i < width * height; i++) {
      const j = positions[va.source[i]];
      const [x, y] = [(1 - share) * (i % width) + share * (j % width), (1 - share) * Math.floor(i / width) + share * Math.floor(j / width)];
      const [r, g, b_] = [0, 1, 2].map((ch) => { const v = pixels[4 * i + ch]; return Math.round(v + negative * (255 - 2 * v)); });
      c.fillStyle = `rgb(${r} ${g} ${b_})`;
      c.fillRect(Math.round(x * scale), Math.round(y * scale), scale, scale);
    }
  };
  useEffect(() => {
    let here = true;
    Promise.all(views.map((v) => loadImage(v.image))).then((images) => {
      if (!here) return;
      images.forEach((image, v) => {
        sources.current[v] = image;
        const copy = document.createElement("canvas");
        [copy.width, copy.height] = [width, height];
        const c = copy.getContext("2d");
        c.drawImage(image, k * width, 0, width, height, 0, 0, width, height);
        sources.current[`${v}:pixels`] = c.getImageData(0, 0, width, height).data;
        const positions = new Int32Array(width * height);
        views[v].source.forEach((source, position) => (positions[source] = position));
        sources.current[`${v}:positions`] = positions;
      });
      show(0, 0, 0);
    });
    return () => {
      here = false;
    };
  }, [views, k]);
  const flip = () => {
    const from = (to - 1 + views.length) % views.length;
    const start = performance.now();
    setMoving(true);
    const animate = (now) => {
      const u = Math.min(1, (now - start) / 1400);
      show(from, to, u * u * (3 - 2 * u));
      if (u < 1) requestAnimationFrame(animate);
      else {
        setMoving(false);
        setTo((to + 1) % views.length);
      }
    };
    requestAnimationFrame(animate);
  };
  return html`<figure class="flip"><canvas class="pixels" ref=${canvas} width=${width * scale} height=${height * scale} role="img" aria-label="Illusion ${k + 1}, next view ${views[to].title}"></canvas>
    <figcaption>next view: ${views[to].title}</figcaption><button type="button" class="main" onClick=${flip} disabled=${moving}>Flip</button></figure>`;
}

function Steering({ run, query, studio, mode }) {
  const job = useJob();
  const [first, second] = [useUpload(run, "image"), useUpload(run, "second image")];
  const [height, width] = run.shape.slice(1);
  const [mask, setMask] = useState(() => new Uint8Array(width * height));
  const [result, setResult] = useState(null);
  const [selected, select] = useState(0);
  const n = Number(query.n ?? 4);
  const seed = Number(query.seed ?? 0);
  const labels = run.labels ?? [];
  const views = (query.views || "identity,rotate180").split(",");
  const viewLabels = views.map((_, k) => query[`l${k}`] ?? labels[(k * 3 + 6) % Math.max(1, labels.length)] ?? "");
  const fromSeeds = mode === "interpolate" && query.ends === "seeds";
  const set = (name) => (value) => setQuery({ [name]: value });
  useEffect(() => {
    setResult(null);
  }, [mode]);
  const { run: id, ...sampling } = sampleRequest({ ...query, run: run.id, label: mode === "illusion" ? "" : query.label, sum: "", ...(mode === "illusion" ? { prompt: "", negative_prompt: "" } : {}) }, run);
  const needsImage = mode !== "illusion" && !fromSeeds && !first.image;
  const start = () => {
    const base = { ...sampling, run: run.id, n };
    if (!base.label) delete base.guidance;
    const requests = {
      inpaint: () => ({ ...base, image: first.image.id, mask: Array.from(mask).join(""), method: query.method }),
      edit: () => ({ ...base, image: first.image.id, strength: Number(query.strength ?? 0.6) }),
      restore: () => ({ ...base, image: first.image.id, task: query.task || "upscale:factor=2", method: query.how || "moment" }),
      interpolate: () => {
        const { n: _, ...rest } = base;
        return { ...rest, begin: fromSeeds ? seed : first.image.id, end: fromSeeds ? seed + 1 : second.image?.id ?? seed + 1, frames: 12 };
      },
      illusion: () => ({ ...base, label: "", views, labels: labels.length ? viewLabels : [], guidance: labels.length && query.guidance ? Number(query.guidance) : null }),
    };
    job.run(startJob(mode, requests[mode](), job.on), async (response) => {
      setResult({ ...response, mode, n: mode === "interpolate" ? 12 : n, atlas: response.image ? await loadImage(response.image) : null });
      select(0);
    });
  };
  const metrics = result?.metrics && Object.entries(result.metrics).filter(([, v]) => typeof v === "number");
  return html`<div class="columns">
    <form class="panel controls" onSubmit=${(e) => (e.preventDefault(), start())}>
      ${mode === "interpolate" && html`<${Select} label="Between" value=${query.ends || "images"} options=${[["images", "two images"], ["seeds", "two seeds"]]} change=${set("ends")} />`}
      ${mode !== "illusion" && !fromSeeds && html`<${ImageInput} input=${first} title="Input image" seed=${seed} />`}
      ${mode === "interpolate" && !fromSeeds && html`<${ImageInput} input=${second} title="Second image" seed=${seed + 1} />`}
      ${mode === "edit" && html`<${Slider} label="Strength" value=${Number(query.strength ?? 0.6)} low=${0.05} high=${1} step=${0.05} change=${set("strength")} hint="the time to which the image is noised; 1 keeps nothing of it" />`}
      ${mode === "restore" && html`<${Spec} label="Task" table=${studio.tables.tasks} value=${query.task || "upscale:factor=2"} change=${set("task")} none="choose" />
        <${Select} label="Method" value=${query.how || "moment"} options=${studio.tables.posteriors.map((p) => p.name)} change=${set("how")} />`}
      ${mode === "inpaint" && html`<${Select} label="Method" value=${query.method || ""} options=${[["", "default of the run"], ...studio.tables.inpainters.map((p) => p.name)]} change=${set("method")} />`}
      ${mode === "illusion" && html`<${Select} label="Second view" value=${views[1]} options=${studio.tables.views.map((v) => v.name).filter((v) => v !== views[0])} change=${(v) => setQuery({ views: `${views[0]},${v}` })} hint=${studio.tables.views.find((v) => v.name === views[1])?.about} />
        ${labels.length > 0 && views.map((v, k) => html`<${Select} label="Label in view ${v}" value=${viewLabels[k]} options=${labels} change=${set(`l${k}`)} />`)}`}
      ${mode !== "interpolate" && html`<${NumberInput} label="Results" value=${n} low=${1} high=${16} change=${set("n")} />`}
      ${mode === "illusion" ? html`<${NumberInput} label="Steps" value=${query.steps ?? ""} low=${1} high=${1000} change=${set("steps")} placeholder="default" /><${NumberInput} label="Seed" value=${seed} low=${0} change=${set("seed")} />`
        : html`<${SamplingControls} query=${query} run=${run} studio=${studio} few=${true} />`}
      <div class="actions"><button type="submit" class="main" disabled=${needsImage || job.busy}>${MODES.find(([m]) => m === mode)[1]}</button>
        ${job.busy && html`<button type="button" onClick=${job.cancel}>Stop</button>`}</div>
      <${JobProgress} job=${job} />
    </form>
    <div class="results">
      <${Problem} message=${job.problem} /><${Notes} notes=${job.warnings} />
      ${needsImage && html`<div class="panel quietpanel"><p>Upload an image, or sample one from the run. It is resized to the image size of the run, ${width} × ${height}.</p></div>`}
      ${mode === "inpaint" && first.image && html`<section class="panel" aria-label="Mask"><${MaskEditor} image=${first.image.image} width=${width} height=${height} mask=${mask} change=${setMask} /></section>`}
      ${mode !== "inpaint" && mode !== "illusion" && first.image && html`<section class="panel"><div class="items"><figure><${Picture} src=${first.image.image} alt="Input image" /><figcaption>input image</figcaption></figure>
        ${mode === "interpolate" && second.image && html`<figure><${Picture} src=${second.image.image} alt="Second image" /><figcaption>second image</figcaption></figure>`}
        ${result?.degraded && html`<figure><${Picture} src=${result.degraded} alt="Degraded image" /><figcaption>degraded image</figcaption></figure>`}</div></section>`}
      ${result && result.mode === mode && html`<section class="panel" aria-label="Results"><h2>Results</h2>
        ${mode === "illusion" ? html`<div class="columns even"><${ViewTransition} key=${selected} views=${result.views} k=${selected} run=${run} />
          <div>${result.views.map((v) => html`<h3>${v.title}</h3><${ViewStrip} view=${v} n=${result.n} run=${run} selected=${selected} select=${select} />`)}</div></div>`
        : html`<${Row} image=${result.atlas} n=${result.n} run=${run} alt=${mode === "interpolate" ? "frame" : "result"} />`}
        ${result.std && html`<div class="items stdrow"><figure><${Picture} src=${result.std} alt="Standard deviation of the results" /><figcaption>standard deviation</figcaption></figure></div>`}
        ${metrics?.length > 0 && html`<p class="soft">${metrics.map(([k, v]) => `${k.replaceAll("_", " ").replace("psnr", "PSNR")} ${Number(v.toPrecision(3))}`).join(" · ")}</p>`}</section>
        <${Code} title="Command" text=${result.command} />`}
    </div></div>`;
}

function ViewStrip({ view, n, run, selected, select }) {
  const [image, set] = useState(null);
  const [height, width] = run.shape.slice(1);
  useEffect(() => {
    loadImage(view.image).then(set);
  }, [view.image]);
  return html`<div class="strip">${Array.from({ length: n }, (_, k) => html`<button type="button" class="tile" aria-pressed=${k === selected} aria-label="Illusion ${k + 1}, view ${view.title}" onClick=${() => select(k)}><${Tile} image=${image} k=${k} width=${width} height=${height} alt="" /></button>`)}</div>`;
}

/** Why a run cannot be steered, or "". */
function unsuitable(run) {
  if (run.kind !== "images") return `its data are ${run.kind}, and steering needs a run of images`;
  return MODES.some(([m]) => run.abilities.includes(m)) ? "" : `the family ${run.family} does not support any of: ${MODES.map(([m]) => m).join(", ")}`;
}

export function Steer({ here, studio, runs }) {
  const selection = selectRun(runs, here.query.run, unsuitable);
  const run = useRun(selection.id);
  const supported = MODES.filter(([m]) => !run || run.abilities.includes(m));
  const requested = MODES.find(([m]) => m === here.query.mode);
  const mode = supported.includes(requested) ? requested[0] : supported[0]?.[0];
  const head = html`<div class="pagehead"><h1>Steer</h1><p class="lead">Condition sampling on known pixels, an image, or a label for each view.</p></div>`;
  if (selection.why) return html`${head}<${Unsuitable} selection=${selection} />`;
  if (!selection.id) return html`<${Empty} title="No run of images"><p>Steering needs a run of images. <a href="#/train">Train one</a>.</p><//>`;
  return html`${head}
    <div class="row wide"><${Tabs} label="Task" tabs=${supported} value=${mode} change=${(v) => setQuery({ mode: v })} /><${RunSelect} selection=${selection} /></div>
    ${run && requested && !supported.includes(requested) && html`<${Notes} notes=${[`The family ${run.family} does not support ${requested[0]}.`]} />`}
    ${run && mode && html`<${Steering} key=${selection.id} run=${run} query=${here.query} studio=${studio} mode=${mode} />`}`;
}
