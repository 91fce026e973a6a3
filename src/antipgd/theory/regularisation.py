"""What one step of Anti-PGD does in z, and what many of them converge to.

In z = w − ξ the step is z′ = z − η∇L(z + ξ), eq:Anti-PGD_z_formulation. Here are its conditional
mean (eq:implicit_bias, def:L_tilde), its conditional variance (app:cond_var, corrected) and the
schedule of thm:implicit_reg. Functions that are handed over take points in the last axis of an
array: a loss or trace maps (…, d) to (…), a gradient (…, d) to (…, d), as a `Problem`'s do.
Knows no simulation.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipgd import checks
from antipgd.extras import needed_by

Array = NDArray[np.float64]
Field = Callable[[Array], Array]

MOST_DIMENSIONS = 16  # 2^16 = 65,536 draws to enumerate


def _positive(name: str, value: float) -> float:
    return checks.number(name, value, 0, above=True)


def _standard_deviation(sigma: float) -> float:
    return checks.number("sigma", sigma, 0)


# The regularised loss


def regularised_loss(z: Array, sigma: float, loss: Field, trace: Field) -> Array:
    """L̃(z) = L(z) + σ²/2 tr∇²L(z), def:L_tilde. Valid for any L with second derivatives.

    >>> float(regularised_loss(np.array([2.0]), 0.1, lambda z: 5 * z[..., 0]**2, lambda z: 10.0))
    20.05
    """
    return loss(z) + _standard_deviation(sigma) ** 2 / 2 * trace(z)


def trace_gradient(trace: Field, z: Array) -> Array:
    """∇tr∇²L by central differences, exact up to rounding where the trace is quadratic.

    Valid where the trace has three bounded derivatives; the relative error is about 1e-10.
    """
    result = np.empty_like(z)
    step = np.cbrt(np.finfo(np.float64).eps) * np.maximum(1.0, np.abs(z))
    for j in range(z.shape[-1]):
        ahead, behind = z.copy(), z.copy()
        ahead[..., j] += step[..., j]
        behind[..., j] -= step[..., j]
        result[..., j] = (trace(ahead) - trace(behind)) / (ahead[..., j] - behind[..., j])
    return result


def regularised_gradient(
    z: Array, sigma: float, gradient: Field, gradient_of_trace: Field
) -> Array:
    """∇L̃(z) = ∇L(z) + σ²/2 ∇tr∇²L(z), from the gradients of L and of its Hessian's trace.

    Without a formula for the latter, hand over `lambda z: trace_gradient(trace, z)`.
    """
    return gradient(z) + _standard_deviation(sigma) ** 2 / 2 * gradient_of_trace(z)


# One step


@dataclass(frozen=True)
class TwoPoint:
    """The law with mean 0 and variance 1 on two points, the upper one with probability p.

    p = ½ is rademacher (the paper's "symmetric Bernoulli"); any other p is skewed. A law on two
    points has the least kurtosis that its skewness allows: κ = 1 + γ².

    >>> TwoPoint().points, TwoPoint().skewness, TwoPoint().kurtosis
    ((-1.0, 1.0), 0.0, 1.0)
    """

    probability: float = 0.5

    def __post_init__(self) -> None:
        checks.number("probability", self.probability, 0, 1, above=True)

    @property
    def points(self) -> tuple[float, float]:
        """The lower and the upper point."""
        odds = self.probability / (1 - self.probability)
        return -math.sqrt(odds), 1 / math.sqrt(odds)

    @property
    def skewness(self) -> float:
        """γ = Eξ³/σ³."""
        p = self.probability
        return (1 - 2 * p) / math.sqrt(p * (1 - p))

    @property
    def kurtosis(self) -> float:
        """κ = Eξ⁴/σ⁴."""
        return 1 + self.skewness**2

    def all_draws(self, d: int) -> tuple[Array, Array]:
        """All 2^d draws of d independent coordinates, and their probabilities."""
        if not 1 <= d <= MOST_DIMENSIONS:
            raise ValueError(f"2^d draws are enumerated for 1 <= d <= {MOST_DIMENSIONS}; got d={d}")
        upper = (np.arange(2**d)[:, None] >> np.arange(d)) & 1
        count = upper.sum(axis=1)
        p = self.probability
        return np.array(self.points)[upper], p**count * (1 - p) ** (d - count)


class StepMoments(NamedTuple):
    """Moments of z′ given z: its mean, its variance by coordinate, and E(z′ − z)²."""

    mean: Array
    variance: Array
    second_moment: Array


def conditional_mean(
    z: Array, eta: float, sigma: float, gradient: Field, gradient_of_trace: Field
) -> Array:
    """E[z′ | z] ≈ z − η∇L̃(z), eq:implicit_bias, printed with the remainder O(ηE‖ξ‖³).

    Valid for centred draws with covariance σ²I and L with bounded fourth derivatives; the
    remainder −ηγσ³/6 Σ_j ∂_i∂_j³L has that order for skewed laws only. For symmetric laws it is
    O(ησ⁴), and zero if L is a polynomial of degree four, as are the paper's quadratic regression,
    matrix sensing and valley.
    """
    step = regularised_gradient(z, sigma, gradient, gradient_of_trace)
    return z - _positive("eta", eta) * step


def enumerated_step(
    gradient: Field, z: Array, eta: float, sigma: float, law: TwoPoint | None = None
) -> StepMoments:
    """The exact moments of one step from z over all 2^d draws of a law on two points.

    Valid for d ≤ 16 independent coordinates; rademacher by default.
    """
    eta, sigma = _positive("eta", eta), _standard_deviation(sigma)
    if z.ndim != 1:
        raise ValueError(f"z must be one point of shape (d,); got shape {z.shape}")
    xi, probability = (law or TwoPoint()).all_draws(len(z))
    step = -eta * gradient(z + sigma * xi)
    mean = probability @ step
    return StepMoments(z + mean, probability @ (step - mean) ** 2, probability @ step**2)


@dataclass(frozen=True)
class Derivatives:
    """The derivatives of L at one point: g, H, T and Q, of order one to four.

    Refuses arrays that are not finite, not of shape (d,), (d, d), …, or not symmetric.
    """

    gradient: Array
    hessian: Array
    third: Array
    fourth: Array

    def __post_init__(self) -> None:
        d = len(self.gradient)
        tensors = (self.gradient, self.hessian, self.third, self.fourth)
        for order, tensor in enumerate(tensors, 1):
            if tensor.shape != (d,) * order or not np.isfinite(tensor).all():
                raise ValueError(
                    f"derivatives of order {order} must be finite and of shape {(d,) * order}; "
                    f"got shape {tensor.shape}"
                )
            gaps = [np.abs(tensor - np.swapaxes(tensor, 0, j)).max() for j in range(1, order)]
            if max(gaps, default=0.0) > 1e-8 * max(1.0, np.abs(tensor).max()):
                raise ValueError(
                    f"derivatives of order {order} must not depend on the order of "
                    f"differentiation; got a difference of {max(gaps):.3g}"
                )


def conditional_variance(
    at: Derivatives,
    eta: float,
    sigma: float,
    *,
    kurtosis: float,
    skewness: float = 0.0,
    printed: bool = False,
) -> Array:
    """Var[z′_i | z] by coordinate, app:cond_var, up to and including σ⁴.

    η²{σ²Σ_j H_ij² + σ³γΣ_j H_ij T_ijj + σ⁴[½Σ_{j≠k} T_ijk² + (κ−1)/4 Σ_j T_ijj²
    + ⅓Σ_j H_ij(κQ_ijjj + 3Σ_{k≠j} Q_ijkk)]} with κ = Eξ⁴/σ⁴ (3 for gaussian, 1 for rademacher
    draws) and γ = Eξ³/σ³. Valid for independent coordinates and six bounded derivatives of L, with
    a remainder of O(η²σ⁵), O(η²σ⁶) for symmetric laws. Refuses a σ so large that the truncated
    series is negative, and κ < 1 + γ², which no law has.

    The paper prints (eq:conditional_variance_anti, with the fourth moment as in the display above
    it) η²{g_i² + σ²Σ_j H_ij² + σ⁴/4 Σ_{j≠k}(T_ijk + T_ijj T_ikk) + σ²Σ_j T_ijj + κσ⁴/4 Σ_j T_ijj}:
    a second moment, not a variance; T where T² belongs, and no g_i in the cross term, so that
    even the units differ; H·Q is missing, though of the same order. `printed=True` gives that.
    """
    eta, sigma = _positive("eta", eta), _standard_deviation(sigma)
    if not (math.isfinite(kurtosis) and kurtosis >= 1 + skewness**2 - 1e-12):
        raise ValueError(
            f"kurtosis must be at least 1 + skewness²; got {kurtosis!r} and skewness {skewness!r}"
        )
    g, H, T, Q = at.gradient, at.hessian, at.third, at.fourth
    T_jj, Q_jkk = np.einsum("ijj->ij", T), np.einsum("ijkk->ijk", Q)
    linear = sigma**2 * (H**2).sum(axis=1)
    if printed:
        mixed = T.sum(axis=(1, 2)) - T_jj.sum(axis=1)
        mixed = mixed + T_jj.sum(axis=1) ** 2 - (T_jj**2).sum(axis=1)
        single = (sigma**2 + kurtosis * sigma**4 / 4) * T_jj.sum(axis=1)
        return eta**2 * (g**2 + linear + sigma**4 / 4 * mixed + single)
    quadratic = ((T**2).sum(axis=(1, 2)) - (T_jj**2).sum(axis=1)) / 2
    quadratic = quadratic + (kurtosis - 1) / 4 * (T_jj**2).sum(axis=1)
    Q_jjj = np.einsum("ijj->ij", Q_jkk)
    cubic = (H * ((kurtosis - 3) * Q_jjj + 3 * Q_jkk.sum(axis=2))).sum(axis=1) / 3
    skewed = sigma**3 * skewness * (H * T_jj).sum(axis=1)
    variance = eta**2 * (linear + skewed + sigma**4 * (quadratic + cubic))
    if variance.min() < -1e-14 * eta**2 * linear.max():
        raise ValueError(
            f"the expansion to σ⁴ is negative ({variance.min():.3g}): sigma={sigma} is too large "
            f"for these derivatives; it is valid as σ → 0"
        )
    return np.maximum(variance, 0.0)


# Many steps


class Schedule(NamedTuple):
    """A learning rate and a number of steps."""

    eta: float
    steps: int


def _check_stable(eta: float, curvature: float) -> None:
    if not eta * curvature < 2:
        raise ValueError(
            f"eta times the largest curvature must be < 2, else z diverges; "
            f"got eta={eta:g}, curvature {curvature:g}, product {eta * curvature:g}"
        )


def implicit_reg_schedule(
    epsilon: float, sigma: float, curvature: float, *, rate: float = 1.0, length: float = 1.0
) -> Schedule:
    """η = rate·ε/σ² and N = ⌈length·σ²/ε²⌉, at which thm:implicit_reg says
    E mean_n ‖∇L̃(z_n)‖² ≤ O(ε) + O(σ³) for rademacher draws.

    `rate` and `length` are the constants in Θ and Ω; `curvature` is the largest eigenvalue of
    ∇²L̃ wherever z goes. The paper asks for η < 1/β where β is the Lipschitz constant of L's
    *third* derivatives, and concludes that L̃ is β-smooth, which does not follow: for
    L = 5z² any β > 0 will do, yet η = 1 makes z′ = −9z − 10ξ diverge. What the proof uses is
    η ≤ 1/β with β the smoothness of L̃. From η·curvature = 2 on a quadratic has no bound at all:
    that is refused.

    >>> implicit_reg_schedule(1 / 64, 0.5, curvature=10)
    Schedule(eta=0.0625, steps=1024)
    >>> implicit_reg_schedule(1 / 4, 0.5, curvature=10)
    Traceback (most recent call last):
    ValueError: eta times the largest curvature must be < 2, else z diverges; got eta=1, \
curvature 10, product 10
    """
    epsilon, sigma = _positive("epsilon", epsilon), _positive("sigma", sigma)
    eta = _positive("rate", rate) * epsilon / sigma**2
    _check_stable(eta, _positive("curvature", curvature))
    steps = _positive("length", length) * sigma**2 / epsilon**2
    return Schedule(eta, math.ceil(steps * (1 - 1e-12)))


def stationary_gradient(
    hessian: ArrayLike, eta: float, sigma: float, *, leading: bool = False
) -> float:
    """The long-run mean of ‖∇L̃(z)‖² for L = ½zᵀHz: ησ² Σ h³/(2 − ηh) over H's eigenvalues.

    To leading order in η it is ησ² tr(H³)/2 (`leading=True`): the O(ε) of thm:implicit_reg is
    attained. Here ∇L̃ = Hz, since the trace is constant, so that the floor for η → 0 is zero. Valid
    for positive semi-definite H with ηh < 2 and any law of variance σ². Not in the paper.
    """
    eta, sigma = _positive("eta", eta), _standard_deviation(sigma)
    H = np.atleast_2d(np.asarray(hessian, np.float64))
    if H.ndim != 2 or H.shape[0] != H.shape[1] or not np.allclose(H, H.T):
        raise ValueError(f"hessian must be a symmetric matrix; got shape {np.shape(hessian)}")
    h = np.linalg.eigvalsh(H)
    if h[0] < -1e-12 * np.abs(h).max():
        raise ValueError(
            f"hessian must be positive semi-definite; got a smallest eigenvalue of {h[0]:.3g}"
        )
    _check_stable(eta, float(h[-1]))
    h = np.maximum(h, 0.0)
    return float(eta * sigma**2 * (h**3 / (2 if leading else 2 - eta * h)).sum())


class Floor(NamedTuple):
    """A point at which E∇L(z + ξ) = 0, and ‖∇L̃‖² there."""

    z: Array
    value: float


def gradient_floor(
    start: Array, sigma: float, gradient: Field, gradient_of_trace: Field,
    law: TwoPoint | None = None,
) -> Floor:  # fmt: skip
    """What ‖∇L̃(z)‖² tends to as η → 0 at ηN → ∞: its value where E∇L(z + ξ) = 0, not zero.

    Anti-PGD descends the smoothed loss exactly and L̃ only up to the remainder of eq:implicit_bias,
    so the floor is that remainder squared: O(σ⁸) for symmetric, O(σ⁶) for skewed draws. The paper
    prints O(σ³), which is true but far from tight. Valid near an isolated minimum of the smoothed
    loss, d ≤ 16, a law on two points; refuses a start from which none is found.
    """
    with needed_by("gradient_floor"):
        from scipy.optimize import root

    sigma = _standard_deviation(sigma)
    xi, probability = (law or TwoPoint()).all_draws(len(start))

    def smoothed(z: Array) -> Array:
        return probability @ gradient(z + sigma * xi)

    z = np.asarray(root(smoothed, start, tol=1e-14).x, np.float64)
    rest = float(np.abs(smoothed(z)).max())
    if not rest <= 1e-12:
        raise ValueError(f"no zero of E∇L(z + ξ) found from this start: it stays at {rest:.3g}")
    jacobian = np.array([(smoothed(z + e) - smoothed(z - e)) / 2e-5 for e in 1e-5 * np.eye(len(z))])
    curvature = float(np.linalg.eigvalsh(jacobian + jacobian.T)[0]) / 2
    if not curvature > 0:
        raise ValueError(
            f"the smoothed loss must have an isolated minimum near this start; found a point with "
            f"smallest curvature {curvature:.3g}"
        )
    at_rest = regularised_gradient(z, sigma, gradient, gradient_of_trace)
    return Floor(z, float(at_rest @ at_rest))
