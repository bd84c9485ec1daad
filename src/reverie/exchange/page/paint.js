// Inpainting: the painted part of an image is sampled several times; the other pixels stay exactly the same.

const VARIANTS = 8;
let easel = { values: null, mask: null, label: -1, image: null }, round = 0;

function openPaint(values, label) {
  easel = { values, label, mask: new Uint8Array(height * width), image: imageData(values) };
  $("variants").replaceChildren();
  $("paint-status").textContent = "Paint with the mouse or a finger.";
  showEasel();
  $("paint").showModal();
}

function showEasel() {
  const canvas = $("easel"), context = canvas.getContext("2d"), shownImage = new ImageData(new Uint8ClampedArray(easel.image.data), width, height);
  const [r, g, b] = [226, 88, 46]; // --paint
  easel.mask.forEach((painted, i) => {
    if (!painted) return;
    const tone = [r, g, b].map((ink, c) => 0.75 * ink + 0.25 * shownImage.data[4 * i + c]);
    shownImage.data.set([...tone, 255], 4 * i);
  });
  canvas.width = width; canvas.height = height;
  context.putImageData(shownImage, 0, 0);
}

function stroke(event) {
  if (!(event.buttons & 1) && event.pointerType === "mouse") return;
  const box = $("easel").getBoundingClientRect(), radius = (Number($("brush").value) * Math.max(width, height)) / 40;
  const x = ((event.clientX - box.left) / box.width) * width, y = ((event.clientY - box.top) / box.height) * height;
  for (let j = 0; j < height; j++) for (let i = 0; i < width; i++)
    if ((i + 0.5 - x) ** 2 + (j + 0.5 - y) ** 2 <= Math.max(radius, 0.71) ** 2) easel.mask[j * width + i] = 1;
  showEasel();
}

function refill() {
  if (!easel.mask.some(Boolean)) { $("paint-status").textContent = "Paint over a part of the image first."; return; }
  const n = height * width, known = new Uint8Array(channels * n), values = fromBytes(easel.image);
  for (let i = 0; i < channels * n; i++) known[i] = easel.mask[i % n] ? 0 : 1;
  const canvases = Array.from({ length: VARIANTS }, () => Object.assign(document.createElement("canvas"), { width, height }));
  $("variants").replaceChildren(...canvases);
  round += 1;
  let finished = 0;
  const first = round * VARIANTS, id = newJobs((update) => {
    const k = update.members[0] - first, canvas = canvases[k];
    canvas.getContext("2d").putImageData(imageData(update.x0), 0, 0);
    if (update.frame < update.frames - 1) return;
    finished += 1;
    const result = update.x0;
    canvas.title = "Continue with this result";
    canvas.onclick = () => { easel.image = imageData(result); easel.mask.fill(0); showEasel(); };
    $("paint-status").textContent = finished < VARIANTS ? `${finished} of ${VARIANTS} finished` : "Click a result to continue with it.";
    if (finished === VARIANTS) document.body.dataset.painted = "done";
  });
  document.body.dataset.painted = "sampling";
  $("paint-status").textContent = "sampling";
  canvases.forEach((_, k) => send({ id, seed: sampled.seed, members: [first + k], label: easel.label, cluster: -1, rows: model.painting, guidance: Number($("guidance").value), autoguidance: 1, known, values }));
}

$("easel").onpointerdown = (event) => { $("easel").setPointerCapture(event.pointerId); stroke(event); };
$("easel").onpointermove = (event) => { if ($("easel").hasPointerCapture(event.pointerId)) stroke(event); };
$("erase").onclick = () => { easel.mask.fill(0); showEasel(); };
$("refill").onclick = refill;
$("keep").onclick = () => { easel.mask.fill(0); showEasel(); savePNG($("easel"), `${model.data}-painted.png`, Math.max(1, Math.round(560 / width))); };
$("close").onclick = () => { newJobs(() => {}); $("paint").close(); };
begin();
