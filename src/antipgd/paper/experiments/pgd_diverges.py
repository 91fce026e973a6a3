"""The widening valley: does PGD diverge?

α = 0.25, d = 100, D = 1, rademacher noise, 10⁶ steps, 24 seeds. PGD at the largest σ² the theorem
allows (α³D/2) and at a small one (αD/2d), where it is metastable; Anti-PGD at both, each with η =
α/2D and α/D.
"""

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import Claim, mostly
from antipgd.paper.results import Results
from antipgd.paper.simulation.spec import Run, make_run, measured_steps

SEEDS = 24
ALPHA, D, DIMENSIONS = 0.25, 1.0, 100
STEPS = 1_000_000
RATES = {"theorem": ALPHA / (2 * D), "caption": ALPHA / D}
SIGMAS = {
    "large": float(np.sqrt(ALPHA**3 * D / 2)),
    "small": float(np.sqrt(ALPHA * D / (2 * DIMENSIONS))),
}
PROBLEM, SETTINGS = "widening_valley", {"d": DIMENSIONS, "D": D}


def runs(seeds: int) -> list[Run]:
    return [
        make_run(PROBLEM, SETTINGS, method, lr=lr, sigma=sigma, law="rademacher", steps=STEPS,
                 seed=seed, measure=measured_steps(STEPS, 60), relax=False)
        for method in ("pgd", "anti")
        for lr in RATES.values()
        for sigma in SIGMAS.values()
        for seed in range(seeds)
    ]  # fmt: skip


def claims(results: Results) -> list[Claim]:
    found = []
    for size, sigma in SIGMAS.items():
        for which, lr in RATES.items():
            tested = f"share of seeds, η = {lr:g}, σ² = {sigma**2:.3g}, {STEPS:,} steps"
            pgd, anti = (results.select(method=m, lr=lr, sigma=sigma) for m in ("pgd", "anti"))
            found.append(
                mostly(f"pgd_diverges.pgd_{size}_{which}",
                       f"PGD diverges in the valley ({size} σ²)",
                       "abstract, thm:main_tube", f"{tested}, that leave the finite numbers",
                       [record.status == "diverged" for record in pgd])
            )  # fmt: skip
            found.append(
                mostly(f"pgd_diverges.anti_{size}_{which}",
                       f"Anti-PGD does not diverge ({size} σ²)",
                       "abstract, thm:main_tube", f"{tested}, that stay finite",
                       [record.status == "ok" for record in anti])
            )  # fmt: skip
    return found


def plot(results: Results) -> figures.Figure:
    panels = []
    for size, sigma in SIGMAS.items():
        series = []
        for method in ("pgd", "anti"):
            chosen = {"method": method, "lr": RATES["theorem"], "sigma": sigma}
            for i, record in enumerate(results.select(**chosen)):
                label = (
                    figures.method_name(method, "", results.diverged(**chosen)) if i == 0 else ""
                )
                steps, values = record.column("watched", "w")
                series.append(figures.Series(steps, values, label, figures.COLOURS[method]))
        title = f"‖u‖² at w, {size} σ²={sigma**2:.2g}, η=α/2D"
        panels.append(figures.Panel(title, series))
    return figures.draw(panels)
