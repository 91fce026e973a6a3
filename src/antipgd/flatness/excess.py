"""What a finite learning rate adds to curvature: g(h) = ∫_0^h φ(ηh′)dh′ − h, and Σ g over H.

g is of second order in h, so that its sum lives on the large eigenvalues: `Largest` takes it over a
Krylov space Q, `Rest` with few probes over what H is outside of it. The trace of the latter comes
from the same probes, and some more.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipgd.flatness.estimators import Forms, Operator, Subspace, residual
from antipgd.flatness.krylov import Quadratures
from antipgd.flatness.probes import RESIDUAL
from antipgd.theory.finite_rate import regulariser, stability_limit, variance_ratio
from antipgd.theory.finite_rate.ratios import Options

Array = NDArray[np.float64]
Chosen = NDArray[np.bool_]
LARGEST = 10  # eigenvalues that are found one by one
_BASIS = 20  # vectors at least, where there are as many
_PILOTS = 3  # probes whose quadrature is taken
_STEPS_AT_MOST = 12  # of it
_COUPLING = 1 / 20  # of the tolerance, that the coupling may be
QUADRATURE = 1 / 10  # and the last change of a quadrature
_EXACT = 0.1  # relative residual of the largest eigenvalues
_SURE = 1e-3  # and of one whose interval would reach the limit


@dataclass(frozen=True)
class Excess:
    """g(h) = s(h) − h, which a learning rate adds to h: none for h ≤ 0, −h from the limit on.

    The latter takes out of a sum what it is infinite by.
    """

    lr: float
    momentum: float = 0.0
    nesterov: bool = False
    hold: int = 1
    antithetic: bool = False
    draws: int = 1

    @cached_property
    def limit(self) -> float:
        """The curvature at which the step is unstable."""
        return stability_limit(self.momentum, self.nesterov) / self.lr

    @property
    def _options(self) -> Options:
        return {"momentum": self.momentum, "nesterov": self.nesterov, "hold": self.hold,
                "antithetic": self.antithetic, "draws": self.draws}  # fmt: skip

    def _inside(self, h: Array) -> Chosen:
        return np.asarray((h > 0) & (h < self.limit))

    def __call__(self, h: Array) -> Array:
        """g(h)."""
        found, inside = np.where(h > 0, -h, 0.0), self._inside(h)
        sums = regulariser(h[inside], self.lr, math.sqrt(2), **self._options)
        found[inside] = sums - h[inside]
        return found

    def slope(self, h: Array) -> Array:
        """g′ = φ − 1; 0 at the limit, too."""
        found, inside = np.zeros_like(h), self._inside(h)
        ratios = variance_ratio(self.lr * h[inside], **self._options)
        found[inside] = ratios - 1
        return found


@dataclass(frozen=True)
class Largest:
    """The eigenvalues of QHQᵀ, and what they tell of Σ g(h) and of the limit."""

    values: Array  # descending
    residuals: Array
    excess: Excess

    @cached_property
    def reaching(self) -> Chosen:
        """Whether an eigenvalue's interval reaches the limit."""
        return np.asarray(self.values + self.residuals >= self.excess.limit)

    @cached_property
    def sum(self) -> float:
        """Of g."""
        below = self.values[~self.reaching]
        return float(self.excess(below).sum() - self.values[self.reaching].sum())

    def below(self, threshold: float) -> float:
        """The sum of those below a number."""
        return float(self.values[self.values < threshold].sum())

    @cached_property
    def coupling(self) -> float:
        """What Σ g lacks because Q and the rest are taken apart, to second order.

        Σ r² (g′(θ) − g′(c))/(θ − c) with the residuals r and c = 0 for what they lead to.
        """
        chosen = (self.values > 0) & ~self.reaching
        h, r = self.values[chosen], self.residuals[chosen]
        return float((r**2 * self.excess.slope(h) / h).sum())

    def settled(self, tolerance: float) -> bool:
        """Whether more vectors would tell nothing that matters within the tolerance."""
        h, r = self.values[:LARGEST], self.residuals[:LARGEST]
        if len(self.values) < _BASIS or (r > _EXACT * np.abs(h)).any():
            return False
        unclear = self.reaching & (self.values - self.residuals < self.excess.limit)
        if (self.residuals[unclear] > _SURE * self.values[unclear]).any():
            return False
        scale = abs(float(self.values.sum()) + self.sum)
        return abs(self.coupling) <= _COUPLING * tolerance * scale


