"""The injection ε_n and what the weights carry, as coefficients of unit draws.

Every adapter adds Σ_j coefficient[j] · ξ_{newest−j} to the weights with these coefficients, in
this order of operations, so that all of them move the weights by the same bits.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from antipgd.noise.taps import Taps, carried


def check_sigma(sigma: object, name: str = "sigma") -> float:
    """σ as a float, refused unless it is a finite number ≥ 0."""
    try:
        refused = isinstance(sigma, str | bytes | bool)
        number = math.nan if refused else float(sigma)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError(
            f"{name} must be a finite number >= 0 (a standard deviation); got {sigma!r}"
        )
    return number


def injection_coefficients(taps: Taps, sigmas: Sequence[float]) -> list[float]:
    """Coefficients of ξ_{n+1}, ξ_n, … in ε_n; `sigmas` are σ_{n+1}, σ_n, … (0 before joining).

    Each draw leaves with the σ it came with, so any schedule telescopes.
    """
    return [tap * sigma for tap, sigma in zip(taps, sigmas, strict=True)]


def carried_coefficients(taps: Taps, sigmas: Sequence[float]) -> list[float]:
    """Coefficients of ξ_n, ξ_{n−1}, … in w_n − z_n; `sigmas` are σ_n, σ_{n−1}, …

    Only for taps that sum to zero; there are len(taps) − 1 of them.
    """
    return [c * sigma for c, sigma in zip(carried(taps)[:-1], sigmas, strict=True)]


def whose_turn(draw: int, layers: int) -> int:
    """Which of so many layers takes a draw, where they take turns: ξ_1 is the first one's."""
    return (draw - 1) % layers


def combine(
    coefficients: Sequence[float], newest: int, draw: Callable[[int], NDArray], dtype: np.dtype
) -> NDArray | None:
    """Σ_j coefficients[j] · ξ_{newest−j} in `dtype`, or None when nothing is to be added.

    The order is part of the contract with the kernels: products rounded to `dtype`, summed from
    the newest draw to the oldest, zero coefficients and draws before step 1 left out.
    """
    total = None
    for lag, coefficient in enumerate(coefficients):
        if coefficient != 0 and newest - lag >= 1:
            term = draw(newest - lag).astype(dtype) * dtype.type(coefficient)
            total = term if total is None else total + term
    return total
