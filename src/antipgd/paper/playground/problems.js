// The two landscapes: losses with gradient, trace and curvature, and the cut that is drawn of them.
//
// Each is an object with `size` weights; `look(w, gradient)` writes the gradient and returns what
// is plotted; `position(w)` and `place(point)` go to the drawn plane and back; `height(a, b)` is
// the loss there. The curvature h is the largest eigenvalue of the Gauss–Newton part of the
// Hessian, at a minimum that of the Hessian: the step is unstable where ηh > 2. Knows no noise.

import { draws, streamKey } from "./stream.js";

const PLANE_STEPS = 5000; // of gradient descent, to the minimum that the cut goes through
const PLANE_TOLERANCE = 1e-8;

function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

/** The widening valley, eq:def_wv: L(u, v) = v²‖u‖²/2, w = (u_1, …, u_d, v), over (‖u‖, v). */
export function wideningValley(d) {
  const norm2 = (w) => dot(w.subarray(0, d), w.subarray(0, d));
  return {
    size: d + 1,
    start: [2, 0.3],
    view: { a: [0, 6], b: [-0.4, 0.4] },
    look(w, gradient) {
      const v = w[d], u2 = norm2(w);
      for (let i = 0; i < d; i++) gradient[i] = v * v * w[i];
      gradient[d] = v * u2;
      return { loss: (v * v * u2) / 2, trace: u2 + d * v * v, watch: u2 };
    },
    position: (w) => [Math.sqrt(norm2(w)), w[d]],
    place([r, v]) {
      const w = new Float64Array(d + 1).fill(Math.sqrt((r * r) / d));
      w[d] = v;
      return w;
    },
    height: (r, v) => (v * v * r * r) / 2,
    curvature: (w) => norm2(w) + w[d] * w[d],
    heightCurvature: (r, v) => r * r + v * v,
  };
}

/** Inputs of the regression: row i of X is draw i + 1 of the stream "X" with purpose "data". */
export function regressionData(seed, d) {
  const n = Math.ceil((2 * d) / 5);
  const key = streamKey(seed, "X", "data");
  const X = Array.from({ length: n }, (_, i) => Float64Array.from(draws(key, i + 1, d)));
  const target = new Float64Array(d).fill(1, 0, Math.ceil(d / 10));
  return { n, d, X, target, y: Float64Array.from(X, (row) => dot(row, target)) };
}

/** X m for a vector m. */
export function times({ X, n }, m, out = new Float64Array(n)) {
  for (let i = 0; i < n; i++) out[i] = dot(X[i], m);
  return out;
}

/** Xᵀ r for a vector r. */
export function transposed({ X, n, d }, r, out = new Float64Array(d)) {
  out.fill(0);
  for (let i = 0; i < n; i++) {
    const row = X[i], factor = r[i];
    for (let j = 0; j < d; j++) out[j] += factor * row[j];
  }
  return out;
}

/** Loss, gradient and trace of L(w) = ‖X(w⊙w) − y‖²/4n, and E(x·(w⊙w − w*⊙w*))²/4 for new x. */
function regressionLook(data, columns, w, gradient) {
  const { n, d, y, target } = data;
  const squares = new Float64Array(d);
  for (let j = 0; j < d; j++) squares[j] = w[j] * w[j];
  const residual = times(data, squares);
  for (let i = 0; i < n; i++) residual[i] -= y[i];
  const back = transposed(data, residual);
  let trace = 0, test = 0;
  for (let j = 0; j < d; j++) {
    gradient[j] = (w[j] * back[j]) / n;
    trace += back[j] + 2 * squares[j] * columns[j];
    test += (squares[j] - target[j]) ** 2;
  }
  return { loss: dot(residual, residual) / n / 4, trace: trace / n, watch: test / 4 };
}

/** The largest eigenvalue of 2/n·X diag(w⊙w) Xᵀ by power iteration on `v`, which is kept. */
function regressionCurvature(data, w, v, iterations) {
  let found = 0;
  for (let k = 0; k < iterations; k++) {
    const back = transposed(data, v);
    for (let j = 0; j < back.length; j++) back[j] *= w[j] * w[j];
    const next = times(data, back);
    const length = Math.sqrt(dot(next, next));
    if (!(length > 0)) return 0;
    found = (2 / data.n) * length;
    next.forEach((one, i) => { v[i] = one / length; });
  }
  return found;
}

