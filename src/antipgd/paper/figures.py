"""Pictures: the only room of the paper that knows matplotlib.

One colour per method everywhere, the place of measurement named, divergence counted in the legend.
A figure is a row of panels, a panel a list of series: plain numbers that experiments hand over.
Computes nothing that a claim would need.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Figure  # experiments name it by this room
from numpy.typing import ArrayLike, NDArray

from antipgd.estimate import Estimate
from antipgd.paper.results import Results
from antipgd.paper.table import SETTING

COLOURS = {
    "gd": "#6b6b6b",
    "sgd": "#d98c00",
    "pgd": "#c2402a",
    "anti": "#1f6fb4",
    "antisgd": "#17968a",
    "label": "#7a4fa3",
    "noise": "#b0568f",
}
THEORY = "#222222"
NAMES = {
    "gd": "GD",
    "sgd": "SGD",
    "pgd": "PGD",
    "anti": "Anti-PGD",
    "antisgd": "Anti-SGD",
    "label": "label noise",
    "noise": "noise",
}
MEASURES = {
    "train_loss": "training loss",
    "test_loss": "test loss",
    "trace": "trace of the Hessian",
}
_STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.hashsalt": "antipgd",
}
_DASHES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Series:
    """Points, joined by a line (dash "-", "--", …; "" for none) or marked, perhaps with a band."""

    x: ArrayLike
    y: ArrayLike
    label: str = ""
    colour: str = THEORY
    dash: str = "-"
    marker: str = ""
    low: ArrayLike | None = None
    high: ArrayLike | None = None
    bars: bool = False  # show low and high as error bars instead of a band


@dataclass(frozen=True)
class Panel:
    """One pair of axes. `surface` is (x, y, values on their grid), drawn as contours below."""

    title: str
    series: Sequence[Series]
    xlabel: str = "step"
    ylabel: str = ""
    xscale: str = "symlog"
    yscale: str = "log"
    surface: tuple[ArrayLike, ArrayLike, ArrayLike] | None = None
    ticks: Sequence[tuple[float, str]] = field(default=())  # of the x axis, where it has names
    depth: float = 1e-10  # a logarithmic axis shows no less than this share of its top


def rendered(figure: Figure, kind: str) -> bytes:
    """A figure as a PNG or SVG file; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    dates = {"Date": None} if kind == "svg" else {"Software": None}
    with mpl.rc_context(_STYLE):
        figure.savefig(buffer, format=kind, dpi=160, metadata=dates)
    return buffer.getvalue()


def _draw_surface(axes: Axes, surface: tuple[ArrayLike, ArrayLike, ArrayLike]) -> None:
    x, y, values = (np.asarray(part, np.float64) for part in surface)
    levels = np.geomspace(max(np.nanmin(values), 1e-4 * np.nanmax(values)), np.nanmax(values), 22)
    axes.contourf(
        x,
        y,
        values,
        levels=levels,
        cmap="Greys",
        norm=mpl.colors.LogNorm(),
        alpha=0.55,
        extend="both",
    )
    axes.contour(x, y, values, levels=levels[::2], colors="#8a8a8a", linewidths=0.4)


def _draw_series(axes: Axes, series: Series) -> None:
    style: dict[str, Any] = {"color": series.colour, "linewidth": 1.4}
    x, y = np.asarray(series.x, np.float64), np.asarray(series.y, np.float64)
    shown = np.where(np.isfinite(y), y, np.nan)
    axes.plot(
        x,
        shown,
        linestyle=series.dash or "none",
        marker=series.marker,
        markersize=9 if series.marker == "*" else 4,
        **style,
    )
    if series.low is None or series.high is None:
        return
    low, high = (np.asarray(edge, np.float64) for edge in (series.low, series.high))
    if series.bars:
        reach = np.clip([shown - low, high - shown], 0, None)
        axes.errorbar(x, shown, reach, fmt="none", ecolor=series.colour, elinewidth=1, capsize=2)
    else:
        axes.fill_between(x, low, high, color=series.colour, alpha=0.16, linewidth=0)


def _limit_heights(axes: Axes, depth: float) -> None:
    """Neither a loss of 1e-30 nor a run on its way to infinity may press the rest flat."""
    bottom, top = axes.get_ylim()
    starts = [y[0] for y in (np.ravel(line.get_ydata()) for line in axes.lines) if len(y)]
    start = max([y for y in starts if np.isfinite(y) and y > 0], default=top)
    top = min(top, 1e6 * start)
    axes.set_ylim(max(bottom, depth * top), top)


def _draw_panel(axes: Axes, panel: Panel) -> None:
    if panel.surface is not None:
        _draw_surface(axes, panel.surface)
    for series in panel.series:
        _draw_series(axes, series)
    if panel.xscale == "symlog":
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(left=0)
    else:
        axes.set_xscale(panel.xscale)
        if panel.xscale == "log" and np.divide(*axes.get_xlim()[::-1]) > 10:
            axes.xaxis.set_minor_formatter(mpl.ticker.NullFormatter())  # they would collide
    if panel.yscale != "log" or any(
        np.nanmax(np.r_[0, line.get_ydata()]) > 0 for line in axes.lines
    ):
        axes.set_yscale(panel.yscale)
    if axes.get_yscale() == "log":
        _limit_heights(axes, panel.depth)
    if panel.ticks:
        axes.set_xticks([at for at, _ in panel.ticks], [name for _, name in panel.ticks])
    axes.set_title(panel.title, fontsize=9)
    axes.set_xlabel(panel.xlabel)
    axes.set_ylabel(panel.ylabel)


