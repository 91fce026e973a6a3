"""The picture of a sweep: losses and trace over the steps, a line for each setting.

Geometric means over seeds with their intervals. Knows the table of a sweep, and no matplotlib.
"""

from collections.abc import Iterator
from itertools import cycle

import numpy as np
import pandas as pd

from antipgd.estimate import Estimate
from antipgd.paper import figures
from antipgd.paper.simulation.table import SETTING

_DASHES = ("-", "--", ":", "-.")
# Ticks are placed beyond the ends of an axis: nearer to the largest of numbers they overflow.
_DRAWN = (1e-150, 1e150)


def _shared_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows at steps that all seeds have: where a run has left, there is no mean any more."""
    seeds = rows.groupby("step")["seed"].transform("nunique")
    return rows[seeds == rows["seed"].nunique()]


def _geometric(rows: pd.DataFrame, measure: str, ends: tuple[float, float]) -> list[list[float]]:
    """Steps, geometric means over seeds and their 95 % intervals, cut off between two ends."""
    columns: list[list[float]] = [[], [], [], []]
    with np.errstate(all="ignore"):
        logarithms = np.log(rows[measure].to_numpy(np.float64))
    for step, values in pd.Series(logarithms, rows["step"]).groupby(level=0):
        estimate = Estimate.of(values if np.isfinite(values).all() else [np.nan])
        for column, value in zip(columns[1:], (estimate.mean, *estimate.interval()), strict=True):
            column.append(float(np.exp(np.clip(value, *np.log(ends)))))
        columns[0].append(step)
    return columns


def _drawable(values: pd.Series) -> pd.Series:
    """Where a logarithmic axis has a place for them."""
    return np.isfinite(values) & (values > 0)


def _limits(rows: pd.DataFrame, measure: str) -> tuple[float, float] | None:
    """What the y axis shows: the settings of which no run diverged, or the beginning if all did."""
    values = rows[measure].where(_drawable(rows[measure]))
    settings = rows.groupby(list(SETTING), dropna=False)["status"]
    calm = values[settings.transform(lambda status: (status != "diverged").all())]
    shown = calm if calm.notna().any() else values
    if not shown.notna().any():
        return None
    low, high = np.log(np.clip([shown.min(), shown.max()], *_DRAWN))
    if shown is values:
        first = values[rows["step"] == 0].min()
        start = low if np.isnan(first) else np.log(np.clip(first, *_DRAWN))
        high = min(high, start + np.log(1e6))
    margin = max(0.05 * (high - low), 0.1)
    return float(np.exp(low - margin)), float(np.exp(high + margin))


def _exits(rows: pd.DataFrame, measure: str, ends: tuple[float, float]) -> list[figures.Series]:
    """A mark for each run that left its interval, pointing to the side on which it did."""
    last = rows.loc[rows.groupby("seed")["step"].idxmax()]
    sides = {"left low": "v", "left high": "^"}
    colour = figures.COLOURS[rows["method"].iloc[0]]
    last = last.assign(height=last[measure].where(_drawable(last[measure])).clip(*ends))
    return [
        figures.Series(left["step"], left["height"], "", colour, "", marker)
        for side, marker in sides.items()
        if len(left := last[last["status"] == side])
    ]


def _sweep_label(key: tuple, several: set[str]) -> str:
    """What differs between the lines of a method."""
    setting = dict(zip(SETTING, key, strict=True))
    signs = {"lr": "η", "sigma": "σ", "momentum": "β"}
    return " ".join(
        f"{signs.get(name, name)}={setting[name]}"
        for name in SETTING
        if name in several and not pd.isna(setting[name]) and setting[name] not in ("", 0.0)
    )


def _sweep_series(rows: pd.DataFrame, measure: str, limits: tuple[float, float] | None) -> list:
    """A line for each setting, and where its runs left."""
    series: list[figures.Series] = []
    several = {name for name in SETTING if rows.groupby("method")[name].nunique().max() > 1}
    dashes: dict[str, Iterator[str]] = {method: cycle(_DASHES) for method in figures.NAMES}
    bottom, top = limits or _DRAWN
    # Beyond the limits by a little, so that a line that leaves the picture is seen to do so.
    reach = (bottom / 10, top * 10)
    for key, group in rows.groupby(list(SETTING), sort=False, dropna=False):
        method, ends = group["method"].iloc[0], group.drop_duplicates("seed")
        lost = (int((ends["status"] == "diverged").sum()), len(ends))
        label = figures.method_name(method, _sweep_label(key, several), lost)
        x, y, low, high = _geometric(_shared_steps(group), measure, reach)
        edges = (None, None) if lost[0] else (low, high)
        series.append(
            figures.Series(x, y, label, figures.COLOURS[method], next(dashes[method]), "", *edges)
        )
        series += _exits(group, measure, reach)
    return series


def sweep_figure(table: pd.DataFrame, title: str, place: str = "w") -> figures.Figure:
    """Losses and trace over the steps, one line per setting: geometric means over seeds.

    The axes show the settings of which no run diverged; lines of the others, drawn without their
    intervals, leave the picture. A line ends at the first exit of one of its runs, and every exit
    is marked.
    """
    rows = table[table["place"] == place]
    measures = [name for name in figures.MEASURES if rows[name].notna().any()] or ["train_loss"]
    panels = []
    for name in measures:
        limits = _limits(rows, name)
        series = _sweep_series(rows, name, limits)
        panels.append(figures.Panel(f"{figures.MEASURES[name]} at {place}", series, limits=limits))
    left = rows["status"].str.startswith("left").any()
    exits = "; ▼ a run left low, ▲ high" if left else ""
    title = f"{title}: geometric means over seeds, 95 % intervals{exits}"
    return figures.draw(panels, title=title, height=3.2)
