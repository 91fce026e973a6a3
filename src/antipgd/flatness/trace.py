"""The trace of the Hessian with an error bar, in all and by parameter.

`measured_trace` decides which estimator to use and how many products with the Hessian to spend; a
`Trace` keeps the samples by parameter, so that traces of groups, scale-invariant traces and
differences of two models come with error bars, too.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from antipgd.checks import number, one_of, whole
from antipgd.estimate import Estimate
from antipgd.flatness.estimators import Operator
from antipgd.flatness.objective import Objective
from antipgd.flatness.planning import MIN_PRODUCTS, Plan
from antipgd.flatness.samples import Measured, Samples, tell_tolerance

Array = NDArray[np.float64]
METHODS = tuple(MIN_PRODUCTS)
PRODUCTS = 96  # unless a tolerance is given
PRODUCTS_AT_MOST = 10_000  # with one
_MATRICES = 4  # of the size of a sketch, held at a time by Hutch++
_LEAST_SKETCH = 16
_PATIENCE = 2.0  # seconds before a bar is shown, on a terminal only


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Trace(Measured):
    """tr ∇²L, and what else its samples tell; `method` and `products` say how it was made."""

    method: str
    products: int
    names: tuple[str, ...] = field(repr=False)
    sizes: tuple[int, ...] = field(repr=False)
    scales: Array = field(repr=False)  # ‖w_l‖²/n_l
    samples: Samples = field(repr=False)

    def __repr__(self) -> str:
        met = ", tolerance not met" if self.converged is False else ""
        return (f"Trace({self.estimate}; scaled {self.scaled.mean:.3g}, adaptive "
                f"{self.adaptive.mean:.3g}; {self.method}, {self.products} products, batch norm "
                f"{self.batch_norm}{met})")  # fmt: skip

    def metrics(self) -> dict[str, float]:
        """For a log: every single number, those with an error also as `…_sem`."""
        found = self._named("trace") | {"products": float(self.products)}
        for name in ("scaled", "adaptive"):
            estimate = getattr(self, name)
            found |= {f"{name}_trace": estimate.mean, f"{name}_trace_sem": estimate.sem}
        return found

    def weighted(self, weights: Mapping[str, float]) -> Estimate:
        """Σ_l weights[l]·tr_l over parameters l; those that are not named count nothing."""
        unknown = weights.keys() - set(self.names)
        if unknown:
            raise ValueError(f"no parameter {min(unknown)!r}; there are {', '.join(self.names)}")
        chosen = [weights.get(name, 0.0) for name in self.names]
        return self.samples.estimate(np.array(chosen + [0.0] * len(chosen)))

    def group(self, members: Callable[[str], bool] | Iterable[str]) -> Estimate:
        """The trace over the parameters whose names satisfy a predicate or are listed."""
        chosen = [*filter(members, self.names)] if callable(members) else [*members]
        if not chosen:
            raise ValueError(f"the group is empty; there are {', '.join(self.names)}")
        return self.weighted(dict.fromkeys(chosen, 1.0))

    @property
    def parameters(self) -> dict[str, Estimate]:
        """The trace over each parameter."""
        return {name: self.weighted({name: 1.0}) for name in self.names}

    @property
    def scaled(self) -> Estimate:
        """Σ_l ‖w_l‖² tr_l / n_l, which does not change if a layer is scaled and another back.

        A raw trace falls when weights before a normalisation grow, though nothing is flatter.
        """
        return self.weighted(dict(zip(self.names, self.scales, strict=True)))

    @property
    def adaptive(self) -> Estimate:
        """Σ_i w_i² H_ii, invariant to the scale of every single unit.

        σ²/2 times this is, to second order, the expected sharpness for noise of σ|w_i| on w_i.
        """
        count = len(self.names)
        return self.samples.estimate(np.array([0.0] * count + [1.0] * count))


def difference(one: Measured, other: Measured) -> Estimate:
    """tr(one) − tr(other), with the spread of the differences where the probes were the same.

    For two points of one model, or two models with the same parameters, each made with a number of
    products or with a tolerance. Traces made with the same seed and estimator share their probes,
    as many as the shorter one has: pairs take most of the spread out, and what the longer one has
    beyond them is used as far as it helps. All others are subtracted as they are: exact ones have
    no probes, and Hutch++ is unbiased whatever probes its subspace came from, so that it does not
    correlate with Hutchinson's samples of the same seed. Two scaled traces at equal loss, or two
    sharpnesses of the same noise, are subtracted so, too: if they share probes the interval is
    wider than need be.
    """
    if type(one) is not type(other) or not isinstance(one, Measured):
        raise TypeError(
            f"difference takes two traces, or two other results of one kind; got "
            f"{type(one).__name__} and {type(other).__name__}"
        )
    one.check_comparable(other)
    if not (isinstance(one, Trace) and isinstance(other, Trace)):
        return _subtracted(one, other)
    _check_same_parameters(one, other)
    if one.method != other.method or one.method == "exact" or one.seed != other.seed:
        return _subtracted(one, other)
    total = np.repeat([1.0, 0.0], len(one.names))
    a, b = (trace.samples.values @ total for trace in (one, other))
    mean, variance, degrees = _paired(a, b) if len(a) <= len(b) else _paired(b, a)
    sign = 1 if len(a) <= len(b) else -1
    floors = one.samples.floor(total), other.samples.floor(total)
    sem = math.hypot(math.sqrt(variance), *floors)
    freedom = min(one.degrees, other.degrees, degrees)
    return Estimate(sign * mean, sem, min(one.n, other.n), freedom)


def _subtracted(one: Measured, other: Measured) -> Estimate:
    sem, mean = math.hypot(one.sem, other.sem), one.mean - other.mean
    return Estimate(mean, sem, min(one.n, other.n), min(one.degrees, other.degrees))


def _check_same_parameters(one: Trace, other: Trace) -> None:
    mine, others = (dict(zip(trace.names, trace.sizes, strict=True)) for trace in (one, other))
    for name in [*mine, *others]:
        if mine.get(name) != others.get(name):
            sizes = [f"has {sizes[name]} elements" if name in sizes else "is missing"
                     for sizes in (mine, others)]  # fmt: skip
            raise ValueError(
                f"the two traces are not over the same parameters: {name!r} {sizes[0]} in the "
                f"first and {sizes[1]} in the second; measure both over the same, by the same names"
            )


def _paired(few: Array, many: Array) -> tuple[float, float, float]:
    """The mean of few − many, its variance and degrees of freedom; the first of both are pairs.

    With the m pairs (a, b) and r further b, D = mean(a − γb) − (1 − γ)·mean(further b) has the
    right mean for every γ. γ = (m + rβ)/(m + r) with β = Cov(a, b)/Var(b) gives it the least
    variance: plain pairs where a and b are alike, plain means where they have nothing in common
    (the regression estimator of double sampling, Cochran 1977, chapter 12).
    """
    pairs, further = many[: len(few)], many[len(few) :]
    m, r = len(few), len(further)
    if not r:
        return float((few - pairs).mean()), float(np.var(few - pairs, ddof=1)) / m, m - 1
    covariance = np.cov(few, pairs)
    gamma = (m + r * covariance[0, 1] / (covariance[1, 1] or math.inf)) / (m + r)
    mean = (few - gamma * pairs).mean() - (1 - gamma) * further.mean()
    variance = np.var(few - gamma * pairs, ddof=2) / m + (1 - gamma) ** 2 * np.var(many, ddof=1) / r
    return float(mean), float(variance), m - 2


def _budget(method: str, tolerance: float | None, max_probes: int | None, size: int) -> int:
    """The number of products that may be spent."""
    one_of("method", method, METHODS)
    if tolerance is not None:
        number("tolerance", tolerance, 0, 1, above=True)
    if max_probes is None:
        return PRODUCTS if tolerance is None else PRODUCTS_AT_MOST
    enough = MIN_PRODUCTS[method]  # the spread of fewer samples is no error bar
    least = {"exact": size, "auto": min(enough, size)}.get(method, enough)
    return whole(f"max_probes of method {method!r}", max_probes, least)


def _max_rank(objective: Objective, method: str) -> int:
    """How many vectors a sketch may have."""
    vector = _MATRICES * objective.size * objective.tensors[0].element_size()
    needed, memory = vector * _LEAST_SKETCH, objective.memory
    if method == "hutch++" and needed > memory:
        raise ValueError(
            f"method 'hutch++' keeps {needed / 2**20:.2g} MiB for at least {_LEAST_SKETCH} probes; "
            f"memory is {memory / 2**20:.2g} MiB: raise it or use method 'hutchinson'"
        )
    return int(min(memory // vector, objective.size // 2))


def measured_trace(
    objective: Objective,
    *,
    method: str = "auto",
    tolerance: float | None = None,
    max_probes: int | None = None,
    seed: int = 0,
) -> Trace:
    """The trace of an objective's Hessian; the arguments are those of `hessian_trace`."""
    budget = _budget(method, tolerance, max_probes, objective.size)
    at_once = budget if tolerance is None else MIN_PRODUCTS["auto"]
    if method == "auto" and objective.size <= at_once:
        method = "exact"
    squares, rows = objective.flat().square(), objective.rows_at_once(matrices=4)
    with tqdm(unit=" products", disable=None, leave=False, delay=_PATIENCE) as bar:

        def products(vectors: Tensor) -> Tensor:
            found = objective.products(vectors)
            bar.update(len(vectors))
            return found

        def expect(total: float) -> None:
            bar.total = total

        operator = Operator(products, objective.probes(seed), squares, rows)
        plan = Plan(operator, budget, tolerance, _max_rank(objective, method), expect)
        used, samples = plan.carry_out(method)
    norms = [float(part.double().sum()) for part in squares.split(objective.sizes)]
    trace = Trace(
        estimate=samples.estimate(np.repeat([1.0, 0.0], len(objective.names))),
        method=used, products=plan.spent, batch_norm=objective.batch_norm,
        converged=None if tolerance is None else plan.met(samples), seed=seed,
        names=tuple(objective.names), sizes=tuple(objective.sizes),
        scales=np.array(norms) / np.maximum(objective.sizes, 1), samples=samples,
    )  # fmt: skip
    if trace.converged is False:
        low, high = trace.interval()
        tell_tolerance(
            f"tolerance {tolerance:g} not met after {plan.spent} products: the trace is "
            f"{trace.mean:.3g} ± {(high - low) / 2:.2g}"
        )
    return trace
