"""Pictures: the only room of the paper that knows matplotlib.

One colour per method everywhere, the place of measurement named, divergence counted in the legend.
A figure is a row of panels, a panel a list of series: plain numbers that experiments hand over.
Computes nothing that a claim would need.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Figure  # experiments name it by this room
from numpy.typing import ArrayLike, NDArray

from antipgd.paper.methods import METHODS
from antipgd.paper.results import Results

COLOURS = {name: method.colour for name, method in METHODS.items()}
NAMES = {name: method.legend for name, method in METHODS.items()}
THEORY = "#222222"
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
    limits: tuple[float, float] | None = None  # of the y axis, where it does not follow the lines


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


def _plain_ticks(axes: Axes) -> None:
    """Numbers as they are said, for a logarithmic axis of a decade or two."""
    decades = float(np.log10(np.divide(*axes.get_xlim()[::-1])))
    subs = (1, 2, 3, 5) if decades > 0.5 else (1, 1.2, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
    axes.xaxis.set_major_locator(mpl.ticker.LogLocator(subs=subs))
    axes.xaxis.set_major_formatter(mpl.ticker.FormatStrFormatter("%g"))
    axes.xaxis.set_minor_formatter(mpl.ticker.NullFormatter())


def _draw_panel(axes: Axes, panel: Panel) -> None:
    if panel.surface is not None:
        _draw_surface(axes, panel.surface)
    if panel.limits is not None:  # before the lines, so that it is never scaled to them
        axes.set_ylim(panel.limits)
    for series in panel.series:
        _draw_series(axes, series)
    if panel.xscale == "symlog":
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(left=0)
    else:
        axes.set_xscale(panel.xscale)
        if panel.xscale == "log" and np.divide(*axes.get_xlim()[::-1]) > 10:
            axes.xaxis.set_minor_formatter(mpl.ticker.NullFormatter())  # they would collide
        elif panel.xscale == "log":
            _plain_ticks(axes)
    positive = any(np.nanmax(np.r_[0, line.get_ydata()]) > 0 for line in axes.lines)
    if panel.yscale != "log" or panel.limits is not None or positive:
        axes.set_yscale(panel.yscale)
    if axes.get_yscale() == "log" and panel.limits is None:
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


@dataclass(frozen=True)
class Column:
    """A value with its interval for each row, the colour it is marked in, and the value that means
    no difference. A row without has a word instead."""

    title: str
    marks: Sequence[tuple[float, float, float, str] | str]
    level: float
    scale: str = "linear"


def rows(names: Sequence[str], columns: Sequence[Column], legend: dict[str, str]) -> Figure:
    """A list of names with columns of values beside it; `legend` has what the colours mean."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(2.6 + 3.2 * len(columns), 0.9 + 0.21 * len(names)))
        FigureCanvasAgg(figure)
        grid = figure.subplots(1, len(columns), squeeze=False, sharey=True).ravel()
        for axes, column in zip(grid, columns, strict=True):
            _draw_column(axes, column)
        grid[0].set_yticks(range(len(names)), names)
        grid[0].set_ylim(len(names) - 0.4, -0.6)
        marks = [
            mpl.lines.Line2D([], [], color=colour, linestyle="none", marker="o")
            for colour in legend.values()
        ]
        figure.legend(
            marks, list(legend), loc="outside lower center", ncols=len(legend), fontsize=8
        )
        figure.set_layout_engine("constrained")
    return figure


def _draw_column(axes: Axes, column: Column) -> None:
    axes.set_xscale(column.scale)
    axes.axvline(column.level, color=THEORY, linestyle=":", linewidth=1.2)
    for row, mark in enumerate(column.marks):
        if isinstance(mark, str):
            beside = axes.get_yaxis_transform()
            axes.text(0.02, row, mark, transform=beside, va="center", fontsize=7, color="#8a8a8a")
            continue
        value, low, high, colour = mark
        axes.plot([low, high], [row, row], color=colour, linewidth=1.4)
        axes.plot([value], [row], color=colour, marker="o", markersize=4)
    if column.scale == "log":
        _plain_ticks(axes)
    axes.set_title(column.title, fontsize=9)


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
