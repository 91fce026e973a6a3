"""Anti-SGD: anticorrelated noise on top of mini-batches

SGD with and without Anti-PGD's noise on regression (batch 1, η = 0.01, σ = 0.05) and matrix
sensing (unit scaling, batch 10, η = 0.001, σ = 0.1), beside Anti-PGD itself; ten seeds. The
network's panel of the figure is not part of this.
"""

from antipgd.paper import figures, settings
from antipgd.paper.claims import Claim, smaller
from antipgd.paper.experiments import runs_of
from antipgd.paper.record import Spec
from antipgd.paper.results import Results
from antipgd.paper.simulation.spec import make_run

SHOWS = (
    "Test loss and trace against the step, for regression and matrix sensing. Lines are means "
    "over {seeds} seeds, bands one standard deviation."
)
SEEDS = 10
CASES = {
    "regression": {"problem": settings.REGRESSION},
    "sensing": {"problem": settings.SENSING, "scaling": "unit"},
}


def runs(seeds: int) -> list[Spec]:
    found = [run for run in runs_of("regression", seeds) if run.method in ("sgd", "anti")]
    found += [
        run
        for run in runs_of("sensing", seeds)
        if run.method in ("sgd", "anti") and dict(run.settings)["scaling"] == "unit"
    ]
    for seed in range(seeds):
        found.append(
            make_run(settings.REGRESSION, {}, "antisgd", lr=0.01, sigma=settings.REGRESSION_SIGMA,
                     steps=settings.REGRESSION_STEPS, seed=seed, relax=False)
        )  # fmt: skip
        found.append(
            make_run(settings.SENSING, {"scaling": "unit"}, "antisgd", lr=settings.SENSING_RATE,
                     sigma=settings.SENSING_SIGMA, batch=settings.SENSING_BATCH,
                     steps=settings.SENSING_STEPS, seed=seed, relax=False)
        )  # fmt: skip
    return found


def claims(results: Results) -> list[Claim]:
    found = []
    for name, case in CASES.items():
        ours = {m: results.final("test_loss", method=m, **case) for m in ("sgd", "anti", "antisgd")}
        traces = {m: results.final("trace", method=m, **case) for m in ("sgd", "antisgd")}
        steps = results.select(method="antisgd", **case)[0].run.steps
        found += [
            smaller(f"anti_sgd.{name}", f"anticorrelated noise lowers SGD's test loss ({name})",
                    "fig:anti-sgd", f"test loss at w, step {steps:,}", ours["antisgd"],
                    ours["sgd"]),
            smaller(f"anti_sgd.{name}_trace", f"and the trace of the Hessian ({name})",
                    "fig:anti-sgd", f"trace at w, step {steps:,}", traces["antisgd"],
                    traces["sgd"]),
        ]  # fmt: skip
        if name == "sensing":
            found.append(
                smaller("anti_sgd.edge", "Anti-SGD has a slight edge over Anti-PGD in sensing",
                        "fig:anti-sgd", f"test loss at w, step {steps:,}", ours["antisgd"],
                        ours["anti"])
            )  # fmt: skip
    return found


def plot(results: Results) -> figures.Figure:
    lines = [{"method": "sgd"}, {"method": "anti"}, {"method": "antisgd", "dash": "--"}]
    panels = []
    for name, case in CASES.items():
        panels += figures.method_panels(results, lines, ("test_loss", "trace"), title=name, **case)
    return figures.draw(panels, columns=2)
