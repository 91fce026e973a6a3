"""Matrix sensing: tuned PGD against tuned Anti-PGD

"All the findings of the above paragraph hold true in this setting as well": that no well-tuned PGD
outperforms. X* of spectral norm 1, η = 0.001, 10⁵ steps, ten seeds; each method with the σ of the
lowest geometric mean of the test loss over these seeds, PGD of seven, down to a hundredth of the
paper's, Anti-PGD of the paper's three, both at w.
"""

from typing import Any

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import Claim, smaller
from antipgd.paper.experiments import runs_of
from antipgd.paper.record import Spec
from antipgd.paper.results import Results
from antipgd.paper.settings import SENSING as PROBLEM
from antipgd.paper.settings import SENSING_RATE as ETA
from antipgd.paper.settings import SENSING_STEPS as STEPS
from antipgd.paper.simulation.spec import make_run

SHOWS = "Test loss at the end against σ, a dot for each of {seeds} seeds that did not diverge."
SHOWS = "Test loss at the end against σ, a dot for each of {seeds} seeds that did not diverge."
SEEDS = 10
ANTI = (0.03, 0.05, 0.1)
SMALL = (0.001, 0.002, 0.005, 0.01)
LEVELS = {"pgd": (*SMALL, *ANTI), "anti": ANTI}


def runs(seeds: int) -> list[Spec]:
    planned: list[Any] = runs_of("sensing_grid", seeds)
    found = [run for run in planned if run.method in LEVELS and run.lr == ETA]
    new = [
        make_run(PROBLEM, {"scaling": "unit"}, "pgd", lr=ETA, sigma=sigma, steps=STEPS, seed=seed,
                 relax=False)
        for sigma in SMALL
        for seed in range(seeds)
    ]  # fmt: skip
    return [*found, *new]


def _tests(results: Results, method: str) -> dict[float, np.ndarray]:
    return {s: results.final("test_loss", method=method, sigma=s) for s in LEVELS[method]}


def _best(results: Results, method: str) -> tuple[float, np.ndarray]:
    """The σ with the lowest geometric mean of the test loss, and its losses by seed."""
    return min(_tests(results, method).items(), key=lambda one: float(np.log(one[1]).mean()))


def claims(results: Results) -> list[Claim]:
    (pgd, theirs), (anti, ours) = (_best(results, method) for method in ("pgd", "anti"))
    return [
        smaller("sensing_tuned.pgd", "tuned Anti-PGD has a lower test loss than tuned PGD",
                "§sec:exp", f"test loss at w, step {STEPS:,}, σ = {anti} and {pgd}", ours, theirs)
    ]  # fmt: skip


def plot(results: Results) -> figures.Figure:
    series = []
    for method in LEVELS:
        tests = _tests(results, method)
        ends = [(s, value) for s, values in tests.items() for value in values if value < np.inf]
        x, y = zip(*ends, strict=True)
        series.append(figures.Series(x, y, figures.NAMES[method], figures.COLOURS[method], "", "o"))
    title = f"test loss at w, step {STEPS:,}, by seed"
    return figures.draw([figures.Panel(title, series, "σ", "", "log", "log")], width=4.2)
