"""Quadratic regression: Anti-PGD finds the flat, sparse minimum.

40 examples, 100 dimensions, ten non-zero targets; η = 0.1, σ = 0.05, SGD with batch 1 and η = 0.01;
20,000 steps. Ten seeds, each with data of its own, shared by the methods.
"""

from antipgd.paper import figures
from antipgd.paper.claims import Claim, smaller
from antipgd.paper.results import Results
from antipgd.paper.spec import Run, make_run

SEEDS = 10
STEPS = 20_000
REFERENCE = "fig:front_experiments (1st column)"
PROBLEM = "quadratic_regression"
RATES = {"gd": 0.1, "pgd": 0.1, "anti": 0.1, "sgd": 0.01}
SIGMA = 0.05


def runs(seeds: int) -> list[Run]:
    return [
        make_run(PROBLEM, {}, method, lr=lr, sigma=SIGMA, steps=STEPS, seed=seed)
        for method, lr in RATES.items()
        for seed in range(seeds)
    ]


def claims(results: Results) -> list[Claim]:
    found = []
    for rival in ("gd", "pgd", "sgd"):
        for measure, words in (("test_loss", "lower test loss"), ("trace", "lower trace")):
            found.append(
                smaller(
                    f"regression.{words.split()[-1]}_{rival}",
                    f"Anti-PGD ends with a {words} than {figures.NAMES[rival]}",
                    REFERENCE,
                    f"{measure} at w, step {STEPS:,}",
                    results.final(measure, method="anti"),
                    results.final(measure, method=rival),
                )
            )
    return found


def plot(results: Results) -> figures.Figure:
    return figures.draw(
        [
            figures.Panel(
                f"{name} at w",
                [
                    figures.spread(
                        *results.curves(measure, method=method),
                        deviations=1,
                        label=figures.method_name(method, diverged=results.diverged(method=method)),
                        colour=figures.COLOURS[method],
                    )
                    for method in RATES
                ],
            )
            for measure, name in figures.MEASURES.items()
        ]
    )
