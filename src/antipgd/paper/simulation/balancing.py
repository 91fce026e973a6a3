"""GraB's pair balance: the order of the next epoch from the gradients of this one.

(Lu et al., arXiv 2205.10733; in pairs, Cooper et al., arXiv 2302.00845.) The examples of an epoch
are taken two by two. Of each pair one goes to the front of the next order and the other to its
back, the way round that keeps the running sum s of ± (first − second) small: first to the front if
⟨s, first − second⟩ ≤ 0. What deviates from the mean gradient then cancels early in the next epoch.
Gradients are those of single examples, at the weights of the step that visits them. The first order
is drawn, as that of a shuffled epoch; of an odd number the last one takes the place in the middle.

This is the slow, obvious version; `lanes.balance` is the same for compiled steps.
"""

import numpy as np
from numpy.typing import NDArray

from antipgd.noise.orders import permutation
from antipgd.paper.simulation.problems.problem import Array


class PairBalance:
    """The orders of one run, from epoch to epoch."""

    def __init__(self, seed: int, examples: int, size: int) -> None:
        self.order = permutation(seed, 0, examples)
        self.following = np.zeros_like(self.order)
        self.total, self.first = np.zeros(size), np.zeros(size)

    def rows(self, step: int, batch: int) -> NDArray[np.int64]:
        """Of the step after `step` others, which have shown their gradients."""
        begin = step * batch % len(self.order)
        if begin == 0 and step > 0:
            self.order[:] = self.following
            self.total[:] = 0
        return self.order[begin : begin + batch].copy()

    def show(self, place: int, gradient: Array) -> None:
        """The gradient of the example at a place of the order."""
        pair, last = place // 2, len(self.order) - 1
        if place % 2 == 0:
            self.first[:] = gradient
            self.following[pair] = self.order[place]  # stays there if it has no partner
            return
        difference = self.first - gradient
        sign = 1 if self.total @ difference <= 0 else -1
        self.total += sign * difference
        front, back = (place - 1, place) if sign == 1 else (place, place - 1)
        self.following[pair] = self.order[front]
        self.following[last - pair] = self.order[back]
