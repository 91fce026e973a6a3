"""Ticks as numbers are said: 0.01, 1, 20, 1,000, and 10⁻⁶ where there is no shorter way."""

from collections.abc import Sequence
from math import floor, isclose, log10
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MOST = 6  # ticks of a logarithmic axis with a number
_BETWEEN = (
    (1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 8),
)  # fmt: skip


def said(value: float, powers: bool = False) -> str:
    """A tick in words; `powers` where its axis goes far beyond what is read at a glance.

    >>> [said(x) for x in (0.0, 0.5, -20.0, 10_000.0, 2e-05)]
    ['0', '0.5', '−20', '10,000', '2×10⁻⁵']
    >>> [said(x, powers=True) for x in (1.0, 100.0, 1000.0, 1e-06)]
    ['1', '100', '10³', '10⁻⁶']
    """
    size = abs(value)
    plain = 1e-4 <= size < 1e6 and not (powers and not 0.01 <= size <= 100)
    if value == 0 or plain:
        return f"{value:,.6g}".replace("-", "−")
    exponent = floor(log10(size) + 1e-9)
    digits = value / 10.0**exponent
    power = "10" + str(exponent).translate(_SUPERSCRIPTS)
    return power if isclose(digits, 1) else f"{digits:.6g}×{power}".replace("-", "−")


class Said(mpl.ticker.Formatter):
    """Writes all ticks of a logarithmic axis alike."""

    def __init__(self) -> None:
        self.powers = False

    def set_locs(self, locs: Sequence[float]) -> None:
        sizes = np.abs([at for at in locs if at])
        self.powers = bool(len(sizes)) and (sizes.min() < 9e-4 or sizes.max() > 11_000)

    def __call__(self, x: float, pos: Any = None) -> str:
        return said(float(x), self.powers)


def _logarithmic(low: float, high: float) -> list[float]:
    """Decades, every second or third of many, or numbers between: the fewest that are three."""
    decades = range(max(floor(log10(low)), -307), min(floor(log10(high)), 307) + 1)
    for subs in _BETWEEN:
        found = [10.0**e * sub for e in decades for sub in subs]
        shown = [at for at in found if low * (1 - 1e-9) <= at <= high * (1 + 1e-9)]
        if len(shown) >= 3:
            every = -(-len(shown) // _MOST) if subs == (1,) else 1
            return [at for at in shown if every == 1 or round(log10(at)) % every == 0]
    return [at for at in _linear().tick_values(low, high) if low <= at <= high]


def _linear() -> mpl.ticker.MaxNLocator:
    return mpl.ticker.MaxNLocator(6, steps=[1, 2, 5, 10])


def number_logarithmic(axes: Axes, which: str) -> None:
    """Few ticks, read at a glance."""
    axis = getattr(axes, f"{which}axis")
    shown = _logarithmic(*getattr(axes, f"get_{which}lim")())
    axis.set_major_locator(mpl.ticker.FixedLocator(shown))
    axis.set_minor_locator(mpl.ticker.NullLocator())
    axis.set_major_formatter(Said())


def number_linear(axes: Axes, which: str) -> None:
    """Few round numbers."""
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(_linear())
    axis.set_major_formatter(mpl.ticker.FuncFormatter(lambda at, _: said(float(f"{at:.12g}"))))


def number_steps(axes: Axes) -> None:
    """0, 1 and every decade, or every second one, of an axis that is linear up to 1."""
    top = int(log10(max(axes.get_xlim()[1], 10)) + 1e-9)
    every = -(-top // _MOST) or 1
    axes.set_xticks([0, *(10.0**e for e in range(0, top + 1, every))])
    axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
    axes.xaxis.set_major_formatter(Said())
