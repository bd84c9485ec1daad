// Samples the jobs of the page: {id, seed, members, label, cluster, rows, guidance, autoguidance, known, values}.
// members: indices of the images or points of the job; label, cluster: -1 is none; known: 1 where `values` are given.

let model, networks, stopped = -1;
const pause = new MessageChannel(), waiting = [];
pause.port1.onmessage = () => waiting.shift()();
const yieldToMessages = () => new Promise((go) => { waiting.push(go); pause.port2.postMessage(0); }); // processes messages

function start(facts, weights) {
  const floats = new Float32Array(weights), tensors = {};
  for (const [name, { shape, at }] of Object.entries(facts.tensors))
    tensors[name] = { shape, data: floats.subarray(at, at + shape.reduce((a, b) => a * b, 1)) };
  model = facts;
  const memory = new Memory(), prefixes = facts.autoguidance === 1 ? ["strong."] : ["strong.", "weak."];
  networks = prefixes.map((prefix) => new Network(facts.network, tensors, prefix, memory));
  postMessage({ ready: true });
}

function combine(a, x, b, y) {
  return x.map((value, i) => a * value + b * y[i]);
}

// The guided output: none + guidance (conditional - none), then weak + autoguidance (strong - weak).
function output(x, shape, row, job) {
  const input = x.map((value) => row.c_in * value);
  const estimate = (network, label) => { // with labels, the null label also hides the cluster
    const hidden = job.cluster < 0 || (model.labels.length > 0 && label < 0);
    return network.run(input, shape, row.level, label, hidden ? -1 : model.clusters.before + job.cluster);
  };
  const guided = (network) => {
    if (job.label < 0 || job.guidance === 0) return estimate(network, -1);
    const conditional = estimate(network, job.label);
    if (job.guidance === 1) return conditional;
    return combine(job.guidance, conditional, 1 - job.guidance, estimate(network, -1));
  };
  const strong = guided(networks[0]);
  if (networks.length === 1 || job.autoguidance === 1) return strong;
  return combine(job.autoguidance, strong, 1 - job.autoguidance, guided(networks[1]));
}

function noiseOf(job, draw, shape) { // members side by side, one column per point
  const count = shape[0] * shape[1] * shape[2], each = count / job.members.length;
  if (job.members.length === 1) return normals(job.seed, job.members[0], draw, count);
  const out = new Float32Array(count);
  job.members.forEach((member, i) => normals(job.seed, member, draw, each).forEach((z, d) => { out[d * job.members.length + i] = z; }));
  return out;
}

async function sample(job) {
  const shape = [model.shape[0], model.shape[1], model.shape[2] * job.members.length], count = shape[0] * shape[1] * shape[2];
  const past = [], frames = job.rows.filter((row) => row.frame).length;
  let frame = 0, seconds = 0;
  for (const row of job.rows) {
    if (stopped >= job.id) return;
    const started = performance.now(), x = new Float32Array(count);
    const add = (weight, values) => { for (let i = 0; i < count; i++) x[i] += weight * values[i]; };
    for (const [k, weight] of row.x0) add(weight, past[k].x0);
    for (const [k, weight] of row.eps) add(weight, past[k].eps);
    for (const [k, weight] of row.noise) add(weight, noiseOf(job, k, shape));
    const y = output(x, shape, row, job), x0 = combine(row.x0_x, x, row.x0_y, y), eps = combine(row.eps_x, x, row.eps_y, y);
    if (model.clipped)
      for (let i = 0; i < count; i++) { x0[i] = Math.min(1, Math.max(-1, x0[i])); eps[i] = (x[i] - row.alpha * x0[i]) / row.sigma; }
    if (job.known)
      for (let i = 0; i < count; i++)
        if (job.known[i]) { x0[i] = job.values[i]; eps[i] = (x[i] - row.alpha * x0[i]) / row.sigma; }
    past.push({ x0, eps });
    seconds += (performance.now() - started) / 1000;
    if (row.frame) postMessage({ id: job.id, members: job.members, frame: frame++, frames, t: row.t, x, x0, seconds });
    await yieldToMessages();
  }
}

let busy = Promise.resolve();
onmessage = ({ data }) => {
  if (data.facts) start(data.facts, data.weights);
  if (data.stop !== undefined) stopped = data.stop;
  if (data.job) busy = busy.then(() => sample(data.job)).catch((error) => postMessage({ failed: String(error) }));
};
