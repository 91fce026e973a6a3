// The playground: one clock for all walks, pictures of where they are.
//
// A change of a setting starts anew, so that what is seen is a function of the settings and the
// step alone. A method that is switched on later catches up first. Frames step for BUDGET at most.

import { chart } from "./charts.js";
import { Controls } from "./controls.js";
import { palette } from "./drawing.js";
import { landscape } from "./landscape.js";
import { drawing } from "./methods.js";
import { quadraticRegression, wideningValley } from "./problems.js";
import { defaults, fromHash, toHash } from "./settings.js";
import { lanesOf } from "./track.js";
import { PLOTS, WORDS } from "./words.js";

const BUDGET = 8; // milliseconds of steps in a frame: the rest is for drawing
const TOLD = 150; // milliseconds between two changes of numbers, for eyes

/** The playground in a shadow root. */
export class Playground {
  constructor(host) {
    this.host = host;
    const at = (id) => host.shadowRoot.getElementById(id);
    this.landscape = landscape(at("landscape"));
    this.charts = Object.fromEntries(PLOTS.map(([id]) => [id, chart(at(id))]));
    this.controls = new Controls(host.shadowRoot, this.wishes());
    this.visible = true;
    this.told = 0;
    this.turn = 0;
    at("landscape").addEventListener("click", (event) => {
      const point = this.landscape.point(event);
      if (point) this.change({ start: point.map((one) => Number(one.toPrecision(3))) });
    });
    this.run(!matchMedia("(prefers-reduced-motion: reduce)").matches);
    this.load();
    this.watch();
    this.frame = this.frame.bind(this);
    requestAnimationFrame(this.frame);
  }

  wishes() {
    return {
      change: (more) => this.change(more),
      land: (land) => this.go(land),
      run: () => this.run(!this.running),
      step: () => this.step(),
      reset: () => this.restart(),
      share: () => this.share(),
      speed: (speed) => { this.settings.speed = speed; },
      use: (on) => this.use(on),
    };
  }

  // Settings

  load() {
    const linked = fromHash(location.hash);
    this.settings = linked?.settings ?? defaults("valley");
    this.controls.say(linked?.refused.join(" ") ?? "");
    if (linked) this.host.scrollIntoView();
    this.restart();
  }

  /** Another landscape, with its own defaults but for what has nothing to do with it. */
  go(land) {
    const { on, seed, name, lambda, hold } = this.settings;
    this.settings = { ...defaults(land), on, seed, name, lambda, hold };
    this.restart();
  }

  change(more) {
    Object.assign(this.settings, more);
    const moved = this.settings.land === "regression" && ("d" in more || "seed" in more);
    if (moved) this.settings.start = null; // the plane is another one
    this.restart();
  }

  restart() {
    const { settings } = this;
    this.problem = this.sameProblem() ?? this.newProblem();
    this.clock = 0;
    this.draw = drawing(settings.seed, settings.name, this.problem.size);
    this.chosen = lanesOf(this.problem, { ...settings }, this.draw);
    this.lanes = this.chosen(settings.on);
    this.controls.show(settings, this.problem, this.draw);
    this.told = 0;
    this.dirty = true;
  }

  sameProblem() {
    const { land, seed, d } = this.settings;
    const wanted = [land, land === "regression" ? seed : "", d].join();
    if (this.wanted === wanted) return this.problem;
    this.wanted = wanted;
    return null;
  }

  newProblem() {
    const { land, seed, d } = this.settings;
    return land === "valley" ? wideningValley(d) : quadraticRegression(seed, d);
  }

  use(on) {
    this.settings.on = on;
    this.lanes = this.chosen(on);
    this.dirty = true;
  }

  async share() {
    history.replaceState(null, "", toHash(this.settings));
    try {
      await navigator.clipboard.writeText(location.href);
      this.controls.say("The link is copied.");
    } catch {
      this.controls.say("The link is in the address bar.");
    }
  }

  // Time

  run(running) {
    this.running = running;
    this.controls.showRunning(running);
    this.dirty = true;
  }

  step() {
    this.run(false);
    this.advance(1);
  }

  frame(now) {
    requestAnimationFrame(this.frame);
    const going = this.running && this.visible;
    if (!going && !this.dirty && !this.behind()) return;
    this.advance(going ? this.settings.speed : 0);
    this.paint(this.dirty || !going);
    if (now - this.told > TOLD || !going) {
      this.controls.tell(this.lanes, this.settings, this.clock);
      this.told = now;
    }
    this.dirty = false;
  }

  behind() {
    return this.lanes.some((lane) => !lane.done && lane.step < this.clock);
  }

  /** Up to `steps` steps of all methods that are on; those that lag behind go first. */
  advance(steps) {
    const end = performance.now() + BUDGET;
    for (let left = steps; ; left--) {
      for (const lane of this.lanes) {
        while (!lane.done && lane.step < this.clock) {
          lane.advance();
          if (performance.now() > end) return;
        }
      }
      if (left <= 0) return;
      this.clock += 1;
    }
  }

  // Pictures

  /** The landscape, and the plots: together, so that they show the same steps, in `all` or in every
   * third frame, for they need not be as fluent. */
  paint(all) {
    const { settings, lanes, problem, colours, clock: step } = this;
    const { names } = WORDS[settings.land];
    this.landscape.draw({ problem, lanes, settings, names, colours });
    const barrier = { watch: settings.land === "valley" ? 2 / settings.eta : null };
    this.turn = all ? 0 : (this.turn + 1) % 3;
    if (this.turn) return;
    for (const [column, expected] of PLOTS) {
      this.charts[column].draw({
        lanes, step, column, expected, barrier: barrier[column], colours,
      });
    }
  }

  /** What happens outside: links, sizes, themes, and whether anybody can see it. */
  watch() {
    const again = () => { this.dirty = true; };
    addEventListener("hashchange", () => { if (fromHash(location.hash)) this.load(); });
    const sizes = new ResizeObserver(again);
    this.host.shadowRoot.querySelectorAll("canvas[role]").forEach((one) => sizes.observe(one));
    const look = (seen) => { this.visible = seen.at(-1).isIntersecting; };
    new IntersectionObserver(look).observe(this.host);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const dress = () => {
      const said = document.body.dataset.mdColorScheme; // mkdocs-material's own switch
      this.host.dataset.theme = (said ? said === "slate" : dark.matches) ? "dark" : "light";
      this.colours = palette(this.host);
      this.controls.showSwatches(this.colours);
      again();
    };
    dark.addEventListener("change", dress);
    const switched = { attributeFilter: ["data-md-color-scheme"] };
    new MutationObserver(dress).observe(document.body, switched);
    dress();
  }
}
