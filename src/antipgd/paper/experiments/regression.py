"""Quadratic regression: Anti-PGD finds the flat, sparse minimum

40 examples, 100 dimensions, ten non-zero targets; η = 0.1, σ = 0.05, SGD with batch 1 and η =
0.01; 20,000 steps. Ten seeds, each with data of its own, which the methods share. Bands show one
standard deviation, as in the paper's figure.
"""

from antipgd.paper import figures
from antipgd.paper.claims import Claim, smaller
from antipgd.paper.results import Results
from antipgd.paper.settings import REGRESSION as PROBLEM
from antipgd.paper.settings import REGRESSION_RATES as RATES
from antipgd.paper.settings import REGRESSION_SIGMA as SIGMA
from antipgd.paper.settings import REGRESSION_STEPS as STEPS
from antipgd.paper.simulation.spec import Run, make_run

SHOWS = (
    "Training loss, test loss and trace of the Hessian against the step. Lines are means over "
    "{seeds} seeds, bands one standard deviation."
)
SEEDS = 10


def runs(seeds: int) -> list[Run]:
    return [
        make_run(PROBLEM, {}, method, lr=lr, sigma=SIGMA, steps=STEPS, seed=seed)
        for method, lr in RATES.items()
        for seed in range(seeds)
    ]


def claims(results: Results) -> list[Claim]:
    return [
        smaller(
            f"regression.{short}_{rival}",
            f"Anti-PGD ends with a lower {figures.MEASURES[measure]} than {figures.NAMES[rival]}",
            "fig:front_experiments (1st column)",
            f"{figures.MEASURES[measure]} at w, step {STEPS:,}",
            results.final(measure, method="anti"),
            results.final(measure, method=rival),
        )
        for rival in ("gd", "pgd", "sgd")
        for measure, short in (("test_loss", "test"), ("trace", "trace"))
    ]


def plot(results: Results) -> figures.Figure:
    lines = [{"method": method} for method in RATES]
    return figures.draw(figures.method_panels(results, lines))
