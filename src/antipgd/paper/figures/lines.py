"""A method's records as lines: means over seeds with a band, in the method's own colour."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipgd.paper.figures.parts import COLOURS, MEASURES, NAMES, Panel, Series
from antipgd.paper.results import Results


def method_name(method: str, detail: str = "", diverged: tuple[int, int] = (0, 0)) -> str:
    """A method in a legend, with how many of its runs diverged."""
    lost = f" ({diverged[0]}/{diverged[1]} diverged)" if diverged[0] else ""
    return f"{NAMES[method]} {detail}".strip() + lost


def spread(x: ArrayLike, table: NDArray[np.float64], deviations: float, **style: str) -> Series:
    """Mean over the rows of a table with a band of so many standard deviations, clipped to what a
    logarithmic axis can show. There is nothing where a run has diverged."""
    with np.errstate(all="ignore"):
        mean = table.mean(axis=0)
        sd = table.std(axis=0, ddof=1) if len(table) > 1 else np.zeros_like(mean)
    low = np.maximum(mean - deviations * sd, mean / 30)
    return Series(x, mean, low=low, high=mean + deviations * sd, **style)  # type: ignore[arg-type]


def method_series(
    results: Results,
    measure: str,
    method: str,
    *,
    place: str = "w",
    deviations: float = 1,
    detail: str = "",
    dash: str = "-",
    per_step: float = 1.0,
    **wanted: Any,
) -> Series:
    """A method's curve: mean over seeds with a band, against the step or a multiple of it."""
    steps, table = results.curves(measure, place, method=method, **wanted)
    return spread(
        steps * per_step,
        table,
        deviations,
        label=method_name(method, detail, results.diverged(method=method, **wanted)),
        colour=COLOURS[method],
        dash=dash,
    )


def method_panels(
    results: Results,
    lines: Sequence[dict[str, Any]],
    measures: Sequence[str] = tuple(MEASURES),
    *,
    place: str = "w",
    title: str = "",
    **every: Any,
) -> list[Panel]:
    """A panel for each measure with the same lines: see `method_series` for what a line takes."""
    before = f"{title}, " if title else ""
    return [
        Panel(
            f"{before}{MEASURES[measure]} at {place}",
            [method_series(results, measure, place=place, **(every | line)) for line in lines],
        )
        for measure in measures
    ]
