"""Methods on a grid of learning rates and σ: the runs, whether Anti-PGD is the lowest, and whether
it is far from PGD."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import Claim, smaller
from antipgd.paper.results import Results, Values
from antipgd.paper.simulation.problems import Setting
from antipgd.paper.simulation.spec import Run, make_run

NOISY = ("pgd", "anti")
DRASTIC = 0.5  # of PGD's test loss


def grid_runs(
    problem: str,
    settings: Mapping[str, Setting],
    rates: Sequence[float],
    sigmas: Sequence[float],
    sgd_rates: Sequence[float],
    *,
    steps: int,
    seeds: int,
    batch: int | None = None,
) -> list[Run]:
    """GD and SGD at every rate of theirs, PGD and Anti-PGD at every rate with every σ."""
    wanted = [("gd", lr, 0.0) for lr in rates]
    wanted += [("sgd", lr, 0.0) for lr in sgd_rates]
    wanted += [(method, lr, sigma) for method in NOISY for lr in rates for sigma in sigmas]
    return [
        make_run(problem, settings, method, lr=lr, sigma=sigma, steps=steps, seed=seed,
                 batch=batch if method == "sgd" else None, relax=False)
        for method, lr, sigma in wanted
        for seed in range(seeds)
    ]  # fmt: skip


def _best_other(results: Results, measure: str, lr: float, sigma: float, sgd_rate: float) -> Values:
    others = (
        results.final(measure, method="gd", lr=lr),
        results.final(measure, method="sgd", lr=sgd_rate),
        results.final(measure, method="pgd", lr=lr, sigma=sigma),
    )
    return np.minimum.reduce(others)


def lowest(
    results: Results, measure: str, id: str, setting: str, reference: str, steps: int, *,
    lr: float, sigma: float, sgd_rate: float,
) -> Claim:  # fmt: skip
    """Claims that Anti-PGD has the lowest value of a measure at one point of the grid."""
    words = figures.MEASURES[measure]
    return smaller(
        id,
        f"{setting}, Anti-PGD has the lowest {words} of GD, PGD, SGD and Anti-PGD",
        reference,
        f"{words} at w, step {steps:,}, against the best of the others in each seed",
        results.final(measure, method="anti", lr=lr, sigma=sigma),
        _best_other(results, measure, lr, sigma, sgd_rate),
    )


def drastic(
    results: Results, id: str, setting: str, reference: str, steps: int, *, lr: float, sigma: float
) -> Claim:
    """Claims that Anti-PGD's test loss is far below PGD's at one point of the grid."""
    return smaller(
        id,
        f"{setting}, Anti-PGD's test loss is less than half of PGD's",
        reference,
        f"test loss at w, step {steps:,}, bound {DRASTIC}",
        results.final("test_loss", method="anti", lr=lr, sigma=sigma),
        results.final("test_loss", method="pgd", lr=lr, sigma=sigma),
        factor=DRASTIC,
    )


def grid_lines(lr: float, sigmas: Iterable[float], sgd: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The lines of a picture at one rate; of σ ascending, the largest is drawn through."""
    dashes = dict(zip(sigmas, (":", "--", "-"), strict=True))
    noisy = [
        {"method": method, "lr": lr, "sigma": sigma, "detail": f"σ={sigma}", "dash": dash}
        for method in NOISY
        for sigma, dash in dashes.items()
    ]
    return [{"method": "gd", "lr": lr}, {"method": "sgd", **sgd}, *noisy]
