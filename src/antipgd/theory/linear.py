"""Second moments of w_{k+1} = ρ_k w_k + ε_k in d dimensions, ε_k = Σ_j taps[j] ξ_{k+1−j}.

Holds prop:ito_discrete, cor:ito_discrete_const and prop:ito_discrete_all_rho for any taps, the
variation of constants (lemma:variations, cor:anti_variations), and what momentum and averaging
make of the noise. All draws ξ have mean 0 and standard deviation σ per coordinate, uncorrelated
over steps. Knows no loss.

The paper starts its noise in three ways. "zero": there is no draw before the first step, so that
ε_0 = taps[0] ξ_1; this is the package's ξ_0 = 0 and, the draws being renamed, prop:ito_discrete's
ε_0 = ξ_0. "drawn": all earlier draws exist, ε_0 = ξ_1 − ξ_0 for Anti-PGD; this is eq:def_antiPGD,
where ξ_0 is random, and the proof of thm:main_tube.
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipgd.noise.taps import ANTI, Taps, as_taps

Array = NDArray[np.float64]
Start = Literal["zero", "drawn"]


def require(condition: object, statement: str, **given: object) -> None:
    """Refuses input outside a statement's condition, naming both."""
    if not condition:
        values = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise ValueError(f"needs {statement}; got {values}")


def _check_noise(d: int, sigma: float, start_norm2: float) -> None:
    require(d >= 1, "a dimension d >= 1", d=d)
    require(0 <= sigma < math.inf, "a finite sigma >= 0", sigma=sigma)
    require(0 <= start_norm2 < math.inf, "a finite ‖w_0‖² >= 0", start_norm2=start_norm2)


def second_moment(
    rho: ArrayLike,
    sigma: float,
    taps: Taps = ANTI,
    *,
    d: int = 1,
    start_norm2: float = 0.0,
    start: Start = "zero",
    rho_squared: ArrayLike | None = None,
) -> Array:
    """E‖w_0‖², E‖w_1‖², …, E‖w_K‖² for the K factors `rho` (prop:ito_discrete), exactly.

    The printed proposition covers taps (1,) and (1, −1) with start "zero", and is right. Its proof
    prints σ² for dσ². Condition: `rho` deterministic; or random, independent of each other and of
    all draws, where `rho` holds the means Eρ_k and `rho_squared` the mean squares Eρ_k².

    Keeps c_j = E[w_k · ξ_{k−j}]/d, which closes the recursion: c_0 = taps[0] σ² and
    c_j ← ρ_k c_{j−1} + taps[j] σ².

    >>> second_moment([0.5, 0.5], 1.0, (1.0, -1.0))
    array([0.  , 1.  , 1.25])
    """
    taps = as_taps(taps)
    _check_noise(d, sigma, start_norm2)
    require(start in ("zero", "drawn"), "start 'zero' or 'drawn'", start=start)
    means = np.asarray(rho, np.float64)
    squares = means**2 if rho_squared is None else np.asarray(rho_squared, np.float64)
    require(means.ndim == 1 and means.shape == squares.shape, "one factor per step", rho=rho)
    require(np.isfinite(means).all() and np.isfinite(squares).all(), "finite factors", rho=rho)
    require((squares >= means**2 * (1 - 1e-12)).all(), "E ρ² >= (E ρ)²", rho_squared=rho_squared)
    weights, s2 = np.array(taps), sigma**2
    cross = np.zeros(len(taps))
    moments = np.empty(len(means) + 1)
    moments[0] = start_norm2 / d
    for k, (mean, square) in enumerate(zip(means, squares, strict=True)):
        # draws ξ_{k+1−j} exist for all j, or only for j ≤ k
        alive = weights if start == "drawn" else np.where(np.arange(len(taps)) <= k, weights, 0.0)
        mixed = float(alive[1:] @ cross[:-1])
        moments[k + 1] = square * moments[k] + 2 * mean * mixed + s2 * float(alive @ alive)
        cross[1:] = mean * cross[:-1] + s2 * alive[1:]
        cross[0] = s2 * weights[0]
    return np.maximum(moments, 0.0) * d


def _powers(rho: float, count: int) -> float:
    """(1 − ρ^{2·count})/(1 − ρ²) = 1 + ρ² + …, also for ρ near 1."""
    if abs(rho) == 1:
        return float(count)
    return (
        -math.expm1(2 * count * math.log(abs(rho))) / (1 - rho * rho) if rho else float(count > 0)
    )


def pgd_moment(k: int, rho: float, sigma: float, *, d: int = 1, start_norm2: float = 0.0) -> float:
    """E‖w_{k+1}‖² of PGD for constant ρ: ρ^{2(k+1)}‖w_0‖² + (1−ρ^{2(k+1)})/(1−ρ²) dσ².

    cor:ito_discrete_const, second formula, right as printed. Condition: −1 ≤ ρ ≤ 1 (printed:
    0 < ρ < 1), k ≥ 0.

    >>> pgd_moment(1, 0.5, 1.0)
    1.25
    """
    _check_noise(d, sigma, start_norm2)
    require(-1 <= rho <= 1, "-1 <= rho <= 1", rho=rho)
    require(k >= 0, "k >= 0", k=k)
    return rho ** (2 * (k + 1)) * start_norm2 + _powers(rho, k + 1) * d * sigma**2


