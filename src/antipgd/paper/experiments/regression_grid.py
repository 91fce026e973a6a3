"""Quadratic regression over three learning rates and three noise levels

η ∈ {0.03, 0.1, 0.2} × σ ∈ {0.02, 0.05, 0.1}, SGD with batch 1 at η/10, 20,000 steps, ten seeds. SGD
is also run at the full η, where the paper calls it unstable. The point η = 0.1, σ = 0.05 is judged
in `regression`, not here again. "Drastically different" from PGD is read as a test loss of less
than half of PGD's, "stronger influence" of the trace as a lower one at z for the larger σ; both
were fixed when other results of these runs were known. Rows: low, moderate and high learning rate;
bands: one standard deviation.
"""

import itertools

from antipgd.paper import figures
from antipgd.paper.claims import Claim, mostly, smaller
from antipgd.paper.results import Results
from antipgd.paper.settings import REGRESSION
from antipgd.paper.settings import REGRESSION_STEPS as STEPS
from antipgd.paper.simulation.grid import drastic, grid_lines, grid_runs, lowest
from antipgd.paper.simulation.spec import Run

SHOWS = (
    "Training loss, test loss and trace against the step, a row for each learning rate and a line "
    "for each noise level. Means over {seeds} seeds, bands one standard deviation."
)
SEEDS = 10
RATES = {"low": 0.03, "moderate": 0.1, "high": 0.2}
SIGMAS = (0.02, 0.05, 0.1)
ELSEWHERE = ("moderate", 0.05)  # judged in `regression`


def runs(seeds: int) -> list[Run]:
    rates = [*RATES.values()]
    sgd = [*(lr / 10 for lr in rates), *rates]
    return grid_runs(REGRESSION, {}, rates, SIGMAS, sgd, steps=STEPS, seeds=seeds)


def claims(results: Results) -> list[Claim]:
    found = [
        lowest(
            results,
            measure,
            f"regression_grid.{short}_{name}_{sigma}",
            f"with {name} learning rate {lr} and σ = {sigma}",
            f"fig:square_tuning_{'mod' if name == 'moderate' else name}",
            STEPS,
            lr=lr,
            sigma=sigma,
            sgd_rate=lr / 10,
        )
        for measure, short in (("test_loss", "test"), ("trace", "trace"))
        for name, lr in RATES.items()
        for sigma in SIGMAS
        if (name, sigma) != ELSEWHERE
    ]
    found += [
        drastic(results, f"regression_grid.pgd_{name}_{sigma}",
                f"with {name} learning rate {lr} and σ = {sigma}", "§sec:squared_regr", STEPS,
                lr=lr, sigma=sigma)
        for name, lr in RATES.items()
        for sigma in SIGMAS
    ]  # fmt: skip
    found += _stronger(results)
    found.append(
        smaller(
            "regression_grid.sgd_small_steps",
            "SGD improves the test loss over GD if its step is small enough",
            "§sec:squared_regr",
            f"test loss at w, step {STEPS:,}, SGD η = 0.01 against GD η = 0.1",
            results.final("test_loss", method="sgd", lr=0.01),
            results.final("test_loss", method="gd", lr=0.1),
        )
    )
    large = results.select(method="sgd", lr=RATES["high"])
    found.append(
        mostly(
            "regression_grid.sgd_large_steps",
            "SGD is unstable with a large step",
            "§sec:squared_regr",
            f"share of runs with batch 1 and η = 0.2 that diverge in {STEPS:,} steps",
            [record.status == "diverged" for record in large],
        )
    )
    return found


def _stronger(results: Results) -> list[Claim]:
    """The larger of two neighbouring σ has the lower trace."""
    return [
        smaller(f"regression_grid.stronger_{name}_{high}",
                f"with {name} learning rate {lr}, σ = {high} leads to a lower trace than σ = {low}",
                "def:L_tilde", f"trace at z, step {STEPS:,}",
                results.final("trace", "z", method="anti", lr=lr, sigma=high),
                results.final("trace", "z", method="anti", lr=lr, sigma=low))
        for name, lr in RATES.items()
        for low, high in itertools.pairwise(SIGMAS)
    ]  # fmt: skip


def plot(results: Results) -> figures.Figure:
    panels = []
    for name, lr in RATES.items():
        lines = grid_lines(lr, SIGMAS, {"lr": lr / 10})
        panels += figures.method_panels(results, lines, title=f"{name} η={lr}")
    return figures.draw(panels)
