"""Matrix sensing over three learning rates and three noise levels

X* scaled to spectral norm 1; η ∈ {0.0003, 0.001, 0.01} × σ ∈ {0.03, 0.05, 0.1}, SGD with batch 10,
10⁵ steps, ten seeds (five in the captions). SGD at η = 0.05 shows the announced instability; that
SGD improves "if the stepsize is small enough" is judged at the smallest η, against GD at the same.
The point η = 0.001, σ = 0.1 is judged in `sensing`, not here again. "Drastically different" from
PGD is read as a test loss of less than half of PGD's; the last three rules were fixed when other
results of these runs were known. Bands: two standard deviations.
"""

from antipgd.paper import figures
from antipgd.paper.claims import Claim, mostly, smaller
from antipgd.paper.results import Results
from antipgd.paper.settings import SENSING, SENSING_BATCH
from antipgd.paper.settings import SENSING_STEPS as STEPS
from antipgd.paper.simulation.grid import drastic, grid_lines, grid_runs, lowest
from antipgd.paper.simulation.spec import Run

SHOWS = (
    "Training loss, test loss and trace against the step, a row for each learning rate and a line "
    "for each noise level. Means over {seeds} seeds, bands two standard deviations."
)
SEEDS = 10
RATES = {"low": 0.0003, "mod": 0.001, "high": 0.01}
SIGMAS = (0.03, 0.05, 0.1)
UNSTABLE = 0.05
ELSEWHERE = ("mod", 0.1)  # judged in `sensing`


def runs(seeds: int) -> list[Run]:
    rates = [*RATES.values()]
    return grid_runs(SENSING, {"scaling": "unit"}, rates, SIGMAS, [*rates, UNSTABLE], steps=STEPS,
                     seeds=seeds, batch=SENSING_BATCH)  # fmt: skip


def claims(results: Results) -> list[Claim]:
    found = [
        lowest(
            results,
            measure,
            f"sensing_grid.{short}_{name}_{sigma}",
            f"with learning rate {lr} and σ = {sigma}",
            f"fig:sensing_tuning_{name}",
            STEPS,
            lr=lr,
            sigma=sigma,
            sgd_rate=lr,
        )
        for measure, short in (("test_loss", "test"), ("trace", "trace"))
        for name, lr in RATES.items()
        for sigma in SIGMAS
        if (name, sigma) != ELSEWHERE
    ]
    found += [
        drastic(results, f"sensing_grid.pgd_{name}_{sigma}",
                f"with learning rate {lr} and σ = {sigma}", "§sec:matrix_sensing", STEPS, lr=lr,
                sigma=sigma)
        for name, lr in RATES.items()
        for sigma in SIGMAS
    ]  # fmt: skip
    small = RATES["low"]
    found.append(
        smaller(
            "sensing_grid.sgd_small_steps",
            "SGD improves the test loss over GD if its step is small enough",
            "§sec:matrix_sensing",
            f"test loss at w, step {STEPS:,}, both with η = {small}",
            results.final("test_loss", method="sgd", lr=small),
            results.final("test_loss", method="gd", lr=small),
        )
    )
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
        lines = grid_lines(lr, SIGMAS, {"lr": lr, "dash": "--"})
        panels += figures.method_panels(results, lines, title=f"{name} η={lr}", deviations=2)
    return figures.draw(panels)
