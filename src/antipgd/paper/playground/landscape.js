// The landscape: what stands still, and on it where the methods are.
//
// Thick lines are means over blocks of steps, thin ones the last 120 steps. Where a walk leaves the
// picture its mark stays at the edge.

import { fitted, linear, mark, trace } from "./drawing.js";
import { backdrop, label } from "./ground.js";
import { COLUMNS } from "./track.js";

const MARGIN = { left: 46, right: 12, top: 12, bottom: 40 };

/** The part of the canvas that shows the plane, and maps to pixels and back. */
function frameOf({ width, height }, view) {
  const { left, top } = MARGIN;
  const box = { left, top, right: width - MARGIN.right, bottom: height - MARGIN.bottom };
  return {
    ...box,
    x: linear(view.a, [box.left, box.right]),
    y: linear(view.b, [box.bottom, box.top]),
    a: linear([box.left, box.right], view.a),
    b: linear([box.bottom, box.top], view.b),
  };
}

/** Everything that belongs to one canvas. */
export function landscape(canvas) {
  const fit = fitted(canvas), still = backdrop();

  function paths(context, frame, lanes, colours) {
    const clamp = (value) => Math.min(Math.max(value, -1e4), 1e4);
    const place = ([a, b]) => [clamp(frame.x(a)), clamp(frame.y(b))];
    context.lineJoin = "bevel";
    for (const { method, recent } of lanes) {
      context.strokeStyle = colours[method.id];
      context.globalAlpha = 0.45;
      context.lineWidth = 0.8;
      trace(context, recent.map(place));
    }
    context.globalAlpha = 1;
    for (const { method, early, blocks } of lanes) {
      const later = blocks.rows.filter((_, i) => blocks.at(i) >= early.length);
      context.strokeStyle = colours[method.id];
      context.lineWidth = 2;
      const means = later.map((row) => [row[COLUMNS.a], row[COLUMNS.b]]);
      trace(context, [...early, ...means].map(place));
    }
  }

  function marks(context, frame, lanes, colours) {
    const inside = (value, low, high) => Math.min(Math.max(value, low), high);
    for (const { method, recent, blocks } of lanes) {
      const last = blocks.stride > 1 ? blocks.rows.at(-1) : recent.at(-1);
      const x = inside(frame.x(last[0]), frame.left, frame.right);
      const y = inside(frame.y(last[1]), frame.top, frame.bottom);
      mark(context, method.id, x, y, 6, colours[method.id], colours.card);
    }
  }

  function places(context, frame, problem, colours) {
    for (const [text, a, b] of problem.marks ?? []) {
      context.beginPath();
      context.arc(frame.x(a), frame.y(b), 3, 0, 2 * Math.PI);
      context.fillStyle = colours.text;
      context.fill();
      label(context, text, frame.x(a), frame.y(b) + 22, colours, "center");
    }
  }

  let frame = null;
  return {
    draw(scene) {
      const { context, ...size } = fit();
      const { problem, lanes, colours } = scene;
      frame = frameOf(size, problem.view);
      context.drawImage(still(scene, frame, size), 0, 0, size.width, size.height);
      context.font = `12px ${colours.font}`;
      context.save();
      context.beginPath();
      context.rect(frame.left, frame.top, frame.right - frame.left, frame.bottom - frame.top);
      context.clip();
      paths(context, frame, lanes, colours);
      places(context, frame, problem, colours);
      context.restore();
      marks(context, frame, lanes, colours);
    },
    /** The point of the plane under a point of the screen; null outside of the picture. */
    point(event) {
      const box = canvas.getBoundingClientRect();
      const x = event.clientX - box.left, y = event.clientY - box.top;
      const across = frame && x >= frame.left && x <= frame.right;
      return across && y >= frame.top && y <= frame.bottom ? [frame.a(x), frame.b(y)] : null;
    },
  };
}
