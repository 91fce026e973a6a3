"""The paper's algorithms in plain NumPy, one function of a base step each.

`base` maps w to w′ and may be any optimizer's step, here plain gradient descent most of the time.
`draw(k)` gives the unit draw ξ_k for k ≥ 1 (ξ_0 = 0, the convention of the paper's appendix)
and `sigma` is a number or a function of the draw's step (`in_turn` makes one); `shares`, of a shape
that broadcasts, multiply it row by row. Each function yields w_0, w_1, …, w_N.
Everything faster in this package proves whole trajectories equal to these.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from antipgd.noise.injection import (
    carried_coefficients,
    check_sigma,
    combine,
    injection_coefficients,
    whose_turn,
)
from antipgd.noise.taps import ANTI, WHITE, Taps, as_taps, telescopes

Array = NDArray[np.floating]
Step = Callable[[Array], Array]
Draw = Callable[[int], NDArray]
Sigma = float | Callable[[int], float]


def gradient_step(gradient: Step, eta: float) -> Step:
    """The base step of gradient descent, w′ = w − η∇L(w)."""
    return lambda w: w - eta * gradient(w)


def _sigmas(sigma: Sigma, newest: int, count: int) -> list[float]:
    """σ of the draws newest, newest−1, …; zero for draws before step 1, which do not exist."""
    return [
        0.0 if k < 1 else check_sigma(sigma(k) if callable(sigma) else sigma)
        for k in range(newest, newest - count, -1)
    ]


def in_turn(sigma: Sigma, layer: int, layers: int) -> Sigma:
    """σ of one of so many layers that take turns: 0 for the draws of the others."""
    return lambda k: _sigmas(sigma, k, 1)[0] if whose_turn(k, layers) == layer else 0.0


def _shaped(xi: Array | None, shares: Array | None) -> Array | None:
    return xi if xi is None or shares is None else xi * shares.astype(xi.dtype)


def _check_weights(w: Array) -> None:
    if w.dtype not in (np.float32, np.float64):
        raise TypeError(f"weights must be a float32 or float64 array; got {w.dtype}")


def perturbed(
    base: Step, w: Array, steps: int, *, draw: Draw, sigma: Sigma, taps: Taps = ANTI,
    shares: Array | None = None,
) -> Iterator[Array]:  # fmt: skip
    """w_{n+1} = base(w_n) + ε_n with ε_n = Σ_j taps[j] σ_{n+1−j} ξ_{n+1−j}, times `shares`."""
    taps = as_taps(taps)
    _check_weights(w)
    yield w
    for n in range(steps):
        coefficients = injection_coefficients(taps, _sigmas(sigma, n + 1, len(taps)))
        eps = _shaped(combine(coefficients, n + 1, draw, w.dtype), shares)
        w = base(w)
        if eps is not None:
            w = w + eps
        yield w


def clean(
    w: Array, step: int, *, draw: Draw, sigma: Sigma, taps: Taps = ANTI,
    shares: Array | None = None,
) -> Array:  # fmt: skip
    """z_n = w_n − Σ_j c_j σ_{n−j} ξ_{n−j}, the weights without the draws they carry."""
    taps = as_taps(taps)
    _check_weights(w)
    if step < 0:
        raise ValueError(f"step must not be negative; got {step}")
    if not telescopes(taps):
        raise ValueError(f"clean weights exist only for taps that sum to zero; got {taps}")
    coefficients = carried_coefficients(taps, _sigmas(sigma, step, len(taps) - 1))
    xi = _shaped(combine(coefficients, step, draw, w.dtype), shares)
    return w if xi is None else w - xi


def gd(base: Step, w: Array, steps: int) -> Iterator[Array]:
    """Gradient descent, or whatever `base` is, without noise."""
    return perturbed(base, w, steps, draw=lambda k: np.zeros_like(w), sigma=0.0)


def pgd(base: Step, w: Array, steps: int, *, draw: Draw, sigma: Sigma) -> Iterator[Array]:
    """Perturbed gradient descent, eq:def_PGD: w_{n+1} = base(w_n) + ξ_{n+1}."""
    return perturbed(base, w, steps, draw=draw, sigma=sigma, taps=WHITE)


def anti_pgd(base: Step, w: Array, steps: int, *, draw: Draw, sigma: Sigma) -> Iterator[Array]:
    """Anti-PGD, eq:def_antiPGD: w_{n+1} = base(w_n) + (ξ_{n+1} − ξ_n)."""
    return perturbed(base, w, steps, draw=draw, sigma=sigma, taps=ANTI)


def anti_pgd_clean(
    base: Step, z: Array, steps: int, *, draw: Draw, sigma: Sigma
) -> Iterator[Array]:
    """Anti-PGD in its z-form: z_{n+1} = base(z_n + ξ_n) − ξ_n; yields z_0, z_1, …

    With a gradient step this is z_{n+1} = z_n − η∇L(z_n + ξ_n): descent on a smoothed loss.
    """
    _check_weights(z)
    yield z
    for n in range(steps):
        xi = 0.0 if n == 0 else draw(n).astype(z.dtype) * z.dtype.type(_sigmas(sigma, n, 1)[0])
        z = base(z + xi) - xi
        yield z
