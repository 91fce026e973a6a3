"""The PAC-Bayes bound of thm:pac with Gaussian prior and posterior, every term reported.

The paper prints: for any distribution Q(w | w*) "centered at the solution" and any non-negative λ,
with probability at least 1 − δ

    L_true(Q) ≤ L(w*) + λ/2M + ln(1/δ)/λ + [L(Q) − L(w*)] + KL(Q‖P)/λ.

As printed that is no theorem: λ = 0 divides by zero; nothing is assumed of the loss, while the
proof needs one that is bounded or sub-Gaussian; and P and λ must be fixed before the data are
seen, which is not said. Here losses are clipped to [0, 1] example by example, the prior is handed
over, and λ and the width s are chosen from grids fixed beforehand, which a union bound pays for.
Knows no problem and no training.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipgd import checks
from antipgd.estimate import Estimate

Array = NDArray[np.float64]


def _grid(name: str, values: Sequence[float]) -> list[float]:
    if not len(values):
        raise ValueError(
            f"{name} must hold at least one number, all finite and > 0; got {values!r}"
        )
    return [checks.number(f"{name}[{i}]", v, 0, above=True) for i, v in enumerate(values)]


def _scale(s: float) -> float:
    return checks.number("s", s, 0, above=True)


def sharpness_from_trace(trace: float, s: float) -> float:
    """L(Q) − L(w) ≈ s²/2 tr∇²L(w) for Q = N(w, s²I), eq:trace_hess_pac.

    Valid as s → 0, with an error of O(s⁴). The paper writes "variance s²" where the covariance
    s²I is meant, and gives L(Q) a second argument that it does not define.
    """
    return _scale(s) ** 2 / 2 * trace


def expected_sharpness(
    loss: Callable[[Array], Array], w: ArrayLike, s: float, draws: ArrayLike
) -> Estimate:
    """L(w + sξ) − L(w), the expected sharpness of thm:pac for Q = N(w, s²I), by Monte Carlo.

    `loss` maps weights (m, d) to losses (m,); `draws` are m unit draws of shape (m, d), handed over
    so that points which are compared share them.
    """
    centre, xi = np.asarray(w, np.float64), np.asarray(draws, np.float64)
    if xi.ndim != 2 or xi.shape[1:] != centre.shape or len(xi) < 2:
        raise ValueError(f"draws must have shape (m >= 2, {centre.size}); got {xi.shape}")
    return Estimate.of(loss(centre + _scale(s) * xi) - loss(centre[None])[0])


def gaussian_divergence(w: ArrayLike, prior: ArrayLike, s: float) -> float:
    """KL(N(w, s²I) ‖ N(w_prior, s²I)) = ‖w − w_prior‖²/2s², in nats."""
    gap = np.asarray(w, np.float64) - np.asarray(prior, np.float64)
    return float(gap @ gap) / (2 * _scale(s) ** 2)


@dataclass(frozen=True)
class Bound:
    """Every term of one bound; `total` is their sum at the best `s` and `lam` of the grids.

    `empirical` is the loss under noise, `sampling` what it costs to know it from finitely many
    draws only, `divergence` KL/λ of `kl` nats, `confidence` ln(1/δ)/λ, `union` ln(grid points)/λ.
    """

    s: float
    lam: float
    kl: float
    empirical: float
    sampling: float
    lambda_term: float
    divergence: float
    confidence: float
    union: float

    @property
    def total(self) -> float:
        """The bound on the expected loss under noise on new data."""
        noise = self.empirical + self.sampling
        return noise + self.lambda_term + self.divergence + self.confidence + self.union

    @property
    def vacuous(self) -> bool:
        """Whether it says nothing: a clipped loss is at most 1 anyway."""
        return self.total >= 1


def _empirical(losses: ArrayLike, exact: bool, failure: float) -> tuple[float, float]:
    """The mean loss, and Hoeffding's allowance for its draws."""
    values = np.atleast_1d(np.asarray(losses, np.float64))
    if values.ndim != 1 or not len(values) or not ((values >= 0) & (values <= 1)).all():
        raise ValueError(
            f"losses must be clipped to [0, 1]; got {values.size} from "
            f"{values.min(initial=math.inf):.3g} to {values.max(initial=-math.inf):.3g}"
        )
    cost = 0.0 if exact else math.sqrt(math.log(1 / failure) / (2 * len(values)))
    return float(values.mean()), cost


def pac_bayes_bound(
    empirical: Callable[[float], ArrayLike],
    w: ArrayLike,
    prior: ArrayLike,
    s_grid: Sequence[float],
    lambda_grid: Sequence[float],
    n: int,
    delta: float,
    *,
    exact: bool = False,
    printed: bool = False,
) -> Bound:
    """thm:pac: with probability ≥ 1 − δ over n independent examples, L_true(Q) ≤ `total`.

    Q = N(w, s²I) and P = N(w_prior, s²I). `empirical(s)` gives training losses, each the mean over
    the examples of losses in [0, 1], at independent draws from Q; or their expectation if `exact`.
    Each pair of the grids gets an equal part of δ, after one tenth of it is set aside for the
    draws. Valid if prior and grids were fixed before the data were seen: this cannot be checked
    here, and a prior at the trained w, for instance, gives no bound at all.

    For losses in [0, 1] Hoeffding's lemma gives λ/8n; the paper prints λ/2M (`printed=True`),
    enough for a range of 2 and hence valid, but four times as large.
    """
    widths, lams = _grid("s_grid", s_grid), _grid("lambda_grid", lambda_grid)
    n, delta = checks.whole("n", n, 1), checks.number("delta", delta, 0, 1, above=True)
    kept = delta if exact else 0.9 * delta
    found = []
    for s in widths:
        mean, cost = _empirical(empirical(s), exact, 0.1 * delta / len(widths))
        kl = gaussian_divergence(w, prior, s)
        found += [
            Bound(s, lam, kl, mean, cost, lam / ((2 if printed else 8) * n), kl / lam,
                  math.log(1 / kept) / lam, math.log(len(widths) * len(lams)) / lam)
            for lam in lams
        ]  # fmt: skip
    return min(found, key=lambda bound: bound.total)
