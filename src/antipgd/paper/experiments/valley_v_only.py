"""The widening valley: noise in v alone leads to a wide minimum, whatever its colour

The "Empirical Observation" of app:wv_proof: PGD and Anti-PGD with noise on the coordinate v only,
d = 20, α = 0.25, η = α/2D, three laws, 40 seeds, until ‖u‖² leaves (αD, D/α).
"""

from antipgd.paper import figures
from antipgd.paper.claims import Claim, mostly
from antipgd.paper.results import Results
from antipgd.paper.simulation.spec import Run, make_run

SHOWS = (
    "‖u‖² of twelve runs of {seeds} until it leaves its interval, for three laws of the noise; "
    "dashed: αD."
)
SEEDS = 40
ALPHA, D, DIMENSIONS = 0.25, 1.0, 20
STEPS = 200_000
SIGMA = 0.03
LAWS = ("rademacher", "gaussian", "laplace")
PROBLEM, SETTINGS = "widening_valley", {"d": DIMENSIONS, "D": D}


def runs(seeds: int) -> list[Run]:
    return [
        make_run(PROBLEM, SETTINGS, method, lr=ALPHA / (2 * D), sigma=SIGMA, law=law, steps=STEPS,
                 seed=seed, leave=(ALPHA * D, D / ALPHA), relax=False, noisy="v")
        for method in ("pgd", "anti")
        for law in LAWS
        for seed in range(seeds)
    ]  # fmt: skip


def claims(results: Results) -> list[Claim]:
    return [
        mostly(
            f"valley_v_only.{method}_{law}",
            f"with {law} noise in v alone, {figures.NAMES[method]} goes to a wide minimum",
            "app:wv_proof, Empirical Observation",
            f"share of seeds that leave through ‖u‖² = αD within {STEPS:,} steps, at w",
            [record.status == "left low" for record in results.select(method=method, law=law)],
        )
        for method in ("pgd", "anti")
        for law in LAWS
    ]


def plot(results: Results) -> figures.Figure:
    panels = []
    for law in LAWS:
        series = []
        for method in ("pgd", "anti"):
            for i, record in enumerate(results.select(method=method, law=law)[:12]):
                steps, values = record.column("watched", "w")
                label = figures.NAMES[method] if i == 0 else ""
                series.append(figures.Series(steps, values, label, figures.COLOURS[method]))
        series.append(figures.Series([1, STEPS], [ALPHA * D] * 2, "αD", dash="--"))
        panels.append(figures.Panel(f"‖u‖² at w, {law} noise in v alone", series))
    return figures.draw(panels)
