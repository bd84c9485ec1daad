// The performance-critical loop as WebAssembly: C += A B in blocks of 4 x 8 with vectors of four floats.
// A: m / 4 blocks of k columns of 4 numbers; B: k rows of n; C: m rows of n; m is a multiple of 4, n of 8.  A, B and C are byte addresses.

function assemble() {
  const number = (n) => { // LEB128, the encoding of integers in WebAssembly
    const bytes = [];
    do { bytes.push((n & 127) | (n > 127 ? 128 : 0)); n >>>= 7; } while (n);
    return bytes;
  };
  const section = (id, body) => [id, ...number(body.length), ...body];
  const get = (i) => [0x20, i], set = (i) => [0x21, i], constant = (n) => [0x41, ...number(n)];
  const ADD = 0x6a, SUB = 0x6b, SHIFT = 0x74, vector = (op, ...rest) => [0xfd, ...number(op), ...rest];
  const load = (at, offset) => [...get(at), ...vector(0x00, 2, ...number(offset))];
  const splat = (at, offset) => [...get(at), ...vector(0x09, 2, ...number(offset))];
  const store = (at, offset, from) => [...get(at), ...get(from), ...vector(0x0b, 2, ...number(offset))];
  const move = (i, by) => [...get(i), ...by, ADD, ...set(i)];
  const loop = (counter, step, body) => // while (counter -= step), at least once
    [0x03, 0x40, ...body, ...get(counter), ...constant(step), SUB, 0x22, counter, 0x0d, 0, 0x0b];
  const [a, b, c, m, n, k, j, p, pa, pb, pc, row, width] = Array.from({ length: 13 }, (_, i) => i);
  const b0 = 13, b1 = 14, s = 15, sums = Array.from({ length: 8 }, (_, i) => 16 + i);
  const times = (sum, value) => [...get(sum), ...get(s), ...get(value), ...vector(0xe6), ...vector(0xe4), ...set(sum)];

  const inner = loop(p, 1, [
    ...load(pb, 0), ...set(b0), ...load(pb, 16), ...set(b1),
    ...[0, 1, 2, 3].flatMap((r) => [...splat(pa, 4 * r), ...set(s), ...times(sums[2 * r], b0), ...times(sums[2 * r + 1], b1)]),
    ...move(pa, constant(16)), ...move(pb, get(width)),
  ]);
  const rows = (visit) => [ // each of the four rows of C in turn
    ...get(pc), ...set(row),
    ...[0, 1, 2, 3].flatMap((r) => [...visit(r), ...(r < 3 ? move(row, get(width)) : [])]),
  ];
  const body = [
    ...get(n), ...constant(2), SHIFT, ...set(width),
    ...loop(m, 4, [
      ...get(n), ...set(j), ...get(b), ...set(pb), ...get(c), ...set(pc),
      ...loop(j, 8, [
        ...rows((r) => [...load(row, 0), ...set(sums[2 * r]), ...load(row, 16), ...set(sums[2 * r + 1])]),
        ...get(a), ...set(pa), ...get(k), ...set(p), ...inner,
        ...rows((r) => [...store(row, 0, sums[2 * r]), ...store(row, 16, sums[2 * r + 1])]),
        // back to the first row of B, eight columns on
        ...get(pb), ...get(k), ...get(width), 0x6c, SUB, ...constant(32), ADD, ...set(pb), ...move(pc, constant(32)),
      ]),
      ...move(a, [...get(k), ...constant(4), SHIFT]), ...move(c, [...get(width), ...constant(2), SHIFT]),
    ]),
    0x0b,
  ];
  const locals = [2, 7, 0x7f, 11, 0x7b]; // seven integers, eleven vectors
  const code = [...locals, ...body];
  return new Uint8Array([
    0, 0x61, 0x73, 0x6d, 1, 0, 0, 0,
    ...section(1, [1, 0x60, 6, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0]),
    ...section(2, [1, 1, 0x65, 1, 0x6d, 2, 0, 1]), // import e.m, the memory
    ...section(3, [1, 0]),
    ...section(7, [1, 1, 0x67, 0, 0]), // export g
    ...section(10, [1, ...number(code.length), ...code]),
  ]);
}
