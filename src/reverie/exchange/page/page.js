"use strict";
// Controls, the film of the trajectory, and saving.  The computation is in worker.js.

const $ = (id) => document.getElementById(id);
const model = JSON.parse($("model").textContent), points = model.kind === "points";
const weights = Uint8Array.from(atob($("weights").textContent.trim()), (c) => c.charCodeAt(0)).buffer;
const source = URL.createObjectURL(new Blob([$("worker").textContent], { type: "text/javascript" }));
const [channels, height, width] = model.shape, dark = matchMedia("(prefers-color-scheme: dark)");
const INKS = ["#2459b8", "#d1495b", "#2e8b57", "#b07d1a", "#7a4fb5", "#1a8fa3", "#c2578f", "#6b7a1f"];
const BRIGHT = ["#7fb0ff", "#ff8795", "#6fd39b", "#f0c060", "#c3a1ff", "#5fd4e6", "#ff9fd0", "#c9d86a"]; // on a dark background
const ink = (label) => (dark.matches ? BRIGHT : INKS)[Math.max(label, 0) % INKS.length];
const LABEL_DRAW = 2 ** 30; // index of the draw in the random stream of each image that selects its label

// Up to four workers with a copy of the model each; jobs are distributed in turn.
const workers = [], listeners = new Map();
let jobs = 0, turn = 0;
function startWorkers() {
  const workerCount = points ? 1 : Math.max(1, Math.min(4, (navigator.hardwareConcurrency || 2) - 1));
  for (let k = 0; k < workerCount; k++) {
    const worker = new Worker(source);
    worker.onmessage = ({ data }) => {
      if (data.failed) { $("status").textContent = `Sampling failed in this browser: ${data.failed}`; return; }
      if (data.id !== undefined && listeners.has(data.id)) listeners.get(data.id)(data);
    };
    worker.onerror = (event) => { $("status").textContent = `The model failed to start in this browser: ${event.message || "unknown"}`; };
    worker.postMessage({ facts: model, weights });
    workers.push(worker);
  }
}
function newJobs(listener) { listeners.clear(); jobs += 1; workers.forEach((w) => w.postMessage({ stop: jobs - 1 })); listeners.set(jobs, listener); return jobs; }
function send(job) { workers[turn++ % workers.length].postMessage({ job }); }

// Model units to bytes of an image, or to coordinates of points.
const LEVELS = model.codec.values;
function toByte(z) {
  if (!LEVELS) return Math.round(255 * Math.min(Math.max((z + 1) / 2, 0), 1));
  return LEVELS[Math.min(Math.max(Math.round(((z + 1) * (LEVELS.length - 1)) / 2), 0), LEVELS.length - 1)];
}
function imageData(values) {
  const n = height * width, data = new Uint8ClampedArray(4 * n);
  for (let i = 0; i < n; i++)
    for (let c = 0; c < 4; c++) {
      const alpha = c === 3, plane = channels < 3 ? 0 : c;
      data[4 * i + c] = alpha && channels < 4 ? 255 : toByte(values[plane * n + i]);
    }
  return new ImageData(data, width, height);
}
function fromBytes(image) { // an image in model units
  const n = height * width, values = new Float32Array(channels * n);
  for (let i = 0; i < n; i++) for (let c = 0; c < channels; c++) values[c * n + i] = image.data[4 * i + c] / 127.5 - 1;
  return values;
}

// The samples: for each member its frames so far, {x, x0, t}.
let sampled = { members: [], films: [], labels: [], frames: 1 }, shown = 0, playing = 0;

function columns(count) { return Math.ceil(Math.sqrt(count)); }

function paintGrid(canvas, key) {
  const count = sampled.members.length, wide = columns(count), high = Math.ceil(count / wide), gap = count > 1 ? Math.max(1, Math.round(width / 14)) : 0;
  canvas.width = wide * (width + gap) + gap; canvas.height = high * (height + gap) + gap;
  const context = canvas.getContext("2d");
  sampled.films.forEach((film, i) => {
    const frame = film[Math.min(shown, film.length - 1)];
    if (frame) context.putImageData(imageData(frame[key]), gap + (i % wide) * (width + gap), gap + Math.floor(i / wide) * (height + gap));
  });
}

function paintPoints(canvas, key) {
  const side = 900, context = canvas.getContext("2d"), reach = 2.8 * Math.max(...model.codec.std); // from the center to the edge
  canvas.width = canvas.height = side;
  const place = (z, d, sign) => (side / 2) * (1 + (sign * z * model.codec.std[d]) / reach);
  sampled.films.forEach((film, group) => {
    const frame = film[Math.min(shown, film.length - 1)];
    if (!frame) return;
    const n = frame[key].length / 2;
    context.fillStyle = ink(sampled.labels[group]);
    context.globalAlpha = 0.75;
    for (let i = 0; i < n; i++) {
      context.beginPath();
      context.arc(place(frame[key][i], 0, 1), place(frame[key][n + i], 1, -1), key === "x" ? 7 : 5, 0, 7);
      context.fill();
    }
  });
}