class Rest:
    """What H is outside of Q, C = (1−Π)H(1−Π), by probes: tr C and tr g(C)."""

    def __init__(self, operator: Operator, basis: Tensor, excess: Excess) -> None:
        known = np.zeros(2 * len(operator.sizes))
        self.linear = residual(operator, Subspace(basis, known))
        self.curved = Forms(operator, RESIDUAL, self._no_image)
        self.operator, self.basis, self.excess = operator, basis, excess
        self._total = np.repeat([1.0, 0.0], len(operator.sizes))
        self._nodes: list[tuple[Array, Array]] = []
        self.steps, self.bias = 0, 0.0

    def _no_image(self, v: Tensor) -> Tensor:
        raise AssertionError("quadratures give these")

    def pilot(self, allowed: Callable[[float], float], products: int) -> None:
        """The first probes; steps until the last one changes Σ g by no more than is allowed."""
        spaces, v = self._begin(_PILOTS)
        before = math.inf
        while True:
            now = float(np.mean(self._sums(spaces)))
            self.bias, before = abs(now - before), now
            most = min(_STEPS_AT_MOST, products // _PILOTS)
            if len(spaces) >= most or self.bias <= allowed(self.trace + now):
                break
            spaces.step()
        self.steps = len(spaces)
        self._keep(spaces, v)

    def more_quadratures(self, count: int) -> None:
        """As many more probes, each with as many steps."""
        spaces, v = self._begin(count)
        for _ in range(self.steps - 1):
            spaces.step()
        self._keep(spaces, v)

    def _begin(self, count: int) -> tuple[Quadratures, Tensor]:
        """Fresh probes with their first step, which is a sample of the trace, too."""
        v = self.operator.probes.rows(RESIDUAL, len(self.linear), count)
        inside = torch.addmm(v, v @ self.basis.T, self.basis, alpha=-1)
        spaces = Quadratures(self.linear.image, inside)
        self.linear.add(v, spaces.step() * spaces.lengths[:, None])
        return spaces, v

    def _keep(self, spaces: Quadratures, v: Tensor) -> None:
        self._nodes.append(spaces.nodes())
        self.curved.add(v, spaces.images(self.excess))

    def _sums(self, spaces: Quadratures) -> Array:
        nodes, weights = spaces.nodes()
        return (weights * self.excess(nodes)).sum(axis=1)

    def _mean(self, forms: Forms) -> float:
        return float((forms.values @ self._total).mean())

    def _of_nodes(self, function: Callable[[Array], Array]) -> float:
        """tr f(C) by all quadratures."""
        sums = [(weights * function(nodes)).sum(axis=1) for nodes, weights in self._nodes]
        return float(np.concatenate(sums).mean())

    @property
    def trace(self) -> float:
        """tr C."""
        return self._mean(self.linear)

    @property
    def sum(self) -> float:
        """tr g(C)."""
        return self._mean(self.curved)

    def below(self, threshold: float) -> float:
        """The sum of its eigenvalues below a number, in order of magnitude: there are few nodes."""
        return self._of_nodes(lambda h: np.where(h < threshold, h, 0.0))

    @property
    def at_limit(self) -> int:
        """About how many eigenvalues are there, by the weight of the nodes."""
        beyond = self._of_nodes(lambda h: (h >= self.excess.limit).astype(float))
        return max(1, round(beyond)) if beyond else 0

    @property
    def spread(self) -> tuple[float, float, float]:
        """Standard errors of tr C, of tr g(C) and of their sum, as if fully correlated."""
        one, other = self.linear.variance(), self.curved.variance()
        n, pilots = len(self.linear), len(self.curved)
        both = one / n + other / pilots + 2 * math.sqrt(one * other) / n
        return math.sqrt(one / n), math.sqrt(other / pilots), math.sqrt(both)

    @property
    def freedom(self) -> float:
        """Of the spread: it is that of ‖Cv‖², whose relative variance is 2 tr C⁴/(tr C²)².

        A single large eigenvalue leaves n − 1, many small ones as many times that as they are.
        """
        squares, fourths = (self._of_nodes(lambda h, k=k: h**k) for k in (2, 4))  # type: ignore[misc]
        return (len(self.linear) - 1) * max(1.0, squares**2 / fourths if fourths else 1.0)

    def more(self, wanted: float, allowed: int) -> None:
        """More probes, of the kind of which a product takes more of the variance away.

        As many as are wanted, but not more than half of those that there are.
        """
        n, pilots, extra = len(self.linear), len(self.curved), max(1, self.steps - 1)
        one, other, _ = self.spread
        if other**2 / pilots / extra > one**2 / n and allowed >= self.steps:
            count = min(wanted * pilots / n, pilots / 2, allowed // self.steps)
            self.more_quadratures(max(1, math.ceil(count)))
        else:
            self.linear.draw(max(1, math.ceil(min(wanted, n / 2, allowed))))
