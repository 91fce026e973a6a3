"""Panels on a sheet: one width for all figures, so that one type size stays one on the page."""

from collections.abc import Mapping, Sequence
from textwrap import fill, wrap
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from antipgd.paper.figures.parts import THEORY, Column, Panel, Series
from antipgd.paper.figures.style import AXIS, QUIET, STYLE
from antipgd.paper.figures.ticks import number_linear, number_logarithmic, number_steps

WIDEST = 9.3  # inches: the column of the page
_LETTERS = 13  # of a title, to the inch


def _draw_surface(axes: Axes, surface: tuple[ArrayLike, ArrayLike, ArrayLike]) -> None:
    x, y, values = (np.asarray(part, np.float64) for part in surface)
    levels = np.geomspace(max(np.nanmin(values), 1e-4 * np.nanmax(values)), np.nanmax(values), 22)
    shades = axes.contourf(x, y, values, levels=levels, cmap="Greys", norm=mpl.colors.LogNorm(),
                           alpha=0.55, extend="both")  # fmt: skip
    shades.set_rasterized(True)
    axes.contour(x, y, values, levels=levels[::2], colors=AXIS, linewidths=0.4)


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


def _scale_x(axes: Axes, panel: Panel) -> None:
    if panel.xscale == "symlog":
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(left=0)
        number_steps(axes)
    else:
        axes.set_xscale(panel.xscale)
        (number_logarithmic if panel.xscale == "log" else number_linear)(axes, "x")


def _name_ticks(axes: Axes, ticks: Sequence[tuple[float, str]], width: float) -> None:
    """Names below each other's level where they are too long to stand side by side."""
    names = [name for _, name in ticks]
    lengths = [max(map(len, name.split("\n"))) + 2 for name in names]
    slanted = sum(lengths) > _LETTERS * (width - 0.5)
    how: dict[str, Any] = {"rotation": 25, "ha": "right"} if slanted else {}
    axes.set_xticks([at for at, _ in ticks], [name.replace("\n", " ") if slanted else name
                                              for name in names], **how)  # fmt: skip


def _scale_y(axes: Axes, panel: Panel) -> None:
    positive = any(np.nanmax(np.r_[0, line.get_ydata()]) > 0 for line in axes.lines)
    if panel.yscale != "log" or panel.limits is not None or positive:
        axes.set_yscale(panel.yscale)
    if axes.get_yscale() == "log":
        if panel.limits is None:
            _limit_heights(axes, panel.depth)
        number_logarithmic(axes, "y")
    elif axes.get_yscale() == "linear":
        number_linear(axes, "y")


def _balanced(title: str, letters: int) -> str:
    """In as few lines as it takes, of about the same length."""
    lines = wrap(title, letters)
    while letters > 8 and len(wrap(title, letters - 1)) == len(lines):
        letters -= 1
    return "\n".join(wrap(title, letters))


def _draw_panel(axes: Axes, panel: Panel, width: float) -> None:
    if panel.surface is not None:
        _draw_surface(axes, panel.surface)
    if panel.limits is not None:  # before the lines, so that it is never scaled to them
        axes.set_ylim(panel.limits)
    for series in panel.series:
        _draw_series(axes, series)
    _scale_x(axes, panel)
    _scale_y(axes, panel)
    if panel.ticks:
        _name_ticks(axes, panel.ticks, width)
    axes.set_title(_balanced(panel.title, int(_LETTERS * (width - 0.5))))
    axes.set_xlabel(panel.xlabel)
    axes.set_ylabel(panel.ylabel)


def _handles(series: Sequence[Series]) -> list[mpl.lines.Line2D]:
    return [mpl.lines.Line2D([], [], color=s.colour, linestyle=s.dash or "none", marker=s.marker)
            for s in series]  # fmt: skip


def _columns(panels: int, wanted: int) -> int:
    """As many as wanted, or fewer, if that leaves no more than one cell without a panel."""
    for columns in range(min(wanted, panels), 1, -1):
        if -panels % columns <= 1:
            return columns
    return min(wanted, panels)


def _beside_each_other(labels: Sequence[str], across: float) -> int:
    """How many labels of a legend fit in so many inches."""
    longest = max(map(len, labels), default=1)
    return max(1, min(len(labels), int((across - 0.3) / (0.55 + 0.078 * longest))))


def draw(
    panels: Sequence[Panel],
    columns: int = 3,
    title: str = "",
    height: float = 2.7,
    width: float = 3.4,
) -> Figure:
    """A figure of panels with one legend: in the cell that is left over, or below."""
    wide = _columns(len(panels), columns)
    high = -(-len(panels) // wide)
    spare = high * wide - len(panels)
    named = {s.label: s for panel in panels for s in panel.series if s.label}
    across = WIDEST if wide > 1 else min(width + 1, WIDEST)
    legend_columns = _beside_each_other(list(named), across)
    below = 0 if spare else 0.2 * -(-len(named) // legend_columns)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(across, height * high + 0.1 + below))
        FigureCanvasAgg(figure)
        cells = figure.add_gridspec(high, wide)
        for place, panel in enumerate(panels):
            _draw_panel(figure.add_subplot(cells[divmod(place, wide)]), panel, across / wide)
        if named and spare:
            beside = figure.add_subplot(cells[high - 1, wide - spare :])
            beside.set_axis_off()
            beside.legend(_handles([*named.values()]), [*named], loc="center left")
        elif named:
            figure.legend(_handles([*named.values()]), [*named], loc="outside lower left",
                          ncols=legend_columns)  # fmt: skip
        if title:
            figure.suptitle(title)
        figure.set_layout_engine("constrained")
    return figure


def rows(names: Sequence[str], columns: Sequence[Column], legend: Mapping[str, str]) -> Figure:
    """A list of names with columns of values beside it; `legend` has what the colours mean."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDEST, 0.9 + 0.24 * len(names)))
        FigureCanvasAgg(figure)
        grid = figure.subplots(1, len(columns), squeeze=False, sharey=True).ravel()
        for axes, column in zip(grid, columns, strict=True):
            _draw_column(axes, column)
        grid[0].set_yticks(range(len(names)), [fill(name, 34) for name in names])
        grid[0].set_ylim(len(names) - 0.4, -0.6)
        marks = [mpl.lines.Line2D([], [], color=colour, linestyle="none", marker="o")
                 for colour in legend.values()]  # fmt: skip
        figure.legend(marks, list(legend), loc="outside lower left", ncols=len(legend))
        figure.set_layout_engine("constrained")
    return figure


def _draw_column(axes: Axes, column: Column) -> None:
    axes.set_xscale(column.scale)
    axes.axvline(column.level, color=THEORY, linestyle=":", linewidth=1.2)
    for row, mark in enumerate(column.marks):
        if isinstance(mark, str):
            beside = axes.get_yaxis_transform()
            axes.text(0.02, row, mark, transform=beside, va="center", color=QUIET)
            continue
        value, low, high, colour = mark
        axes.plot([low, high], [row, row], color=colour, linewidth=1.4)
        axes.plot([value], [row], color=colour, marker="o", markersize=4)
    (number_logarithmic if column.scale == "log" else number_linear)(axes, "x")
    axes.set_title(column.title)
