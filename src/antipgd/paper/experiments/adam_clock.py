"""Adam's clock: steps to a flatter minimum go as 1/(ησ)

(Ours.) Adam divides by the size of its gradients, which near a minimum is that of the noise, so
the drift along the minima is of the order ησ instead of SGD's ησ²: n ∝ η^−a σ^−b with a = b = 1.
Quadratic regression, and sensing of 10 × 10 matrices of rank 2 with 15 measurements; ten data sets
each. Adam descends without noise, then takes Anti-PGD's; n is the number of steps until the trace
at z is 0.7 of what it was then. Judged are the six pairs of η and σ of least ησ, where n is ten
and more times the memory of the second moment, 1,000 steps: exponents by least squares in the
logarithms, seed by seed, to 0.1. Where n is shorter, steps are fewer than that (two more pairs,
shown).
"""

import numpy as np
from numpy.typing import NDArray

from antipgd.paper import figures
from antipgd.paper.claims import Claim, mostly, near
from antipgd.paper.results import Results, Values
from antipgd.paper.settings import REGRESSION, SENSING
from antipgd.paper.simulation.spec import Run, make_run

SHOWS = (
    "Left, the trace against Σησ, a line for each pair of η and σ, means over {seeds} seeds. "
    "Right, steps times ησ until the trace is 0.7 of what it was, relative to the first pair, "
    "with two standard deviations."
)
SEEDS = 10
FRESH = 1000  # settings were chosen on the seeds below
TARGET, TOLERANCE = 0.7, 0.1
SETTINGS = {REGRESSION: {}, SENSING: {"n": 10, "rank": 2, "measurements": 15}}
NAMES = {REGRESSION: "regression", SENSING: "sensing"}
DESCENTS = {REGRESSION: 8_000, SENSING: 16_000}
NOISY = {REGRESSION: 90_000, SENSING: 120_000}
UNITS = {REGRESSION: (0.0005, 0.01), SENSING: (0.000125, 0.005)}  # the least η and σ
FACTORS = ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1))  # of them, judged
SHOWN = ((2, 4), (4, 2))
COLOURS = {"judged": "#1f6fb4", "shown": "#c27c00"}


def _pair(problem: str, factors: tuple[int, int]) -> tuple[float, float]:
    """η and σ."""
    return UNITS[problem][0] * factors[0], UNITS[problem][1] * factors[1]


def runs(seeds: int) -> list[Run]:
    found = []
    for problem, start in DESCENTS.items():
        noisy = np.geomspace(500, NOISY[problem], 50)
        measure = (start, *(start + round(float(n)) for n in noisy))
        for factors in (*FACTORS, *SHOWN):
            lr, sigma = _pair(problem, factors)
            found += [
                make_run(problem, SETTINGS[problem], "anti", optimizer="adam", lr=lr, sigma=sigma,
                         start=start, steps=measure[-1], measure=measure, seed=seed, relax=False)
                for seed in range(FRESH, FRESH + seeds)
            ]  # fmt: skip
    return found


def _steps(
    results: Results, problem: str, factors: tuple[int, int]
) -> tuple[Values, NDArray[np.bool_]]:
    """By seed, the steps from the noise on until the trace has fallen, or all of them if it has
    not; and whether it has."""
    lr, sigma = _pair(problem, factors)
    steps, trace = results.curves("trace", "z", problem=problem, lr=lr, sigma=sigma)
    at = steps > DESCENTS[problem]
    first = trace[:, [list(steps).index(DESCENTS[problem])]]
    with np.errstate(invalid="ignore"):
        low = np.minimum.accumulate(np.nan_to_num(trace[:, at] / first, nan=np.inf), axis=1)
    n = np.log(steps[at] - DESCENTS[problem])
    crossed = np.exp([np.interp(-TARGET, -np.minimum(row, 1e9), n) for row in low])
    return crossed, low[:, -1] <= TARGET


def _exponents(results: Results, problem: str) -> Values:
    """a and b by seed, of n ∝ η^−a σ^−b."""
    pairs = np.log([_pair(problem, factors) for factors in FACTORS])
    n = np.array([_steps(results, problem, factors)[0] for factors in FACTORS])
    design = np.column_stack([np.ones(len(pairs)), -pairs])
    return np.linalg.lstsq(design, np.log(n), rcond=None)[0][1:].T


def claims(results: Results) -> list[Claim]:
    found = []
    for problem, name in NAMES.items():
        there = [_steps(results, problem, factors)[1] for factors in FACTORS]
        found.append(
            mostly(f"adam_clock.{name}_reached", f"(ours) on {name} the trace gets down to "
                   f"{TARGET:g} with all six pairs of η and σ, so that steps can be counted",
                   "def:L_tilde", f"share of seeds, trace at z, at most {NOISY[problem]:,} steps",
                   np.all(there, axis=0))
        )  # fmt: skip
        for exponents, letter in zip(_exponents(results, problem).T, ("η", "σ"), strict=True):
            found.append(
                near(f"adam_clock.{name}_{'lr' if letter == 'η' else 'sigma'}",
                     f"(ours) on {name} the steps that Adam needs to a given trace go as "
                     f"1/{letter}, to {TOLERANCE} in the exponent", "def:L_tilde",
                     f"exponent of 1/{letter} over six pairs of η and σ, trace at z down to "
                     f"{TARGET:g} of Adam's minimum", exponents, 1.0, TOLERANCE)
            )  # fmt: skip
    return found


def _panel(results: Results, problem: str, name: str) -> figures.Panel:
    """n·ησ over that of the least η and σ, pair by pair, mean over seeds with two deviations."""
    unit, _ = _steps(results, problem, FACTORS[0])
    series, ticks = [], []
    for place, factors in enumerate((*FACTORS, *SHOWN)):
        share = _steps(results, problem, factors)[0] * factors[0] * factors[1] / unit
        mean, reach = share.mean(), 2 * share.std()
        label = "judged" if factors in FACTORS else "shown"
        series.append(figures.Series([place], [mean], label, COLOURS[label], "", "o",
                                     [mean - reach], [mean + reach], bars=True))  # fmt: skip
        lr, sigma = _pair(problem, factors)
        ticks.append((float(place), f"{1e4 * lr:g}\n{sigma:g}"))
    title = f"{name}: n·ησ to {TARGET:g} of the trace, of that at the first pair"
    return figures.Panel(title, series, "10⁴η, σ", "", "linear", "linear", ticks=ticks)


def _curves_panel(results: Results, problem: str, name: str) -> figures.Panel:
    series = []
    dashes = dict(
        zip((*FACTORS, *SHOWN), ("-", "--", ":", "-.", "-", "--", ":", "-."), strict=True)
    )
    for factors, dash in dashes.items():
        lr, sigma = _pair(problem, factors)
        steps, trace = results.curves("trace", "z", problem=problem, lr=lr, sigma=sigma)
        at = steps > DESCENTS[problem]
        colour = COLOURS["judged" if factors in FACTORS else "shown"]
        clock = (steps[at] - DESCENTS[problem]) * lr * sigma
        series.append(figures.spread(clock, trace[:, at], 0, colour=colour, dash=dash))
    return figures.Panel(f"{name}: trace at z", series, "Σησ", "", "log", "log")


def plot(results: Results) -> figures.Figure:
    panels = [panel(results, problem, name) for problem, name in NAMES.items()
              for panel in (_curves_panel, _panel)]  # fmt: skip
    return figures.draw(panels, columns=2, width=5.4, height=2.8)
