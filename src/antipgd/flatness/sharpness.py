"""Expected sharpness E L(w + σξ) − L(w): how much the loss rises under noise on the weights.

To second order it is σ²/2 tr ∇²L, eq:trace_hess_pac. The pair ±ξ makes one sample, in which all odd
orders cancel. With adaptive noise σ|w_i|ξ_i, and σ²/2 Σ w_i² H_ii, it does not change if a layer is
scaled and another back (Dinh et al. 2017). Draws are common to all σ and to all models with the
same parameters.
"""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtrit
from torch import Tensor

from antipgd.estimate import Estimate
from antipgd.flatness.inputs import Parameters
from antipgd.flatness.measuring import measuring
from antipgd.flatness.objective import MEMORY, Loss, Objective
from antipgd.flatness.probes import SHARPNESS
from antipgd.flatness.samples import Samples, ToleranceWarning
from antipgd.noise.injection import check_sigma
from antipgd.noise.laws import Law, as_law

Array = NDArray[np.float64]
DRAWS = 64  # unless a tolerance is given
DRAWS_AT_MOST = 10_000  # with one
_PILOT = 48  # forms ξᵀHξ of one large eigenvalue are skewed: fewer samples tell too little


@dataclass(frozen=True, eq=False)
class Sharpness(Estimate):
    """E L(w + σξ) − L(w); infinite if the loss is not finite at some draw.

    `loss` is L(w), `second_order` an estimate of σ²/2 tr H (adaptive: σ²/2 Σ w_i² H_ii) if it was
    asked for, `converged` whether the tolerance was met (None if there was none).
    """

    sigma: float = math.nan
    adaptive: bool = False
    loss: float = math.nan
    second_order: Estimate | None = None
    law: str = "gaussian"
    batch_norm: str = "none"
    converged: bool | None = None
    seed: int = 0
    pilot: int = field(default=0, repr=False)  # samples that give the spread
    rounding: float = field(default=0.0, repr=False)  # absolute error of a difference of losses
    samples: Array = field(default_factory=lambda: np.zeros(0), repr=False)
    quadratic: Array | None = field(default=None, repr=False)  # σ²/2 ξᵀHξ of the same draws

    @property
    def remainder(self) -> Estimate:
        """What is beyond second order: the difference of the two, draw by draw if they share them.

        The common part takes most of the spread with it.
        """
        second = self.second_order
        if second is None:
            raise ValueError("there is no second order to compare with: pass trace=True")
        if self.quadratic is None or not math.isfinite(self.mean):
            mean, sem = self.mean - second.mean, math.hypot(self.sem, second.sem)
            return Estimate(mean, sem, self.n, min(self.degrees, second.degrees))
        return _estimate(self.samples - self.quadratic, self.pilot, self.rounding)


@dataclass(frozen=True)
class Noise:
    """What is drawn; one value for a whole measurement."""

    seed: int = 0
    law: str | Law = "gaussian"
    adaptive: bool = False
    antithetic: bool = True

    def directions(self, objective: Objective, first: int, count: int) -> Tensor:
        """ξ of unit standard deviation in rows, times |w| if adaptive."""
        xi = objective.probes(self.seed, str(self.law)).rows(SHARPNESS, first, count)
        return xi.mul_(objective.flat().abs()) if self.adaptive else xi


def sharpness_samples(
    objective: Objective,
    sigmas: Sequence[float],
    first: int,
    count: int,
    noise: Noise,
    *,
    at: float,
    quadratic: bool = False,
) -> tuple[Array, Array]:
    """Samples of L(w + σξ) − `at` (count, sigmas) by draws first …, and their ξᵀHξ (count,).

    Row k belongs to draw first + k, whatever the σ. Infinite where the loss is not finite. The
    forms, for which adaptive draws are scaled by |w|, are zero unless `quadratic`.
    """
    signs = (1.0, -1.0) if noise.antithetic else (1.0,)
    rows = objective.rows_at_once(matrices=4)
    rises, forms = [], []
    for start in range(first, first + count, rows):
        v = noise.directions(objective, start, min(rows, first + count - start))
        values = objective.values_at(v, [sign * sigma for sigma in sigmas for sign in signs])
        rises.append((values.reshape(len(v), len(sigmas), -1) - at).mean(axis=2))
        image = objective.products(v) if quadratic else torch.zeros_like(v)
        forms.append((v.double() * image).sum(dim=1).cpu().numpy())
    return np.concatenate(rises), np.concatenate(forms)


