"""The trace of the Hessian with an error bar, in all and by parameter.

`hessian_trace` decides which estimator to use and how many products with the Hessian to spend; a
`Trace` keeps the samples by parameter, so that traces of groups, scale-invariant traces and
differences of two models come with error bars, too.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from antipgd.estimate import Estimate
from antipgd.flatness.estimators import Operator
from antipgd.flatness.inputs import Parameters
from antipgd.flatness.measuring import measuring
from antipgd.flatness.objective import MEMORY, Loss, Objective
from antipgd.flatness.planning import MIN_PRODUCTS, Plan
from antipgd.flatness.samples import Samples, ToleranceWarning

Array = NDArray[np.float64]
METHODS = tuple(MIN_PRODUCTS)
PRODUCTS = 96  # unless a tolerance is given
_PATIENCE = 2.0  # seconds before a bar is shown, on a terminal only
PRODUCTS_AT_MOST = 10_000  # with one
_MATRICES = 4  # of the size of a sketch, held at a time by Hutch++ and XTrace


@dataclass(frozen=True, eq=False)
class Trace(Estimate):
    """tr ∇²L, and what else its samples tell.

    `method` and `products` say how it was made, `batch_norm` in which mode batch norms were
    (none, eval, train, mixed or estimated), `converged` whether the tolerance was met (None if
    there was none).
    """

    method: str = ""
    products: int = 0
    batch_norm: str = "none"
    converged: bool | None = None
    seed: int = 0
    names: tuple[str, ...] = field(default=(), repr=False)
    sizes: tuple[int, ...] = field(default=(), repr=False)
    scales: Array = field(default_factory=lambda: np.zeros(0), repr=False)  # ‖w_l‖²/n_l
    samples: Samples = field(default_factory=lambda: Samples(np.zeros((0, 0)), 0), repr=False)

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


def difference(one: Trace, other: Trace) -> Estimate:
    """tr(one) − tr(other), with the spread of the differences where the probes were the same.

    For two points of one model, or two models with the same parameters. Estimates made with the
    same seed, method and number of products share their probes, which takes most of the spread
    out. Others are subtracted as independent, unless they share a part of their probes, which is
    refused.
    """
    if one.names != other.names or one.sizes != other.sizes:
        raise ValueError("the two traces are not over the same parameters")
    if "exact" in (one.method, other.method) or one.seed != other.seed:
        sem, mean = math.hypot(one.sem, other.sem), one.mean - other.mean
        return Estimate(mean, sem, min(one.n, other.n), min(one.degrees, other.degrees))
    if not _share_probes(one, other):
        raise ValueError(
            f"the two traces share a part of their probes (seed {one.seed}): make them with the "
            f"same method and max_probes and no tolerance, or with different seeds"
        )
    total = np.repeat([1.0, 0.0], len(one.names))
    a, b, n = one.samples, other.samples, min(one.n, other.n)
    crossed = None if a.crossed is None or b.crossed is None else a.crossed - b.crossed
    found = Samples(a.values[:n] - b.values[:n], n, crossed=crossed).estimate(total)
    sem = math.hypot(found.sem, a.floor(total), b.floor(total))
    return Estimate(found.mean, sem, n, min(one.degrees, other.degrees, n - 1))


def _share_probes(one: Trace, other: Trace) -> bool:
    if one.method != other.method:
        return False
    # Hutch++ may have chosen two ranks, which leaves two numbers of samples: the first are common.
    fixed = one.converged is None and other.converged is None
    return one.n == other.n or (
        one.method == "hutch++" and fixed and one.products == other.products
    )


def _check(method: str, tolerance: float | None, max_probes: int | None, size: int) -> int:
    """The number of products that may be spent."""
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}")
    number = isinstance(tolerance, float | np.floating)
    if tolerance is not None and not (number and 0 < tolerance < 1):
        raise ValueError(f"tolerance must be a relative error between 0 and 1; got {tolerance!r}")
    if max_probes is None:
        return PRODUCTS if tolerance is None else PRODUCTS_AT_MOST
    if isinstance(max_probes, bool) or not isinstance(max_probes, int | np.integer):
        raise TypeError(f"max_probes must be a whole number; got {max_probes!r}")
    if method == "exact" and max_probes < size:
        raise ValueError(f"method 'exact' takes {size} products; got max_probes={max_probes}")
    least = min(MIN_PRODUCTS[method], size) if method == "auto" else MIN_PRODUCTS[method]
    if max_probes < least:
        raise ValueError(
            f"max_probes must be at least {least} for method {method!r}: the spread of fewer "
            f"samples is no error bar; got {max_probes}"
        )
    return int(max_probes)


def _max_rank(objective: Objective, method: str) -> int:
    """How many probes a sketch may have: vectors for each, and for XTrace numbers for each pair."""
    vectors = _MATRICES * objective.size * objective.tensors[0].element_size()
    pairs = 64 * len(objective.names) if method == "xtrace" else 0
    least, memory = MIN_PRODUCTS["xtrace"] // 2, objective.memory
    needed = vectors * least + pairs * least**2
    if method in ("hutch++", "xtrace") and needed > memory:
        raise ValueError(
            f"method {method!r} keeps {needed / 2**20:.2g} MiB for at least {least} probes; memory "
            f"is {memory / 2**20:.2g} MiB: raise it or use method 'hutchinson'"
        )
    fitting = memory // vectors
    if pairs:
        fitting = min(memory // (2 * vectors), math.isqrt(memory // (2 * pairs)))
    return int(min(max(fitting, least if needed <= memory else 0), objective.size // 2))


def hessian_trace(
    loss: Loss,
    params: Parameters,
    batches: Iterable[Any] | None = None,
    *,
    method: str = "auto",
    tolerance: float | None = None,
    max_probes: int | None = None,
    seed: int = 0,
    batch_norm: str | None = None,
    float64: bool = False,
    memory: float = MEMORY,
    distributed: bool = False,
) -> Trace:
    """tr ∇²L of L = the mean of `loss(batch)` over `batches`, with its error bar.

    `params` is a module (its trainable parameters), or tensors, with names if they come as a
    dictionary or pairs. A batch counts by its number of examples, the length of the first tensor
    in it. Without `batches` the loss is called without argument.

    `max_probes` bounds the products with the Hessian, by default 96. With a `tolerance` as many are
    spent as half the 95 % interval needs to be within that fraction of the trace, by default at
    most 10,000. "auto" is exact where that costs no more, and otherwise chooses between
    "hutchinson" and "hutch++" by what a first sketch tells of the spectrum. "hutchinson" needs at
    least 32 products, "hutch++" 48 and "xtrace" 32; models of less than 32 elements are exact with
    the last two.

    `batch_norm` is None (as found), "eval", "train" or "estimated"; `float64` measures in double
    precision (parameters, a module's buffers, and the tensors of batches); `memory` bounds the
    bytes spent on vectors. With `distributed`, every rank calls this with the same model and data,
    and the products are shared out. Model, gradients and random number generators are left as they
    were.

    >>> import torch
    >>> w = torch.tensor([1.0, 2.0], dtype=torch.float64)
    >>> trace = hessian_trace(lambda: (w**4).sum(), [w])  # 12 w², summed
    >>> print(round(trace.mean, 6), trace.method)
    60.0 exact
    """
    with measuring(
        loss, params, batches, batch_norm=batch_norm, float64=float64, memory=memory,
        distributed=distributed,
    ) as objective:  # fmt: skip
        budget = _check(method, tolerance, max_probes, objective.size)
        at_once = budget if tolerance is None else MIN_PRODUCTS["auto"]
        if method == "auto" and objective.size <= at_once:
            method = "exact"
        return _trace(objective, method, budget, tolerance, seed)


def _trace(
    objective: Objective, method: str, budget: int, tolerance: float | None, seed: int
) -> Trace:
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
    count = len(objective.names)
    total = samples.estimate(np.repeat([1.0, 0.0], count))
    norms = [float(part.double().sum()) for part in squares.split(objective.sizes)]
    trace = Trace(
        total.mean, total.sem, total.n, total.freedom, used, plan.spent, objective.batch_norm,
        None if tolerance is None else plan.met(samples), seed, tuple(objective.names),
        tuple(objective.sizes), np.array(norms) / np.maximum(objective.sizes, 1), samples,
    )  # fmt: skip
    if trace.converged is False:
        low, high = trace.interval()
        warnings.warn(
            f"tolerance {tolerance:g} not met after {plan.spent} products: the trace is "
            f"{trace.mean:.3g} ± {(high - low) / 2:.2g}",
            ToleranceWarning, stacklevel=3,
        )  # fmt: skip
    return trace