def anti_moment(
    k: int,
    rho: float,
    sigma: float,
    *,
    d: int = 1,
    start_norm2: float = 0.0,
    start: Start = "zero",
    printed: bool = False,
) -> float:
    """E‖w_{k+1}‖² of Anti-PGD for constant ρ (cor:ito_discrete_const, first formula).

    ρ^{2(k+1)}‖w_0‖² + (1 + (1−ρ)²(1−ρ^{2k})/(1−ρ²)) dσ²; with start "drawn" ρ^{2k} dσ² more.
    `printed=True` gives the paper's exponent 2(k+1) in place of 2k, for start "zero": too large by
    (1−ρ)² ρ^{2k} dσ². Condition: −1 ≤ ρ ≤ 1 (printed: 0 < ρ < 1), k ≥ 0.

    >>> anti_moment(0, 0.5, 1.0), anti_moment(0, 0.5, 1.0, printed=True)
    (1.0, 1.25)
    """
    _check_noise(d, sigma, start_norm2)
    require(-1 <= rho <= 1, "-1 <= rho <= 1", rho=rho)
    require(k >= 0, "k >= 0", k=k)
    require(start in ("zero", "drawn"), "start 'zero' or 'drawn'", start=start)
    noise = 1 + (1 - rho) ** 2 * _powers(rho, k + 1 if printed else k)
    if start == "drawn":
        noise += rho ** (2 * k)
    return rho ** (2 * (k + 1)) * start_norm2 + noise * d * sigma**2


def stationary_variance(rho: float, sigma: float, taps: Taps = ANTI) -> float:
    """Var w per coordinate for k → ∞: σ² Σ_ij a_i a_j ρ^|i−j| / (1−ρ²).

    cor:ito_discrete_const's limits: 2σ²/(1+ρ) for taps (1, −1), σ²/(1−ρ²) for (1,). Condition:
    −1 < ρ < 1; at ρ = 1 the taps must sum to zero, and the value is the limit ρ → 1.

    >>> stationary_variance(0.5, 1.0, (1.0, -1.0)) == 2 / 1.5
    True
    """
    taps = as_taps(taps)
    _check_noise(1, sigma, 0.0)
    if rho == 1:
        left = np.cumsum(taps)  # what w holds of each draw
        require(abs(left[-1]) <= 1e-12, "rho < 1 unless taps sum to zero", rho=rho, taps=taps)
        return sigma**2 * float(left[:-1] @ left[:-1])
    require(-1 < rho < 1, "-1 < rho < 1", rho=rho)
    # w holds h_j = Σ_{i≤j} a_i ρ^{j−i} of the draw j steps back: a sum of squares, never negative
    held, variance = 0.0, 0.0
    for tap in taps[:-1]:
        held = rho * held + tap
        variance += held**2
    held = rho * held + taps[-1]
    return sigma**2 * (variance + held**2 / (1 - rho * rho))


def random_rho_limit(
    rho_mean: float, rho_square: float, sigma: float, taps: Taps = ANTI, *, d: int = 1
) -> float:
    """lim E‖w_k‖² for ρ_k i.i.d. with Eρ and Eρ², independent of the draws.

    For Anti-PGD dσ²(1 + E(1−ρ)²/(1−Eρ²)), and this is ≤ 2dσ² for 0 ≤ ρ ≤ 1
    (prop:ito_discrete_all_rho, see `anti_bound`). Condition: (Eρ)² ≤ Eρ² < 1.

    >>> random_rho_limit(0.5, 0.25, 1.0) == 2 / 1.5
    True
    """
    taps = as_taps(taps)
    _check_noise(d, sigma, 0.0)
    require(rho_square < 1, "E ρ² < 1", rho_square=rho_square)
    require(rho_square >= rho_mean**2 * (1 - 1e-12), "E ρ² >= (E ρ)²", rho_square=rho_square)
    cross, mixed = taps[0], 0.0
    for tap in taps[1:]:
        mixed += tap * cross
        cross = rho_mean * cross + tap
    total = 2 * rho_mean * mixed + sum(tap * tap for tap in taps)
    return max(total, 0.0) * d * sigma**2 / (1 - rho_square)


def anti_bound(sigma: float, *, d: int = 1) -> float:
    """2dσ², which lim E‖w_k‖² of Anti-PGD does not exceed (prop:ito_discrete_all_rho).

    Condition: 0 ≤ ρ_k ≤ 1, Πρ_k → 0 (that is, Σ(1−ρ_k) = ∞), and ρ_k independent of the draws or
    the draws bounded by σ per coordinate. The paper asks only that ρ_k ≠ 1 with non-vanishing
    probability, which is not enough: `vanishing_rho` is the counterexample.
    """
    _check_noise(d, sigma, 0.0)
    return 2 * d * sigma**2


