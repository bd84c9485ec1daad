// Seeded noise, identical to that of reverie/base/noise.py: SplitMix64 on halves of 32 bits, then Box-Muller.

const STEP = [0x9e3779b9, 0x7f4a7c15], FIRST = [0xbf58476d, 0x1ce4e5b9], SECOND = [0x94d049bb, 0x133111eb];
let high = 0, low = 0; // the 64-bit number that the functions below modify

function multiply([bh, bl]) {
  const a0 = low & 0xffff, a1 = low >>> 16, b0 = bl & 0xffff, b1 = bl >>> 16;
  const right = a0 * b0, middle = a1 * b0 + (right >>> 16), left = a0 * b1 + (middle % 65536);
  const upper = a1 * b1 + Math.floor(middle / 65536) + Math.floor(left / 65536);
  high = (upper + Math.imul(high, bl) + Math.imul(low, bh)) >>> 0;
  low = (((left & 0xffff) << 16) | (right & 0xffff)) >>> 0;
}

function fold(shift) { // z ^ z >> shift, for shifts below 32
  low = (low ^ ((low >>> shift) | (high << (32 - shift)))) >>> 0;
  high = (high ^ (high >>> shift)) >>> 0;
}

function splitMix(stateHigh, stateLow, countHigh, countLow) {
  high = countHigh; low = countLow;
  multiply(STEP);
  const sum = low + stateLow;
  high = (high + stateHigh + (sum > 0xffffffff ? 1 : 0)) >>> 0; low = sum >>> 0;
  fold(30); multiply(FIRST);
  fold(27); multiply(SECOND);
  fold(31);
}

// Draw number `draw` of image `image` of a seed: `count` standard normals.
function normals(seed, image, draw, count) {
  splitMix(seed, image, 0, 1);
  const stateHigh = high, stateLow = low, half = Math.ceil(count / 2), out = new Float32Array(2 * half);
  for (let i = 0; i < half; i++) {
    splitMix(stateHigh, stateLow, draw, 1 + i);
    const radius = Math.sqrt(-2 * Math.log((high + 0.5) / 4294967296)), angle = 2 * Math.PI * ((low + 0.5) / 4294967296);
    out[i] = Math.cos(angle) * radius;
    out[half + i] = Math.sin(angle) * radius;
  }
  return out.subarray(0, count);
}
