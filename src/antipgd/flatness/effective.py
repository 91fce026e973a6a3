"""Effective sharpness: Σ s(h) over the eigenvalues of ∇²L, s(h) = ∫_0^h φ(ηh′)dh′.

It is 2/σ² times what Anti-PGD regularises at the learning rate η, with the φ of
`theory.finite_rate`; its limit η → 0 is the trace. s(h) = h + g(h): the trace is taken exactly over
a Krylov space and by probes outside of it, as in Hutch++. g, which is of second order in h and so
lives on the large eigenvalues, is taken over the space's eigenvalues, and for the little that is
left by the quadrature of a few of the same probes.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from antipgd.checks import number, whole
from antipgd.estimate import Estimate
from antipgd.flatness.eigenvalues import double_products
from antipgd.flatness.estimators import Operator
from antipgd.flatness.excess import LARGEST, QUADRATURE, Excess, Largest, Rest
from antipgd.flatness.krylov import Krylov
from antipgd.flatness.objective import Objective
from antipgd.flatness.probes import LANCZOS
from antipgd.flatness.samples import Measured, check_same, tell, tell_tolerance

Array = NDArray[np.float64]
TOLERANCE = 0.05
PRODUCTS_AT_MOST = 10_000
LEAST_PRODUCTS = 48
_DENSE = 64  # parameters up to which the whole Hessian costs no more
_BASIS_AT_LEAST, _BASIS_AT_MOST = 12, 128  # vectors
_OTHERS = 12  # vectors of the same size that are held beside them
_LEAST = 8  # probes: the spread of their elements is known well, see `estimators.Forms`
_NOTHING = 0.01  # of the largest eigenvalue: where nodes cannot tell the sign of what is there
_NEAR = 0.9  # of the limit, from where on there is a warning


class StabilityWarning(UserWarning):
    """The step is at the edge of stability, or beyond it, at this learning rate."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class EffectiveSharpness(Measured):
    """Σ s(h) with its error bar; infinite if an eigenvalue's interval reaches the limit.

    `at_limit` is how many do, `rest` the sum over all others. `eigenvalues` are the largest, each
    with its residual ‖Hu − θu‖ as error bar. h ≤ 0 counts as h; `negative` is the sum of those
    below −1 % of the largest magnitude, outside of the Krylov space only in its order, by a
    quadrature of few nodes. From ηh = `limit` on the step is unstable.
    """

    lr: float
    momentum: float
    nesterov: bool
    limit: float
    rest: Estimate
    trace: Estimate
    eigenvalues: Array
    residuals: Array
    at_limit: int
    negative: float
    products: int
    excess: Estimate = field(repr=False)  # Σ g(h), without those at the limit
    weighed: Array = field(repr=False)  # φ − 1 of each of the eigenvalues
    hold: int = 1
    antithetic: bool = False
    draws: int = 1

    def check_comparable(self, other: Measured) -> None:
        if isinstance(other, EffectiveSharpness):
            names = ("lr", "momentum", "nesterov", "hold", "antithetic", "draws")
            check_same(self, other, names)

    @property
    def largest(self) -> float:
        """The largest ηh."""
        return self.lr * float(self.eigenvalues[0])

    @property
    def ratio(self) -> Estimate:
        """Effective sharpness over trace: the mean of φ over what the trace is made of.

        Not the φ̄ of a clock, which is φ at the eigenvalues themselves: see `clock_ratio`.
        """
        n, freedom, trace = self.n, self.estimate.freedom, self.trace.mean
        if self.at_limit or trace == 0:
            return Estimate(self.mean / trace if trace else math.nan, math.nan, n, freedom)
        excess = self.excess.mean / trace
        sem = math.hypot(excess * self.trace.sem, self.excess.sem) / abs(trace)
        return Estimate(1 + excess, sem, n, freedom)

    @property
    def clock_ratio(self) -> float:
        """φ̄ = Σhφ(ηh)/Σh, by which SGD's clock runs faster than at small learning rates.

        From the `eigenvalues`; all others count as φ = 1, which makes it the least possible.
        Infinite where one is at the limit.
        """
        if self.at_limit:
            return math.inf
        rates = self.weighed * self.eigenvalues
        return 1 + float(rates.sum()) / self.trace.mean if self.trace.mean else math.nan

    def __repr__(self) -> str:
        how = f"lr {self.lr:g}" + (f", momentum {self.momentum:g}" if self.momentum else "")
        sharp = f"{self.estimate}" if not self.at_limit else f"inf, the rest {self.rest}"
        met = "" if self.converged is not False else ", tolerance not met"
        return (
            f"EffectiveSharpness({sharp} at {how}{', nesterov' if self.nesterov else ''}\n"
            f"  {self.ratio.mean:.3g} times the trace {self.trace}; negative {self.negative:.2g}\n"
            f"  largest lr·h {self.largest:.3g} of {self.limit:.3g}, {self.at_limit} at the limit; "
            f"{self.products} products{met})"
        )

    def metrics(self) -> dict[str, float]:
        """For a log: every single number."""
        return self._named("effective_sharpness") | {
            "trace": self.trace.mean, "trace_sem": self.trace.sem, "ratio": self.ratio.mean,
            "clock_ratio": self.clock_ratio,
            "largest": self.largest, "negative": self.negative, "rest": self.rest.mean,
            "at_limit": float(self.at_limit), "products": float(self.products),
        }  # fmt: skip


