"""The clock: progress along the valley depends on τ = ησ²n only

(Ours.) The drift along a valley of minima is (σ²/2)∇tr ∇²L per unit of η, so curves of different
η and σ must collapse when drawn against τ. Quadratic regression to τ = 1 with η from 0.006 to 0.2
and σ from 0.03 to 0.09, ten seeds, measured at z. At the largest η it is off by what φ > 1 adds:
see `finite_rate_regression`.
"""

import math

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import Claim, near, smaller
from antipgd.paper.results import Results, log_ratio
from antipgd.paper.settings import REGRESSION as PROBLEM
from antipgd.paper.simulation.spec import Run, make_run

SHOWS = (
    "Test loss and trace against τ = ησ²n for six pairs of η and σ. Lines are means over {seeds} "
    "seeds, bands one standard deviation."
)
SEEDS = 10
CASES = ((0.006, 0.05), (0.02, 0.05), (0.06, 0.05), (0.2, 0.05), (0.06, 0.03), (0.06, 0.09))
BASE = (0.06, 0.05)
CLOCKS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0)
JUDGED = 0.5


def _steps(eta: float, sigma: float) -> tuple[int, ...]:
    return tuple(round(tau / (eta * sigma**2)) for tau in CLOCKS)


def runs(seeds: int) -> list[Run]:
    found = []
    for eta, sigma in CASES:
        steps = _steps(eta, sigma)
        for method in ("anti", "gd"):
            found += [
                make_run(PROBLEM, {}, method, lr=eta, sigma=sigma, steps=steps[-1], seed=seed,
                         measure=steps, relax=False)
                for seed in range(seeds)
            ]  # fmt: skip
    return found


def _curve(results: Results, measure: str, method: str, eta: float, sigma: float) -> np.ndarray:
    """By seed and clock."""
    wanted = {"method": method, "lr": eta, "steps": _steps(eta, sigma)[-1]}
    _, table = results.curves(measure, "z", **wanted)
    return table[:, 1:]  # without step 0


def claims(results: Results) -> list[Claim]:
    at = CLOCKS.index(JUDGED)
    base = _curve(results, "trace", "anti", *BASE)[:, at]
    found = [
        near(f"clock.trace_{eta}_{sigma}",
             f"(ours) with η = {eta}, σ = {sigma} the trace at τ = {JUDGED} is that with η = 0.06, "
             "σ = 0.05, to 15 %", "def:L_tilde",
             f"logarithm of the ratio of traces at z, τ = {JUDGED}",
             log_ratio(_curve(results, "trace", "anti", eta, sigma)[:, at], base), 0.0,
             math.log(1.15))
        for eta, sigma in CASES
        if (eta, sigma) != BASE
    ]  # fmt: skip
    slowest = np.maximum.reduce([_curve(results, "trace", "anti", *case)[:, at] for case in CASES])
    flattest = np.minimum.reduce([_curve(results, "trace", "gd", *case)[:, at] for case in CASES])
    found.append(
        smaller("clock.not_gd", "(ours) the common curve is not GD's: the slowest Anti-PGD is "
                "flatter than the flattest GD", "def:L_tilde", f"trace at z, τ = {JUDGED}", slowest,
                flattest)
    )  # fmt: skip
    return found


def plot(results: Results) -> figures.Figure:
    panels = []
    styles = ("-", "--", ":", "-.", "-", "--")
    palette = ("#0b3c5d", "#1f6fb4", "#4f9bd9", "#8cc1ec", "#17968a", "#7a4fa3")
    for measure in ("test_loss", "trace"):
        series = [
            figures.spread(CLOCKS, _curve(results, measure, "anti", eta, sigma), 1,
                           label=f"Anti-PGD η={eta} σ={sigma}", colour=colour, dash=dash)
            for (eta, sigma), dash, colour in zip(CASES, styles, palette, strict=True)
        ]  # fmt: skip
        series.append(
            figures.spread(CLOCKS, _curve(results, measure, "gd", *BASE), 1, label="GD η=0.06",
                           colour=figures.COLOURS["gd"])
        )  # fmt: skip
        panels.append(
            figures.Panel(f"{figures.MEASURES[measure]} at z", series, "τ = ησ²n", "", "log", "log")
        )
    return figures.draw(panels, height=3.0)
