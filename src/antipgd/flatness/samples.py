"""Samples of a trace by parameter, and how their spread becomes an error bar."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antipgd.estimate import Estimate

Array = NDArray[np.float64]


class ToleranceWarning(UserWarning):
    """The tolerance asked for was not met."""


@dataclass(frozen=True)
class Samples:
    """Samples by parameter (n, 2·parameters), and how their spread becomes an error bar.

    The spread is, in this order of preference, that of the samples' elements (see
    `estimators.Forms`: 3 × parameters), or that of the first `pilot` samples. Where the pilot
    decided how many there are, its spread is independent of the mean, and Student's interval with
    pilot − 1 degrees of freedom keeps its level although the number was not fixed beforehand
    (Stein 1945). `crossed` (2·parameters, n, n) tells how far the samples depend on each other
    (see `estimators.XTrace`). `rounding` is the relative error of one product.
    """

    values: Array
    pilot: int
    rounding: float = 0.0
    elements: Array | None = None
    crossed: Array | None = None

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
        independent = float(np.var((self.values @ weights)[: self.pilot], ddof=1)) / n
        if self.crossed is None:
            return independent
        shared = np.tensordot(weights, self.crossed, 1)
        return independent + max(0.0, float((shared * shared.T).sum()) / (n * (n - 1)))

    def estimate(self, weights: Array) -> Estimate:
        """Of the sum of columns with these weights."""
        mean, n = float((self.values @ weights).mean()), len(self)
        sem = math.hypot(math.sqrt(self.variance(weights)), self.floor(weights))
        return Estimate(mean, sem, n, math.inf if n == 1 else self.pilot - 1)
