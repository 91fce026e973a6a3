"""The widening valley: does PGD diverge?

α = 0.25, d = 100, D = 1, rademacher noise, 10⁶ steps, 24 seeds. PGD at the largest σ² the theorem
allows (α³D/2) and at a small one (αD/2d), where it is metastable; Anti-PGD at both, each with η =
α/2D and α/D. "Diverges" is read as the theorem states it: ‖u‖² ends beyond D/α, and Anti-PGD's
below αD, where its σ² ≤ αD/2d. (Until results were seen it was read as leaving the finite numbers,
which the paper does not say; that is ours now.)
"""

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import Claim, above, below, mostly
from antipgd.paper.results import Results
from antipgd.paper.simulation.spec import Run, make_run, measured_steps

SHOWS = "‖u‖² against the step, a line for each of {seeds} seeds, for large and for small noise."
SHOWS = "‖u‖² against the step, a line for each of {seeds} seeds, for large and for small noise."
SEEDS = 24
ALPHA, D, DIMENSIONS = 0.25, 1.0, 100
STEPS = 1_000_000
RATES = {"theorem": ALPHA / (2 * D), "caption": ALPHA / D}
SIGMAS = {
    "large": float(np.sqrt(ALPHA**3 * D / 2)),
    "small": float(np.sqrt(ALPHA * D / (2 * DIMENSIONS))),
}
METHODS = ("pgd", "anti")
PROBLEM, SETTINGS = "widening_valley", {"d": DIMENSIONS, "D": D}
CAP = 1000 * D  # a run that diverged counts as this much: the mean is then a lower bound
REFERENCE = "abstract, thm:main_tube"


def runs(seeds: int) -> list[Run]:
    return [
        make_run(PROBLEM, SETTINGS, method, lr=lr, sigma=sigma, law="rademacher", steps=STEPS,
                 seed=seed, measure=measured_steps(STEPS, 60), relax=False)
        for method in METHODS
        for lr in RATES.values()
        for sigma in SIGMAS.values()
        for seed in range(seeds)
    ]  # fmt: skip


def _ends(results: Results) -> list[Claim]:
    """Where ‖u‖² ends, as in the theorem."""
    found = []
    for which, lr in RATES.items():
        for size, sigma in SIGMAS.items():
            tested = f"‖u‖² at w, step {STEPS:,}, η = {lr:g}, σ² = {sigma**2:.3g}"
            u2 = {m: results.final("watched", method=m, lr=lr, sigma=sigma) for m in METHODS}
            found.append(
                above(f"pgd_diverges.pgd_{size}_{which}", f"PGD ends beyond D/α ({size} σ²)",
                      REFERENCE, f"{tested}, at most {CAP:g}; bound {D / ALPHA:g}",
                      np.minimum(u2["pgd"], CAP), D / ALPHA)
            )  # fmt: skip
            if size == "small":  # the theorem says nothing of Anti-PGD with more noise
                found.append(
                    below(f"pgd_diverges.anti_{size}_{which}", "Anti-PGD ends below αD",
                          REFERENCE, f"{tested}; bound {ALPHA * D:g}", u2["anti"], ALPHA * D)
                )  # fmt: skip
    return found


def claims(results: Results) -> list[Claim]:
    found = _ends(results)
    for size, sigma in SIGMAS.items():
        for which, lr in RATES.items():
            tested = f"share of seeds, η = {lr:g}, σ² = {sigma**2:.3g}, {STEPS:,} steps"
            pgd, anti = (results.select(method=m, lr=lr, sigma=sigma) for m in METHODS)
            lost, says = "diverged", f"leaves the finite numbers ({size} σ²)"
            if size == "small":
                lost, says = (
                    "ok",
                    f"does not leave the finite numbers: it is metastable ({size} σ²)",
                )
            found += [
                mostly(f"pgd_diverges.finite_pgd_{size}_{which}", f"(ours) PGD {says}", REFERENCE,
                       f"{tested}, that end so", [record.status == lost for record in pgd]),
                mostly(f"pgd_diverges.finite_anti_{size}_{which}",
                       f"(ours) Anti-PGD does not leave the finite numbers ({size} σ²)", REFERENCE,
                       f"{tested}, that stay finite", [record.status == "ok" for record in anti]),
            ]  # fmt: skip
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
