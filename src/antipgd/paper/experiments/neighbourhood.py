"""With the noise on, Anti-PGD stays in a neighbourhood whose radius grows with the dimension

The reason that the paper gives for stopping the noise before it measures. Quadratic regression with
25 to 200 dimensions, as many examples and non-zero targets in proportion as in the paper; η = 0.1,
σ = 0.05, 2,000 steps, ten seeds: the distance from w to the minimum that it relaxes to, and the
test loss at both. (Ours: the radius is about σ√d, by the mean of |error|; changed after a first
run had been judged by the mean of signed errors.)
"""

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import Claim, above, below, near, smaller
from antipgd.paper.record import Record
from antipgd.paper.results import Results, slopes
from antipgd.paper.settings import REGRESSION as PROBLEM
from antipgd.paper.settings import REGRESSION_SIGMA as SIGMA
from antipgd.paper.simulation.spec import Run, make_run

SHOWS = (
    "Distance from the noisy weights to the minimum they relax to, against the dimension. The "
    "line is the mean over {seeds} seeds, the band one standard deviation; dotted: σ√d."
)
SEEDS = 10
DIMENSIONS = (25, 50, 100, 200)
ETA, STEPS = 0.1, 2_000
REFERENCE = "caption of fig:front_experiments"


def runs(seeds: int) -> list[Run]:
    return [
        make_run(PROBLEM, {"d": d, "n": 2 * d // 5, "nonzero": d // 10}, "anti", lr=ETA,
                 sigma=SIGMA, steps=STEPS, seed=seed)
        for d in DIMENSIONS
        for seed in range(seeds)
    ]  # fmt: skip


def _radius(record: Record) -> float:
    """‖w − relaxed‖; infinite where there is no minimum to relax to."""
    if not {"w", "relaxed"} <= record.weights.keys():
        return np.inf
    w, minimum = (np.array(record.weights[place]) for place in ("w", "relaxed"))
    return float(np.linalg.norm(w - minimum))


def _radii(results: Results) -> np.ndarray:
    """By seed and dimension."""
    return np.array([[_radius(r) for r in results.select(d=d)] for d in DIMENSIONS]).T


def claims(results: Results) -> list[Claim]:
    radii = _radii(results)
    finite = np.where(np.isfinite(radii), radii, 1e9)
    exponents = slopes(np.array(DIMENSIONS), finite)
    tested = f"exponent of d in the distance from w to its minimum, d from {DIMENSIONS[0]} to "
    tested += f"{DIMENSIONS[-1]}, step {STEPS:,}"
    found = [
        above("neighbourhood.grows", "the radius grows with the dimension", REFERENCE, tested,
              exponents, 0.0),
        near("neighbourhood.root", "(ours) it grows as √d, to 0.1 in the exponent", REFERENCE,
             tested, exponents, 0.5, 0.1),
        below("neighbourhood.radius", "(ours) it is σ√d to 15 %", REFERENCE,
              f"|distance over σ√d − 1|, mean over the dimensions, step {STEPS:,}",
              np.abs(finite / (SIGMA * np.sqrt(DIMENSIONS)) - 1).mean(axis=1), 0.15),
    ]  # fmt: skip
    return found + [
        smaller(f"neighbourhood.metric_{d}", f"with {d} dimensions the test loss is lower at the "
                "minimum than under noise", REFERENCE, f"relaxed against w, step {STEPS:,}",
                results.final("test_loss", "relaxed", d=d), results.final("test_loss", d=d))
        for d in DIMENSIONS
    ]  # fmt: skip


def plot(results: Results) -> figures.Figure:
    d, radii = np.array(DIMENSIONS), _radii(results)
    series = [
        figures.spread(d, radii, 1, label="Anti-PGD", colour=figures.COLOURS["anti"]),
        figures.Series(d, SIGMA * np.sqrt(d), "σ√d", dash=":"),
    ]
    title = "distance from w to the minimum"
    return figures.draw([figures.Panel(title, series, "d", "", "log", "log")], width=4.2)
