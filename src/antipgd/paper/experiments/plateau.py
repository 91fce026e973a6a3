"""How wide is the plateau at λ = 1? In the widening valley, exactly

(Ours; the paper asks how anticorrelated noise should be.) Noise with taps (1, −λ) lets flat
directions diffuse by (1−λ)²σ² a step. In the widening valley, along whose bottom h = ‖u‖² is the
curvature, that pushes u outwards while the noise on v pulls it in: a step adds σ²·[d(1−λ)² −
((1−λ)² + 2λx)/(1 − x/2)] to h, with x = ηh and φ of `theory.finite_rate`. Below the x at which that
is nought noise makes the valley sharper, above it flatter, so runs rest there: x = 2(d−1)(1−λ)² /
(4λ + d(1−λ)²). Noise that should reach the curvature h therefore needs |1−λ| ≪ √(2ηh/(d−1)). The
guess judged beside it, |1−λ| ≪ √(2ηh), forgets how many directions diffuse. η = 0.5, σ = 0.01, d =
4, 16 and 64, λ on both sides of 1, from h = 0.1. Rest: ‖u‖² at w, which holds dσ² of the last draw,
averaged over the last 320,000 of 400,000 steps, to 10 % of the formula wherever it is between
20dσ² and x = 0.3. Width: when λ = 1 has come down to a quarter, ‖u‖² is to be within 5 % of that
for λ on both sides of 1 at a tenth of either bound. (After the first run, whose intervals took the
mean at λ = 1 as exact, the ratio of the two means got the interval of pairs of seeds, which share
their draws.)
"""

import math
from collections.abc import Sequence

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import Claim, near
from antipgd.paper.results import Results, Values, over_mean
from antipgd.paper.simulation.spec import Run, make_run

SHOWS = (
    "Left, where ‖u‖² rests against |1−λ|, a colour for each d: dots for λ < 1 and crosses for λ > "
    "1 are means over {seeds} seeds, lines the formula for λ < 1. Right, ‖u‖² against the step at "
    "λ = 0.9 and 1, with one standard deviation; dotted, the formula for λ = 0.9."
)
SEEDS = 128
FRESH = 1000  # settings were chosen on the seeds below
PROBLEM, D, ETA, SIGMA = "widening_valley", 0.1, 0.5, 0.01
DIMENSIONS = (4, 16, 64)
LAMBDAS = (0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.02, 1.05, 1.1)
STEPS, AVERAGED = 400_000, 320_000
LARGEST, MARGIN = 0.3, 20  # of x, and of h over dσ²
SHORT = round(math.log(4) / (2 * ETA * SIGMA**2))
TENTH, LEVEL, TOLERANCE = 0.1, 0.05, 0.1
COLOURS = {4: "#1f6fb4", 16: "#c27c00", 64: "#7a4fa3"}


def resting(lam: float, d: int) -> float:
    """The curvature at which the mean of a step is nought."""
    spare = (1 - lam) ** 2
    return 2 * (d - 1) * spare / (4 * lam + d * spare) / ETA


def _judged(d: int) -> list[float]:
    """The λ of which the formula speaks."""
    return [
        lam for lam in LAMBDAS
        if MARGIN * d * SIGMA**2 <= resting(lam, d) <= LARGEST / ETA
    ]  # fmt: skip


def width(d: int, directions: bool) -> float:
    """The bound of |1−λ| for a quarter of D, with the number of diffusing directions or without."""
    return math.sqrt(2 * ETA * D / 4 / (d - 1 if directions else 1))


def _near_one(d: int) -> dict[str, float]:
    """The λ at a tenth of either bound from 1."""
    return {
        f"{name}_{side}": 1 + sign * TENTH * width(d, directions)
        for name, directions in (("ours", True), ("guess", False))
        for side, sign in (("below", -1), ("above", 1))
    }


