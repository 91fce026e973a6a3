"""The lower the trace, the better the test?

From the runs of `regression_grid`, `regression_sparsity` and `sensing_grid`, no others: rank
correlation of the trace of the Hessian with the test loss over the final points of one seed, at w;
all methods together, and, which the paper does not say, within each method. "A high correlation" is
read as one above ½. (Until results were seen it was read as one above nought.)
"""

from typing import Any

import numpy as np
from scipy.stats import spearmanr

from antipgd.paper import figures
from antipgd.paper.claims import Claim, above
from antipgd.paper.experiments import runs_of
from antipgd.paper.record import Spec
from antipgd.paper.results import Results

SHOWS = (
    "Test loss against the trace where runs end, a dot for each run, {seeds} seeds of each setting."
)
SEEDS = 10
SOURCES: dict[str, dict[str, Any]] = {
    "regression": {"problem": "quadratic_regression", "nonzero": 10},
    "dense": {"problem": "quadratic_regression", "nonzero": 50},
    "sensing": {"problem": "matrix_sensing", "scaling": "unit"},
}
METHODS = ("gd", "pgd", "sgd", "anti")
REFERENCE = "§sec:conection_pacbayes"
HIGH = 0.5


def runs(seeds: int) -> list[Spec]:
    return [
        run
        for name in ("regression_grid", "regression_sparsity", "sensing_grid")
        for run in runs_of(name, seeds)
    ]


def _ends(results: Results, source: str, **wanted: Any) -> dict[int, list[tuple[float, float]]]:
    """(trace, test loss) of finite runs by seed."""
    found: dict[int, list[tuple[float, float]]] = {}
    for record in results.select(**SOURCES[source], **wanted):
        if record.status != "ok":
            continue
        pair = tuple(float(record.column(m, "w")[1][-1]) for m in ("trace", "test_loss"))
        if np.isfinite(pair).all():
            found.setdefault(record.run.seed, []).append(pair)  # type: ignore[arg-type]
    return found


def _correlations(results: Results, source: str, **wanted: Any) -> list[float]:
    """Rank correlation in each seed that has at least three runs."""
    ends = _ends(results, source, **wanted).values()
    return [float(spearmanr(np.array(pairs)).statistic) for pairs in ends if len(pairs) >= 3]


def claims(results: Results) -> list[Claim]:
    found = [
        above(f"trace_predicts_test.{source}", f"a lower trace means a lower test loss: {source}",
              REFERENCE, "mean rank correlation over seeds, final points at w, all methods; bound "
              f"{HIGH}", _correlations(results, source), HIGH)
        for source in SOURCES
    ]  # fmt: skip
    found += [
        above(f"trace_predicts_test.{source}_within_{method}",
              f"(ours) also among the runs of {figures.NAMES[method]} alone ({source})", REFERENCE,
              f"mean rank correlation over seeds, final points at w, different η and σ; bound "
              f"{HIGH}", _correlations(results, source, method=method), HIGH)
        for source in ("regression", "sensing")
        for method in ("pgd", "anti")
    ]  # fmt: skip
    return found


def plot(results: Results) -> figures.Figure:
    panels = []
    for source in SOURCES:
        series = []
        for method in METHODS:
            ends = _ends(results, source, method=method).values()
            x, y = zip(*[pair for pairs in ends for pair in pairs], strict=True)
            series.append(
                figures.Series(x, y, figures.NAMES[method], figures.COLOURS[method], "", "o")
            )
        panels.append(
            figures.Panel(f"{source}, final points at w", series, "trace of the Hessian",
                          "test loss", "log", "log")
        )  # fmt: skip
    return figures.draw(panels)
