"""Samples, how their spread becomes an error bar, and what every result that has one shares."""

import math
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

import numpy as np
from numpy.typing import NDArray

from antipgd.estimate import Estimate

Array = NDArray[np.float64]


class ToleranceWarning(UserWarning):
    """The tolerance asked for was not met."""


def tell_tolerance(message: str) -> None:
    """A `ToleranceWarning` at the line that called into this package."""
    tell(message, ToleranceWarning)


def tell(message: str, category: type[Warning]) -> None:
    """A warning at the line that called into this package, however deep we are."""
    level, frame = 2, sys._getframe(1)
    inside: FrameType | None = frame
    while inside is not None and inside.f_globals.get("__name__", "").startswith(__package__):
        level, inside = level + 1, inside.f_back
    warnings.warn(message, category, stacklevel=level)


@dataclass(frozen=True, eq=False, kw_only=True)
class Measured:
    """An estimate and how it was made; it can be used like the estimate itself.

    `batch_norm` says in which mode batch norms were (none, eval, train, mixed or estimated),
    `converged` whether the tolerance was met (None if there was none).
    """

    estimate: Estimate
    batch_norm: str
    converged: bool | None
    seed: int

    def check_comparable(self, other: "Measured") -> None:
        """Refuse what it cannot be compared with, though of the same kind."""

    @property
    def mean(self) -> float:
        """Of the estimate."""
        return self.estimate.mean

    @property
    def sem(self) -> float:
        """Its standard error."""
        return self.estimate.sem

    @property
    def n(self) -> int:
        """The number of samples behind it."""
        return self.estimate.n

    @property
    def degrees(self) -> float:
        """Degrees of freedom of `sem`."""
        return self.estimate.degrees

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Student's interval for the mean."""
        return self.estimate.interval(level)

    def __str__(self) -> str:
        return str(self.estimate)

    def _named(self, name: str) -> dict[str, float]:
        """The estimate for a log, and whether it met its tolerance if there was one."""
        found = {name: self.mean, f"{name}_sem": self.sem}
        return found if self.converged is None else found | {"converged": float(self.converged)}


def check_same(one: Measured, other: Measured, names: Sequence[str]) -> None:
    """Refuse two results that were asked for otherwise."""
    for name in names:
        mine, others = getattr(one, name), getattr(other, name)
        if mine != others:
            raise ValueError(f"the two differ in {name}, {mine} and {others}: measure both alike")


@dataclass(frozen=True)
class Samples:
    """Samples by parameter (n, 2·parameters), and how their spread becomes an error bar.

    The spread is, in this order of preference, that of the samples' elements (see
    `estimators.Forms`: 3 × parameters), or that of the first `pilot` samples. Where the pilot
    decided how many there are, its spread is independent of the mean, and Student's interval with
    pilot − 1 degrees of freedom keeps its level although the number was not fixed beforehand
    (Stein 1945). `rounding` is the relative error of one product.
    """

    values: Array
    pilot: int
    rounding: float = 0.0
    elements: Array | None = None

    def __len__(self) -> int:
        return len(self.values)

    def floor(self, weights: Array) -> float:
        """What rounding leaves uncertain in the mean."""
        return self.rounding * float(np.abs(self.values.mean(axis=0)) @ np.abs(weights))

    def variance(self, weights: Array) -> float:
        """Of the mean of the sum of columns with these weights."""
        n = len(self)
        if self.elements is not None:
            plain, adaptive = np.split(weights, 2)
            powers = np.array([plain**2, 2 * plain * adaptive, adaptive**2])
            return 2 * float((powers * self.elements).sum()) / n
        return float(np.var((self.values @ weights)[: self.pilot], ddof=1)) / n

    def estimate(self, weights: Array) -> Estimate:
        """Of the sum of columns with these weights."""
        mean, n = float((self.values @ weights).mean()), len(self)
        sem = math.hypot(math.sqrt(self.variance(weights)), self.floor(weights))
        return Estimate(mean, sem, n, math.inf if n == 1 else self.pilot - 1)
