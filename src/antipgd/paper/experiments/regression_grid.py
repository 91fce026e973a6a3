"""Quadratic regression over three learning rates and three noise levels

η ∈ {0.03, 0.1, 0.2} × σ ∈ {0.02, 0.05, 0.1}, SGD with batch 1 at η/10, 20,000 steps, ten seeds.
SGD is also run at the full η, where the paper calls it unstable. Rows: low, moderate and high
learning rate; bands: one standard deviation.
"""

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import Claim, mostly, smaller
from antipgd.paper.results import Results
from antipgd.paper.simulation.spec import Run, make_run

SEEDS = 10
STEPS = 20_000
RATES = {"low": 0.03, "moderate": 0.1, "high": 0.2}
SIGMAS = (0.02, 0.05, 0.1)
PROBLEM = "quadratic_regression"
DASHES = dict(zip(SIGMAS, (":", "--", "-"), strict=True))


def runs(seeds: int) -> list[Run]:
    settings = [("gd", lr, 0.0) for lr in RATES.values()]
    settings += [("sgd", lr / 10, 0.0) for lr in RATES.values()]
    settings += [("sgd", lr, 0.0) for lr in RATES.values()]
    settings += [(m, lr, s) for m in ("pgd", "anti") for lr in RATES.values() for s in SIGMAS]
    return [
        make_run(PROBLEM, {}, method, lr=lr, sigma=sigma, steps=STEPS, seed=seed, relax=False)
        for method, lr, sigma in settings
        for seed in range(seeds)
    ]


def _best_other(results: Results, measure: str, lr: float, sigma: float) -> np.ndarray:
    return np.minimum.reduce(
        [
            results.final(measure, method="gd", lr=lr),
            results.final(measure, method="sgd", lr=lr / 10),
            results.final(measure, method="pgd", lr=lr, sigma=sigma),
        ]
    )


def claims(results: Results) -> list[Claim]:
    found = [
        smaller(
            f"regression_grid.{short}_{name}_{sigma}",
            f"with {name} learning rate {lr} and σ = {sigma}, Anti-PGD has the lowest "
            f"{figures.MEASURES[measure]} of GD, PGD, SGD and Anti-PGD",
            f"fig:square_tuning_{'mod' if name == 'moderate' else name}",
            f"{figures.MEASURES[measure]} at w, step {STEPS:,}, against the best of the others "
            f"in each seed",
            results.final(measure, method="anti", lr=lr, sigma=sigma),
            _best_other(results, measure, lr, sigma),
        )
        for measure, short in (("test_loss", "test"), ("trace", "trace"))
        for name, lr in RATES.items()
        for sigma in SIGMAS
    ]
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


def plot(results: Results) -> figures.Figure:
    panels = []
    for name, lr in RATES.items():
        lines = [{"method": "gd", "lr": lr}, {"method": "sgd", "lr": lr / 10}]
        lines += [
            {"method": method, "lr": lr, "sigma": sigma, "detail": f"σ={sigma}",
             "dash": DASHES[sigma]}
            for method in ("pgd", "anti")
            for sigma in SIGMAS
        ]  # fmt: skip
        panels += figures.method_panels(results, lines, title=f"{name} η={lr}")
    return figures.draw(panels)