/** The minimum that gradient descent finds from all ones, w_0 of the paper. */
function descended(data, columns) {
  const { n, d } = data;
  let w = new Float64Array(d).fill(1);
  const eta = 1 / regressionCurvature(data, w, new Float64Array(n).fill(1), 60);
  const gradient = new Float64Array(d);
  let enough = null;
  for (let k = 0; k < PLANE_STEPS; k++) {
    regressionLook(data, columns, w, gradient);
    const length = Math.sqrt(dot(gradient, gradient));
    enough ??= PLANE_TOLERANCE * (1 + length);
    if (length < enough) break;
    w = w.map((one, j) => one - eta * gradient[j]);
  }
  return w;
}

function direction(from, to, orthogonal) {
  const along = to.map((one, j) => one - from[j]);
  const share = orthogonal ? dot(along, orthogonal) : 0;
  const rest = along.map((one, j) => one - (orthogonal ? share * orthogonal[j] : 0));
  const length = Math.sqrt(dot(rest, rest));
  return rest.map((one) => one / length);
}

/** In the plane w⊙w is a polynomial of (a, b): its parts for 1, a, b, a², ab, b². */
function planeParts(origin, e1, e2) {
  const product = (x, y, factor) => x.map((one, j) => factor * one * y[j]);
  return [
    product(origin, origin, 1), product(origin, e1, 2), product(origin, e2, 2),
    product(e1, e1, 1), product(e1, e2, 2), product(e2, e2, 1),
  ];
}

const monomials = (a, b) => [1, a, b, a * a, a * b, b * b];

/** The loss in the plane: a quartic, from the 6×6 products of the parts of the residual. */
function planeLoss(data, parts) {
  const residuals = parts.map((part) => times(data, part));
  data.y.forEach((one, i) => { residuals[0][i] -= one; });
  const table = residuals.map((x) => residuals.map((y) => dot(x, y) / data.n / 4));
  return (a, b) => {
    const m = monomials(a, b);
    let sum = 0;
    for (let i = 0; i < 6; i++) for (let j = 0; j < 6; j++) sum += m[i] * m[j] * table[i][j];
    return Math.max(sum, 0);
  };
}

/** The curvature in the plane, for drawing: twelve iterations from where the last call ended. */
function planeCurvature(data, origin, e1, e2) {
  const v = new Float64Array(data.n).fill(1);
  return (a, b) => {
    const w = origin.map((one, j) => one + a * e1[j] + b * e2[j]);
    return regressionCurvature(data, w, v, 12);
  };
}

function planeView(position, start, end) {
  const [a0, b0] = position(start), [a1] = position(end);
  const margin = 0.35 * a1;
  return {
    a: [Math.min(0, a0) - margin, Math.max(a1, a0) + margin],
    b: [-0.75 * b0, 1.35 * b0],
  };
}

/** A cut through the minimum of gradient descent (0, 0), the sparse target (a, 0) and w_0. */
export function quadraticRegression(seed, d) {
  const data = regressionData(seed, d);
  const columns = new Float64Array(d);
  for (const row of data.X) for (let j = 0; j < d; j++) columns[j] += row[j] * row[j];
  const ones = new Float64Array(d).fill(1);
  const origin = descended(data, columns);
  const e1 = direction(origin, data.target);
  const e2 = direction(origin, ones, e1);
  const position = (w) => {
    let a = 0, b = 0;
    for (let j = 0; j < d; j++) {
      a += (w[j] - origin[j]) * e1[j];
      b += (w[j] - origin[j]) * e2[j];
    }
    return [a, b];
  };
  return {
    size: d,
    data,
    columns,
    start: position(ones),
    marks: [["GD’s minimum", 0, 0], ["sparse target", ...position(data.target)]],
    view: planeView(position, ones, data.target),
    look: (w, gradient) => regressionLook(data, columns, w, gradient),
    position,
    place: ([a, b]) => origin.map((one, j) => one + a * e1[j] + b * e2[j]),
    height: planeLoss(data, planeParts(origin, e1, e2)),
    curvature: (w, v, iterations) => regressionCurvature(data, w, v, iterations),
    heightCurvature: planeCurvature(data, origin, e1, e2),
  };
}
