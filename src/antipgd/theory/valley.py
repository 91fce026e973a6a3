"""The widening valley L(u, v) = v²‖u‖²/2 (thm:main_tube): where PGD and Anti-PGD go, and when.

With x = η‖u‖² the steps are v ← (1−x)v + ε^v and u ← (1−ηv²)u + ε^u, u in d dimensions. For small
noise v is in equilibrium long before ‖u‖² moves, and ‖u‖² becomes a diffusion of its own. For
taps (1, θ) with δ = 1+θ it has the drift and the stationary law given here: one family from PGD
(θ = 0) to Anti-PGD (θ = −1). The start is ‖u_0‖² = D, v_0 = 0; the domain αD < ‖u‖² < D/α.
Everything but `v_bound` and the paper's own thresholds is ours. Condition throughout: rademacher
or other symmetric noise with σ² ≪ αD, and for θ ≠ −1 also σ² ≪ δ²αD.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipgd.extras import needed_by
from antipgd.theory.linear import require, stationary_variance

Array = NDArray[np.float64]
LARGEST = {"rademacher": 1.0, "uniform": math.sqrt(3)}  # of a draw, in standard deviations
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)


def _check_valley(d: int, D: float, alpha: float, lr: float) -> None:
    require(d >= 1, "a dimension d >= 1", d=d)
    require(0 < D < math.inf, "a finite D > 0", D=D)
    require(0 < alpha < 1, "0 < alpha < 1", alpha=alpha)
    require(lr > 0, "lr > 0", lr=lr)
    require(
        lr * D / alpha < 2, "lr·D/alpha < 2, lest v be unstable inside the domain", lr=lr, D=D,
        alpha=alpha,
    )  # fmt: skip


def _check_sigma(sigma: float) -> None:
    require(0 < sigma < math.inf, "a finite sigma > 0", sigma=sigma)


def v_bound(
    sigma: float, lr: float, largest_u2: float, *, law: str = "rademacher", printed: bool = False
) -> float:
    """|v_k| ≤ 2σ for rademacher noise, 2√3σ for uniform, for all k, from v_0 = 0 (thm:main_tube).

    Anti-PGD's z = v − ξ follows z ← ρz − (1−ρ)ξ with ρ = 1−x, an average of bounded numbers. Tight.
    `printed=True` gives the paper's 4σ, which is true but does not follow from its argument (it
    takes |1−x| ≤ ½ where the domain only gives 1−α²/2). Condition: a bounded law, and
    0 ≤ η‖u‖² ≤ 1 all along.
    """
    _check_sigma(sigma)
    require(law in LARGEST, f"a bounded law, one of {tuple(LARGEST)}", law=law)
    require(0 <= lr * largest_u2 <= 1, "0 <= lr·‖u‖² <= 1", lr=lr, largest_u2=largest_u2)
    return (4 if printed else 2) * LARGEST[law] * sigma


def long_run_u2(d: int, lr: float, sigma: float) -> float:
    """Anti-PGD's long-run E‖u‖² = 2dσ²/(2−ησ²), hence ≤ αD for σ² ≤ (αD/d)(1−ησ²/2).

    Exact where v² = σ²; condition: rademacher noise and dησ² ≪ 1 (refused from 1 on). The paper
    bounds it by 2dσ², twice too much.
    """
    require(d >= 1, "a dimension d >= 1", d=d)
    _check_sigma(sigma)
    require(lr > 0, "lr > 0", lr=lr)
    require(d * lr * sigma**2 < 1, "d·lr·sigma² < 1", d=d, lr=lr, sigma=sigma)
    return 2 * d * sigma**2 / (2 - lr * sigma**2)


def long_run_trace(d: int, lr: float, sigma: float) -> float:
    """Anti-PGD's long-run E tr∇²L = d·Ev² + E‖u‖², about 2dσ² (corollary:main_tube: ≤ 16αD).

    Ev² = 2σ²/(2−x) at x = ηE‖u‖². Condition as for `long_run_u2`.
    """
    u2 = long_run_u2(d, lr, sigma)
    return d * 2 * sigma**2 / (2 - lr * u2) + u2


def proof_limit(d: int, D: float, alpha: float, sigma: float, *, printed: bool = False) -> float:
    """The lower bound on PGD's lim E‖u‖² in the proof: dD²α⁶/(4Dα³ − 4σ²).

    It is dσ²/(1−ρ²) at ρ = 1 − 2σ²/(α³D), the proof's best case |v| = 2σ/α². `printed=True` gives
    its denominator 2Dα³ − 2σ², twice the value. Condition: η = α/2D, 0 < σ² < α³D/2 (the paper
    allows equality, where ρ = 0).
    """
    _check_valley(d, D, alpha, alpha / (2 * D))
    _check_sigma(sigma)
    require(sigma**2 <= alpha**3 * D / 2, "sigma² <= alpha³D/2", sigma=sigma, alpha=alpha, D=D)
    return d * D**2 * alpha**6 / ((2 if printed else 4) * (D * alpha**3 - sigma**2))


def drift(x: ArrayLike, d: int, sigma: float, theta: float = 0.0) -> Array:
    """E[‖u_{k+1}‖² − ‖u_k‖²] at x = η‖u‖²: σ²(dδ² − 2(δ² − 2θx)/(2−x)).

    PGD: σ²(d − 2/(2−x)). Anti-PGD: −4σ²x/(2−x). Condition: 0 < x < 2.
    """
    require(d >= 1, "a dimension d >= 1", d=d)
    _check_sigma(sigma)
    require(math.isfinite(theta), "a finite theta", theta=theta)
    at = np.asarray(x, np.float64)
    require(((at > 0) & (at < 2)).all(), "0 < x < 2", x=x)
    v2 = np.vectorize(lambda one: stationary_variance(1 - one, sigma, (1.0, theta)), otypes="d")(at)
    return d * (sigma * (1 + theta)) ** 2 - 2 * at * v2


@dataclass(frozen=True)
class StationaryLaw:
    """x/2 = η‖u‖²/2 ~ Beta(a, b), for σ → 0. `mean` is that of x; `u2` is what one measures."""

    a: float
    b: float

    @property
    def mean(self) -> float:
        """E x = 2a/(a+b)."""
        return 2 * self.a / (self.a + self.b)

    def u2(self, lr: float, sigma: float) -> float:
        """E‖u‖² as it is measured at w, after a step: E x/η + dσ².

        The diffusion is that of u without its newest draw, which every measurement finds there: at
        finite σ it adds dσ², as to the `watched average` of a sweep of `widening_valley`.

        >>> law = stationary_law(10, theta=-0.9)
        >>> round(law.mean / 0.5, 4), round(law.u2(0.5, 0.04), 4)
        (0.0968, 0.1128)
        """
        require(lr > 0, "lr > 0", lr=lr)
        _check_sigma(sigma)
        return self.mean / lr + (2 * self.a + 1) * sigma**2

    def pdf(self, half_x: ArrayLike) -> Array:
        """The density of x/2."""
        return np.asarray(_beta().pdf(half_x, self.a, self.b), np.float64)

    def cdf(self, half_x: ArrayLike) -> Array:
        """The distribution function of x/2."""
        return np.asarray(_beta().cdf(half_x, self.a, self.b), np.float64)


def _beta() -> Any:
    with needed_by("the Beta law"):
        from scipy.stats import beta
    return beta


def _curvature(theta: float) -> float:
    """θ/δ², at most ¼; −∞ for Anti-PGD."""
    require(math.isfinite(theta), "a finite theta", theta=theta)
    delta2 = (1 + theta) ** 2
    return theta / delta2 if delta2 > 1e-300 else -math.inf


def stationary_law(d: int, theta: float = 0.0) -> StationaryLaw:
    """x/2 ~ Beta((d−1)/2, 3/2 − 2θ/δ²), with mean x = 2(d−1)δ²/((d+2)δ² − 4θ).

    It does not depend on σ or η: the remark "phase transition" of the paper. Metastable: at finite
    σ² an excursion past x = 2 blows up. What is measured at finite σ is `StationaryLaw.u2`, dσ²
    more than `mean`/η. Condition: d ≥ 2 (d = 1 falls to x = 0), θ ≠ −1 (there the law shrinks to
    `long_run_u2`, of order σ²), and ησ²δ²d ≪ x² for nearly all of the law: below, v has no time for
    its equilibrium. For d = 2, half of whose law is near 0, that is slow to come.
    """
    require(d >= 2, "d >= 2", d=d)
    c = _curvature(theta)
    require(c > -1e15, "theta != -1 (see long_run_u2)", theta=theta)
    return StationaryLaw((d - 1) / 2, 1.5 - 2 * c)


def _log_integral(log_f: Callable[[Array], Array], low: float, high: float) -> float:
    """ln ∫ exp(log_f), for log_f that may be steep at both ends: a mesh graded towards them."""
    half = (high - low) / 2
    grades = np.concatenate([[0.0], half * 0.5 ** np.arange(50, -1, -1)])
    edges = np.concatenate([low + grades, (high - grades)[-2::-1]])
    width = np.diff(edges)[:, None] / 2
    points = edges[:-1, None] + width * (1 + _NODES)
    logs = log_f(points) + np.log(width * _WEIGHTS)
    peak = float(logs.max())
    return peak + math.log(float(np.exp(logs - peak).sum()))


def exit_probability(d: int, D: float, alpha: float, lr: float, theta: float = 0.0) -> float:
    """P(‖u‖² leaves (αD, D/α) through D/α) from ‖u_0‖² = D, for σ² → 0.

    A/(A+B) with A = ∫_α^1 f, B = ∫_1^{1/α} f, f(y) = y^{−(d−1)/2} (2−ηDy)^{−1/2+2θ/δ²}; 0 for
    θ = −1, Anti-PGD. thm:main_tube is silent about probabilities. Condition: ηD/α < 2.

    >>> round(exit_probability(100, 1.0, 0.25, 0.125), 6)
    1.0
    >>> exit_probability(100, 1.0, 0.25, 0.125, theta=-1.0)
    0.0
    """
    _check_valley(d, D, alpha, lr)
    c = _curvature(theta)
    if c < -1e15:
        return 0.0
    start = math.log(2 - lr * D)

    def log_f(t: Array) -> Array:  # in t = ln y, so that dy = y dt, and relative to y = 1
        return -(d - 3) / 2 * t + (2 * c - 0.5) * (np.log(2 - lr * D * np.exp(t)) - start)

    end = math.log(1 / alpha)
    difference = _log_integral(log_f, 0.0, end) - _log_integral(log_f, -end, 0.0)
    return 1 / (1 + math.exp(difference)) if difference < 700 else 0.0


def pgd_exit_time(d: int, D: float, alpha: float, sigma: float, lr: float | None = None) -> float:
    """Steps until PGD's ‖u‖² has drifted from D to D/α: D(1/α−1)/(dσ²) to leading order.

    With `lr` the drift σ²(d − 2/(2−x)) is followed instead of dσ². Condition: d large (the drift,
    not the spread, decides), and positive drift up to D/α.
    """
    _check_sigma(sigma)
    _check_valley(d, D, alpha, alpha / (2 * D) if lr is None else lr)
    if lr is None:
        return D * (1 / alpha - 1) / (d * sigma**2)
    require(d > 2 / (2 - lr * D / alpha), "d > 2/(2 − lr·D/alpha), a positive drift", d=d, lr=lr)
    half = D * (1 / alpha - 1) / 2
    y = D + half * (1 + _NODES)
    return float((half * _WEIGHTS / drift(lr * y, d, sigma)).sum())


def anti_exit_time(
    D: float, alpha: float, sigma: float, lr: float, *, leading: bool = False
) -> float:
    """Steps until Anti-PGD's ‖u‖² (at z) has drifted from D to αD.

    [ln(1/α) − η(D−αD)/2]/(2ησ²), from the drift −2ησ²‖u‖²/(1−x/2); `leading=True` leaves out the
    factor: ln(1/α)/(2ησ²). The first passage of w is earlier, by fluctuations of 2σ‖u‖. Condition:
    ηD/α < 2, dσ² ≪ αD.
    """
    _check_valley(1, D, alpha, lr)
    _check_sigma(sigma)
    correction = 0.0 if leading else lr * D * (1 - alpha) / 2
    return (math.log(1 / alpha) - correction) / (2 * lr * sigma**2)


def drift_delta(d: int, D: float, alpha: float, lr: float, *, leading: bool = False) -> float:
    """The δ = 1+θ > 0 up to which ‖u‖² drifts all the way down to αD.

    There the stationary mean lies at αD: 2(d−1)δ² = X((d+2)δ² − 4δ + 4) with X = ηαD. To leading
    order √(2ηαD/(d−1)), that is α/√(d−1) at η = α/2D and √2 times that at α/D. Up to `even_delta`
    αD is still the likelier side, but only after a wait for an excursion. Condition: d ≥ 2,
    ηD/α < 2, and for the exact form a stationary mean of PGD above αD.
    """
    _check_valley(d, D, alpha, lr)
    require(d >= 2, "d >= 2", d=d)
    target = lr * alpha * D
    if leading:
        return math.sqrt(2 * target / (d - 1))
    mean = stationary_law(d).mean
    require(mean > target, "a stationary mean of PGD above lr·alpha·D", mean=mean, target=target)
    quadratic = 2 * (d - 1) - target * (d + 2)
    return 2 * target / (target + math.sqrt(target * target + target * quadratic))


def even_delta(d: int, D: float, alpha: float, lr: float) -> float:
    """The δ = 1+θ in (0, 1] at which both sides of the domain are equally probable.

    By bisection of `exit_probability`, which falls with δ → 0. Condition: as there, and PGD itself
    leaves through D/α with a probability of at least one half.
    """
    pgd = exit_probability(d, D, alpha, lr)
    require(pgd >= 0.5, "P(PGD leaves through D/alpha) >= 1/2", probability=pgd, d=d)
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        below = exit_probability(d, D, alpha, lr, middle - 1) < 0.5
        low, high = (middle, high) if below else (low, middle)
    return high


def dimension_threshold(
    D: float, alpha: float, lr: float, sense: Literal["mean", "drift", "exit"] = "mean"
) -> int:
    """The smallest d for which PGD goes to the sharp side, for σ² → 0.

    "mean": the long-run E‖u‖² is ≥ D/α, what thm:main_tube states: d ≥ (2+2X)/(2−X), X = ηD/α, so
    2 at η = α/2D and 4 at α/D. "drift": ‖u‖² grows in expectation all over the domain:
    d > 2/(2−X). "exit": D/α is the side of more than half of all exits. See
    `printed_dimension_threshold` for the paper's. Condition: ηD/α < 2.

    >>> [dimension_threshold(1.0, 0.25, 0.125, sense) for sense in ("mean", "drift", "exit")]
    [2, 2, 4]
    """
    _check_valley(1, D, alpha, lr)
    top = lr * D / alpha
    if sense == "mean":
        return math.ceil((2 + 2 * top) / (2 - top) - 1e-9)
    if sense == "drift":
        return math.floor(2 / (2 - top) + 1e-9) + 1
    require(sense == "exit", "sense 'mean', 'drift' or 'exit'", sense=sense)
    d = 1
    while exit_probability(d, D, alpha, lr) <= 0.5:
        d += 1
    return d


def printed_dimension_threshold(
    alpha: float, where: Literal["theorem", "proof", "corrected"] = "theorem"
) -> float:
    """2/α² in thm:main_tube, 2/α⁴ in its proof, 4/α⁴ after correcting the proof's limit.

    All are sufficient and far above the true `dimension_threshold`.
    """
    require(0 < alpha < 1, "0 < alpha < 1", alpha=alpha)
    values = {"theorem": 2 / alpha**2, "proof": 2 / alpha**4, "corrected": 4 / alpha**4}
    require(where in values, f"one of {tuple(values)}", where=where)
    return values[where]
