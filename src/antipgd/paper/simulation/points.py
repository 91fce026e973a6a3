"""At which points the gradient of a step is taken: at w, on both sides of it, or above it.

Two-point noise (arXiv 2306.08553) takes the mean of the gradients at w ± σξ and adds nothing to the
weights; SAM (Foret et al., 2021) takes that at w + ρ g/‖g‖, g being the gradient at w of the same
examples. A run's σ is SAM's radius ρ. `compiled` has the same operations, in the same order. Knows
no problem and no stream.
"""

from collections.abc import Callable

import numpy as np

from antipgd.paper.simulation.problems.problem import Array

PLAIN, TWO_POINT, SAM = range(3)
TAKEN = {"plain": PLAIN, "two_point": TWO_POINT, "sam": SAM}  # as `methods` names them
TINY = 1e-12  # added to ‖g‖, as in `networks.gradients`

Gradient = Callable[[Array], Array]
Draw = Callable[[], Array]


def plain(at: Gradient, W: Array, sigma: Array, draw: Draw) -> Array:
    """That at the weights."""
    return at(W)


def two_point(at: Gradient, W: Array, sigma: Array, draw: Draw) -> Array:
    """The mean of those at w + σξ and w − σξ, ξ the step's own draw."""
    away = sigma[:, None] * draw()
    return (at(W + away) + at(W - away)) / 2


def sam(at: Gradient, W: Array, sigma: Array, draw: Draw) -> Array:
    """That at w + ρ g/‖g‖."""
    g = at(W)
    length = np.sqrt((g * g).sum(axis=1)) + TINY
    return at(W + (sigma / length)[:, None] * g)