def _run(d: int, lam: float, steps: int, seed: int, average: int | None = None) -> Run:
    measure = tuple(range(0, steps, steps // 20)) if average else (0,)
    return make_run(PROBLEM, {"d": d, "D": D}, "noise", taps=(1.0, -lam), lr=ETA, sigma=SIGMA,
                    steps=steps, measure=measure, seed=seed, relax=False,
                    average=average)  # fmt: skip


def runs(seeds: int) -> list[Run]:
    some = range(FRESH, FRESH + seeds)
    return [
        *(_run(d, lam, STEPS, seed, AVERAGED)
          for d in DIMENSIONS for lam in (*_judged(d), 1.0) for seed in some),
        *(_run(d, lam, SHORT, seed)
          for d in DIMENSIONS for lam in (*_near_one(d).values(), 1.0) for seed in some),
    ]  # fmt: skip


def _rest(results: Results, lam: float, d: int) -> Values:
    """The long mean of ‖u‖² by seed, without the last draw's part."""
    found = results.final("watched", "average", d=d, taps=(1.0, -lam), steps=STEPS)
    return found - d * SIGMA**2


def _ends(results: Results, lam: float, d: int) -> Values:
    found = results.final("watched", d=d, taps=(1.0, -lam), steps=SHORT)
    return found - d * SIGMA**2


def claims(results: Results) -> list[Claim]:
    found = [
        near(f"plateau.rest_{d}_{lam:g}", f"(ours) d = {d}, λ = {lam:g}: ‖u‖² comes to rest at "
             f"{resting(lam, d):.3g}, to {TOLERANCE:.0%}", "eq:def_wv",
             f"mean ‖u‖² over the last {AVERAGED:,} steps over the formula's",
             _rest(results, lam, d) / resting(lam, d), 1.0, TOLERANCE)
        for d in DIMENSIONS
        for lam in _judged(d)
    ]  # fmt: skip
    bounds = {"ours": "√(2ηh/(d−1))", "guess": "√(2ηh)"}
    for d in DIMENSIONS:
        ends = _ends(results, 1.0, d)
        found += [
            near(f"plateau.{name}_{d}", f"(ours) d = {d}, λ = {lam:.4g}, a tenth of "
                 f"{bounds[name.partition('_')[0]]} from 1: as flat as with λ = 1, to "
                 f"{LEVEL:.0%}", "eq:def_wv", f"‖u‖² over its mean at λ = 1, step {SHORT:,}",
                 over_mean(_ends(results, lam, d), ends), 1.0, LEVEL)
            for name, lam in _near_one(d).items()
        ]  # fmt: skip
    return found


def words(claims: Sequence[Claim]) -> str:
    """The answer, from what was judged."""
    groups = {name: [c for c in claims if c.id.startswith(f"plateau.{name}_")]
              for name in ("rest", "ours", "guess")}  # fmt: skip
    if not all(groups.values()):
        return ""
    held = {name: f"{sum(c.verdict == 'holds' for c in some)} of {len(some)}"
            for name, some in groups.items()}  # fmt: skip
    farthest = max(groups["guess"], key=lambda claim: claim.value)
    return (
        "How wide is the plateau at λ = 1? In the valley it goes as √(2ηh/(d−1)), where h is the "
        "curvature to be reached and d the number of flat directions that diffuse (a tenth of it "
        f"away, {held['ours']} settings as flat as λ = 1, to {LEVEL:.0%}); the bound "
        f"without d held in {held['guess']}, and at worst ‖u‖² was {farthest.value:.2f} × that of "
        f"λ = 1 [{farthest.low:.2f}, {farthest.high:.2f}]. Farther away noise stops flattening at "
        f"a curvature that the formula gives ({held['rest']} settings to {TOLERANCE:.0%})."
    )


def _rest_panel(results: Results) -> figures.Panel:
    series = []
    for d in DIMENSIONS:
        away = np.geomspace(0.01, 0.4, 40)
        line = [resting(1 - one, d) for one in away]
        series.append(figures.Series(away, line, f"d = {d}", colour=COLOURS[d]))
        for lams, marker in (([x for x in _judged(d) if x < 1], "o"),
                             ([x for x in _judged(d) if x > 1], "x")):  # fmt: skip
            if lams:
                means = [_rest(results, lam, d).mean() for lam in lams]
                at = np.abs(1 - np.array(lams))
                series.append(figures.Series(at, means, "", COLOURS[d], "", marker))
    return figures.Panel("‖u‖² at rest", series, "|1−λ|", "", "log", "log")


def _path_panel(results: Results, d: int) -> figures.Panel:
    series = []
    for lam, colour in ((0.9, "#c2402a"), (1.0, "#17968a")):
        steps, h = results.curves("watched", d=d, taps=(1.0, -lam), steps=STEPS)
        series.append(figures.spread(steps, h, 1, label=f"λ = {lam:g}", colour=colour))
    series.append(figures.Series([0, STEPS], [resting(0.9, d)] * 2, "formula", dash=":"))
    return figures.Panel(f"‖u‖² at w, d = {d}", series, "step", "", "linear", "log")


def plot(results: Results) -> figures.Figure:
    return figures.draw([_rest_panel(results), _path_panel(results, 4), _path_panel(results, 16)])
