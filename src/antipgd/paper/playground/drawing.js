// Pencils: canvases as sharp as the screen, colours from the style sheet, ticks, numbers as text.

/** A canvas that follows its box; `draw(context, width, height)` works in CSS pixels. */
export function fitted(canvas) {
  const context = canvas.getContext("2d");
  return () => {
    const { width, height } = canvas.getBoundingClientRect();
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    const pixels = [width, height].map((one) => Math.max(1, Math.round(one * ratio)));
    if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) {
      [canvas.width, canvas.height] = pixels;
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return { context, width, height, ratio };
  };
}

const NAMES = [
  "text", "quiet", "line", "low", "high", "contour", "barrier", "gd", "pgd", "anti", "taps",
  "hold", "antithetic", "card",
];

/** The style sheet's colours, by name. */
export function palette(root) {
  const style = getComputedStyle(root);
  const colours = NAMES.map((name) => [name, style.getPropertyValue(`--pg-${name}`).trim()]);
  return { ...Object.fromEntries(colours), font: style.getPropertyValue("--pg-sans").trim() };
}

/** Red, green and blue of #rrggbb. */
export function channels(colour) {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

/** A map from numbers to pixels. */
export function linear([low, high], [from, to]) {
  return (value) => from + ((value - low) / (high - low)) * (to - from);
}

/** Round numbers between two, about `count` of them. */
export function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((one) => one >= rough);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  const at = (_, i) => Number(((first + i) * step).toPrecision(12));
  return Array.from({ length: last - first + 1 }, at);
}

/** Powers of ten between two, or 1, 2, 5 of each where they are few. */
export function logTicks(low, high) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const every = Math.max(1, Math.ceil((last - first) / 5));
  const found = [];
  for (let power = first; power <= last; power++) {
    const marks = last - first <= 2 ? [1, 2, 5] : power % every === 0 ? [1] : [];
    found.push(...marks.map((m) => Number(`${m}e${power}`)));
  }
  return found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
}

const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** A number for a tick: plain where that is short, else a power of ten. */
export function tickText(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e4 && size < 1e7 && value % 1000 === 0) return `${value / 1000}k`.replace("-", "−");
  if (size >= 1e-3 && size < 1e4) return String(Number(value.toPrecision(6))).replace("-", "−");
  const [mantissa, exponent] = value.toExponential().split("e");
  const raised = Array.from(String(Math.abs(exponent)), (digit) => RAISED[digit]).join("");
  const power = `10${exponent < 0 ? "⁻" : ""}${raised}`;
  return (mantissa === "1" ? power : `${mantissa}·${power}`).replace("-", "−");
}

/** A number in three digits, as in a table. */
export function short(value) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) {
    const [mantissa, exponent] = value.toExponential(1).split("e");
    const raised = Array.from(String(Math.abs(exponent)), (digit) => RAISED[digit]).join("");
    return `${mantissa}·10${exponent < 0 ? "⁻" : ""}${raised}`.replace("-", "−");
  }
  const text = size >= 1000 ? value.toFixed(0) : value.toPrecision(3);
  return text.replace("-", "−");
}

/** Text with its settings in one line. */
export function write(context, text, x, y, colour, align = "left", baseline = "alphabetic") {
  context.fillStyle = colour;
  context.textAlign = align;
  context.textBaseline = baseline;
  context.fillText(text, x, y);
}

/** A line through points; a gap where one is not finite. */
export function trace(context, points) {
  context.beginPath();
  let down = false;
  for (const [x, y] of points) {
    const there = Number.isFinite(x) && Number.isFinite(y);
    if (there && down) context.lineTo(x, y);
    else if (there) context.moveTo(x, y);
    down = there;
  }
  context.stroke();
}

const SHAPES = {
  gd: (c, r) => c.rect(-0.8 * r, -0.8 * r, 1.6 * r, 1.6 * r),
  pgd: (c, r) => corners(c, r * 1.15, 3),
  anti: (c, r) => c.arc(0, 0, r, 0, 2 * Math.PI),
  taps: (c, r) => corners(c, r * 1.15, 4),
  hold: (c, r) => corners(c, r * 1.1, 5),
  antithetic: (c, r) => corners(c, r * 1.05, 6, Math.PI / 6),
};

function corners(context, radius, count, turned = 0) {
  for (let k = 0; k < count; k++) {
    const angle = -Math.PI / 2 + turned + (2 * Math.PI * k) / count;
    context[k ? "lineTo" : "moveTo"](radius * Math.cos(angle), radius * Math.sin(angle));
  }
  context.closePath();
}

/** A method's mark: a shape of its own, so that colour is not all that tells them apart. */
export function mark(context, id, x, y, radius, colour, ground) {
  context.save();
  context.translate(x, y);
  context.beginPath();
  SHAPES[id](context, radius);
  context.fillStyle = colour;
  context.strokeStyle = ground;
  context.lineWidth = 1.5;
  context.fill();
  context.stroke();
  context.restore();
}
