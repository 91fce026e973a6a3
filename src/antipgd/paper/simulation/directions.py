"""From a gradient to the direction of a step: w ← w − η · direction, as torch's optimizers have it.

SGD: v ← βv + g, direction v, with Nesterov's momentum g + βv. Adam: both moments with bias
correction. The noise never passes through here. In NumPy, and compiled with the same operations in
the same order. Knows no problem.
"""

import numpy as np

from antipgd.compiling import jit_with
from antipgd.noise import kernels as noise
from antipgd.paper.simulation.blocks import LANES, Block
from antipgd.paper.simulation.problems.problem import Array

jit = jit_with(noise)

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


@jit
def _heavy_ball(n, beta, nesterov, v, g):
    noise.not_inlined()
    noise.widest_vectors()
    for i in range(n):
        faster = beta[i] * v[i] + g[i]
        ahead = g[i] + beta[i] * faster
        v[i] = faster
        g[i] = ahead if nesterov[i] != 0 else faster


@jit
def _adam(n, correction, root, m, s, g):
    noise.not_inlined()
    noise.widest_vectors()
    for i in range(n):
        m[i] += (1 - FIRST) * (g[i] - m[i])
        s[i] = SECOND * s[i] + (1 - SECOND) * (g[i] * g[i])
        g[i] = m[i] / correction / (np.sqrt(s[i]) / root + EPS)


@jit
def direct(kind, beta, nesterov, memory, powers, g):
    """Make a direction of the gradient `g`, in place; `memory` and `powers` go on by a step."""
    if kind == MOMENTUM:
        _heavy_ball(g.shape[0], beta, nesterov, memory[0], g)
    elif kind == ADAM:
        powers[0] *= FIRST
        powers[1] *= SECOND
        _adam(g.shape[0], 1 - powers[0], np.sqrt(1 - powers[1]), memory[0], memory[1], g)


@jit
def forget(alive, memory):
    """Lanes that have left the finite numbers remember nothing."""
    for row in range(memory.shape[0]):
        for lane in range(LANES):
            if not alive[lane]:
                for j in range(memory.shape[1] // LANES):
                    memory[row, LANES * j + lane] = 0
