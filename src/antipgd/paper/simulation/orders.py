"""In which order mini-batches visit the examples.

With "replacement" every step draws its rows anew. "shuffled" takes every example once per epoch, in
an order drawn for each. "mirrored" goes through each order twice, the second time from its end to
its start, so that what the batches add up to is undone twice as often.
"""

import numpy as np
from numpy.typing import NDArray

from antipgd.noise.stream import stream_key

REPLACEMENT = "replacement"
ORDERS = (REPLACEMENT, "shuffled", "mirrored")


def permutation(seed: int, number: int, examples: int) -> NDArray[np.int64]:
    """The order of that number, of a seed."""
    key = stream_key(seed, f"order {number}", "batch")
    return np.random.Generator(np.random.Philox(key=key)).permutation(examples)


def epoch(order: str, seed: int, number: int, examples: int) -> NDArray[np.int64]:
    """All examples as an epoch visits them, from number 0 on."""
    if order == "shuffled":
        return permutation(seed, number, examples)
    visited = permutation(seed, number // 2, examples)
    return visited[::-1] if number % 2 else visited


def visited_rows(
    order: str, seed: int, examples: int, batch: int, first: int, last: int
) -> NDArray[np.int64]:
    """The rows of the steps after first … last−1, one batch each; none with replacement."""
    if order == REPLACEMENT or last <= first:
        return np.empty((0, batch), np.int64)
    length = examples // batch
    epochs = range(first // length, (last - 1) // length + 1)
    rows = np.concatenate([epoch(order, seed, e, examples) for e in epochs]).reshape(-1, batch)
    skipped = first - epochs[0] * length
    return np.ascontiguousarray(rows[skipped : skipped + last - first])