function show() {
  const paint = points ? paintPoints : paintGrid;
  paint($("x0"), "x0"); paint($("x"), "x");
  const frame = sampled.films.map((film) => film[Math.min(shown, film.length - 1)]).find(Boolean);
  $("frame").textContent = frame ? `step ${Math.min(shown + 1, sampled.frames)}/${sampled.frames}, t ${frame.t.toFixed(2)}` : "";
  $("scrub").max = Math.max(sampled.frames - 1, 0);
  $("scrub").value = shown;
}

// The label of each member: a name, each in turn, or with the frequencies of the data, as in `reverie sample`.
let chosenLabel = "data";
function labelOf(seed, member) {
  if (!model.labels.length) return -1;
  if (chosenLabel === "turn") return member % model.labels.length;
  if (chosenLabel !== "data") return chosenLabel;
  return weightedChoice(model.label_counts, seed, member, LABEL_DRAW);
}

// A random index with probabilities proportional to the counts, from the random stream of the member; -1 if all are 0.
function weightedChoice(counts, seed, member, draw) {
  splitMix(seed, member, 0, 1);
  splitMix(high, low, draw, 1);
  const total = counts.reduce((a, b) => a + b, 0), u = ((high + 0.5) / 4294967296) * total;
  let sum = 0;
  return counts.findIndex((count) => u < (sum += count));
}

// The cluster of each member, with its frequency given the label; the last cluster for labels without images.
function clusterOf(seed, member, label) {
  if (!model.clusters) return -1;
  const counts = model.clusters.counts[Math.max(label, 0)], index = weightedChoice(counts, seed, member, model.clusters.draw);
  return index < 0 ? counts.length - 1 : index;
}

function sample() {
  stopFilm();
  const seed = Number($("seed").value) || 0, count = Number($("count").value), members = Array.from({ length: count }, (_, i) => i);
  const labels = members.map((member) => labelOf(seed, member));
  const groups = points ? [...new Set(labels)].map((label) => members.filter((m) => labels[m] === label)) : members.map((m) => [m]);
  sampled = { members: points ? groups : members, films: groups.map(() => []), labels: groups.map((g) => labels[g[0]]), clusters: groups.map((g) => clusterOf(seed, g[0], labels[g[0]])), frames: table().rows.filter((r) => r.frame).length, seed };
  shown = 0; show();
  const started = performance.now();
  let finished = 0;
  const id = newJobs((update) => {
    const index = groups.findIndex((group) => group[0] === update.members[0]);
    sampled.films[index][update.frame] = update;
    shown = Math.max(...sampled.films.map((film) => film.length)) - 1;
    if (update.frame === update.frames - 1) finished += 1;
    const evaluations = table().rows.length * (guided() ? 2 : 1) * (autoguided() !== 1 ? 2 : 1);
    $("status").textContent = finished < groups.length
      ? (points ? "sampling" : `${finished} of ${groups.length} finished`)
      : `${points ? `${count} points` : count === 1 ? "1 image" : `${count} images`} in ${((performance.now() - started) / 1000).toFixed(1)} s, ${evaluations} network evaluations each`;
    if (finished === groups.length) { document.body.dataset.state = "done"; $("sample").textContent = "Sample"; }
    if (!updateScheduled) { updateScheduled = true; requestAnimationFrame(() => { updateScheduled = false; show(); }); }
  });
  document.body.dataset.state = "sampling"; $("sample").textContent = "Stop";
  $("status").textContent = "sampling";
  groups.forEach((group, i) => send({ id, seed, members: group, label: sampled.labels[i], cluster: sampled.clusters[i], rows: table().rows, guidance: Number($("guidance").value), autoguidance: autoguided() }));
}
let updateScheduled = false;
const guided = () => model.labels.length > 0 && ![0, 1].includes(Number($("guidance").value));
const autoguided = () => ($("autoguidance").checked ? model.autoguidance : 1);
const table = () => model.tables.find((t) => t.sampler === $("sampler").value && String(t.steps) === $("steps").value);

function stop() {
  newJobs(() => {});
  document.body.dataset.state = "stopped"; $("sample").textContent = "Sample"; $("status").textContent = "stopped";
}

// The film
function stopFilm() { clearInterval(playing); playing = 0; $("play").innerHTML = "&#9654;"; }
function play() {
  if (playing) { stopFilm(); return; }
  if (shown >= sampled.frames - 1) shown = 0;
  $("play").innerHTML = "&#10074;&#10074;";
  playing = setInterval(() => { shown += 1; if (shown >= sampled.frames - 1) { shown = sampled.frames - 1; stopFilm(); } show(); }, Math.max(30, 3000 / sampled.frames));
}

