"""Regression with tanh(x·w): six weights, twelve examples, derivatives of every order.

For what is enumerated over all draws instead of run: no `Problem`, for nobody descends on it by
name. Beside it, the small quadratic regression and the two-point noises of the same experiments.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from antipgd.noise import stream_key
from antipgd.paper.simulation.problems.problem import Array
from antipgd.theory.regularisation import Derivatives, TwoPoint

D, EXAMPLES, POINTS = 6, 12, 10
LAWS = {"symmetric": TwoPoint(), "skewed": TwoPoint(0.2)}
QUADRATIC = {"d": D, "n": 4, "nonzero": 2}


class TanhRegression(NamedTuple):
    """L(w) = ½ mean (tanh(x·w) − y)², with derivatives of every order."""

    X: Array
    y: Array

    def _slopes(self, W: Array) -> tuple[Array, ...]:
        """First to fourth derivatives of ½(tanh a − y)² at a = x·w."""
        t = np.tanh(W @ self.X.T)
        r, t1 = t - self.y, 1 - t * t
        t2 = -2 * t * t1
        t3 = -2 * t1 * t1 - 2 * t * t2
        t4 = -6 * t1 * t2 - 2 * t * t3
        return (
            r * t1,
            t1 * t1 + r * t2,
            3 * t1 * t2 + r * t3,
            3 * t2 * t2 + 4 * t1 * t3 + r * t4,
        )

    def gradient(self, W: Array) -> Array:
        """∇L."""
        return self._slopes(W)[0] @ self.X / len(self.X)

    def gradient_of_trace(self, W: Array) -> Array:
        """∇tr∇²L."""
        return (self._slopes(W)[2] * (self.X**2).sum(axis=1)) @ self.X / len(self.X)

    def derivatives(self, w: Array) -> Derivatives:
        """All of them, to the fourth order."""
        letters = ("ni", "ni,nj", "ni,nj,nk", "ni,nj,nk,nl")
        return Derivatives(*(
            np.einsum(f"n,{x}->{x[1::3]}", slope / len(self.X), *[self.X] * order)
            for order, (x, slope) in enumerate(zip(letters, self._slopes(w), strict=True), 1)
        ))  # fmt: skip


def generator(seed: int, name: str) -> np.random.Generator:
    """NumPy's generator on its own named part of the seed.

    Ranges of σ and tolerances were chosen on seeds 0 to 9; these are others.
    """
    return np.random.Generator(np.random.Philox(key=stream_key(1000 + seed, name, "data")))


@cache
def tanh_regression(seed: int) -> tuple[TanhRegression, Array]:
    """The problem of one seed, and random points."""
    rng = generator(seed, "tanh_regression")
    X = rng.standard_normal((EXAMPLES, D))
    y = 0.5 * np.tanh(rng.standard_normal(EXAMPLES))
    return TanhRegression(X, y), 0.5 * rng.standard_normal((POINTS, D))


@cache
def minimum(seed: int) -> Array:
    """Where gradient descent ends: 2,000 steps with η = 0.5, and five of Newton's to be exact."""
    problem, points = tanh_regression(seed)
    z = points[0]
    for _ in range(2000):
        z = z - 0.5 * problem.gradient(z)
    for _ in range(5):
        z = z - np.linalg.solve(problem.derivatives(z).hessian, problem.gradient(z))
    return z
