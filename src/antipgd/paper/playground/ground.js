// What stands still in the landscape: the loss in colours and contours, the barrier ηh = 2, axes.
//
// Drawn once into a layer of its own, and again only when something of it changes.

import { channels, linear, tickText, ticks, trace, write } from "./drawing.js";

const LEVELS = 11;
const GRID = 28; // cells of the barrier along each axis

/** ln(1 + L/floor), from 0 to 1 in the view: both the bottom and the walls have contours. */
function levels(problem, view, columns, rows) {
  const a = linear([0, columns - 1], view.a), b = linear([rows - 1, 0], view.b);
  const values = new Float32Array(columns * rows);
  let top = 0;
  for (let y = 0; y < rows; y++) {
    for (let x = 0; x < columns; x++) {
      const value = problem.height(a(x), b(y));
      values[y * columns + x] = value;
      top = Math.max(top, value);
    }
  }
  const floor = top * 1e-4;
  const whole = Math.log1p(top / floor);
  return values.map((value) => Math.log1p(value / floor) / whole);
}

/** Shading with contour lines as thin as a pixel, whatever the slope. */
function painted(problem, view, columns, rows, colours) {
  const values = levels(problem, view, columns, rows);
  const [low, high, line] = [colours.low, colours.high, colours.contour].map(channels);
  const image = new ImageData(columns, rows);
  for (let y = 0; y < rows; y++) {
    for (let x = 0; x < columns; x++) {
      const at = y * columns + x, value = values[at];
      const right = values[x + 1 < columns ? at + 1 : at - 1];
      const below = values[y + 1 < rows ? at + columns : at - columns];
      const slope = LEVELS * Math.hypot(right - value, below - value) + 1e-9;
      const level = LEVELS * value;
      const near = Math.abs(level - Math.round(level)) / slope;
      const faint = Math.max(0, 1 - slope / 0.4); // where contours are too close to be told apart
      const ink = Math.round(level) > 0 ? Math.max(0, 1 - near) * 0.6 * faint : 0;
      for (let k = 0; k < 3; k++) {
        const shade = low[k] + (high[k] - low[k]) * value;
        image.data[4 * at + k] = shade + (line[k] - shade) * ink;
      }
      image.data[4 * at + 3] = 255;
    }
  }
  return image;
}

/** The curvature over a grid of the plane, kept until the problem changes. */
function curvatures() {
  let made = null;
  return (problem, view) => {
    if (made?.problem !== problem) {
      const a = linear([0, GRID], view.a), b = linear([0, GRID], view.b);
      const edges = Array.from({ length: GRID + 1 }, (_, i) => i);
      const row = (j) => edges.map((i) => problem.heightCurvature(a(i), b(j)));
      made = { problem, rows: edges.map(row) };
    }
    return made.rows;
  };
}

/** Pieces of the curve on which a function on a grid has a value, in cells. */
export function contour(rows, value) {
  const pieces = [];
  const cross = (p, q) => (p > value) !== (q > value) ? (value - p) / (q - p) : null;
  for (let j = 0; j + 1 < rows.length; j++) {
    for (let i = 0; i + 1 < rows[j].length; i++) {
      const [p, q, r, s] = [rows[j][i], rows[j][i + 1], rows[j + 1][i + 1], rows[j + 1][i]];
      const sides = [
        [cross(p, q), (t) => [i + t, j]], [cross(q, r), (t) => [i + 1, j + t]],
        [cross(s, r), (t) => [i + t, j + 1]], [cross(p, s), (t) => [i, j + t]],
      ];
      const met = sides.filter(([t]) => t !== null).map(([t, place]) => place(t));
      if (met.length >= 2) pieces.push([met[0], met[1]]);
      if (met.length === 4) pieces.push([met[2], met[3]]);
    }
  }
  return pieces;
}