function savePNG(canvas, name, scale) {
  const large = document.createElement("canvas"), context = large.getContext("2d");
  large.width = canvas.width * scale; large.height = canvas.height * scale;
  context.imageSmoothingEnabled = false;
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--well");
  context.fillRect(0, 0, large.width, large.height);
  context.drawImage(canvas, 0, 0, large.width, large.height);
  large.toBlob((blob) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob); link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
}

// The controls
function options(select, values, chosen) {
  select.replaceChildren(...values.map(([value, text]) => Object.assign(document.createElement("option"), { value, textContent: text, selected: value === chosen })));
}
function stepsOfSampler() {
  const counts = model.tables.filter((t) => t.sampler === $("sampler").value).map((t) => t.steps).sort((a, b) => a - b);
  options($("steps"), counts.map((n) => [String(n), String(n)]), String(counts.includes(model.steps) ? model.steps : counts[counts.length - 1]));
}
function chips() {
  const choices = [["data", "as in the data"], ["turn", "each in turn"], ...model.labels.map((name, k) => [k, name])];
  const buttons = choices.map(([value, text]) => {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: text });
    button.setAttribute("aria-pressed", String(value === chosenLabel));
    if (points && value in model.labels) button.style.borderBottom = `3px solid ${ink(value)}`;
    button.onclick = () => { chosenLabel = value; buttons.forEach((b) => b.setAttribute("aria-pressed", String(b === button))); sample(); };
    return button;
  });
  document.querySelector("#labels .chips").replaceChildren(...buttons);
}

function begin() {
  const what = points ? "points in the plane" : `images of ${width} × ${height} pixels`;
  $("about").textContent = `A diffusion model trained on ${model.count > 1 ? `${model.count.toLocaleString("en")} ` : ""}${what}. All computation runs in this page; it sends and loads nothing.`;
  $("limits").textContent = `The model, its samplers and this page are one file, exported by Reverie. Seed ${model.seed} with the initial settings yields the images of “reverie sample”, up to 0.001 of the range of pixels. The page samples with label guidance, shows trajectories, inpaints (by replacement along a zigzag grid) and saves PNG files. Training, evaluation, compression, editing of photographs and the adaptive sampler rk45 need the run itself. The page needs a browser with WebAssembly SIMD (since about 2021); it was tested in Chromium.`;
  $("hint").textContent = points ? "Move the slider to follow the points from noise to data." : "Click an image to inpaint a part of it.";
  $("labels").hidden = $("guidance-row").hidden = !model.labels.length;
  $("autoguidance-row").hidden = model.autoguidance === 1;
  if (model.labels.length) chips();
  options($("count"), (points ? [200, 500, 1000, 2000] : [1, 4, 9, 16, 36, 64, 100]).map((n) => [String(n), String(n)]), points ? "500" : "16");
  options($("sampler"), [...new Set(model.tables.map((t) => t.sampler))].map((name) => [name, name]), model.sampler);
  stepsOfSampler();
  $("seed").value = model.seed; $("guidance").value = model.guidance;
  const showGuidance = () => { $("guidance-value").textContent = `${$("guidance").value}${$("guidance").value === "1" ? " (none)" : ""}`; };
  $("guidance").oninput = showGuidance; showGuidance();
  $("sampler").onchange = stepsOfSampler;
  $("dice").onclick = () => { $("seed").value = crypto.getRandomValues(new Uint32Array(1))[0] >>> 1; sample(); };
  $("controls").onsubmit = (event) => { event.preventDefault(); if (document.body.dataset.state === "sampling") stop(); else sample(); };
  $("scrub").oninput = () => { stopFilm(); shown = Number($("scrub").value); show(); };
  $("play").onclick = play;
  $("save").onclick = () => savePNG($("x0"), `${model.data}-${sampled.seed}.png`, points ? 1 : Math.max(1, Math.round(1200 / $("x0").width)));
  dark.onchange = () => { if (model.labels.length) chips(); show(); };
  if (points) { $("x0").classList.add("smooth"); $("x").classList.add("smooth"); }
  if (!points) {
    $("x0").classList.add("paintable");
    $("x0").onclick = (event) => {
      const box = $("x0").getBoundingClientRect(), wide = columns(sampled.members.length);
      const column = Math.floor(((event.clientX - box.left) / box.width) * wide), row = Math.floor(((event.clientY - box.top) / box.height) * Math.ceil(sampled.members.length / wide));
      const film = sampled.films[row * wide + column];
      if (film && film.length === sampled.frames) openPaint(film[film.length - 1].x0, sampled.labels[row * wide + column]);
    };
  }
  try { startWorkers(); } catch (error) { $("status").textContent = `The model failed to start in this browser: ${error.message}`; return; }
  sample();
}
