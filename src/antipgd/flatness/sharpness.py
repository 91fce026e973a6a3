"""Expected sharpness E L(w + σξ) − L(w): how much the loss rises under noise on the weights.

To second order it is σ²/2 tr ∇²L, eq:trace_hess_pac. With adaptive noise σ|w_i|ξ_i, and
σ²/2 Σ w_i² H_ii, it does not change if a layer is scaled and another back (Dinh et al. 2017). The
draws are `draws`'s; here it is decided how many there are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from antipgd.checks import number, whole
from antipgd.estimate import Estimate
from antipgd.flatness.draws import Draws, estimated, rises, rounding_of
from antipgd.flatness.objective import Objective
from antipgd.flatness.samples import Measured, check_same, tell_tolerance
from antipgd.noise.injection import check_sigma
from antipgd.noise.laws import Law, as_law

Array = NDArray[np.float64]
DRAWS = 64  # unless a tolerance is given
DRAWS_AT_MOST = 10_000  # with one
_PILOT = 48  # forms ξᵀHξ of one large eigenvalue are skewed: fewer samples tell too little


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Sharpness(Measured):
    """E L(w + σξ) − L(w); infinite if the loss is not finite at some draw.

    `loss` is L(w), `second_order` an estimate of σ²/2 tr H (adaptive: σ²/2 Σ w_i² H_ii) if it was
    asked for.
    """

    sigma: float
    adaptive: bool
    law: str
    loss: float
    second_order: Estimate | None
    pilot: int = field(repr=False)  # samples that give the spread
    rounding: float = field(repr=False)  # absolute error of a difference of losses
    samples: Array = field(repr=False)
    quadratic: Array | None = field(repr=False)  # σ²/2 ξᵀHξ of the same draws

    def check_comparable(self, other: Measured) -> None:
        if isinstance(other, Sharpness):
            check_same(self, other, ("sigma", "adaptive", "law"))

    def __repr__(self) -> str:
        kind = "adaptive sigma" if self.adaptive else "sigma"
        second = f"; second order {self.second_order}" if self.second_order is not None else ""
        met = ", tolerance not met" if self.converged is False else ""
        return (f"Sharpness({self.estimate} at {kind} {self.sigma:g}, {self.law}, loss "
                f"{self.loss:.4g}{second}; batch norm {self.batch_norm}{met})")  # fmt: skip

    def metrics(self) -> dict[str, float]:
        """For a log: every single number, those with an error also as `…_sem`."""
        found = self._named("sharpness") | {"sigma": self.sigma, "loss": self.loss}
        if self.second_order is not None:
            second = self.second_order
            found |= {"second_order": second.mean, "second_order_sem": second.sem}
        return found

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
        return estimated(self.samples - self.quadratic, self.pilot, self.rounding)


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

    def missing(self, samples: Array, rounding: float) -> int:
        """How many draws are still wanted."""
        return max(self._missing(column, rounding) for column in samples.T)

    def _missing(self, samples: Array, rounding: float) -> int:
        found, n = estimated(samples, self.pilot, rounding), len(samples)
        if self.met(found) is not False:
            return 0
        assert self.tolerance is not None
        allowed = self.tolerance * abs(found.mean) / float(stdtrit(self.pilot - 1, 0.975))
        if allowed <= rounding:  # no number of draws does it
            return 0
        wanted = float(np.var(samples[: self.pilot], ddof=1)) / (allowed**2 - rounding**2)
        return min(self.draws - n, max(n // 20, math.ceil(min(wanted, 1e9)) - n) + 1)


def _sigmas(sigma: Any) -> list[float]:
    several = list(sigma) if np.ndim(sigma) else [sigma]
    if not several:
        raise ValueError(f"sigma must be a number > 0, or several; got {sigma!r}")
    return [number("sigma", check_sigma(value), 0, above=True) for value in several]


def _goal(draws: int | None, tolerance: float | None) -> _Goal:
    if tolerance is not None:
        number("tolerance", tolerance, 0, 1, above=True)
    if draws is None:
        draws = DRAWS if tolerance is None else DRAWS_AT_MOST
    return _Goal(whole("draws", draws, 2), tolerance)  # of one there is no error bar


def measured_sharpness(
    objective: Objective,
    sigma: float | Sequence[float],
    *,
    law: str | Law = "gaussian",
    adaptive: bool = False,
    draws: int | None = None,
    antithetic: bool = True,
    tolerance: float | None = None,
    trace: bool | Estimate | Measured = False,
    seed: int = 0,
) -> list[Sharpness]:
    """For each σ, of one or several; the arguments are those of `expected_sharpness`."""
    sigmas, goal = _sigmas(sigma), _goal(draws, tolerance)
    if not isinstance(trace, bool | Estimate | Measured):
        raise TypeError(f"trace must be True, False or an Estimate; got {type(trace).__name__}")
    scales = objective.flat().abs() if adaptive else None
    drawn, at = Draws(seed, as_law(law), scales, antithetic), objective.steady_value()
    samples, forms = _sampled(objective, sigmas, goal, drawn, at, quadratic=trace is True)
    if not samples.any():
        objective.check_depends(at)
    found = []
    for one, column in zip(sigmas, samples.T, strict=True):
        estimate = estimated(column, goal.pilot, rounding_of(objective, at))
        quadratic = one**2 / 2 * forms if trace is True else None
        found.append(Sharpness(
            estimate=estimate, batch_norm=objective.batch_norm, converged=goal.met(estimate),
            seed=seed, sigma=one, adaptive=adaptive, law=str(drawn.law), loss=at,
            second_order=_second_order(one, adaptive, trace, quadratic, goal.pilot),
            pilot=goal.pilot, rounding=rounding_of(objective, at), samples=column,
            quadratic=quadratic,
        ))  # fmt: skip
    _tell_missed([one for one in found if one.converged is False], tolerance)
    return found


def _sampled(
    objective: Objective, sigmas: list[float], goal: _Goal, drawn: Draws, at: float,
    *, quadratic: bool,
) -> tuple[Array, Array]:  # fmt: skip
    """Samples (draws, sigmas) and their forms, as many as the goal wants."""
    samples, forms = np.zeros((0, len(sigmas))), np.zeros(0)
    more = goal.pilot
    while more:
        parts = rises(objective, sigmas, drawn, len(samples), more, at=at, quadratic=quadratic)
        samples, forms = np.concatenate([samples, parts[0]]), np.concatenate([forms, parts[1]])
        more = goal.missing(samples, rounding_of(objective, at))
    return samples, forms


def _tell_missed(missed: list[Sharpness], tolerance: float | None) -> None:
    if missed:
        tell_tolerance(
            f"tolerance {tolerance:g} not met after {missed[0].n} draws for sigma = "
            f"{', '.join(f'{one.sigma:g}' for one in missed)}"
        )


def _second_order(
    sigma: float,
    adaptive: bool,
    trace: bool | Estimate | Measured,
    quadratic: Array | None,
    pilot: int,
) -> Estimate | None:
    if quadratic is not None:
        return estimated(quadratic, pilot)
    if isinstance(trace, bool):
        return None
    scaled = getattr(trace, "adaptive", None)  # a Trace has both
    plain = trace.estimate if isinstance(trace, Measured) else trace
    chosen = scaled if adaptive and isinstance(scaled, Estimate) else plain
    factor = sigma**2 / 2
    return Estimate(factor * chosen.mean, factor * chosen.sem, chosen.n, chosen.freedom)
