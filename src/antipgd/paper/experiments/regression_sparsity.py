"""Sparseness of the target: where Anti-PGD wins and where it does not

(Ours.) Announced in the paper's appendix, never shown, and nothing is claimed of it. Quadratic
regression with 1 to 100 non-zero targets of 100, otherwise as in `regression`; 20,000 steps, ten
seeds. For dense targets the flat minimum is no longer the good one; with all 100 the start is the
target itself.
"""

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import Claim, smaller
from antipgd.paper.results import Results
from antipgd.paper.settings import REGRESSION as PROBLEM
from antipgd.paper.settings import REGRESSION_RATES as RATES
from antipgd.paper.settings import REGRESSION_SIGMA as SIGMA
from antipgd.paper.settings import REGRESSION_STEPS as STEPS
from antipgd.paper.simulation.spec import Run, make_run

SHOWS = (
    "Test loss at the end against the number of non-zero targets. Dots are means over {seeds} "
    "seeds, bars one standard deviation."
)
SEEDS = 10
NONZERO = (1, 3, 10, 20, 35, 50, 100)


def runs(seeds: int) -> list[Run]:
    return [
        make_run(PROBLEM, {"nonzero": k}, method, lr=lr, sigma=SIGMA, steps=STEPS, seed=seed,
                 relax=False)
        for k in NONZERO
        for method, lr in RATES.items()
        for seed in range(seeds)
    ]  # fmt: skip


def _tests(results: Results, nonzero: int) -> dict[str, np.ndarray]:
    return {m: results.final("test_loss", method=m, nonzero=nonzero) for m in RATES}


def claims(results: Results) -> list[Claim]:
    found = []
    for k in NONZERO:
        tests = _tests(results, k)
        others = np.minimum.reduce([tests[m] for m in RATES if m != "anti"])
        found.append(
            smaller(f"regression_sparsity.nonzero_{k}",
                    f"(ours) Anti-PGD has the lowest test loss with {k} of 100 targets non-zero",
                    "§sec:squared_regr",
                    f"test loss at w, step {STEPS:,}, against the best other in each seed",
                    tests["anti"], others)
        )  # fmt: skip
    return found


def plot(results: Results) -> figures.Figure:
    tests = {k: _tests(results, k) for k in NONZERO}
    series = []
    for method in RATES:
        values = np.array([tests[k][method] for k in NONZERO])
        with np.errstate(invalid="ignore"):  # nothing is drawn where a run diverged
            mean, sd = values.mean(axis=1), values.std(axis=1, ddof=1)
        series.append(
            figures.Series(NONZERO, mean, figures.NAMES[method], figures.COLOURS[method], "-", "o",
                           np.maximum(mean - sd, mean / 10), mean + sd, bars=True)
        )  # fmt: skip
    panel = figures.Panel(f"test loss at w, step {STEPS:,}", series, "non-zero targets of 100", "",
                          "log", "log")  # fmt: skip
    return figures.draw([panel], height=3.0, width=5.2)
