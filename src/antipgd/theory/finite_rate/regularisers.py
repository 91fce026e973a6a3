"""R(h) with R′ = σ²φ(ηh)/2 and R(0) = 0: what is added to the loss, eigenvalue by eigenvalue.

φ·(limit − x) is smooth and positive up to the limit, so in t = −ln(1 − x/limit) the integral has
no singular end and no cancellation. Known closed forms are derived in proofs/finite_rate.py; near
x = 0 and for β near 1 they are less exact than this.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from antipgd.checks import number
from antipgd.noise.taps import ANTI, Taps
from antipgd.theory.finite_rate.ratios import Array, Dynamics, Noise, finite

_MORE = 12  # nodes than make the integral of a polynomial exact


def _edges(kind: Dynamics, end: float) -> Array:
    """Panels of t: as wide as one, narrower towards Nesterov's pole at x = −(1−β)/β."""
    first = 1.0
    if kind.nesterov and kind.momentum > 0:
        first = min(1.0, (1 - kind.momentum) / (kind.momentum * kind.limit))
    graded = first * 2.0 ** np.arange(math.ceil(-math.log2(first)))
    return np.concatenate([[0.0], graded[graded < 1], np.arange(1, math.ceil(end) + 1)])


def integral(kind: Dynamics, x: Array) -> Array:
    """∫_0^x φ for 0 < x < limit."""
    far, whole = x < kind.limit / 2, kind.gap(0.0)
    t = -np.where(far, np.log1p(-x / kind.limit), np.log(kind.gap(x) / whole))
    edges = _edges(kind, float(t.max(initial=0.0)))
    nodes, weights = np.polynomial.legendre.leggauss(len(kind.steps) + _MORE)
    slope = kind.limit / whole  # dx/dt = limit − x, which is gap(x) × this

    def over(low: Array, high: Array) -> Array:
        half = (high - low)[:, None] / 2
        at = -kind.limit * np.expm1(-(low[:, None] + half * (1 + nodes)))
        return slope * (half * weights * kind.scaled(at)).sum(axis=1)

    before = np.concatenate([[0.0], np.cumsum(over(edges[:-1], edges[1:]))])
    panel = np.searchsorted(edges, t, side="right") - 1
    return before[panel] + over(edges[panel], t)


def regulariser(
    h: ArrayLike,
    lr: float,
    sigma: float,
    momentum: float = 0.0,
    nesterov: bool = False,
    taps: Taps = ANTI,
    hold: int = 1,
    antithetic: bool = False,
    draws: int = 1,
    noise: Noise = "weights",
) -> Any:
    """R(h) for each curvature h: R′ = σ²φ(ηh)/2, R(0) = 0; the loss has Σ R over eigenvalues added.

    Anti-PGD has −(σ²/η) ln(1 − ηh/2), a barrier at the edge of stability. For h ≤ 0, where nothing
    is stationary, R goes on as straight as it begins: σ²h/2 for Anti-PGD. Infinite from the limit
    of stability on. Refuses taps whose sum is not zero: where it is flat they diffuse, and there
    is no R(0). Condition: as for `variance_ratio`, and slow motion along the minima.

    >>> regulariser([-1.0, 0.0, 1.0, 18.0, 20.0], 0.1, 0.05).round(6).tolist()
    [-0.00125, 0.0, 0.001282, 0.057565, inf]
    """
    kind = Dynamics(momentum, nesterov, taps, hold, antithetic, draws, noise).at_rest()
    eta, s = number("lr", lr, 0, above=True), number("sigma", sigma, 0)
    curvatures = np.atleast_1d(finite("h", h))
    found = s**2 / 2 * kind.flat * curvatures
    x = eta * curvatures
    found[x > 0] = math.inf
    inside = kind.inside(x)
    found[inside] = s**2 / (2 * eta) * integral(kind, x[inside])
    return found if np.ndim(h) else float(found[0])
