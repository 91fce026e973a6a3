"""How many products with the Hessian to spend, and on which estimator.

A sketch HΩ tells how fast the spectrum falls: each of its vectors measures how much of H the others
leave, and so what Hutch++ would cost with each rank, against Hutchinson's. Then samples are drawn
until the tolerance is met. That they are stopped by their own spread would make intervals too short
if the spread were noisy; that of the elements (see `estimators.Forms`) hardly is, which the tested
coverage confirms.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtrit
from torch import Tensor

from antipgd.flatness import estimators
from antipgd.flatness.estimators import Forms, Operator
from antipgd.flatness.probes import SKETCH
from antipgd.flatness.samples import Samples

Array = NDArray[np.float64]
# The fewest samples whose spread is trusted, and the fewest products to get them.
MIN_SAMPLES = {"hutchinson": 32, "hutch++": 16}
MIN_PRODUCTS = {"auto": 48, "exact": 1, "hutchinson": 32, "hutch++": 48}
_SKETCH = 16
_UNSURE = 4  # vectors at the end of a sketch that leave too few others to measure with


class Plan:
    """Spends products on an operator until a tolerance is met or the budget is used up."""

    def __init__(
        self,
        operator: Operator,
        budget: int,
        tolerance: float | None,
        max_rank: int,
        expect: Callable[[float], None] = lambda products: None,
    ) -> None:
        self.operator, self.budget, self.tolerance = operator, budget, tolerance
        self.max_rank = max_rank  # that fits into memory
        self.expect = expect  # is told how many products there will be, as soon as that is known
        self.spent = 0
        self.size = sum(operator.sizes)
        self._total = np.repeat([1.0, 0.0], len(operator.sizes))

    def carry_out(self, method: str) -> tuple[str, Samples]:
        """The estimator that was used, and its samples."""
        small = self.size < 2 * _SKETCH  # sketches would cost more than the whole
        if method == "exact" or (small and method == "hutch++"):
            return self._exact()
        forms = estimators.hutchinson(self.operator)
        if method == "hutchinson" or self.max_rank < _SKETCH:
            return "hutchinson", self._sequence(forms, MIN_SAMPLES["hutchinson"])
        return self._deflated(forms, forced=method == "hutch++")

    @property
    def left(self) -> int:
        """Products that may still be spent."""
        return self.budget - self.spent

    def met(self, samples: Samples) -> bool:
        """Whether half of the 95 % interval is within the tolerance."""
        found = samples.estimate(self._total)
        low, high = found.interval()
        return (high - low) / 2 <= (self.tolerance or 0) * abs(found.mean)

    def _exact(self) -> tuple[str, Samples]:
        self.spent += self.size
        self.expect(self.spent)
        return "exact", estimators.exact_samples(self.operator)

    # Independent samples

    def _needed(self, variance: float, mean: float, least: int) -> float:
        """How many samples of this variance meet the tolerance."""
        assert self.tolerance is not None
        if variance == 0:
            return least
        half = self.tolerance * abs(mean)
        quantile = float(stdtrit(least - 1, 0.975))
        return max(least, quantile**2 * variance / half**2) if half else math.inf

    def _mean(self, forms: Forms) -> float:
        return float((forms.values @ self._total).mean())

    def _sequence(self, forms: Forms, least: int) -> Samples:
        """Samples until there are enough."""
        self._draw(forms, max(0, least - len(forms)))
        if self.tolerance is None:
            self.expect(self.budget)
            self._draw(forms, self.left)
            return forms.samples()
        while self.left > 0 and not self.met(forms.samples()):
            wanted = self._needed(forms.variance(), self._mean(forms), len(forms))
            a_few = len(forms) // 50 + 1  # the mean moves, and with it what is wanted
            self._draw(forms, int(min(self.left, max(a_few, wanted - len(forms) + 1))))
        return forms.samples()

    def _draw(self, forms: Forms, count: int) -> None:
        self.spent += count
        if self.tolerance is not None:
            self.expect(self.spent)
        forms.draw(count)

    # With the large eigenvalues taken out

    def _deflated(self, forms: Forms, forced: bool) -> tuple[str, Samples]:
        """Hutch++ with the rank that a sketch suggests; another where that is cheaper."""
        sketch = self._sketch(forms, forced)
        rank, cost, usual = self._best_rank(forms, self._variances(sketch))
        if not forced and self.tolerance is not None and self.size <= min(cost, usual, self.left):
            return self._exact()
        if not forced and usual <= cost:
            return "hutchinson", self._sequence(forms, MIN_SAMPLES["hutchinson"])
        within = estimators.subspace(self.operator, sketch[:rank])
        self.spent += len(within.basis)
        del sketch
        rest = estimators.residual(self.operator, within)
        return "hutch++", self._sequence(rest, MIN_SAMPLES["hutch++"])

    def _sketch(self, forms: Forms, forced: bool) -> Tensor:
        """HΩ, grown while that promises to pay; gives Hutchinson's samples on the way."""
        if self.tolerance is None:
            return self._grown(None, forms, min(self.budget // 3, self.max_rank))
        first = _SKETCH if forced else MIN_SAMPLES["hutchinson"]
        sketch = self._grown(None, forms, min(first, self.max_rank))
        while True:
            rank, cost, _ = self._best_rank(forms, self._variances(sketch))
            count = len(sketch)
            following = min(2 * count, self.max_rank, self.left // 3)
            if rank < count - _UNSURE or cost - rank < 2 * count or following <= count:
                return sketch
            sketch = self._grown(sketch, forms, following - count)

    def _grown(self, sketch: Tensor | None, forms: Forms, count: int) -> Tensor:
        self.spent += count
        parts = [] if sketch is None else [sketch]
        for omega in self.operator.in_parts(SKETCH, len(forms), count):
            parts.append(self.operator.products(omega))
            forms.add(omega, parts[-1])
        return torch.cat(parts)

    def _variances(self, sketch: Tensor) -> Array:
        """Predicted variance of a residual sample for ranks 0 … k: 2‖(1−Π)H‖² at most."""
        squares = estimators.remaining_squares(sketch)
        sure = max(1, len(squares) - _UNSURE)
        return 2 * np.append(squares[:sure], np.full(len(squares) + 1 - sure, squares[sure - 1]))

    def _best_rank(self, forms: Forms, variances: Array) -> tuple[int, float, float]:
        """The rank with the least cost, or variance at fixed cost, that, and Hutchinson's."""
        least, ranks = MIN_SAMPLES["hutch++"], np.arange(len(variances))
        if self.tolerance is not None:
            mean = self._mean(forms)
            costs = ranks + [self._needed(variance, mean, least) for variance in variances]
            usual = self._needed(forms.variance(), mean, MIN_SAMPLES["hutchinson"]) - len(forms)
        else:
            costs = variances / np.maximum(self.left - ranks, 1)
            usual = forms.variance() / self.budget
        costs = np.where(ranks + least <= self.left, costs, math.inf)
        rank = int(np.argmin(costs[1:])) + 1
        return rank, float(costs[rank]), usual
