// Steer: paint a mask and fill it, draw a picture again, lead one into another, turn illusions, restore.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { picture, work } from "./net.js";
import { Code, Empty, Notes, Number_, Picture, Problem, Working, RunSelect, Select, Slider, Spec, Tabs, Tile, Unfit, chosenRun, useRunning } from "./parts.js";
import { choose } from "./state.js";
import { SamplingControls, wished } from "./draw.js";
import { useRun } from "./run.js";

const MODES = [["inpaint", "Fill in"], ["edit", "Draw again"], ["interpolate", "Lead over"], ["illusion", "Illusions"], ["restore", "Restore"]];

async function base64(blob) {
  const address = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = reject;
    reader.readAsDataURL(blob);
  });
  return address.slice(address.indexOf(",") + 1);
}

/** A picture to work on: sent by the reader, or drawn by the run. */
export function usePicture(run, name) {
  const [own, set] = useState(null);
  const running = useRunning();
  const send = (content) => running.begin(work("send", { run: run.id, content }, running.on), set);
  const take = async (file) => file && send(await base64(file));
  const draw = (seed, label) => running.begin(work("draw", { run: run.id, n: 1, seed, label, ...(run.options.includes("autoguidance") ? { autoguidance: 1 } : {}) }, {}), (found) => send(found.image.split(",")[1]));
  useEffect(() => {
    set(null);
    if (!run) return;
    const given = sessionStorage.getItem(name);
    if (given) send(given.slice(given.indexOf(",") + 1));
    sessionStorage.removeItem(name);
  }, [run?.id]);
  return { own, take, draw, running };
}

function Source({ source, title, run, seed }) {
  const { own, take, draw, running } = source;
  const id = `file-${title.replaceAll(" ", "-")}`;
  return html`<div class="drop" onDragOver=${(e) => e.preventDefault()} onDrop=${(e) => (e.preventDefault(), take(e.dataTransfer.files[0]))}>
    <label for=${id}>${title}</label>
    <input type="file" id=${id} accept="image/png,image/jpeg,image/webp,image/bmp,image/gif,image/tiff" onChange=${(e) => take(e.target.files[0])} />
    <p>or <button type="button" class="quiet accent" onClick=${() => draw(seed, "")} disabled=${running.busy}>let the run draw one</button></p>
    ${running.busy && html`<p>working …</p>`}<${Problem} message=${running.problem} />
  </div>`;
}

