"""The colour of the noise: a finite filter over i.i.d. draws.

ε_n = Σ_j taps[j] · ξ_{n+1−j}. PGD is `(1,)`; Anti-PGD (eq:def_antiPGD) is `(1, −1)`; `(1, −λ)`
lies between them. Knows nothing about where draws come from or what they are added to.
"""

import math
from collections.abc import Iterable
from itertools import accumulate

Taps = tuple[float, ...]

ANTI: Taps = (1.0, -1.0)
"""Anti-PGD: what a step adds the next takes back."""
WHITE: Taps = (1.0,)
"""PGD: independent noise, which adds up."""


def as_taps(taps: Iterable[float]) -> Taps:
    """The taps as a tuple of floats, or a `ValueError` that says what is accepted."""
    try:
        values = () if isinstance(taps, str) else tuple(float(tap) for tap in taps)
    except (TypeError, ValueError, OverflowError):
        values = ()
    given = values or taps
    if not values or not all(map(math.isfinite, values)) or not any(values):
        raise ValueError(
            f"taps must be one or more finite numbers, not all zero, "
            f"such as (1, -1) for Anti-PGD or (1,) for PGD; got {given!r}"
        )
    return values


def carried(taps: Taps) -> Taps:
    """What the weights still hold of each past draw: c_j = taps[0] + … + taps[j].

    After n steps w = z + Σ_j c_j σ_{n−j} ξ_{n−j}, the sum running over all n draws; beyond the
    last tap c_j stays at Σ taps, so only taps that sum to zero leave a finite remainder.
    """
    return tuple(accumulate(taps))


def telescopes(taps: Taps) -> bool:
    """Whether the injections cancel, so that clean weights z = w − (carried draws) exist."""
    return abs(math.fsum(taps)) <= 1e-15 * len(taps) * math.fsum(map(abs, taps))
