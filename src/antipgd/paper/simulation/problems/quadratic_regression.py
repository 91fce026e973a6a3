"""Quadratically parametrised linear regression, §sec:squared_regr of the paper.

L(w) = ‖X(w⊙w) − y‖² / 4n with a sparse target: many minima interpolate, the flat ones are sparse
and generalise. The test loss has the same form (the paper leaves it open).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from antipgd.paper.simulation.problems import codes
from antipgd.paper.simulation.problems.problem import Array, Compiled, Problem, Rows


class Data(NamedTuple):
    """Inputs and labels, to train and to test."""

    X: Array
    y: Array
    X_test: Array
    y_test: Array


def _quarter_mean_square(W: Array, X: Array, y: Array) -> Array:
    residual = (W * W) @ X.T - y
    return (residual * residual).mean(axis=1) / 4


@dataclass(frozen=True)
class QuadraticRegression(Problem):
    """n standard Gaussian inputs in d dimensions; the target has `nonzero` ones."""

    about = (
        "L(w) = |X(w*w) - y|^2 / 4n; d: weights, n: Gaussian examples, nonzero: ones in the "
        "target, test: held-out examples, init: every weight at the start; nothing is watched"
    )

    d: int = 100
    n: int = 40
    nonzero: int = 10
    test: int = 100
    init: float = 1.0

    def __post_init__(self) -> None:
        if min(self.d, self.n, self.test) < 1 or not 0 <= self.nonzero <= self.d:
            raise ValueError(
                f"quadratic_regression needs d, n, test >= 1 and 0 <= nonzero <= d; "
                f"got d={self.d}, n={self.n}, test={self.test}, nonzero={self.nonzero}"
            )

    @property
    def examples(self) -> int:
        return self.n

    def data(self, rng: np.random.Generator) -> Data:
        X, X_test = rng.standard_normal((self.n, self.d)), rng.standard_normal((self.test, self.d))
        target = (np.arange(self.d) < self.nonzero).astype(np.float64)
        return Data(X, X @ target**2, X_test, X_test @ target**2)

    def start(self, rng: np.random.Generator) -> Array:
        return np.full(self.d, float(self.init))

    def loss(self, W: Array, data: Data) -> Array:
        return _quarter_mean_square(W, data.X, data.y)

    def test_loss(self, W: Array, data: Data) -> Array:
        return _quarter_mean_square(W, data.X_test, data.y_test)

    def gradient(
        self, W: Array, data: Data, rows: Rows | None = None, label_shift: Array | None = None
    ) -> Array:
        X, y = (data.X, data.y) if rows is None else (data.X[rows], data.y[rows])
        residual = (W * W) @ X.T - (y if label_shift is None else y + label_shift)
        return W * (residual @ X) / len(X)

    def trace(self, W: Array, data: Data) -> Array:
        residual = (W * W) @ data.X.T - data.y
        diagonal = residual @ data.X + 2 * (W * W) * (data.X**2).sum(axis=0)
        return diagonal.sum(axis=1) / self.n

    def hessian(self, w: Array, data: Data) -> Array:
        """(diag(Xᵀr) + 2 diag(w) XᵀX diag(w)) / n."""
        scaled = data.X * w
        residual = data.X @ (w * w) - data.y
        return (np.diag(residual @ data.X) + 2 * scaled.T @ scaled) / self.n

    def curvature_gradient(self, w: Array, data: Data, M: Array) -> Array:
        gram = data.X.T @ data.X
        return (2 * w * (gram @ np.diag(M)) + 4 * (gram * M) @ w) / self.n

    def compiled(self, data: Data) -> Compiled:
        return Compiled(codes.QUADRATIC_REGRESSION, data.X, data.y)
