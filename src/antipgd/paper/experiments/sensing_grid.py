"""Matrix sensing over three learning rates and three noise levels

X* scaled to spectral norm 1; η ∈ {0.0003, 0.001, 0.01} × σ ∈ {0.03, 0.05, 0.1}, SGD with batch
10, 10⁵ steps, ten seeds (five in the captions). SGD at η = 0.05 shows the announced instability.
Bands: two standard deviations.
"""

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import Claim, mostly, smaller
from antipgd.paper.experiments.sensing import BATCH, PROBLEM, STEPS
from antipgd.paper.results import Results
from antipgd.paper.simulation.spec import Run, make_run

SEEDS = 10
RATES = {"low": 0.0003, "mod": 0.001, "high": 0.01}
SIGMAS = (0.03, 0.05, 0.1)
UNSTABLE = 0.05
DASHES = dict(zip(SIGMAS, (":", "--", "-"), strict=True))


def runs(seeds: int) -> list[Run]:
    settings = [("gd", lr, 0.0) for lr in RATES.values()]
    settings += [("sgd", lr, 0.0) for lr in (*RATES.values(), UNSTABLE)]
    settings += [(m, lr, s) for m in ("pgd", "anti") for lr in RATES.values() for s in SIGMAS]
    return [
        make_run(PROBLEM, {"scaling": "unit"}, method, lr=lr, sigma=sigma, steps=STEPS, seed=seed,
                 batch=BATCH if method == "sgd" else None, relax=False)
        for method, lr, sigma in settings
        for seed in range(seeds)
    ]  # fmt: skip


def _best_other(results: Results, measure: str, lr: float, sigma: float) -> np.ndarray:
    return np.minimum.reduce(
        [
            results.final(measure, method="gd", lr=lr),
            results.final(measure, method="sgd", lr=lr),
            results.final(measure, method="pgd", lr=lr, sigma=sigma),
        ]
    )


def claims(results: Results) -> list[Claim]:
    found = [
        smaller(
            f"sensing_grid.{short}_{name}_{sigma}",
            f"with learning rate {lr} and σ = {sigma}, Anti-PGD has the lowest "
            f"{figures.MEASURES[measure]} of GD, PGD, SGD and Anti-PGD",
            f"fig:sensing_tuning_{name}",
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
        mostly(
            "sensing_grid.sgd_large_steps",
            "SGD with batch 10 is unstable at a high learning rate",
            "caption of fig:sensing_tuning_high",
            f"share of runs with η = {UNSTABLE} that diverge in {STEPS:,} steps",
            [r.status == "diverged" for r in results.select(method="sgd", lr=UNSTABLE)],
        )
    )
    return found


def plot(results: Results) -> figures.Figure:
    panels = []
    for name, lr in RATES.items():
        lines = [{"method": "gd", "lr": lr}, {"method": "sgd", "lr": lr, "dash": "--"}]
        lines += [
            {"method": method, "lr": lr, "sigma": sigma, "detail": f"σ={sigma}",
             "dash": DASHES[sigma]}
            for method in ("pgd", "anti")
            for sigma in SIGMAS
        ]  # fmt: skip
        panels += figures.method_panels(results, lines, title=f"{name} η={lr}", deviations=2)
    return figures.draw(panels)
