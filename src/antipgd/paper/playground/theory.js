// The theory's lines: φ(ηh), the valley's drift, and the regression's law at real learning rates.
//
// Ports of antipgd.theory: finite_rate.ratios (without momentum), valley.drift, and the pull ∇ΣR of
// finite_rate.flows for the kinds of noise whose φ is made of 2/(2 − x). A kind of noise is
// { taps, hold, antithetic }.

import { times, transposed } from "./problems.js";

const sum = (values) => values.reduce((total, value) => total + value, 0);

/** What w carries of a draw after 1, 2, … draws more, and for ever. */
function carried({ taps, antithetic }) {
  let total = 0;
  const sums = taps.map((tap) => (total += tap));
  const size = sum(taps.map(Math.abs));
  if (Math.abs(total) <= 1e-15 * taps.length * size) sums[sums.length - 1] = 0;
  if (!antithetic) return sums;
  return [sums[0], ...sums.slice(1).map((next, i) => next - sums[i]), 0];
}

/** Steps from one independent draw to the next. */
const period = (kind) => kind.hold * (kind.antithetic ? 2 : 1);

/** By how much of σ² a flat direction diffuses in a step; 0 for taps that sum to zero. */
export function flatDiffusion(kind) {
  return carried(kind).at(-1) ** 2 / period(kind);
}

/** φ(x) = E w²/σ² at x = ηh; infinite for x < 0 and from 2 on, where nothing is stationary. */
export function varianceRatio(x, kind) {
  const held = carried(kind);
  const steps = held.slice(0, -1).flatMap((c) => Array(kind.hold).fill(c));
  const remains = held.at(-1);
  if (x === 0) return remains ? Infinity : sum(steps.map((c) => c * c)) / period(kind);
  if (!(x > 0 && x < 2)) return Infinity;
  let total = 0, z = 0;
  for (const c of steps) {
    const w = z + c;
    total += w * w;
    z -= x * w;
  }
  const left = (z + remains) ** 2 / x;
  return ((2 - x) * total + left) / period(kind) / (2 - x);
}

/** E[‖u_{k+1}‖² − ‖u_k‖²] in the valley at x = η‖u‖², without the newest draw. */
export function drift(x, d, sigma, kind) {
  if (x === 0) return d * sigma ** 2 * flatDiffusion(kind);
  return sigma ** 2 * (d * flatDiffusion(kind) - 2 * x * varianceRatio(x, kind));
}

/** What is expected at w where ‖u‖² is `u2` and v is stationary; not a number past the barrier. */
export function valleyExpected(u2, d, eta, sigma, kind) {
  const v2 = sigma ** 2 * varianceRatio(eta * u2, kind);
  if (!Number.isFinite(v2)) return { loss: NaN, trace: NaN, watch: NaN };
  return { loss: (v2 * u2) / 2, trace: u2 + d * v2, watch: u2 };
}

/** The valley's line: ‖u‖² without the newest draw drifts step by step; w carries dσ² more. */
export function valleyLine(w, { d, eta, sigma }, kind) {
  let u2 = 0;
  for (let i = 0; i < d; i++) u2 += w[i] * w[i];
  return {
    next() {
      const found = valleyExpected(u2 + d * sigma ** 2, d, eta, sigma, kind);
      u2 = eta * u2 < 2 ? Math.max(u2 + drift(eta * u2, d, sigma, kind), 0) : NaN;
      return found;
    },
  };
}

// The law on the regression

/** φ(x) = c0 + c1·2/(2 − x) for the kinds of noise of which that is true, else null. */
export function rationalParts(kind) {
  const anti = kind.taps.length === 2 && kind.taps[0] === 1 && kind.taps[1] === -1;
  if (!anti) return null;
  if (kind.antithetic) return kind.hold === 1 ? [-1, 2] : null;
  return { 1: [0, 1], 2: [1, 0] }[kind.hold] ?? null;
}

/** The inverse of a symmetric matrix by Cholesky's factor, or null if it is not positive. */
export function inverse(matrix) {
  const n = matrix.length;
  const L = matrix.map((row) => Float64Array.from(row));
  for (let j = 0; j < n; j++) {
    for (let k = 0; k < j; k++) L[j][j] -= L[j][k] ** 2;
    if (!(L[j][j] > 1e-12)) return null;
    L[j][j] = Math.sqrt(L[j][j]);
    for (let i = j + 1; i < n; i++) {
      for (let k = 0; k < j; k++) L[i][j] -= L[i][k] * L[j][k];
      L[i][j] /= L[j][j];
    }
  }
  return matrix.map((_, column) => solved(L, column));
}

