// What is kept of a walk: means over blocks of steps, few enough to draw, and its last points.
//
// When there are CAPACITY blocks, neighbours are merged: the whole walk is always there, in one
// resolution. Means, because the theory's lines are expectations.

import { METHODS, Walk, noiseOf } from "./methods.js";
import { regressionLine, valleyLine } from "./theory.js";

const CAPACITY = 320; // blocks, an even number
const RECENT = 120; // steps
const EARLY = 12; // steps whose way is kept as it was

/** Means of rows of numbers over blocks of equal length. */
export class Blocks {
  constructor(width) {
    this.width = width;
    this.stride = 1;
    this.rows = [];
    this.open = new Float64Array(width);
    this.held = 0; // rows in the open block
  }

  push(row) {
    for (let k = 0; k < this.width; k++) this.open[k] += row[k];
    if (++this.held < this.stride) return;
    this.rows.push(this.open.map((sum) => sum / this.stride));
    this.open.fill(0);
    this.held = 0;
    if (this.rows.length === CAPACITY) this.merge();
  }

  merge() {
    const pair = (_, i) => this.rows[2 * i].map((one, k) => (one + this.rows[2 * i + 1][k]) / 2);
    this.rows = Array.from({ length: CAPACITY / 2 }, pair);
    this.stride *= 2;
  }

  /** The middle of a block, in steps. */
  at(i) {
    return (i + 0.5) * this.stride - 0.5;
  }
}

/** Columns of a lane's blocks. */
export const COLUMNS = {
  a: 0, b: 1, loss: 2, trace: 3, watch: 4, expectedLoss: 5, expectedTrace: 6, expectedWatch: 7,
};

/** A method on its way with the theory's line beside it, and what is drawn of both. */
export class Lane {
  constructor(method, problem, settings, draw) {
    const start = problem.place(settings.start ?? problem.start);
    const noise = noiseOf(method.id, settings);
    this.method = method;
    this.problem = problem;
    this.walk = new Walk(problem, start, noise, settings, draw);
    this.line = noise && settings.sigma > 0 ? lineOf(problem, start, settings, noise) : null;
    this.blocks = new Blocks(Object.keys(COLUMNS).length);
    this.recent = [];
    this.early = [];
    this.power = new Float64Array(problem.data?.n ?? 0).fill(1); // of the curvature's iteration
    this.record(this.walk.seen);
  }

  get step() {
    return this.walk.step;
  }

  get done() {
    return this.walk.diverged !== null;
  }

  record(expected) {
    const { seen, w } = this.walk;
    const [a, b] = this.problem.position(w);
    this.recent.push([a, b]);
    if (this.early.length < EARLY) this.early.push([a, b]);
    if (this.recent.length > RECENT) this.recent.shift();
    const lines = this.line ? [expected.loss, expected.trace, expected.watch] : [NaN, NaN, NaN];
    this.blocks.push([a, b, seen.loss, seen.trace, seen.watch, ...lines]);
  }

  advance() {
    this.walk.advance();
    const expected = this.line?.next();
    if (!this.done) this.record(expected);
  }

  /** The newest mean of a column. */
  latest(column) {
    return this.blocks.rows.at(-1)[COLUMNS[column]];
  }

  /** The curvature where it is; a few iterations are enough, for it moves slowly. */
  curvature(iterations = 4) {
    return this.problem.curvature(this.walk.w, this.power, iterations);
  }
}

function lineOf(problem, start, settings, noise) {
  return problem.data
    ? regressionLine(problem, start, settings, noise)
    : valleyLine(start, settings, noise);
}

/** The lanes of all methods that are on, made when asked for; they share their draws. */
export function lanesOf(problem, settings, draw) {
  const found = new Map();
  return (on) => METHODS.filter(({ id }) => on.includes(id)).map((method) => {
    if (!found.has(method.id)) found.set(method.id, new Lane(method, problem, settings, draw));
    return found.get(method.id);
  });
}