def measured_effective_sharpness(
    objective: Objective,
    lr: float,
    momentum: float = 0.0,
    nesterov: bool = False,
    *,
    hold: int = 1,
    antithetic: bool = False,
    draws: int = 1,
    tolerance: float = TOLERANCE,
    max_products: int = PRODUCTS_AT_MOST,
    seed: int = 0,
) -> EffectiveSharpness:
    """Of an objective's Hessian; the arguments are those of `Place.effective_sharpness`."""
    number("lr", lr, 0, above=True)
    number("tolerance", tolerance, 0, 1, above=True)
    whole("max_products", max_products, LEAST_PRODUCTS)
    excess = Excess(float(lr), momentum, nesterov, hold, antithetic, draws)
    excess(np.ones(1))  # refuses options that are none before a product is taken
    sums = _Sums(objective, excess, tolerance, max_products, seed)
    if objective.size <= _DENSE:
        sums.take_all()
    else:
        sums.take_apart()
    found = sums.result()
    _tell(found, tolerance)
    return found


class _Sums:
    """Spends products until the tolerance is met or they are used up."""

    def __init__(
        self, objective: Objective, excess: Excess, tolerance: float, budget: int, seed: int
    ) -> None:
        self.objective, self.excess, self.tolerance = objective, excess, tolerance
        self.budget, self.seed = budget, seed
        self.rest: Rest | None = None
        self.largest = Largest(np.zeros(0), np.zeros(0), excess)

    @property
    def left(self) -> int:
        return self.budget - self.objective.products_taken

    def take_all(self) -> None:
        """The whole Hessian, one product for each parameter."""
        unit = torch.eye(self.objective.size, device=self.objective.device)
        matrix = double_products(self.objective, unit).cpu().numpy()
        values = np.linalg.eigvalsh((matrix + matrix.T) / 2)[::-1]
        rounding = self._rounding * np.abs(values).max()
        self.largest = Largest(values, np.full(len(values), rounding), self.excess)
        self.rest = None

    def take_apart(self) -> None:
        """The Krylov space, then probes; all where that turns out to be cheaper."""
        objective = self.objective
        squares, rows = objective.flat().square(), objective.rows_at_once(matrices=4)
        operator = Operator(objective.products, objective.probes(self.seed), squares, rows)
        space = self._space(operator)
        self.largest = Largest(*space.ritz(), self.excess)
        self.rest = rest = Rest(operator, space.basis, self.excess)
        rest.pilot(lambda sum_outside: self._allowed(sum_outside), self.left - _LEAST)
        rest.linear.draw(_LEAST - len(rest.linear))
        while self.left > 0 and not self.met:
            wanted = self._wanted(rest)
            if self._all_is_cheaper(wanted):
                return self.take_all()
            rest.more(wanted, self.left)

    def _space(self, operator: Operator) -> Krylov:
        gaussian = self.objective.probes(self.seed, "gaussian")
        space = Krylov(
            operator.products, lambda first, count: gaussian.rows(LANCZOS, first, count),
            min(_fitting(self.objective), self.budget - LEAST_PRODUCTS // 2),
        )  # fmt: skip
        while not space.full and not self._settled(space):
            space.grow()
            self.largest = Largest(*space.ritz(), self.excess)
        return space

    def _settled(self, space: Krylov) -> bool:
        return self.largest.settled(self.tolerance) and not space.unsettled(LARGEST)

    def _allowed(self, outside: float) -> float:
        """The error of a quadrature that does not matter."""
        within = float(self.largest.values.sum()) + self.largest.sum
        return QUADRATURE * self.tolerance * abs(within + outside)

    @property
    def _rounding(self) -> float:
        return float(torch.finfo(self.objective.dtype).eps)

    def _missed_by(self) -> float:
        """Half of the 95 % interval over what is accepted; where the sum is infinite, of tr H."""
        found = self.sum
        low, high = found.interval()
        scale = max(abs(found.mean), abs(self.trace.mean) if self.at_limit else 0.0)
        accepted = self.tolerance * scale
        return (high - low) / 2 / accepted if accepted else math.inf if high > low else 0.0

    @property
    def met(self) -> bool:
        """Whether half of the 95 % interval is within the tolerance."""
        return self._missed_by() <= 1

    def _wanted(self, rest: Rest) -> float:
        """How many probes more meet the tolerance, if what they have to mend is all spread."""
        return len(rest.linear) * (min(self._missed_by(), 1e4) ** 2 - 1)

    @property
    def at_limit(self) -> int:
        """How many eigenvalues may be at the limit."""
        return int(self.largest.reaching.sum()) + (self.rest.at_limit if self.rest else 0)

    def _all_is_cheaper(self, wanted: float) -> bool:
        size = self.objective.size
        return size <= min(wanted, self.left) and 32 * size**2 <= self.objective.memory

    def _estimate(self, mean: float, *errors: float) -> Estimate:
        n, freedom = (len(self.rest.linear), self.rest.freedom) if self.rest else (1, math.inf)
        return Estimate(mean, math.hypot(*errors), n, freedom)

    @property
    def _floor(self) -> float:
        """What rounding leaves uncertain."""
        values = self.largest.values
        slopes = 1 + np.abs(self.excess.slope(values))
        outside = abs(self.rest.trace) if self.rest else 0.0
        return self._rounding * (float(np.abs(values) @ slopes) + outside)

    @property
    def trace(self) -> Estimate:
        """tr H."""
        within, rest = float(self.largest.values.sum()), self.rest
        if rest is None:
            return self._estimate(within, self._floor)
        return self._estimate(within + rest.trace, rest.spread[0], self._floor)

    @property
    def added(self) -> Estimate:
        """Σ g."""
        found, rest = self.largest.sum + self.largest.coupling, self.rest
        if rest is None:
            return self._estimate(found, self._floor)
        return self._estimate(
            found + rest.sum, rest.spread[1], self.largest.coupling, rest.bias, self._floor
        )

    @property
    def sum(self) -> Estimate:
        """Of both, without what is at the limit."""
        mean, rest = self.trace.mean + self.added.mean, self.rest
        if rest is None:
            return self._estimate(mean, self._floor)
        return self._estimate(mean, rest.spread[2], self.largest.coupling, rest.bias, self._floor)

    def result(self) -> EffectiveSharpness:
        """All of it."""
        rest, largest, sum_below = self.rest, self.largest, self.sum
        at_limit = self.at_limit
        infinite = Estimate(math.inf, math.nan, sum_below.n, sum_below.freedom)
        threshold = -_NOTHING * float(np.abs(largest.values).max())
        negative = largest.below(threshold) + (rest.below(threshold) if rest else 0.0)
        return EffectiveSharpness(
            estimate=infinite if at_limit else sum_below, rest=sum_below,
            batch_norm=self.objective.batch_norm, converged=self.met, seed=self.seed,
            lr=self.excess.lr, momentum=self.excess.momentum, nesterov=self.excess.nesterov,
            limit=self.excess.lr * self.excess.limit, trace=self.trace, excess=self.added,
            eigenvalues=largest.values[:LARGEST], residuals=largest.residuals[:LARGEST],
            at_limit=at_limit, negative=negative, products=self.objective.products_taken,
            weighed=self.excess.slope(largest.values[:LARGEST]), hold=self.excess.hold,
            antithetic=self.excess.antithetic, draws=self.excess.draws,
        )  # fmt: skip


def _fitting(objective: Objective) -> int:
    """How many vectors of a basis fit into memory."""
    row = objective.size * objective.tensors[0].element_size()
    fitting = objective.memory // row - _OTHERS
    if fitting < _BASIS_AT_LEAST:
        needed = (_BASIS_AT_LEAST + _OTHERS) * row
        raise ValueError(
            f"effective_sharpness keeps {needed / 2**20:.2g} MiB for at least "
            f"{_BASIS_AT_LEAST} vectors and {_OTHERS} beside them; memory is "
            f"{objective.memory / 2**20:.2g} MiB: raise it"
        )
    return int(min(fitting, _BASIS_AT_MOST, objective.size // 2))


def _tell(found: EffectiveSharpness, tolerance: float) -> None:
    if found.converged is False:
        low, high = found.rest.interval()
        tell_tolerance(
            f"tolerance {tolerance:g} not met after {found.products} products: the effective "
            f"sharpness is {found.rest.mean:.3g} ± {(high - low) / 2:.2g}"
        )
    if found.at_limit:
        tell(
            f"{found.at_limit} eigenvalues reach the limit of stability, lr·h = {found.limit:.3g}: "
            f"the effective sharpness is infinite, that of the rest {found.rest.mean:.3g}",
            StabilityWarning,
        )
    elif found.largest >= _NEAR * found.limit:
        tell(
            f"the largest lr·h is {found.largest:.3g}, {found.largest / found.limit:.0%} of the "
            f"limit of stability {found.limit:.3g}",
            StabilityWarning,
        )