def _estimate(samples: Array, pilot: int, rounding: float = 0.0) -> Estimate:
    if not np.isfinite(samples).all():
        return Estimate(math.inf, math.nan, len(samples))
    found = Samples(samples[:, None], pilot).estimate(np.ones(1))
    return replace(found, sem=math.hypot(found.sem, rounding))


@dataclass(frozen=True)
class _Goal:
    """Draws until the tolerance is met for every σ; the spread is the pilot's (Stein 1945)."""

    draws: int  # at most
    tolerance: float | None

    @property
    def pilot(self) -> int:
        return self.draws if self.tolerance is None else min(_PILOT, self.draws)

    def met(self, found: Estimate) -> bool | None:
        """Whether half the 95 % interval is within the tolerance; nothing mends infinity."""
        if self.tolerance is None or math.isinf(found.mean):
            return None if self.tolerance is None else True
        low, high = found.interval()
        return (high - low) / 2 <= self.tolerance * abs(found.mean)

    def missing(self, rises: Array, rounding: float) -> int:
        """How many draws are still wanted."""
        return max(self._missing(column, rounding) for column in rises.T)

    def _missing(self, samples: Array, rounding: float) -> int:
        found, n = _estimate(samples, self.pilot, rounding), len(samples)
        if self.met(found) is not False:
            return 0
        assert self.tolerance is not None
        allowed = self.tolerance * abs(found.mean) / float(stdtrit(self.pilot - 1, 0.975))
        if allowed <= rounding:  # no number of draws does it
            return 0
        wanted = float(np.var(samples[: self.pilot], ddof=1)) / (allowed**2 - rounding**2)
        return min(self.draws - n, max(n // 20, math.ceil(min(wanted, 1e9)) - n) + 1)


def _check(
    sigma: Any, draws: int | None, tolerance: float | None, trace: object
) -> tuple[list[float], _Goal]:
    several = sigma if np.ndim(sigma) else [sigma]
    sigmas = [check_sigma(value) for value in several]
    if not sigmas or 0.0 in sigmas:
        raise ValueError(f"sigma must be a number > 0, or several; got {sigma!r}")
    if tolerance is not None and not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be a relative error between 0 and 1; got {tolerance!r}")
    if draws is None:
        draws = DRAWS if tolerance is None else DRAWS_AT_MOST
    if isinstance(draws, bool) or not isinstance(draws, int | np.integer):
        raise TypeError(f"draws must be a whole number; got {draws!r}")
    if draws < 2:
        raise ValueError(f"draws must be at least 2, lest there be no error bar; got {draws}")
    if not isinstance(trace, bool | Estimate):
        raise TypeError(f"trace must be True, False or an Estimate; got {type(trace).__name__}")
    return sigmas, _Goal(int(draws), tolerance)


@overload
def expected_sharpness(
    loss: Loss, params: Parameters, batches: Iterable[Any] | None, sigma: float, **options: Any
) -> Sharpness: ...
@overload
def expected_sharpness(
    loss: Loss, params: Parameters, batches: Iterable[Any] | None, sigma: Sequence[float],
    **options: Any,
) -> list[Sharpness]: ...  # fmt: skip
def expected_sharpness(  # type: ignore[misc]  # the options are spelled out only here
    loss: Loss,
    params: Parameters,
    batches: Iterable[Any] | None,
    sigma: float | Sequence[float],
    *,
    law: str | Law = "gaussian",
    adaptive: bool = False,
    draws: int | None = None,
    antithetic: bool = True,
    tolerance: float | None = None,
    trace: bool | Estimate = False,
    seed: int = 0,
    batch_norm: str | None = None,
    float64: bool = False,
    memory: float = MEMORY,
    distributed: bool = False,
) -> Sharpness | list[Sharpness]:
    """E L(w + σξ) − L(w) for draws ξ of a law with standard deviation 1, with its error bar.

    Of several `sigma` a list, all with the same draws. Each of the `draws`, by default 64, stands
    for the pair ±ξ unless `antithetic` is off: two passes over the data for each σ. With a
    `tolerance` as many are made as half the 95 % interval needs to be within that fraction, by
    default at most 10,000.

    `trace=True` adds σ²/2 ξᵀHξ of the same draws, one product each, as `second_order`; an Estimate
    of the trace, such as `hessian_trace` gives, is used instead. Kinks as those of ReLU have no
    second derivative, but raise the loss all the same. Batch norms that are "estimated" keep the
    statistics of w. Where the rise is not far above the rounding of the loss, use `float64`. The
    other arguments are those of `hessian_trace`.

    >>> import torch
    >>> w = torch.zeros(3, dtype=torch.float64)
    >>> curvatures = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    >>> found = expected_sharpness(
    ...     lambda: (curvatures * w**2).sum() / 2, [w], None, 0.1, law="rademacher")
    >>> print(round(found.mean, 9))  # σ²/2 · 6
    0.03
    """
    sigmas, goal = _check(sigma, draws, tolerance, trace)
    noise = Noise(seed, as_law(law), adaptive, antithetic)
    with measuring(
        loss, params, batches, batch_norm=batch_norm, float64=float64, memory=memory,
        distributed=distributed,
    ) as objective:  # fmt: skip
        found = _measured(objective, sigmas, goal, noise, trace)
    missed = [one for one in found if one.converged is False]
    if missed:
        warnings.warn(
            f"tolerance {tolerance:g} not met after {missed[0].n} draws for sigma = "
            f"{', '.join(f'{one.sigma:g}' for one in missed)}",
            ToleranceWarning, stacklevel=2,
        )  # fmt: skip
    return found[0] if np.ndim(sigma) == 0 else found


def _measured(
    objective: Objective, sigmas: list[float], goal: _Goal, noise: Noise, trace: bool | Estimate
) -> list[Sharpness]:
    at = objective.value()
    rounding = float(torch.finfo(objective.dtype).eps) * abs(at)
    rises, forms = np.zeros((0, len(sigmas))), np.zeros(0)
    more = goal.pilot
    while more:
        parts = sharpness_samples(
            objective, sigmas, len(rises), more, noise, at=at, quadratic=trace is True
        )
        rises, forms = np.concatenate([rises, parts[0]]), np.concatenate([forms, parts[1]])
        more = goal.missing(rises, rounding)
    found = []
    for sigma, samples in zip(sigmas, rises.T, strict=True):
        mean = _estimate(samples, goal.pilot, rounding)
        quadratic = sigma**2 / 2 * forms if trace is True else None
        found.append(Sharpness(
            mean.mean, mean.sem, mean.n, mean.freedom, sigma, noise.adaptive, at,
            _second_order(sigma, noise.adaptive, trace, quadratic, goal.pilot), str(noise.law),
            objective.batch_norm, goal.met(mean), noise.seed, goal.pilot, rounding, samples,
            quadratic,
        ))  # fmt: skip
    return found


def _second_order(
    sigma: float, adaptive: bool, trace: bool | Estimate, quadratic: Array | None, pilot: int
) -> Estimate | None:
    if quadratic is not None:
        return _estimate(quadratic, pilot)
    if not isinstance(trace, Estimate):
        return None
    scaled = getattr(trace, "adaptive", trace)  # a Trace has both
    chosen = scaled if adaptive and isinstance(scaled, Estimate) else trace
    factor = sigma**2 / 2
    return Estimate(factor * chosen.mean, factor * chosen.sem, chosen.n, chosen.freedom)
