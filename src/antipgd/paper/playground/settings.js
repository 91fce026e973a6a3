// What the controls say, and the link that says it: #playground?land=valley&eta=0.1&…
//
// A walk is a function of these settings and its step alone, so a link shows everybody the same. A
// value that is not accepted is refused by name, and the default is used in its place.

import { METHODS } from "./methods.js";
import { isSeed } from "./stream.js";

export const MARK = "#playground?";
export const LANDSCAPES = ["valley", "regression"];

const DECADE = [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8];
const decades = (first, count, last) => [
  ...Array.from({ length: count }, (_, k) => DECADE.map((m) => Number(`${m}e${first + k}`))).flat(),
  last,
];

/** The values that the sliders stop at; a link may have any between the first and the last. */
export const STOPS = {
  eta: decades(-2, 2, 1),
  sigma: [0, ...decades(-3, 2, 0.1), 0.12, 0.15, 0.2],
  lambda: Array.from({ length: 101 }, (_, i) => i / 100),
  d: [2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100, 120, 150, 200],
};
export const HOLDS = [2, 3, 4, 5, 10];
export const SPEEDS = [1, 2, 5, 10, 20, 50, 100];

const DEFAULT = {
  eta: 0.1, sigma: 0.05, lambda: 0.5, d: 10, hold: 2, seed: "0", name: "w", start: null,
  on: ["gd", "pgd", "anti"], speed: 10,
};

/** The settings that a landscape opens with: those of the paper's regression, a quick valley. */
export function defaults(land) {
  const own = land === "regression" ? { d: 100, speed: 5 } : {};
  return { land, ...DEFAULT, ...own, on: [...DEFAULT.on] };
}

const refuse = (accepted) => {
  throw new RangeError(accepted);
};

const number = (low, high, whole = false) => (text) => {
  const value = Number(text);
  const inside = text.trim() !== "" && value >= low && value <= high;
  if (inside && (!whole || Number.isInteger(value))) return value;
  return refuse(`a ${whole ? "whole " : ""}number from ${low} to ${high}`);
};

const among = (values) => (text) => values.find((value) => String(value) === text) ??
  refuse(`one of ${values.join(", ")}`);

function point(text) {
  const values = text.split(",").map(Number);
  const fits = values.length === 2 && !/(^|,)\s*(,|$)/.test(text) &&
    values.every((one) => Math.abs(one) <= 100);
  return fits ? values : refuse("two numbers up to 100, such as 2,0.3");
}

function methods(text) {
  const known = METHODS.map(({ id }) => id);
  const names = text === "" ? [] : text.split(",");
  return names.every((name) => known.includes(name))
    ? known.filter((id) => names.includes(id))
    : refuse(`some of ${known.join(",")}`);
}

const ends = (name) => [STOPS[name][0], STOPS[name].at(-1)];

/** What each setting accepts: text → value, or a RangeError that says what is accepted. */
export const ACCEPTED = {
  land: among(LANDSCAPES),
  eta: number(...ends("eta")),
  sigma: number(...ends("sigma")),
  lambda: number(...ends("lambda")),
  d: number(...ends("d"), true),
  hold: among(HOLDS),
  seed: (text) => (isSeed(text) ? text : refuse("a whole number from 0 to 2⁶⁴ − 1")),
  name: (text) => (text.length >= 1 && text.length <= 60 ? text : refuse("1 to 60 characters")),
  start: point,
  on: methods,
  speed: among(SPEEDS),
};

const written = (value) => (Array.isArray(value) ? value.join(",") : String(value));

/** The hash of a link: what differs from the landscape's defaults. */
export function toHash(settings) {
  const usual = defaults(settings.land);
  const said = new URLSearchParams({ land: settings.land });
  for (const name of Object.keys(usual)) {
    if (written(settings[name]) !== written(usual[name])) said.set(name, written(settings[name]));
  }
  return MARK + said.toString();
}

/** Settings from a hash, and what was refused, a sentence each; null if it is not ours. */
export function fromHash(hash) {
  if (!hash.startsWith(MARK)) return null;
  const said = new URLSearchParams(hash.slice(MARK.length));
  const refused = [];
  const read = (name, instead) => {
    try {
      return said.has(name) ? ACCEPTED[name](said.get(name)) : instead;
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      const given = said.get(name).slice(0, 40);
      refused.push(`The link says ${name}=${given}; accepted: ${error.message}.`);
      return instead;
    }
  };
  const settings = defaults(read("land", LANDSCAPES[0]));
  for (const name of Object.keys(ACCEPTED)) {
    if (name !== "land") settings[name] = read(name, settings[name]);
  }
  for (const name of said.keys()) {
    if (Object.hasOwn(ACCEPTED, name)) continue;
    refused.push(`The link says ${name.slice(0, 40)}, which is no setting.`);
  }
  return { settings, refused };
}