function solved(L, column) {
  const n = L.length;
  const x = new Float64Array(n);
  for (let i = 0; i < n; i++) {
    x[i] = i === column ? 1 : 0;
    for (let k = 0; k < i; k++) x[i] -= L[i][k] * x[k];
    x[i] /= L[i][i];
  }
  for (let i = n - 1; i >= 0; i--) {
    for (let k = i + 1; k < n; k++) x[i] -= L[k][i] * x[k];
    x[i] /= L[i][i];
  }
  return x;
}

function product(A, B) {
  return A.map((row) => {
    const out = new Float64Array(B[0].length);
    for (let k = 0; k < B.length; k++) {
      const factor = row[k], other = B[k];
      for (let j = 0; j < out.length; j++) out[j] += factor * other[j];
    }
    return out;
  });
}

/** The products of all pairs of rows. */
function gram(A) {
  const out = A.map(() => new Float64Array(A.length));
  for (let i = 0; i < A.length; i++) {
    for (let j = 0; j <= i; j++) {
      let total = 0;
      for (let k = 0; k < A[i].length; k++) total += A[i][k] * A[j][k];
      out[i][j] = out[j][i] = total;
    }
  }
  return out;
}

/**
 * Of M = φ(ηH) at z, H = 2/n·AᵀA with A = X diag(z): its diagonal, tr(HM), and the pull
 * Σ_ij ∂_k H_ij M_ij. With B = (1 − η/n·AAᵀ)⁻¹, (1 − ηH/2)⁻¹ is 1 + η/n·AᵀBA, so nothing larger
 * than n×n is inverted. Null where an eigenvalue is past the barrier.
 */
export function regularised({ data, columns }, z, eta, [c0, c1]) {
  const { n, d, X } = data;
  const A = X.map((row) => row.map((one, j) => one * z[j]));
  const K = gram(A);
  const B = inverse(K.map((row, i) => row.map((one, j) => (i === j) - (eta / n) * one)));
  if (B === null) return null;
  const BA = product(B, A);
  const SA = product(product(K, B), A);
  const diagonal = new Float64Array(d).fill(c0 + c1);
  const across = new Float64Array(d); // Σ_j gram_ij M_ij z_j
  let trace = 0;
  for (let j = 0; j < d; j++) {
    let more = 0, mixed = 0;
    for (let p = 0; p < n; p++) {
      more += A[p][j] * BA[p][j];
      mixed += X[p][j] * SA[p][j];
      trace += (2 / n) * A[p][j] * (c0 * A[p][j] + c1 * BA[p][j]);
    }
    diagonal[j] += ((c1 * eta) / n) * more;
    across[j] = (c0 + c1) * columns[j] * z[j] + ((c1 * eta) / n) * mixed;
  }
  const spread = transposed(data, times(data, diagonal));
  const pull = z.map((one, k) => (2 * one * spread[k] + 4 * across[k]) / n);
  return { diagonal, trace, pull };
}

/** Steps until the pull is made anew: it changes fast at first, then slowly. */
const refreshed = (step) => Math.min(100, Math.max(10, Math.floor(step / 10)));

/** The regression's line: z ← z − η(∇L + σ²/2·pull), and what is expected at w = z + noise. */
export function regressionLine(problem, w, { eta, sigma }, kind) {
  const parts = rationalParts(kind);
  if (parts === null) return null;
  const { data, columns } = problem;
  const { n, d, target } = data;
  const sums = transposed(data, times(data, new Float64Array(d).fill(1)));
  const slope = columns.map((one, j) => 2 * one + sums[j]); // of n·trace in w⊙w
  const z = Float64Array.from(w), gradient = new Float64Array(d);
  let step = 0, due = 0, at = null;
  const expected = ({ loss, trace }) => {
    let more = 0, test = 0;
    for (let j = 0; j < d; j++) {
      const s = sigma ** 2 * at.diagonal[j], z2 = z[j] * z[j], off = z2 - target[j];
      more += s * slope[j];
      test += off * off + 2 * off * s + 4 * z2 * s + 3 * s * s;
    }
    return {
      loss: loss + (sigma ** 2 / 2) * at.trace, trace: trace + more / n, watch: test / 4,
    };
  };
  problem.look(z, gradient);
  return {
    z,
    /** What is expected after one step more; not a number from where nothing is stationary. */
    next() {
      if (step === due) {
        at = regularised(problem, z, eta, parts);
        due += refreshed(step);
      }
      step += 1;
      if (at === null) return { loss: NaN, trace: NaN, watch: NaN };
      for (let j = 0; j < d; j++) z[j] -= eta * (gradient[j] + (sigma ** 2 / 2) * at.pull[j]);
      return expected(problem.look(z, gradient));
    },
  };
}
