"""What a figure is made of: plain values, which know no library."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from numpy.typing import ArrayLike

from antipgd.paper.methods import METHODS

COLOURS = {name: method.colour for name, method in METHODS.items()}
NAMES = {name: method.legend for name, method in METHODS.items()}
THEORY = "#222222"
MEASURES = {
    "train_loss": "training loss",
    "test_loss": "test loss",
    "trace": "trace of the Hessian",
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


@dataclass(frozen=True)
class Column:
    """A value with its interval for each row, the colour it is marked in, and the value that means
    no difference. A row without has a word instead."""

    title: str
    marks: Sequence[tuple[float, float, float, str] | str]
    level: float
    scale: str = "linear"