/** The picture with a mask on it, painted by pointer or keys; the mask has a digit for each pixel. */
function Brush({ image, width, height, mask, change }) {
  const [below, above] = [useRef(), useRef()];
  const [size, setSize] = useState(Math.max(2, Math.round(width / 5)));
  const [history, setHistory] = useState([]);
  const [cursor, setCursor] = useState([Math.floor(width / 2), Math.floor(height / 2)]);
  const stroke = useRef(null);
  useEffect(() => {
    picture(image).then((p) => below.current?.getContext("2d").drawImage(p, 0, 0, width, height));
  }, [image]);
  useEffect(() => {
    const context = above.current.getContext("2d");
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
    const box = above.current.getBoundingClientRect();
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
    <div class="brush" tabindex="0" role="application" aria-label="Paint what is to be filled; arrow keys move, space paints at row ${cursor[1] + 1}, column ${cursor[0] + 1}"
      onPointerDown=${down} onPointerMove=${move} onPointerUp=${() => (stroke.current = null)} onKeyDown=${key}>
      <canvas ref=${below} width=${width} height=${height}></canvas><canvas ref=${above} width=${width} height=${height}></canvas></div>
    <p class="hint">Paint over what the model is to draw anew.</p><div class="brushing">
    <${Slider} label="Brush" value=${size} low=${1} high=${Math.max(2, Math.round(width / 2))} step=${1} change=${setSize} /></div>
    <div class="actions brushing"><button type="button" onClick=${undo} disabled=${!history.length}>Undo</button>
      <button type="button" onClick=${() => all(new Uint8Array(width * height))}>Clear</button>
      <button type="button" onClick=${() => all(mask.map((m) => 1 - m))}>Invert</button></div></div>`;
}

function Row({ image, n, run, titles, alt }) {
  const [height, width] = run.shape.slice(1);
  return image && html`<div class="items">${Array.from({ length: n }, (_, k) => html`<figure><${Tile} image=${image} k=${k} width=${width} height=${height} alt="${alt} ${k + 1}" /><figcaption>${titles ? titles[k] : `${alt} ${k + 1}`}</figcaption></figure>`)}</div>`;
}

/** Pictures that turn from view to view: by an angle where the view is a turn, else every pixel goes its way. */
function Turning({ views, k, run }) {
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
    if (va.turn !== null && vb.turn !== null) {
      const angle = ((((vb.turn - va.turn + 179) % 360) + 360) % 360) - 179;
      c.translate(W / 2, H / 2);
      c.rotate((-angle * share * Math.PI) / 180);
      c.drawImage(sources.current[a], k * width, 0, width, height, -W / 2, -H / 2, W, H);
      return;
    }
    const pixels = sources.current[`${a}:pixels`];
    const places = sources.current[`${b}:places`];
    const negative = va.sign * vb.sign < 0 ? share : 0;
    for (let i = 0; i < width * height; i++) {
      const j = places[va.source[i]];
      const [x, y] = [(1 - share) * (i % width) + share * (j % width), (1 - share) * Math.floor(i / width) + share * Math.floor(j / width)];
      const [r, g, b_] = [0, 1, 2].map((ch) => { const v = pixels[4 * i + ch]; return Math.round(v + negative * (255 - 2 * v)); });
      c.fillStyle = `rgb(${r} ${g} ${b_})`;
      c.fillRect(Math.round(x * scale), Math.round(y * scale), scale, scale);
    }
  };
  useEffect(() => {
    let here = true;
    Promise.all(views.map((v) => picture(v.image))).then((found) => {
      if (!here) return;
      found.forEach((image, v) => {
        sources.current[v] = image;
        const copy = document.createElement("canvas");
        [copy.width, copy.height] = [width, height];
        const c = copy.getContext("2d");
        c.drawImage(image, k * width, 0, width, height, 0, 0, width, height);
        sources.current[`${v}:pixels`] = c.getImageData(0, 0, width, height).data;
        const places = new Int32Array(width * height);
        views[v].source.forEach((source, place) => (places[source] = place));
        sources.current[`${v}:places`] = places;
      });
      show(0, 0, 0);
    });
    return () => {
      here = false;
    };
  }, [views, k]);
  const flip = () => {
    const from = (to - 1 + views.length) % views.length;
    const began = performance.now();
    setMoving(true);
    const go = (now) => {
      const u = Math.min(1, (now - began) / 1400);
      show(from, to, u * u * (3 - 2 * u));
      if (u < 1) requestAnimationFrame(go);
      else {
        setMoving(false);
        setTo((to + 1) % views.length);
      }
    };
    requestAnimationFrame(go);
  };
  return html`<figure class="turning"><canvas class="pixels" ref=${canvas} width=${width * scale} height=${height * scale} role="img" aria-label="Illusion ${k + 1}, turning to ${views[to].title}"></canvas>
    <figcaption>next: ${views[to].title}</figcaption><button type="button" class="main" onClick=${flip} disabled=${moving}>Flip</button></figure>`;
}

function Steering({ run, query, studio, mode }) {
  const running = useRunning();
  const [first, second] = [usePicture(run, "picture"), usePicture(run, "other")];
  const [height, width] = run.shape.slice(1);
  const [mask, setMask] = useState(() => new Uint8Array(width * height));
  const [result, setResult] = useState(null);
  const [selected, select] = useState(0);
  const n = Number(query.n ?? 4);
  const seed = Number(query.seed ?? 0);
  const labels = run.labels ?? [];
  const views = (query.views || "identity,rotate180").split(",");
  const wanted = views.map((_, k) => query[`l${k}`] ?? labels[(k * 3 + 6) % Math.max(1, labels.length)] ?? "");
  const set = (name) => (value) => choose({ [name]: value });
  useEffect(() => {
    setResult(null);
  }, [mode]);
  const { run: id, ...sampling } = wished({ ...query, run: run.id, label: mode === "illusion" ? "" : query.label, sum: "", ...(mode === "illusion" ? { prompt: "", avoid: "" } : {}) }, run);
  const needs = mode === "illusion" || (mode === "interpolate" && query.ends === "seeds") ? false : !first.own;
  const begin = () => {
    const base = { ...sampling, run: run.id, n };
    if (!base.label) delete base.guidance;
    const wishes = {
      inpaint: () => ({ ...base, picture: first.own.picture, mask: Array.from(mask).join(""), method: query.method }),
      edit: () => ({ ...base, picture: first.own.picture, strength: Number(query.strength ?? 0.6) }),
      restore: () => ({ ...base, picture: first.own.picture, task: query.task || "upscale:factor=2", method: query.how || "moment" }),
      interpolate: () => {
        const { n: _, ...rest } = base;
        const seeds = query.ends === "seeds";
        return { ...rest, begin: seeds ? seed : first.own.picture, end: seeds ? seed + 1 : second.own?.picture ?? seed + 1, frames: 12 };
      },
      illusion: () => ({ ...base, label: "", views, labels: labels.length ? wanted : [], guidance: labels.length && query.guidance ? Number(query.guidance) : null }),
    };
    running.begin(work(mode, wishes[mode](), running.on), async (found) => {
      setResult({ ...found, mode, n: mode === "interpolate" ? 12 : n, atlas: found.image ? await picture(found.image) : null });
      select(0);
    });
  };
  const figures = result?.figures && Object.entries(result.figures).filter(([, v]) => typeof v === "number");
  return html`<div class="columns">
    <form class="panel controls" onSubmit=${(e) => (e.preventDefault(), begin())}>
      ${mode === "interpolate" && html`<${Select} label="Between" value=${query.ends || "pictures"} options=${[["pictures", "two pictures"], ["seeds", "two seeds"]]} change=${set("ends")} />`}
      ${mode !== "illusion" && !(mode === "interpolate" && query.ends === "seeds") && html`<${Source} source=${first} title="A picture" run=${run} seed=${seed} />`}
      ${mode === "interpolate" && query.ends !== "seeds" && html`<${Source} source=${second} title="Another picture" run=${run} seed=${seed + 1} />`}
      ${mode === "edit" && html`<${Slider} label="Strength" value=${Number(query.strength ?? 0.6)} low=${0.05} high=${1} step=${0.05} change=${set("strength")} hint="how far it is noised first; 1 forgets it" />`}
      ${mode === "restore" && html`<${Spec} label="Task" table=${studio.tables.tasks} value=${query.task || "upscale:factor=2"} change=${set("task")} none="choose" />
        <${Select} label="Method" value=${query.how || "moment"} options=${studio.tables.posteriors.map((p) => p.name)} change=${set("how")} />`}
      ${mode === "inpaint" && html`<${Select} label="Method" value=${query.method || ""} options=${[["", "what suits the run"], ...studio.tables.inpainters.map((p) => p.name)]} change=${set("method")} />`}
      ${mode === "illusion" && html`<${Select} label="Second view" value=${views[1]} options=${studio.tables.views.map((v) => v.name).filter((v) => v !== views[0])} change=${(v) => choose({ views: `${views[0]},${v}` })} hint=${studio.tables.views.find((v) => v.name === views[1])?.about} />
        ${labels.length > 0 && views.map((v, k) => html`<${Select} label="Shows in ${v}" value=${wanted[k]} options=${labels} change=${set(`l${k}`)} />`)}`}
      ${mode !== "interpolate" && html`<${Number_} label="How many" value=${n} low=${1} high=${16} change=${set("n")} />`}
      ${mode === "illusion" ? html`<${Number_} label="Steps" value=${query.steps ?? ""} low=${1} high=${1000} change=${set("steps")} placeholder="as usual" /><${Number_} label="Seed" value=${seed} low=${0} change=${set("seed")} />`
        : html`<${SamplingControls} query=${query} run=${run} studio=${studio} few=${true} />`}
      <div class="actions"><button type="submit" class="main" disabled=${needs || running.busy}>${MODES.find(([m]) => m === mode)[1]}</button>
        ${running.busy && html`<button type="button" onClick=${running.cancel}>Stop</button>`}</div>
      <${Working} running=${running} />
    </form>
    <div class="results">
      <${Problem} message=${running.problem} /><${Notes} notes=${running.notes} />
      ${needs && html`<div class="panel quietpanel"><p>Give a picture, or let the run draw one. It is brought to the size of the run's images, ${width} × ${height}.</p></div>`}
      ${mode === "inpaint" && first.own && html`<section class="panel" aria-label="Mask"><${Brush} image=${first.own.image} width=${width} height=${height} mask=${mask} change=${setMask} /></section>`}
      ${mode !== "inpaint" && mode !== "illusion" && first.own && html`<section class="panel"><div class="items"><figure><${Picture} src=${first.own.image} alt="The picture" /><figcaption>the picture</figcaption></figure>
        ${mode === "interpolate" && second.own && html`<figure><${Picture} src=${second.own.image} alt="The other picture" /><figcaption>the other</figcaption></figure>`}
        ${result?.given && html`<figure><${Picture} src=${result.given} alt="What was left of it" /><figcaption>what was left</figcaption></figure>`}</div></section>`}
      ${result && result.mode === mode && html`<section class="panel" aria-label="Results"><h2>Results</h2>
        ${mode === "illusion" ? html`<div class="columns even"><${Turning} key=${selected} views=${result.views} k=${selected} run=${run} />
          <div>${result.views.map((v) => html`<h3>${v.title}</h3><${Views} view=${v} n=${result.n} run=${run} selected=${selected} select=${select} />`)}</div></div>`
        : html`<${Row} image=${result.atlas} n=${result.n} run=${run} alt=${mode === "interpolate" ? "step" : "result"} />`}
        ${result.spread && html`<div class="items spreadrow"><figure><${Picture} src=${result.spread} alt="Where the results differ" /><figcaption>where they differ, white the most</figcaption></figure></div>`}
        ${figures?.length > 0 && html`<p class="soft">${figures.map(([k, v]) => `${k.replaceAll("_", " ")} ${Number(v.toPrecision(3))}`).join(" · ")}</p>`}</section>
        <${Code} title="The same in a terminal" text=${result.command} />`}
    </div></div>`;
}

function Views({ view, n, run, selected, select }) {
  const [image, set] = useState(null);
  const [height, width] = run.shape.slice(1);
  useEffect(() => {
    picture(view.image).then(set);
  }, [view.image]);
  return html`<div class="strip">${Array.from({ length: n }, (_, k) => html`<button type="button" class="tile" aria-pressed=${k === selected} aria-label="Illusion ${k + 1} as ${view.title}" onClick=${() => select(k)}><${Tile} image=${image} k=${k} width=${width} height=${height} alt="" /></button>`)}</div>`;
}

/** Why a run cannot be steered, or "". */
function unsteerable(run) {
  if (run.kind !== "images") return `it draws ${run.kind}, and steering needs a run of images`;
  return MODES.some(([m]) => run.can.includes(m)) ? "" : `the family ${run.family} can do none of ${MODES.map(([, text]) => text.toLowerCase()).join(", ")}`;
}

export function Steer({ here, studio, runs }) {
  const chosen = chosenRun(runs, here.query.run, unsteerable);
  const run = useRun(chosen.id);
  const able = MODES.filter(([m]) => !run || run.can.includes(m));
  const asked = MODES.find(([m]) => m === here.query.mode);
  const mode = able.includes(asked) ? asked[0] : able[0]?.[0];
  const head = html`<div class="pagehead"><h1>Steer</h1><p class="lead">Say what is known or wanted, and let the model draw the rest.</p></div>`;
  if (chosen.why) return html`${head}<${Unfit} chosen=${chosen} />`;
  if (!chosen.id) return html`<${Empty} title="Nothing to steer yet"><p>Steering needs a run of images. <a href="#/train">Start a training</a>.</p><//>`;
  return html`${head}
    <div class="row wide"><${Tabs} label="What to do" tabs=${able} value=${mode} change=${(v) => choose({ mode: v })} /><${RunSelect} chosen=${chosen} /></div>
    ${run && asked && !able.includes(asked) && html`<${Notes} notes=${[`The family ${run.family} cannot do this: ${asked[1].toLowerCase()}.`]} />`}
    ${run && mode && html`<${Steering} key=${chosen.id} run=${run} query=${here.query} studio=${studio} mode=${mode} />`}`;
}