def draw(
    panels: Sequence[Panel],
    columns: int = 3,
    title: str = "",
    height: float = 2.7,
    width: float = 3.4,
) -> Figure:
    """A figure of panels with one legend below."""
    rows = -(-len(panels) // columns)
    wide = min(columns, len(panels))
    named = {s.label: s for panel in panels for s in panel.series if s.label}
    legend_columns = max(1, min(len(named), int(width * wide / 2.2)))
    legend_rows = -(-len(named) // legend_columns)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width * wide, height * rows + 0.3 + 0.2 * legend_rows))
        FigureCanvasAgg(figure)
        grid = figure.subplots(rows, wide, squeeze=False).ravel()
        for axes, panel in zip(grid, panels, strict=False):
            _draw_panel(axes, panel)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        handles = [
            mpl.lines.Line2D([], [], color=s.colour, linestyle=s.dash or "none", marker=s.marker)
            for s in named.values()
        ]
        if named:
            figure.legend(
                handles,
                list(named),
                loc="outside lower center",
                ncols=legend_columns,
                fontsize=8,
            )
        figure.suptitle(title, fontsize=9)
        figure.set_layout_engine("constrained")
    return figure


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


def _limits(rows: pd.DataFrame, measure: str) -> tuple[float, float] | None:
    """What the y axis shows: the settings of which no run diverged, or the beginning if all did."""
    values = rows[measure].where(np.isfinite(rows[measure]) & (rows[measure] > 0))
    settings = rows.groupby(list(SETTING), dropna=False)["status"]
    calm = values[settings.transform(lambda status: (status != "diverged").all())]
    shown = calm if calm.notna().any() else values
    if not shown.notna().any():
        return None
    low, high = np.log(shown.min()), np.log(shown.max())
    if shown is values:
        first = values[rows["step"] == 0].min()
        high = min(high, np.log(1e6) + (low if np.isnan(first) else np.log(first)))
    margin = max(0.05 * (high - low), 0.1)
    bottom, top = np.exp(np.clip([low - margin, high + margin], *np.log([1e-300, 1e300])))
    return float(bottom), float(top)


def _exits(rows: pd.DataFrame, measure: str) -> list[Series]:
    """A mark for each run that left its interval, pointing to the side on which it did."""
    last = rows.loc[rows.groupby("seed")["step"].idxmax()]
    sides = {"left low": "v", "left high": "^"}
    colour = COLOURS[rows["method"].iloc[0]]
    return [
        Series(left["step"], left[measure], colour=colour, dash="", marker=marker)
        for side, marker in sides.items()
        if len(left := last[last["status"] == side])
    ]


def _sweep_label(key: tuple, several: set[str]) -> str:
    """What differs between the lines of a method."""
    setting = dict(zip(SETTING, key, strict=True))
    signs = {"lr": "η", "sigma": "σ", "taps": "taps", "law": "law", "batch": "batch"}
    return " ".join(
        f"{sign}={setting[name]}"
        for name, sign in signs.items()
        if name in several and not pd.isna(setting[name]) and setting[name] not in ("", 0.0)
    )


def _sweep_series(rows: pd.DataFrame, measure: str, limits: tuple[float, float] | None) -> list:
    """A line for each setting, and where its runs left."""
    series: list[Series] = []
    several = {name for name in SETTING if rows.groupby("method")[name].nunique().max() > 1}
    dashes: dict[str, Iterator[str]] = {method: cycle(_DASHES) for method in NAMES}
    bottom, top = limits or (1e-300, 1e300)
    for key, group in rows.groupby(list(SETTING), sort=False, dropna=False):
        method, ends = group["method"].iloc[0], group.drop_duplicates("seed")
        lost = (int((ends["status"] == "diverged").sum()), len(ends))
        label = method_name(method, _sweep_label(key, several), lost)
        # Beyond the limits by a little, so that a line that leaves the picture is seen to do so.
        x, y, low, high = _geometric(_shared_steps(group), measure, (bottom / 10, top * 10))
        edges = (None, None) if lost[0] else (low, high)
        series.append(Series(x, y, label, COLOURS[method], next(dashes[method]), "", *edges))
        series += _exits(group, measure)
    return series


def sweep_figure(table: pd.DataFrame, title: str, place: str = "w") -> Figure:
    """Losses and trace over the steps, one line per setting: geometric means over seeds.

    The axes show the settings of which no run diverged; lines of the others, drawn without their
    intervals, leave the picture. A line ends at the first exit of one of its runs, and every exit
    is marked.
    """
    rows = table[table["place"] == place]
    measures = [name for name in MEASURES if rows[name].notna().any()]
    limits = {name: _limits(rows, name) for name in measures}
    panels = [
        Panel(f"{MEASURES[name]} at {place}", _sweep_series(rows, name, limits[name]))
        for name in measures
    ]
    left = rows["status"].str.startswith("left").any()
    exits = "; ▼ a run left low, ▲ high" if left else ""
    title = f"{title}: geometric means over seeds, 95 % intervals{exits}"
    figure = draw(panels, title=title, height=3.2)
    for axes, name in zip(figure.axes, measures, strict=False):
        if limits[name] is not None:
            axes.set_ylim(limits[name])
    return figure
