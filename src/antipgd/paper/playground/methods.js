// The methods, and a walk of each: w_{n+1} = w_n − η∇L(w_n) + ε_n with ε_n = Σ_j taps[j] σ ξ_{k−j}.
//
// The draw k = ⌈(n+1)/hold⌉ comes with step n+1, or none while one is held; antithetic, ξ_{2k} is
// −ξ_{2k−1}, both being ± the k-th draw of the stream. The order of operations is that of
// antipgd.noise.reference: products, summed from the newest draw to the oldest, added to the step.

import { draws, streamKey } from "./stream.js";

export const METHODS = [
  { id: "gd", name: "GD", about: "no noise" },
  { id: "pgd", name: "PGD", about: "independent noise, taps (1)" },
  { id: "anti", name: "Anti-PGD", about: "taps (1, −1)" },
  { id: "taps", name: "taps (1, −λ)", about: "between PGD and Anti-PGD" },
  { id: "hold", name: "hold", about: "Anti-PGD, each draw kept T steps" },
  { id: "antithetic", name: "antithetic", about: "Anti-PGD, draws in pairs ±ξ" },
];

/** The noise of a method: { taps, hold, antithetic }, or null for GD. */
export function noiseOf(id, { lambda, hold }) {
  if (id === "gd") return null;
  const taps = { pgd: [1], taps: [1, -lambda] }[id] ?? [1, -1];
  return { taps, hold: id === "hold" ? hold : 1, antithetic: id === "antithetic" };
}

const KEPT = 16; // draws: methods that hold draws are at others than those that do not

/** Draws of one stream by number, the last few kept. */
export function drawing(seed, name, size) {
  const key = streamKey(seed, name);
  const found = new Map();
  return (step) => {
    if (!found.has(step)) {
      if (found.size >= KEPT) found.delete(found.keys().next().value);
      found.set(step, draws(key, step, size));
    }
    return found.get(step);
  };
}

/** Adds ε_n to w for the step n → n + 1. */
function inject(w, n, { taps, hold, antithetic }, sigma, draw) {
  if (n % hold !== 0) return;
  const newest = n / hold + 1;
  const terms = [];
  taps.forEach((tap, lag) => {
    const number = newest - lag;
    if (tap * sigma === 0 || number < 1) return;
    const sign = antithetic && number % 2 === 0 ? -1 : 1;
    terms.push([sign * tap * sigma, draw(antithetic ? Math.ceil(number / 2) : number)]);
  });
  if (terms.length === 0) return;
  for (let i = 0; i < w.length; i++) {
    let total = terms[0][0] * terms[0][1][i];
    for (let k = 1; k < terms.length; k++) total += terms[k][0] * terms[k][1][i];
    w[i] += total;
  }
}

const LOST = 1e6; // a weight so large has diverged

/** A method on its way: `w` after `step` steps, and `seen`, what is measured there. */
export class Walk {
  constructor(problem, start, noise, { eta, sigma }, draw) {
    Object.assign(this, { problem, noise, eta, sigma, draw });
    this.w = Float64Array.from(start);
    this.gradient = new Float64Array(problem.size);
    this.step = 0;
    this.diverged = null; // the step at which it left
    this.seen = problem.look(this.w, this.gradient);
  }

  advance() {
    if (this.diverged !== null) return;
    const { w, gradient, eta } = this;
    for (let i = 0; i < w.length; i++) w[i] -= eta * gradient[i];
    if (this.noise) inject(w, this.step, this.noise, this.sigma, this.draw);
    this.step += 1;
    if (!w.every((one) => Math.abs(one) < LOST)) this.diverged = this.step;
    else this.seen = this.problem.look(w, gradient);
  }
}
