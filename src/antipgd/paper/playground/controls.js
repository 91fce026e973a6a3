// Everything that is not a picture: controls in, numbers and words out.
//
// `wishes` are the functions that a control calls; nothing here changes a setting by itself.

import { mark, short } from "./drawing.js";
import { METHODS } from "./methods.js";
import { ACCEPTED, HOLDS, SPEEDS, STOPS } from "./settings.js";
import { keyText, streamKey } from "./stream.js";
import { COLUMNS } from "./track.js";
import { PLOTS, WORDS } from "./words.js";

function make(tag, more = {}, ...children) {
  const made = Object.assign(document.createElement(tag), more);
  made.append(...children);
  return made;
}

/** A row of the table: the switch of a method and its numbers. */
function methodRow({ id, name, about }) {
  const box = make("input", { type: "checkbox", id: `on-${id}`, value: id });
  const swatch = make("canvas", { width: 32, height: 32 });
  swatch.setAttribute("aria-hidden", "true");
  const label = make("label", { title: about }, box, swatch, make("span", {}, name));
  const bar = make("span"), ratio = make("span");
  const meter = make("span", { className: "meter" }, make("span", {}, bar), ratio);
  const cells = PLOTS.map(() => make("td", { className: "number" }));
  const row = make("tr", {}, make("th", { scope: "row" }, label), make("td", {}, meter), ...cells);
  return { row, box, swatch, bar, ratio, cells };
}

/** The controls in a shadow root. */
export class Controls {
  constructor(root, wishes) {
    this.root = root;
    this.wishes = wishes;
    this.at = (id) => root.getElementById(id);
    this.lands = Array.from(root.querySelectorAll("[name=land]"));
    this.rows = new Map(METHODS.map((method) => [method.id, methodRow(method)]));
    this.build();
    this.listen();
  }

  build() {
    const fill = (id, values) => this.at(id).replaceChildren(
      ...values.map((value) => new Option(String(value), String(value))));
    fill("hold", HOLDS);
    fill("speed", SPEEDS);
    for (const [name, stops] of Object.entries(STOPS)) {
      Object.assign(this.at(name), { min: "0", max: String(stops.length - 1), step: "1" });
    }
    for (const { row } of this.rows.values()) this.at("methods").append(row);
  }

  listen() {
    const { wishes } = this;
    const on = (id, event, act) => this.at(id).addEventListener(event, act);
    for (const [name, stops] of Object.entries(STOPS)) {
      on(name, "input", () => wishes.change({ [name]: stops[this.at(name).value] }));
    }
    for (const radio of this.lands) {
      radio.addEventListener("change", () => wishes.land(radio.value));
    }
    for (const id of ["run", "step", "reset", "share"]) on(id, "click", () => wishes[id]());
    on("speed", "change", () => wishes.speed(Number(this.at("speed").value)));
    for (const id of ["hold", "seed", "name"]) {
      on(id, "change", () => this.read(id, id, this.at(id).value));
    }
    const both = () => `${this.at("start-a").value},${this.at("start-b").value}`;
    for (const id of ["start-a", "start-b"]) on(id, "change", () => this.read("start", id, both()));
    on("methods", "change", () => wishes.use(
      METHODS.map(({ id }) => id).filter((id) => this.rows.get(id).box.checked)));
  }

  /** A setting from a field, if it is accepted; else the field is marked and nothing changes. */
  read(name, id, text) {
    try {
      const value = ACCEPTED[name](text);
      this.say("");
      this.wishes.change({ [name]: value });
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      this.at(id).setAttribute("aria-invalid", "true");
      this.say(`${name} must be ${error.message}; got ${text.slice(0, 40) || "nothing"}.`);
    }
  }

  say(text) {
    this.at("message").textContent = text;
  }

