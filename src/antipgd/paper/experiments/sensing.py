"""Matrix sensing: Anti-PGD finds a matrix of low rank

20 × 20 matrices of rank 5 from 100 noisy measurements, U_0 = I, η = 0.001, σ = 0.1, SGD with
batch 10, 10⁵ steps, ten seeds. The text scales X* in two ways, both are run: to spectral norm 1,
and raw. Bands show two standard deviations, as in the paper's figure.
"""

from antipgd.paper import figures
from antipgd.paper.claims import Claim, smaller
from antipgd.paper.results import Results
from antipgd.paper.settings import SENSING as PROBLEM
from antipgd.paper.settings import SENSING_BATCH as BATCH
from antipgd.paper.settings import SENSING_RATE as ETA
from antipgd.paper.settings import SENSING_SIGMA as SIGMA
from antipgd.paper.settings import SENSING_STEPS as STEPS
from antipgd.paper.simulation.spec import Run, make_run

SHOWS = (
    "Training loss, test loss and trace against the step, for both scalings of X*. Lines are "
    "means over {seeds} seeds, bands two standard deviations."
)
SEEDS = 10
METHODS = ("gd", "pgd", "sgd", "anti")


def runs(seeds: int) -> list[Run]:
    return [
        make_run(PROBLEM, {"scaling": scaling}, method, lr=ETA, sigma=SIGMA,
                 batch=BATCH if method == "sgd" else None, steps=STEPS, seed=seed)
        for scaling in ("unit", "raw")
        for method in METHODS
        for seed in range(seeds)
    ]  # fmt: skip


def claims(results: Results) -> list[Claim]:
    return [
        smaller(
            f"sensing.{scaling}_{short}_{rival}",
            f"Anti-PGD ends with a lower {figures.MEASURES[measure]} than {figures.NAMES[rival]} "
            f"({scaling} X*)",
            "fig:front_experiments (2nd column)",
            f"{figures.MEASURES[measure]} at w, step {STEPS:,}",
            results.final(measure, method="anti", scaling=scaling),
            results.final(measure, method=rival, scaling=scaling),
        )
        for scaling in ("unit", "raw")
        for rival in ("gd", "pgd", "sgd")
        for measure, short in (("test_loss", "test"), ("trace", "trace"))
    ]


def plot(results: Results) -> figures.Figure:
    lines = [{"method": m, "dash": "--" if m == "sgd" else "-"} for m in METHODS]  # on GD's curve
    panels = []
    for scaling in ("unit", "raw"):
        panels += figures.method_panels(
            results, lines, title=scaling, scaling=scaling, deviations=2
        )
    return figures.draw(panels)
