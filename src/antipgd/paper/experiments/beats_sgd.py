"""Anti-PGD ultimately outperforms SGD; SGD may lead early

From the runs of `regression` and `sensing` (unit scaling), no others. The network is not part of
this.
"""

import numpy as np

from antipgd.paper import figures, settings
from antipgd.paper.claims import Claim, mostly, smaller
from antipgd.paper.experiments import runs_of
from antipgd.paper.record import Spec
from antipgd.paper.results import Results

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
        steps, sgd = results.curves("test_loss", method="sgd", **case)
        _, anti = results.curves("test_loss", method="anti", **case)
        found.append(
            smaller(f"beats_sgd.{name}", f"Anti-PGD ultimately beats SGD in test loss ({name})",
                    reference, f"test loss at w, step {steps[-1]:,}", anti[:, -1], sgd[:, -1])
        )  # fmt: skip
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
