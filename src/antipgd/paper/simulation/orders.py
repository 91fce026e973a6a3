"""In which order mini-batches visit the examples.

With "replacement" every step draws its rows anew. "shuffled" and "mirrored" are those of
`noise.orders`. "balanced" is GraB's pair balance, whose orders depend on the gradients: see
`balancing`.
"""

import numpy as np
from numpy.typing import NDArray

from antipgd.noise.orders import EPOCH_ORDERS, epoch_order

REPLACEMENT, BALANCED = "replacement", "balanced"
ORDERS = (REPLACEMENT, *EPOCH_ORDERS, BALANCED)


def visited_rows(
    order: str, seed: int, examples: int, batch: int, first: int, last: int
) -> NDArray[np.int64]:
    """The rows of the steps after first … last−1, one batch each; none that are not known before
    the steps."""
    if order not in EPOCH_ORDERS or last <= first:
        return np.empty((0, batch), np.int64)
    length = examples // batch
    epochs = range(first // length, (last - 1) // length + 1)
    visited = [epoch_order(order, seed, e, examples) for e in epochs]
    rows = np.concatenate(visited).reshape(-1, batch)
    skipped = first - epochs[0] * length
    return np.ascontiguousarray(rows[skipped : skipped + last - first])