/** Words with a halo, readable on any ground. */
export function label(context, text, x, y, colours, align) {
  context.lineWidth = 4;
  context.strokeStyle = colours.card;
  context.lineJoin = "round";
  context.textAlign = align;
  context.textBaseline = "alphabetic";
  context.strokeText(text, x, y);
  write(context, text, x, y, colours.text, align);
}

/** Where the curvature is 2/η. */
function barrier(context, frame, { view }, rows, eta, colours) {
  const pieces = contour(rows, 2 / eta);
  const a = linear([0, GRID], view.a), b = linear([0, GRID], view.b);
  const place = ([i, j]) => [frame.x(a(i)), frame.y(b(j))];
  context.strokeStyle = colours.barrier;
  context.lineWidth = 2;
  context.setLineDash([7, 5]);
  for (const piece of pieces) trace(context, piece.map(place));
  context.setLineDash([]);
  if (pieces.length === 0) return;
  const [x, y] = pieces.flat().map(place).reduce((best, one) => (one[1] < best[1] ? one : best));
  const [beside, align] = x > frame.right - 70 ? [x - 6, "right"] : [x + 6, "left"];
  label(context, "ηh = 2", beside, Math.max(y, frame.top) + 16, colours, align);
}

function axes(context, frame, view, names, colours) {
  context.strokeStyle = colours.line;
  context.lineWidth = 1;
  context.strokeRect(frame.left, frame.top, frame.right - frame.left, frame.bottom - frame.top);
  const wide = frame.right - frame.left > 420;
  for (const a of ticks(...view.a, wide ? 7 : 4)) {
    write(context, tickText(a), frame.x(a), frame.bottom + 16, colours.quiet, "center");
  }
  for (const b of ticks(...view.b, 5)) {
    write(context, tickText(b), frame.left - 7, frame.y(b), colours.quiet, "right", "middle");
  }
  const middle = (frame.left + frame.right) / 2;
  write(context, names.a, middle, frame.bottom + 34, colours.text, "center");
  context.save();
  context.translate(12, (frame.top + frame.bottom) / 2);
  context.rotate(-Math.PI / 2);
  write(context, names.b, 0, 0, colours.text, "center", "middle");
  context.restore();
}

function start(context, frame, [a, b], colours) {
  const x = frame.x(a), y = frame.y(b);
  context.strokeStyle = colours.text;
  context.lineWidth = 1.5;
  trace(context, [[x - 7, y], [x + 7, y]]);
  trace(context, [[x, y - 7], [x, y + 7]]);
}

/** The layer, made anew when plane, size, colours, η or start are others than before. */
export function backdrop() {
  const layer = document.createElement("canvas"), curved = curvatures();
  let image = null, imageKey = null, key = null;
  return ({ problem, settings, names, colours }, frame, { width, height, ratio }) => {
    const at = settings.start ?? problem.start;
    const sized = [problem, colours, width, height, ratio];
    const all = [...sized, settings.eta, ...at];
    const same = (one, other) => one?.every((value, k) => value === other[k]);
    if (same(key, all)) return layer;
    const [left, top, wide, tall] = [
      frame.left, frame.top, frame.right - frame.left, frame.bottom - frame.top,
    ].map((one) => Math.max(2, Math.round(one * ratio)));
    if (!same(imageKey, sized)) image = painted(problem, problem.view, wide, tall, colours);
    layer.width = Math.max(1, Math.round(width * ratio));
    layer.height = Math.max(1, Math.round(height * ratio));
    [key, imageKey] = [all, sized];
    const context = layer.getContext("2d");
    context.putImageData(image, left, top);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = `12px ${colours.font}`;
    axes(context, frame, problem.view, names, colours);
    context.beginPath();
    context.rect(frame.left, frame.top, wide / ratio, tall / ratio);
    context.clip();
    barrier(context, frame, problem, curved(problem, problem.view), settings.eta, colours);
    start(context, frame, at, colours);
    return layer;
  };
}
