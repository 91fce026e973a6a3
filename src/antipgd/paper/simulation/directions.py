"""From a gradient to the direction of a step: w ← w − η · direction, as torch's optimizers have it.

SGD: v ← βv + g, direction v, with Nesterov's momentum g + βv. Adam: both moments with bias
correction. The noise never passes through here. `lanes` has the same operations compiled, in the
same order. Knows no problem.
"""

import numpy as np

from antipgd.paper.simulation.blocks import Block
from antipgd.paper.simulation.problems.problem import Array

PLAIN, MOMENTUM, ADAM = range(3)
FIRST, SECOND, EPS = 0.9, 0.999, 1e-8  # torch's betas and eps of Adam


def kind_of(block: Block) -> int:
    """What makes the directions of a block: nothing, momentum or Adam."""
    if block.shared.optimizer == "adam":
        return ADAM
    return MOMENTUM if block.shared.momentum else PLAIN


def fresh_memory(kind: int, shape: tuple[int, ...]) -> Array:
    """What an optimizer remembers before the first step: a velocity, or two moments."""
    return np.zeros(((0, 1, 2)[kind], *shape))


def fresh_powers() -> Array:
    """Adam's betas to the power of the steps made."""
    return np.ones(2)


def heavy_ball(g: Array, memory: Array, beta: Array, nesterov: Array) -> Array:
    """The direction, `memory` going on by a step."""
    (v,) = memory
    v[:] = beta * v + g
    return np.where(nesterov != 0, g + beta * v, v)


def adam(g: Array, memory: Array, powers: Array) -> Array:
    """The direction, `memory` and `powers` going on by a step."""
    m, s = memory
    powers *= (FIRST, SECOND)
    m += (1 - FIRST) * (g - m)
    s[:] = SECOND * s + (1 - SECOND) * (g * g)
    return m / (1 - powers[0]) / (np.sqrt(s) / np.sqrt(1 - powers[1]) + EPS)
