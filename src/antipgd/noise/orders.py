"""In which order an epoch visits the examples: a function of seed and epoch, never a state.

"shuffled" takes an order drawn for each epoch. "mirrored" goes through each order twice, the second
time from its end to its start, so that what the batches add up to is undone twice as often. Knows
neither batches nor gradients.
"""

import numpy as np
from numpy.typing import NDArray

from antipgd.noise.stream import stream_key

SHUFFLED, MIRRORED = "shuffled", "mirrored"
EPOCH_ORDERS = (SHUFFLED, MIRRORED)


def permutation(seed: int, number: int, examples: int) -> NDArray[np.int64]:
    """The order of that number, of a seed."""
    key = stream_key(seed, f"order {number}", "batch")
    return np.random.Generator(np.random.Philox(key=key)).permutation(examples)


def drawn_order(order: str, seed: int, epoch: int, examples: int) -> tuple[NDArray[np.int64], bool]:
    """The order that an epoch goes through, and whether it does so from its end to its start."""
    if order == SHUFFLED:
        return permutation(seed, epoch, examples), False
    return permutation(seed, epoch // 2, examples), epoch % 2 == 1


def epoch_order(order: str, seed: int, epoch: int, examples: int) -> NDArray[np.int64]:
    """All examples as an epoch visits them, from epoch 0 on."""
    drawn, backwards = drawn_order(order, seed, epoch, examples)
    return drawn[::-1] if backwards else drawn
