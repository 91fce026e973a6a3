// The noise stream, version 1 (docs/noise-stream.md): seed and name → key → words → unit draws.
//
// The same words and the same float32 bits as antipgd.noise.stream, in 32-bit arithmetic. A 64-bit
// number is two 32-bit words, the low one first. Each float32 operation is a float64 one rounded
// by Math.fround, which for +, −, × and √ is the correctly rounded float32.

const STREAM = "antipgd-noise-stream/1";
const LARGEST_SEED = "18446744073709551615";
const WRAPPERS = ["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"];

/** Whether a text is a seed: a decimal number from 0 to 2⁶⁴ − 1 without leading zeros. */
export function isSeed(text) {
  if (!/^(0|[1-9][0-9]{0,19})$/.test(text)) return false;
  return text.length < LARGEST_SEED.length || text <= LARGEST_SEED;
}

/** A parameter's name without the marks that wrappers leave on it. */
export function canonicalName(name) {
  const parts = name.split(".").filter((part) => !WRAPPERS.includes(part));
  while (parts.length > 1 && parts[0] === "module") parts.shift();
  return parts.join(".");
}

// Key: BLAKE2b (RFC 7693) with a digest of 8 bytes

const BLAKE_START = [
  0xf3bcc908, 0x6a09e667, 0x84caa73b, 0xbb67ae85, 0xfe94f82b, 0x3c6ef372, 0x5f1d36f1, 0xa54ff53a,
  0xade682d1, 0x510e527f, 0x2b3e6c1f, 0x9b05688c, 0xfb41bd6b, 0x1f83d9ab, 0x137e2179, 0x5be0cd19,
];
const BLAKE_ORDER = [
  "0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8",
  "905724afe1bc683d", "2c6a0b834d75fe19", "c51fed4a0763928b", "db7ec13950f4862a",
  "6fe9b308c2d714a5", "a2847615fb9e3cd0", "0123456789abcdef", "ea489fd61c02b753",
].map((row) => Array.from(row, (digit) => parseInt(digit, 16)));
const BLAKE_MIXED = [
  [0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15],
  [0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14],
];

/** v[a] += v[b] in 64 bits; `from` may be the message. */
function add64(v, a, from, b) {
  const low = v[2 * a] + from[2 * b];
  v[2 * a + 1] = v[2 * a + 1] + from[2 * b + 1] + (low >= 0x100000000 ? 1 : 0);
  v[2 * a] = low;
}

/** v[a] = (v[a] ^ v[b]) rotated right by `bits` of 64. */
function xorRotate(v, a, b, bits) {
  const low = v[2 * a] ^ v[2 * b];
  const high = v[2 * a + 1] ^ v[2 * b + 1];
  const [x, y] = bits < 32 ? [low, high] : [high, low];
  const by = bits % 32;
  v[2 * a] = by ? (x >>> by) | (y << (32 - by)) : x;
  v[2 * a + 1] = by ? (y >>> by) | (x << (32 - by)) : y;
}

function mix(v, [a, b, c, d], message, x, y) {
  add64(v, a, v, b);
  add64(v, a, message, x);
  xorRotate(v, d, a, 32);
  add64(v, c, v, d);
  xorRotate(v, b, c, 24);
  add64(v, a, v, b);
  add64(v, a, message, y);
  xorRotate(v, d, a, 16);
  add64(v, c, v, d);
  xorRotate(v, b, c, 63);
}

function compress(h, block, counted, last) {
  const v = new Uint32Array(32);
  v.set(h);
  v.set(BLAKE_START, 16);
  v[24] ^= counted;
  if (last) {
    v[28] = ~v[28];
    v[29] = ~v[29];
  }
  for (const order of BLAKE_ORDER) {
    BLAKE_MIXED.forEach((place, i) => mix(v, place, block, order[2 * i], order[2 * i + 1]));
  }
  for (let i = 0; i < 16; i++) h[i] ^= v[i] ^ v[i + 16];
}

function blake2b64(bytes) {
  const h = Uint32Array.from(BLAKE_START);
  h[0] ^= 0x01010000 ^ 8;
  const blocks = Math.max(1, Math.ceil(bytes.length / 128));
  const padded = new Uint8Array(128 * blocks);
  padded.set(bytes);
  const view = new DataView(padded.buffer);
  for (let i = 0; i < blocks; i++) {
    const block = Uint32Array.from({ length: 32 }, (_, k) => view.getUint32(128 * i + 4 * k, true));
    compress(h, block, Math.min(bytes.length, 128 * (i + 1)), i === blocks - 1);
  }
  return [h[0], h[1]];
}

