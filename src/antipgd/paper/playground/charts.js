// The plots beside the landscape: a measured quantity against the step, the theory's line dashed.

import { fitted, linear, logTicks, mark, tickText, ticks, trace, write } from "./drawing.js";
import { COLUMNS } from "./track.js";

const MARGIN = { left: 46, right: 14, top: 8, bottom: 22 };
const DEPTH = 1e-5; // a plot shows no less than this share of its top
const FIRST = 100; // steps that are shown at least

/** The end of the axis of steps: the next of 1, 2, 5 × 10ᵏ, so that it seldom moves. */
export function horizon(step) {
  const power = 10 ** Math.floor(Math.log10(Math.max(step, FIRST)));
  return [1, 2, 5, 10].map((m) => m * power).find((end) => end >= Math.max(step, FIRST));
}

/** The range of the numbers in some columns of all lanes, rounded outwards. */
function range(lanes, columns, more) {
  let low = Infinity, high = -Infinity;
  const count = (value) => {
    if (!(value > 0 && value < Infinity)) return;
    low = Math.min(low, value);
    high = Math.max(high, value);
  };
  for (const { blocks } of lanes) {
    for (const row of blocks.rows) columns.forEach((column) => count(row[column]));
  }
  more.forEach(count);
  if (!(low <= high)) return [0.1, 10];
  const bottom = Math.max(low, high * DEPTH);
  const wide = high / bottom > 30 ? 1 : 0.3;
  const out = (value, way) => 10 ** (way(Math.log10(value) / wide) * wide);
  const ends = [out(bottom / 1.02, Math.floor), out(high * 1.02, Math.ceil)];
  return ends[0] < ends[1] ? ends : [ends[0], ends[0] * 2];
}

/** One plot; `draw` takes the column that is plotted and the column that is expected. */
export function chart(canvas) {
  const fit = fitted(canvas);

  function axes(context, box, x, y, last, [low, high], colours) {
    context.lineWidth = 1;
    for (const value of logTicks(low, high)) {
      context.strokeStyle = colours.line;
      trace(context, [[box.left, y(value)], [box.right, y(value)]]);
      write(context, tickText(value), box.left - 7, y(value), colours.quiet, "right", "middle");
    }
    for (const value of ticks(0, last, 4)) {
      const align = value === last ? "right" : value === 0 ? "left" : "center";
      write(context, tickText(value), x(value), box.bottom + 15, colours.quiet, align);
    }
  }

  return {
    draw({ lanes, step, column, expected, barrier, colours }) {
      const { context, width, height } = fit();
      const { left, top } = MARGIN;
      const box = { left, top, right: width - MARGIN.right, bottom: height - MARGIN.bottom };
      const ends = range(lanes, [COLUMNS[column], COLUMNS[expected]], barrier ? [barrier] : []);
      const last = horizon(step);
      const x = linear([0, last], [box.left, box.right]);
      const scale = linear(ends.map(Math.log10), [box.bottom, box.top]);
      const y = (value) => Math.min(scale(Math.log10(Math.max(value, 1e-300))), box.bottom + 2);
      context.font = `11.5px ${colours.font}`;
      axes(context, box, x, y, last, ends, colours);
      context.save();
      context.beginPath();
      context.rect(box.left, box.top - 4, box.right - box.left + 10, box.bottom - box.top + 5);
      context.clip();
      if (barrier) {
        context.strokeStyle = colours.barrier;
        context.lineWidth = 2;
        context.setLineDash([7, 5]);
        trace(context, [[box.left, y(barrier)], [box.right, y(barrier)]]);
        context.setLineDash([]);
        write(context, "ηh = 2", box.right - 2, y(barrier) - 5, colours.text, "right");
      }
      context.lineJoin = "bevel";
      for (const lane of lanes) lines(context, lane, x, y, box.bottom, column, expected, colours);
      context.restore();
    },
  };
}

function lines(context, { method, blocks, walk }, x, y, bottom, column, expected, colours) {
  context.strokeStyle = colours[method.id];
  context.lineWidth = 1.75;
  const measured = blocks.rows.map((row, i) => [x(blocks.at(i)), y(row[COLUMNS[column]])]);
  trace(context, measured);
  context.strokeStyle = colours.text;
  context.lineWidth = 1.25;
  context.setLineDash([5, 4]);
  trace(context, blocks.rows.map((row, i) => {
    const value = row[COLUMNS[expected]];
    return [x(blocks.at(i)), value > 0 ? y(value) : NaN];
  }));
  context.setLineDash([]);
  if (measured.length === 0 || measured.at(-1)[1] > bottom) return;
  mark(context, method.id, ...measured.at(-1), 4, colours[method.id], colours.card);
  if (walk.diverged !== null) {
    write(context, "diverged", measured.at(-1)[0] + 8, measured.at(-1)[1] + 12, colours.quiet);
  }
}