  /** What the settings are, on all controls. */
  show(settings, problem, draw) {
    const words = WORDS[settings.land];
    for (const radio of this.lands) radio.checked = radio.value === settings.land;
    for (const [name, stops] of Object.entries(STOPS)) this.showSlider(name, stops, settings[name]);
    for (const id of ["hold", "speed", "seed", "name"]) this.showField(id, String(settings[id]));
    (settings.start ?? problem.start).forEach((value, k) => {
      this.showField(["start-a", "start-b"][k], String(Number(value.toPrecision(3))));
      this.at(["start-a-name", "start-b-name"][k]).textContent = words.start[k];
    });
    this.at("watch-title").textContent = words.watch;
    this.at("watch-head").textContent = words.watch.toLowerCase();
    for (const id of ["caption", "theory", "same"]) this.at(id).textContent = words[id];
    for (const [id, { box }] of this.rows) box.checked = settings.on.includes(id);
    this.showBarrier(settings, problem);
    this.showStream(settings, problem.size, draw);
  }

  showRunning(running) {
    this.at("run").textContent = running ? "Pause" : "Run";
  }

  showSlider(name, stops, value) {
    const slider = this.at(name);
    const far = stops.map((stop) => Math.abs(stop - value));
    slider.value = String(far.indexOf(Math.min(...far)));
    slider.setAttribute("aria-valuetext", String(value));
    this.at(`${name}-value`).textContent = String(value);
  }

  showField(id, text) {
    const field = this.at(id);
    field.removeAttribute("aria-invalid");
    if (field.value !== text) field.value = text;
  }

  showBarrier({ start, eta }, problem) {
    const v = new Float64Array(problem.data?.n ?? 0).fill(1);
    const x = eta * problem.curvature(problem.place(start ?? problem.start), v, 30);
    const hint = this.at("barrier");
    hint.classList.toggle("past", x >= 2);
    hint.textContent = x >= 2
      ? `unstable at the start: ηh = ${short(x)}`
      : `ηh = ${short(x)} at the start`;
  }

  showStream({ seed, name }, size, draw) {
    const place = `name=${JSON.stringify(name)}, step=1, start=0, stop=${size}`;
    this.at("call").textContent = `antipgd.noise.draws(seed=${seed}, ${place})`;
    const first = Array.from(draw(1).slice(0, 3), (one) => one.toFixed(6).replace("-", "−"));
    this.at("drawn").textContent = first.join(", ") + (size > 3 ? ", …" : "");
    this.at("key").textContent = keyText(streamKey(seed, name));
  }

  showSwatches(colours) {
    for (const [id, { swatch }] of this.rows) {
      const context = swatch.getContext("2d");
      context.clearRect(0, 0, 32, 32);
      mark(context, id, 16, 16, 11, colours[id], colours.card);
    }
  }

  /** The numbers of the table, and what pictures say to those who do not see them. */
  tell(lanes, settings, clock) {
    this.at("clock").textContent = clock.toLocaleString("en");
    const shown = new Map(lanes.map((lane) => [lane.method.id, lane]));
    for (const [id, row] of this.rows) this.tellRow(row, shown.get(id), settings.eta);
    const { names, watch } = WORDS[settings.land];
    const walks = lanes.map((lane) => lane.method.name).join(", ") || "no method";
    const describe = (id, text) => this.at(id).setAttribute("aria-label", text);
    describe("landscape", `The loss over ${names.a} and ${names.b}, with the walks of ${walks}. ` +
      "The table has the numbers.");
    const titles = { watch, trace: "The trace of the Hessian", loss: "The training loss" };
    for (const [name] of PLOTS) {
      const where = lanes.map((lane) => `${lane.method.name} ${short(lane.latest(name))}`);
      describe(name, `${titles[name]} against the step. Now: ${where.join(", ") || "nothing"}.`);
    }
  }

  tellRow({ row, bar, ratio, cells }, lane, eta) {
    const x = lane && !lane.done ? eta * lane.curvature() : NaN;
    row.classList.toggle("past", x >= 2 || Boolean(lane?.done));
    bar.style.transform = `scaleX(${Number.isFinite(x) ? Math.min(x / 2, 1) : 0})`;
    ratio.textContent = lane?.done ? "diverged" : lane ? x.toFixed(2) : "off";
    PLOTS.forEach(([name], k) => { cells[k].textContent = lane ? short(lane.latest(name)) : ""; });
  }
}