/** The Philox key [low, high] of one stream; the seed is a text, for it may have 64 bits. */
export function streamKey(seed, name, purpose = "noise") {
  const text = [STREAM, purpose, seed, canonicalName(name)].join("\0");
  return blake2b64(new TextEncoder().encode(text));
}

/** A key as 16 hexadecimal digits. */
export function keyText([low, high]) {
  return [high, low].map((word) => word.toString(16).padStart(8, "0")).join("");
}

// Words: Philox4x32-10

const M0 = 0xd2511f53;
const M1 = 0xcd9e8d57;

/** The high 32 bits of the product of two unsigned 32-bit numbers. */
function highProduct(a, b) {
  const al = a & 0xffff, ah = a >>> 16, bl = b & 0xffff, bh = b >>> 16;
  const middle = ah * bl + ((al * bl) >>> 16);
  const carried = al * bh + (middle & 0xffff);
  return (ah * bh + (middle >>> 16) + (carried >>> 16)) >>> 0;
}

/** Four words, written to `out`: of one block of one step (both below 2³² here) under a key. */
export function philox(key, step, block, out) {
  let x0 = block, x1 = 0, x2 = step, x3 = 0;
  let k0 = key[0], k1 = key[1];
  for (let round = 0; round < 10; round++) {
    const high0 = highProduct(M0, x0 >>> 0), low0 = Math.imul(M0, x0);
    const high1 = highProduct(M1, x2 >>> 0), low1 = Math.imul(M1, x2);
    x0 = high1 ^ x1 ^ k0;
    x1 = low1;
    x2 = high0 ^ x3 ^ k1;
    x3 = low0;
    k0 = (k0 + 0x9e3779b9) | 0;
    k1 = (k1 + 0xbb67ae85) | 0;
  }
  out[0] = x0;
  out[1] = x1;
  out[2] = x2;
  out[3] = x3;
}

// Unit draws: the gaussian law

const single = Math.fround;
const BITS = new Int32Array(1);
const FLOAT = new Float32Array(BITS.buffer);
const floats = (...bits) => Float32Array.from(bits, unbits);
const LOG = floats(
  0xbf000036, 0x3eaaac7a, 0xbe7fb494, 0x3e4bd8b3, 0xbe309214, 0x3e25b036, 0xbdce7cb5,
);
const SIN = floats(0x3f490fdb, 0xbda55ddf, 0x3b233002, 0xb816e426);
const COS = floats(0xbe9de9ce, 0x3c81d848, 0xb9a74225);
const LN2_PER_EXPONENT = unbits(0x3f317218) * 2 ** -23;
const SQRT_HALF_BITS = 0x3f3504f3;

function unbits(bits) {
  BITS[0] = bits;
  return FLOAT[0];
}

function bitsOf(value) {
  FLOAT[0] = value;
  return BITS[0];
}

function polynomial(coefficients, x) {
  let value = coefficients[coefficients.length - 1];
  for (let i = coefficients.length - 2; i >= 0; i--) {
    value = single(single(value * x) + coefficients[i]);
  }
  return value;
}

/** −ln u, the standard exponential draw of a word. */
function exponential(word) {
  const bits = bitsOf(single((word & 0x7fffffff) | 1));
  const exponent = (bits - SQRT_HALF_BITS) & 0xff800000;
  const x = single(unbits(bits - exponent) - 1);
  const log = single(x + single(single(x * x) * polynomial(LOG, x)));
  return single(single(single(0x0f800000 - exponent) * LN2_PER_EXPONENT) - log);
}

function gaussianPair(a, b, out, at) {
  const size = single(Math.sqrt(single(2 * exponential(a))));
  const radius = unbits(bitsOf(size) ^ (b & 0x80000000));
  const t = single(unbits((b & 0x7ffffe) | 0x40000001) - 3);
  const y = single(t * t);
  const sine = single(t * polynomial(SIN, y));
  const cosine = single(1 + single(y * polynomial(COS, y)));
  const straight = (b & 0x40000000) === 0;
  out[at] = radius * (straight ? cosine : sine);
  out[at + 1] = radius * (straight ? sine : cosine);
}

/** Unit gaussian draws ξ_step of elements 0 … count−1, float32; zero at step 0. */
export function draws(key, step, count) {
  const out = new Float32Array(4 * Math.ceil(count / 4));
  const words = new Int32Array(4);
  for (let block = 0; step >= 1 && 4 * block < count; block++) {
    philox(key, step, block, words);
    gaussianPair(words[0], words[1], out, 4 * block);
    gaussianPair(words[2], words[3], out, 4 * block + 2);
  }
  return out.subarray(0, count);
}
