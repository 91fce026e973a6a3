"""Pictures: the only room of the paper that knows matplotlib.

One colour per method everywhere, logarithmic axes, the place of measurement named, divergence
counted in the legend. Draws from tidy tables and computes nothing that a claim would need.
"""

import io
from itertools import cycle

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from antipgd.estimate import Estimate
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
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.hashsalt": "antipgd",
}


def rendered(figure: Figure, kind: str) -> bytes:
    """A figure as a PNG or SVG file; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    dates = {"Date": None} if kind == "svg" else {"Software": None}
    with mpl.rc_context(_STYLE):
        figure.savefig(buffer, format=kind, dpi=160, metadata=dates)
    return buffer.getvalue()


def _label(key: tuple, several: set[str], runs: int, lost: int) -> str:
    """The method, what else differs between lines, and how many runs diverged."""
    setting = dict(zip(SETTING, key, strict=True))
    signs = {"lr": "η", "sigma": "σ", "taps": "taps", "law": "law", "batch": "batch"}
    parts = [
        f"{sign}={setting[name]}"
        for name, sign in signs.items()
        if name in several and not pd.isna(setting[name]) and setting[name] not in ("", 0.0)
    ]
    diverged = f" ({lost}/{runs} diverged)" if lost else ""
    return " ".join([NAMES[setting["method"]], *parts]) + diverged


def _curve(axes: Axes, rows: pd.DataFrame, measure: str, colour: str, dash: str) -> None:
    """Geometric mean over seeds with its 95 % interval, as belongs on a logarithmic axis.

    Where a value is zero, as a loss in a minimum can be, or a run has diverged, there is no line.
    """
    steps, middles, lows, highs = [], [], [], []
    with np.errstate(all="ignore"):
        logarithms = np.log(rows[measure].to_numpy(np.float64))
        for step, values in pd.Series(logarithms, rows["step"]).groupby(level=0):
            estimate = Estimate.of(values)
            low, high = estimate.interval()
            steps.append(step)
            middles.append(np.exp(estimate.mean) if np.isfinite(estimate.mean) else np.nan)
            lows.append(np.exp(low))
            highs.append(np.exp(high))
    if np.isfinite(middles).any():
        axes.plot(steps, middles, color=colour, linestyle=dash, linewidth=1.4)
        axes.fill_between(steps, lows, highs, color=colour, alpha=0.15, linewidth=0)


def sweep_figure(table: pd.DataFrame, title: str, place: str = "w") -> Figure:
    """Losses and trace over the steps, one line per setting: geometric means over seeds."""
    rows = table[table["place"] == place]
    groups = list(rows.groupby(list(SETTING), sort=False, dropna=False))
    several = {name for name in SETTING if rows.groupby("method")[name].nunique().max() > 1}
    measures = [name for name in MEASURES if rows[name].notna().any()]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(3.4 * len(measures), 3.6 + 0.14 * len(groups)))
        FigureCanvasAgg(figure)
        panels = figure.subplots(1, len(measures), squeeze=False)[0]
        handles, labels, dashes = (
            [],
            [],
            {method: cycle(("-", "--", ":", "-.")) for method in NAMES},
        )
        for key, group in groups:
            method = group["method"].iloc[0]
            colour, dash = COLOURS[method], next(dashes[method])
            for axes, measure in zip(panels, measures, strict=True):
                _curve(axes, group, measure, colour, dash)
            ends = group.drop_duplicates("seed")
            lost = int((ends["status"] == "diverged").sum())
            handles.append(mpl.lines.Line2D([], [], color=colour, linestyle=dash))
            labels.append(_label(key, several, len(ends), lost))
        for axes, measure in zip(panels, measures, strict=True):
            axes.set_xscale("symlog", linthresh=1)
            axes.set_xlim(left=0)
            if axes.lines:
                axes.set_yscale("log")
            axes.set_title(f"{MEASURES[measure]} at {place}", fontsize=9)
            axes.set_xlabel("step")
        columns = min(4, len(labels))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8)
        figure.suptitle(f"{title}: geometric means over seeds, 95 % intervals", fontsize=9)
        figure.set_layout_engine("constrained")
    return figure
