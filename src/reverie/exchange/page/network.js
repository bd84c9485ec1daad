// The networks of reverie/nets for one image, or for a batch of points, on the memory of the kernel.
// A feature map is {at, c, h, w}: c planes of h x w floats at offset `at`.  Points are a map of D channels, with one column per point.

const LEVEL_SCALE = 20, LEVEL_LIMIT = 14, EPSILON = 1e-5;
const silu = (x) => x / (1 + Math.exp(-x));
const gelu = (x) => 0.5 * x * (1 + Math.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
const upTo = (n, step) => Math.ceil(n / step) * step;

class Memory {
  constructor() {
    this.memory = new WebAssembly.Memory({ initial: 64 });
    this.floats = new Float32Array(this.memory.buffer);
    this.top = 0;
    const module = new WebAssembly.Module(assemble());
    this.kernel = new WebAssembly.Instance(module, { e: { m: this.memory } }).exports.g;
  }

  take(count) { // the offset of `count` uninitialized floats
    const at = this.top;
    this.top += upTo(count, 4);
    if (this.top > this.floats.length) {
      this.memory.grow(Math.ceil((this.top - this.floats.length) / 16384) + 64);
      this.floats = new Float32Array(this.memory.buffer);
    }
    return at;
  }
}

class Layers {
  constructor(memory, tensors, prefix) {
    this.memory = memory; this.tensors = tensors; this.prefix = prefix;
    this.packed = new Map();
  }

  tensor(name) { return this.tensors[this.prefix + name]; }

  // a matrix in the layout of the kernel's first argument
  pack(rows, columns, value) {
    const at = this.memory.take(upTo(rows, 4) * columns), f = this.memory.floats;
    for (let i = 0; i < upTo(rows, 4); i++)
      for (let p = 0; p < columns; p++) f[at + ((i >> 2) * columns + p) * 4 + (i & 3)] = i < rows ? value(i, p) : 0;
    return { at, rows, columns };
  }

  weights(name, transposed = false) { // packed once; the four outputs of a transposed convolution are rows
    if (!this.packed.has(name)) {
      const { data, shape } = this.tensor(`${name}.weight`), inner = shape.slice(1).reduce((a, b) => a * b, 1);
      this.packed.set(name, transposed
        ? this.pack(inner, shape[0], (i, p) => data[p * inner + i])
        : this.pack(shape[0], inner, (i, p) => data[i * inner + p]));
    }
    return this.packed.get(name);
  }

  prepare() { // weights are stored below the memory that each evaluation releases
    for (const name of Object.keys(this.tensors)) {
      const { shape } = this.tensors[name];
      if (!name.startsWith(this.prefix) || !name.endsWith(".weight") || shape.length < 2) continue;
      const short = name.slice(this.prefix.length, -".weight".length);
      this.weights(short, /(^|\.)grow\.\d+$/.test(short));
    }
  }

  // matrix (packed) times B of n columns, plus a bias for each row: rows x n
  product(matrix, b, n, stride, bias) {
    const memory = this.memory, wide = upTo(n, 8), rows = upTo(matrix.rows, 4);
    if (stride !== wide) { // the kernel needs whole blocks of eight
      const at = memory.take(matrix.columns * wide), f = memory.floats;
      for (let p = 0; p < matrix.columns; p++) {
        f.copyWithin(at + p * wide, b + p * stride, b + p * stride + n);
        f.fill(0, at + p * wide + n, at + (p + 1) * wide);
      }
      b = at;
    }
    const out = memory.take(rows * wide), f = memory.floats;
    for (let i = 0; i < rows; i++) f.fill(bias && i < matrix.rows ? bias[i] : 0, out + i * wide, out + (i + 1) * wide);
    memory.kernel(4 * matrix.at, 4 * b, 4 * out, rows, wide, matrix.columns);
    if (wide !== n) for (let i = 1; i < matrix.rows; i++) f.copyWithin(out + i * n, out + i * wide, out + i * wide + n);
    return out;
  }

  bias(name) { const found = this.tensor(`${name}.bias`); return found && found.data; }

  convolution(name, x, size = 1, stride = 1, pad = 0) {
    const h = (x.h + 2 * pad - size) / stride + 1, w = (x.w + 2 * pad - size) / stride + 1, n = h * w;
    const matrix = this.weights(name);
    if (size === 1) return { at: this.product(matrix, x.at, n, n, this.bias(name)), c: matrix.rows, h, w };
    const wide = upTo(n, 8), at = this.memory.take(x.c * size * size * wide), f = this.memory.floats;
    f.fill(0, at, at + x.c * size * size * wide);
    for (let c = 0, row = at; c < x.c; c++)
      for (let ky = 0; ky < size; ky++)
        for (let kx = 0; kx < size; kx++, row += wide)
          for (let y = 0; y < h; y++) {
            const iy = y * stride + ky - pad, from = x.at + (c * x.h + iy) * x.w + kx - pad, to = row + y * w;
            if (iy < 0 || iy >= x.h) continue;
            for (let i = 0; i < w; i++) {
              const ix = i * stride + kx - pad;
              if (ix >= 0 && ix < x.w) f[to + i] = f[from + i * stride];
            }
          }
    return { at: this.product(matrix, at, n, wide, this.bias(name)), c: matrix.rows, h, w };
  }

  grow(name, x) { // a transposed convolution of 2 x 2 with stride 2: each pixel becomes four
    const matrix = this.weights(name, true), c = matrix.rows / 4, bias = this.bias(name);
    const from = this.product(matrix, x.at, x.h * x.w, x.h * x.w, null);
    const at = this.memory.take(4 * c * x.h * x.w), f = this.memory.floats;
    for (let k = 0; k < matrix.rows; k++)
      for (let y = 0; y < x.h; y++)
        for (let i = 0; i < x.w; i++)
          f[at + ((k >> 2) * 2 * x.h + 2 * y + ((k >> 1) & 1)) * 2 * x.w + 2 * i + (k & 1)] =
            f[from + (k * x.h + y) * x.w + i] + bias[k >> 2];
    return { at, c, h: 2 * x.h, w: 2 * x.w };
  }

  dense(name, x) { // of a single vector
    const { data, shape } = this.tensor(`${name}.weight`), bias = this.bias(name), out = new Float32Array(shape[0]);
    for (let i = 0; i < shape[0]; i++) {
      let sum = bias ? bias[i] : 0;
      for (let p = 0; p < shape[1]; p++) sum += data[i * shape[1] + p] * x[p];
      out[i] = sum;
    }
    return out;
  }

  // Group normalization, scale and shift of each channel, and optionally SiLU.
  normalise(x, requested, scale, shift, activate) {
    let groups = Math.min(requested, x.c);
    while (x.c % groups) groups--;
    const n = x.h * x.w, each = (x.c / groups) * n, at = this.memory.take(x.c * n), f = this.memory.floats;
    for (let g = 0; g < groups; g++) {
      let sum = 0, square = 0;
      for (let i = x.at + g * each; i < x.at + (g + 1) * each; i++) sum += f[i];
      const mean = sum / each;
      for (let i = x.at + g * each; i < x.at + (g + 1) * each; i++) square += (f[i] - mean) * (f[i] - mean);
      const inverse = 1 / Math.sqrt(square / each + EPSILON);
      for (let c = (g * x.c) / groups; c < ((g + 1) * x.c) / groups; c++) {
        const a = inverse * scale(c), b = shift(c) - mean * a;
        for (let i = c * n; i < (c + 1) * n; i++) {
          const value = a * f[x.at + i] + b;
          f[at + i] = activate ? silu(value) : value;
        }
      }
    }
    return { ...x, at };
  }

  affine(name, x, groups, activate) {
    const weight = this.tensor(`${name}.weight`).data, bias = this.bias(name);
    return this.normalise(x, groups, (c) => weight[c], (c) => bias[c], activate);
  }

  sum(x, y) {
    const at = this.memory.take(x.c * x.h * x.w), f = this.memory.floats;
    for (let i = 0; i < x.c * x.h * x.w; i++) f[at + i] = f[x.at + i] + f[y.at + i];
    return { ...x, at };
  }

  // softmax(q k / sqrt(d)) v for each head; qkv: 3 heads d channels, in this order
  attend(qkv, heads) {
    const c = qkv.c / 3, d = c / heads, n = qkv.h * qkv.w, memory = this.memory, out = memory.take(c * n), mark = memory.top;
    for (let head = 0; head < heads; head++) {
      const q = qkv.at + head * d * n, k = qkv.at + (c + head * d) * n, v = qkv.at + (2 * c + head * d) * n;
      let f = memory.floats;
      const scores = this.product(this.pack(n, d, (i, p) => f[k + p * n + i] / Math.sqrt(d)), q, n, n, null); // keys x queries
      f = memory.floats;
      for (let j = 0; j < n; j++) {
        let most = -Infinity, total = 0;
        for (let i = 0; i < n; i++) most = Math.max(most, f[scores + i * n + j]);
        for (let i = 0; i < n; i++) total += f[scores + i * n + j] = Math.exp(f[scores + i * n + j] - most);
        for (let i = 0; i < n; i++) f[scores + i * n + j] /= total;
      }
      const gathered = this.product(this.pack(d, n, (i, p) => f[v + i * n + p]), scores, n, n, null);
      memory.floats.copyWithin(out + head * d * n, gathered, gathered + d * n);
      memory.top = mark;
    }
    return { ...qkv, at: out, c };
  }

  // squares of side s of pixels into channels, and back: torch's pixel_unshuffle and pixel_shuffle
  fold(x, s, back = false) {
    if (s === 1) return x;
    const at = this.memory.take(x.c * x.h * x.w), f = this.memory.floats;
    const folded = back ? x : { c: x.c * s * s, h: x.h / s, w: x.w / s };
    const c = folded.c / (s * s), h = folded.h * s, w = folded.w * s;
    for (let k = 0; k < folded.c; k++)
      for (let y = 0; y < folded.h; y++)
        for (let i = 0; i < folded.w; i++) {
          const small = (k * folded.h + y) * folded.w + i, channel = Math.floor(k / (s * s));
          const large = (channel * h + y * s + (Math.floor(k / s) % s)) * w + i * s + (k % s);
          if (back) f[at + large] = f[x.at + small]; else f[at + small] = f[x.at + large];
        }
    return back ? { at, c, h, w } : { at, ...folded };
  }

  level(kind, size, level, name) { // the embedding of a noise level
    const position = level * LEVEL_SCALE, out = new Float32Array(size);
    if (kind === "learned") {
      const { data, shape } = this.tensor(`${name}.table`), last = shape[0] - 1, end = LEVEL_LIMIT * LEVEL_SCALE;
      const place = Math.min(Math.max(((position + end) / (2 * end)) * last, 0), last);
      const row = Math.min(Math.floor(place), last - 1), share = place - row;
      return out.map((_, j) => data[row * size + j] * (1 - share) + data[(row + 1) * size + j] * share);
    }
    if (kind === "sine") return out.map((_, j) => Math.sin(position * Math.exp((-2 * j * Math.log(10000)) / size)));
    const denominator = kind === "sinusoidal-inclusive" ? Math.max(size - 2, 1) : size;
    return out.map((_, j) => {
      const angle = position * Math.exp((-2 * (j >> 1) * Math.log(10000)) / denominator);
      return j % 2 ? Math.cos(angle) : Math.sin(angle);
    });
  }

  addLabel(e, label) { // row 0 of the table is "no label"
    const table = this.tensor("label.table");
    return table ? e.map((value, j) => value + table.data[(label + 1) * e.length + j]) : e;
  }

  addConditioning(e, entry) { // a one-hot conditioning vector; zero if entry is negative
    if (entry < 0) return e;
    const { data, shape } = this.tensor("told.weight");
    return e.map((value, j) => value + data[j * shape[1] + entry]);
  }

  embedding(spec, level, label, entry) { // of images: two dense layers around the embedding of the level
    const first = this.dense("tell.0", this.level(spec.embedding, 64, level, "embed")).map(silu);
    return this.addConditioning(this.addLabel(this.dense("tell.2", first), label), entry).map(silu);
  }
}

function unetBlock(layers, name, x, e, spec) {
  const parameters = layers.dense(`${name}.tell`, e), scales = spec.conditioning === "scale-shift";
  if (!scales) {
    const n = x.h * x.w, at = layers.memory.take(x.c * n), f = layers.memory.floats;
    for (let i = 0; i < x.c * n; i++) f[at + i] = f[x.at + i] + parameters[Math.floor(i / n)];
    x = { ...x, at };
  }
  let h = layers.convolution(`${name}.first`, layers.affine(`${name}.first_norm`, x, spec.groups, true), 3, 1, 1);
  h = scales
    ? layers.normalise(h, spec.groups, (c) => 1 + parameters[c], (c) => parameters[h.c + c], true)
    : layers.affine(`${name}.second_norm`, h, spec.groups, true);
  h = layers.convolution(`${name}.second`, h, 3, 1, 1);
  return layers.sum(layers.tensor(`${name}.shortcut.weight`) ? layers.convolution(`${name}.shortcut`, x) : x, h);
}

function unet(layers, spec, x, level, label, entry) {
  const e = layers.embedding(spec, level, label, entry), kept = [];
  const wide = spec.widths, last = wide.length - 1;
  if (spec.fourier.length) {
    const count = x.c * x.h * x.w, at = layers.memory.take(count * (1 + 2 * spec.fourier.length)), f = layers.memory.floats;
    f.copyWithin(at, x.at, x.at + count);
    spec.fourier.forEach((n, k) => {
      for (let i = 0; i < count; i++) {
        f[at + (1 + 2 * k) * count + i] = Math.sin(2 ** n * Math.PI * f[x.at + i]);
        f[at + (2 + 2 * k) * count + i] = Math.cos(2 ** n * Math.PI * f[x.at + i]);
      }
    });
    x = { ...x, at, c: x.c * (1 + 2 * spec.fourier.length) };
  }
  let h = layers.convolution("enter", layers.fold(x, spec.stem), 3, 1, 1);
  for (let k = 0; k < last; k++) {
    for (let i = 0; i < spec.blocks; i++) h = unetBlock(layers, `down.${k}.${i}`, h, e, spec);
    kept.push(h);
    h = layers.convolution(`shrink.${k}`, h, 2, 2);
  }
  for (let i = 0; i < 2 * spec.blocks; i++) {
    h = unetBlock(layers, `middle.${i}`, h, e, spec);
    if (spec.attention && i + 1 === spec.blocks) {
      let heads = Math.max(1, Math.floor(h.c / 32));
      while (h.c % heads) heads--;
      const qkv = layers.convolution("attention.qkv", layers.affine("attention.norm", h, spec.groups, false));
      h = layers.sum(h, layers.convolution("attention.out", layers.attend(qkv, heads)));
    }
  }
  for (let k = 0; k < last; k++) {
    const grown = layers.grow(`grow.${k}`, h), other = kept.pop(), n = grown.h * grown.w;
    const at = layers.memory.take((grown.c + other.c) * n);
    layers.memory.floats.copyWithin(at, grown.at, grown.at + grown.c * n);
    layers.memory.floats.copyWithin(at + grown.c * n, other.at, other.at + other.c * n);
    h = { ...grown, at, c: grown.c + other.c };
    for (let i = 0; i < spec.blocks; i++) h = unetBlock(layers, `up.${k}.${i}`, h, e, spec);
  }
  h = layers.convolution("leave", layers.affine("leave_norm", h, spec.groups, true), 3, 1, 1);
  return layers.fold(h, spec.stem, true);
}

function transformer(layers, spec, x, level, label, entry) {
  const e = layers.embedding(spec, level, label, entry), { dim } = spec, memory = layers.memory;
  const tokens = layers.fold(x, spec.patch), n = tokens.h * tokens.w;
  const modulated = (h, shift, scale) => { // layer normalisation of each token, then scale and shift
    const at = memory.take(dim * n), f = memory.floats;
    for (let i = 0; i < n; i++) {
      let sum = 0, square = 0;
      for (let c = 0; c < dim; c++) sum += f[h.at + c * n + i];
      for (let c = 0; c < dim; c++) square += (f[h.at + c * n + i] - sum / dim) ** 2;
      const inverse = 1 / Math.sqrt(square / dim + EPSILON);
      for (let c = 0; c < dim; c++) f[at + c * n + i] = (f[h.at + c * n + i] - sum / dim) * inverse * (1 + scale[c]) + shift[c];
    }
    return { ...h, at };
  };
  const gated = (h, gate, more) => {
    const at = memory.take(dim * n), f = memory.floats;
    for (let i = 0; i < dim * n; i++) f[at + i] = f[h.at + i] + gate[Math.floor(i / n)] * f[more.at + i];
    return { ...h, at };
  };
  const parts = (values) => Array.from({ length: values.length / dim }, (_, k) => values.subarray(k * dim, (k + 1) * dim));
  let h = layers.convolution("enter", tokens);
  for (let y = 0; y < h.h; y++)
    for (let i = 0; i < h.w; i++)
      for (let c = 0; c < dim; c++) { // half of the coordinates encode the row, half the column
        const half = dim / 2, j = c % half, angle = (c < half ? y : i) * Math.exp((-2 * (j >> 1) * Math.log(10000)) / half);
        memory.floats[h.at + (c * h.h + y) * h.w + i] += j % 2 ? Math.cos(angle) : Math.sin(angle);
      }
  for (let k = 0; k < spec.layers; k++) {
    const [shift1, scale1, gate1, shift2, scale2, gate2] = parts(layers.dense(`layers.${k}.tell`, e));
    const qkv = layers.convolution(`layers.${k}.qkv`, modulated(h, shift1, scale1));
    h = gated(h, gate1, layers.convolution(`layers.${k}.out`, layers.attend(qkv, spec.heads)));
    const inner = layers.convolution(`layers.${k}.dense.0`, modulated(h, shift2, scale2)), f = memory.floats;
    for (let i = inner.at; i < inner.at + inner.c * n; i++) f[i] = gelu(f[i]);
    h = gated(h, gate2, layers.convolution(`layers.${k}.dense.2`, inner));
  }
  const [shift, scale] = parts(layers.dense("leave_tell", e));
  return layers.fold(layers.convolution("leave", modulated(h, shift, scale)), spec.patch, true);
}

function mlp(layers, spec, x, level, label) {
  const e = layers.addLabel(layers.level(spec.embedding, spec.embedding_dim, level, "embedding"), label), n = x.h * x.w;
  for (let k = 0; k < spec.layers; k++) {
    const projected = layers.dense(`projections.${k}`, e);
    x = layers.convolution(`layers.${k}`, x);
    const f = layers.memory.floats;
    for (let i = 0; i < x.c * n; i++) {
      const c = Math.floor(i / n), value = f[x.at + i];
      f[x.at + i] = silu(spec.connector === "multiply" ? value * projected[c] : value + projected[c]);
    }
  }
  return layers.convolution("out", x);
}

function rbf(layers, spec, x, level, label) {
  const e = layers.addLabel(layers.level(spec.embedding, spec.embedding_dim, level, "embedding"), label), n = x.h * x.w;
  const { data: centres, shape: [count] } = layers.tensor("centres"), widths = layers.tensor("log_widths").data;
  const readout = layers.dense("readout", e), rows = readout.length / (count + 1);
  const at = layers.memory.take(rows * n), f = layers.memory.floats;
  for (let i = 0; i < n; i++) {
    for (let r = 0; r < rows; r++) f[at + r * n + i] = readout[count * rows + r];
    for (let k = 0; k < count; k++) {
      let squared = 0;
      for (let c = 0; c < x.c; c++) squared += (f[x.at + c * n + i] - centres[k * x.c + c]) ** 2;
      const bump = Math.exp((-squared / 2) * Math.exp(-2 * widths[k]));
      for (let r = 0; r < rows; r++) f[at + r * n + i] += readout[k * rows + r] * bump;
    }
  }
  return { ...x, at, c: rows };
}

const NETWORKS = { unet, transformer, mlp, rbf };

// A network as a function of x, a noise level, a label and an entry of the conditioning vector (-1 is none).
class Network {
  constructor(spec, tensors, prefix, memory) {
    this.spec = spec;
    this.layers = new Layers(memory, tensors, prefix);
    this.layers.prepare();
  }

  run(x, shape, level, label, entry) {
    const memory = this.layers.memory, mark = memory.top, [c, h, w] = shape;
    const at = memory.take(x.length);
    memory.floats.set(x, at);
    const y = NETWORKS[this.spec.name](this.layers, this.spec, { at, c, h, w }, level, label, entry);
    const n = h * w, each = y.c / c, out = new Float32Array(c * n); // a second output may be a variance
    for (let k = 0; k < c; k++) out.set(memory.floats.subarray(y.at + k * each * n, y.at + (k * each + 1) * n), k * n);
    memory.top = mark;
    return out;
  }
}