def vanishing_rho(steps: int) -> Array:
    """ρ_k = 1 − 1/(k+2)² for k < steps: always below 1, yet Πρ_k → ½ and not 0.

    So E‖w_k‖² keeps ‖w_0‖²/4 for ever beside the noise's dσ² or more: from ‖w_0‖² = 4dσ² on it
    exceeds prop:ito_discrete_all_rho's 2dσ². The paper's condition does not exclude the sequence.

    >>> float(vanishing_rho(10_000).prod().round(4))
    0.5
    """
    require(steps >= 0, "steps >= 0", steps=steps)
    return 1 - 1 / (np.arange(steps) + 2.0) ** 2


def _square(matrices: Sequence[ArrayLike], draws: Sequence[ArrayLike], w: Array) -> list[Array]:
    found = [np.asarray(matrix, np.float64) for matrix in matrices]
    require(w.ndim == 1, "a vector w_0", shape=w.shape)
    require(
        all(matrix.shape == (len(w), len(w)) for matrix in found),
        f"{len(w)}×{len(w)} matrices",
        shapes=[matrix.shape for matrix in found],
    )
    require(
        len(found) == len(draws) > 0,
        "one vector per matrix, at least one",
        matrices=len(found),
        vectors=len(draws),
    )
    return found


def variation(matrices: Sequence[ArrayLike], w: ArrayLike, eps: Sequence[ArrayLike]) -> Array:
    """w_{k+1} = (A_k⋯A_0) w_0 + Σ_i (A_k⋯A_{i+1}) ε_i for w_{j+1} = A_j w_j + ε_j.

    lemma:variations, right if Π_{j=0}^k A_j is read with the newest matrix on the left (its proof's
    base case is k = 0, printed as k = 1). Holds for all square matrices.
    """
    start = np.asarray(w, np.float64)
    found = _square(matrices, eps, start)
    product, total = np.eye(len(start)), np.zeros(len(start))
    for matrix, one in zip(reversed(found), reversed(eps), strict=True):
        total += product @ np.asarray(one, np.float64)
        product = product @ matrix
    return product @ start + total


def anti_variation(
    matrices: Sequence[ArrayLike],
    w: ArrayLike,
    xi: Sequence[ArrayLike],
    *,
    printed: bool = False,
) -> Array:
    """w_{k+1} = (A_k⋯A_0) w_0 + ξ_k + Σ_{i<k} (A_k⋯A_{i+2}) (A_{i+1} − I) ξ_i.

    cor:anti_variations, for ε_0 = ξ_0 and ε_i = ξ_i − ξ_{i−1}. `printed=True` has the factor
    A_{i+1} − I left of the product, which is wrong unless the matrices commute. Holds for all
    square matrices.
    """
    start = np.asarray(w, np.float64)
    found = _square(matrices, xi, start)
    identity = np.eye(len(start))
    product, total = identity, np.asarray(xi[-1], np.float64).copy()
    for i in range(len(found) - 2, -1, -1):
        change = found[i + 1] - identity
        factor = change @ product if printed else product @ change
        total += factor @ np.asarray(xi[i], np.float64)
        product = product @ found[i + 1]
    return product @ found[0] @ start + total


def momentum_variance(curvature: float, lr: float, momentum: float, sigma: float) -> float:
    """Var w of Anti-PGD with heavy-ball momentum β on ½hw²: σ²[1+(1+β)ηh/((1−β)(2(1+β)−ηh))].

    The step is m ← βm + hw, w ← w − ηm + ξ_{k+1} − ξ_k: the noise enters the weights, never the
    buffer. (Ours; not in the paper.) Condition: −1 < β < 1 and 0 < ηh < 2(1+β), where the step
    without noise is stable.

    >>> momentum_variance(1.0, 0.5, 0.0, 1.0) == stationary_variance(0.5, 1.0)
    True
    """
    _check_noise(1, sigma, 0.0)
    require(-1 < momentum < 1, "-1 < momentum < 1", momentum=momentum)
    step = lr * curvature
    require(
        0 < step < 2 * (1 + momentum), "0 < lr·curvature < 2(1 + momentum)", lr=lr,
        curvature=curvature, momentum=momentum,
    )  # fmt: skip
    moved = (1 + momentum) * step / ((1 - momentum) * (2 * (1 + momentum) - step))
    return sigma**2 * (1 + moved)


def ema_noise(sigma: float, decay: float) -> float:
    """σ√((1−b)/(1+b)), the standard deviation that w = z + ξ's own draws leave in an average.

    The average is e ← b·e + (1−b)·w over Anti-PGD's weights, long after its start. (Ours.)
    Condition: 0 ≤ b < 1.

    >>> round(ema_noise(1.0, 0.999), 5)
    0.02237
    """
    _check_noise(1, sigma, 0.0)
    require(0 <= decay < 1, "0 <= decay < 1", decay=decay)
    return sigma * math.sqrt((1 - decay) / (1 + decay))
