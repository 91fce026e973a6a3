"""Deep linear sensing: L(W_1, …, W_D) = Σ_i (⟨A_i, W_D ⋯ W_1⟩ − y_i)² / 2m, of any width and depth.

A product of matrices is measured where one would do: the function does not depend on the width, so
what noise of one size does at several widths can be compared. L is a square of something linear in
every single weight, so the trace of the Hessian is that of the squared Jacobian. w is W_1, W_2, …
one after the other, each row by row.
"""

from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipgd.paper.simulation.problems.problem import Array, Problem, Rows


class Data(NamedTuple):
    """Measurements and labels, to train and to test."""

    A: Array
    y: Array
    A_test: Array
    y_test: Array


def _product(matrices: list[Array]) -> Array:
    """The last times … times the first."""
    return reduce(lambda product, W: W @ product, matrices)


@dataclass(frozen=True)
class DeepLinear(Problem):
    """Gaussian measurements of an n × n matrix of this rank and norm one, by `depth` factors.

    Those within are `width` wide. Weights start as Gaussian numbers of variance init²/width, so
    that ‖W_1‖² does not depend on the width.
    """

    about = (
        "L(W) = sum_i (<A_i, W_D...W_1> - y_i)^2 / 2 measurements; n: the product is n x n, rank: "
        "of the target, width: of the factors, depth: how many they are, measurements: to train "
        "on, test: held out, label_noise: its standard deviation, init: scale of the start; "
        "--leave watches the nuclear norm of the product"
    )

    n: int = 6
    rank: int = 1
    width: int = 16
    depth: int = 2
    measurements: int = 24
    test: int = 200
    label_noise: float = 0.0
    init: float = 1.0

    def __post_init__(self) -> None:
        if min(self.width, self.measurements, self.test) < 1 or self.depth < 2:
            raise ValueError(
                f"deep_linear needs width, measurements, test >= 1 and depth >= 2; got width="
                f"{self.width}, measurements={self.measurements}, test={self.test}, "
                f"depth={self.depth}"
            )
        if not 1 <= self.rank <= self.n:
            raise ValueError(f"deep_linear needs 1 <= rank <= n; got rank={self.rank}, n={self.n}")
        if not (0 <= self.label_noise < np.inf and 0 <= self.init < np.inf):
            raise ValueError(
                f"deep_linear needs finite label_noise and init >= 0; got label_noise="
                f"{self.label_noise}, init={self.init}"
            )

    @property
    def examples(self) -> int:
        return self.measurements

    @cached_property
    def _shapes(self) -> list[tuple[int, int]]:
        sizes = [self.n, *[self.width] * (self.depth - 1), self.n]
        return [(after, before) for before, after in pairwise(sizes)]

    @cached_property
    def _ends(self) -> list[int]:
        return np.cumsum([0, *(a * b for a, b in self._shapes)]).tolist()

    def data(self, rng: np.random.Generator) -> Data:
        X = rng.standard_normal((self.n, self.rank)) @ rng.standard_normal((self.rank, self.n))
        x = (X / np.linalg.norm(X, 2)).reshape(-1)
        A = rng.standard_normal((self.measurements, self.n**2))
        noise = self.label_noise * rng.standard_normal(self.measurements)
        A_test = rng.standard_normal((self.test, self.n**2))
        return Data(A, A @ x + noise, A_test, A_test @ x)

    def start(self, rng: np.random.Generator) -> Array:
        return float(self.init) / np.sqrt(self.width) * rng.standard_normal(self._ends[-1])

    def _matrices(self, W: Array) -> list[Array]:
        ends = zip(self._ends[:-1], self._ends[1:], self._shapes, strict=True)
        return [W[:, first:last].reshape(len(W), *shape) for first, last, shape in ends]

    def _residual(self, W: Array, A: Array, y: Array) -> Array:
        return _product(self._matrices(W)).reshape(len(W), -1) @ A.T - y

    def loss(self, W: Array, data: Data) -> Array:
        return (self._residual(W, data.A, data.y) ** 2).mean(axis=1) / 2

    def test_loss(self, W: Array, data: Data) -> Array:
        return (self._residual(W, data.A_test, data.y_test) ** 2).mean(axis=1) / 2

    def _around(self, matrices: list[Array]) -> list[tuple[Array, Array]]:
        """For each factor what stands left and right of it in the product."""
        one = np.broadcast_to(np.eye(self.n), (len(matrices[0]), self.n, self.n))
        right, left = [one], [one]
        for W in matrices[:-1]:
            right.append(W @ right[-1])
        for W in matrices[:0:-1]:
            left.append(left[-1] @ W)
        return list(zip(left[::-1], right, strict=True))

    def gradient(
        self, W: Array, data: Data, rows: Rows | None = None, label_shift: Array | None = None
    ) -> Array:
        A, y = (data.A, data.y) if rows is None else (data.A[rows], data.y[rows])
        residual = self._residual(W, A, y if label_shift is None else y + label_shift)
        G = (residual @ A / len(A)).reshape(len(W), self.n, self.n)
        parts = [left.mT @ G @ right.mT for left, right in self._around(self._matrices(W))]
        return np.concatenate([part.reshape(len(W), -1) for part in parts], axis=1)

    def trace(self, W: Array, data: Data) -> Array:
        """Σ_l Σ_i ‖leftᵀ A_i rightᵀ‖² / m."""
        A = data.A.reshape(-1, self.n, self.n)
        total = np.zeros(len(W))
        for left, right in self._around(self._matrices(W)):
            J = left.mT[:, None] @ A @ right.mT[:, None]
            total += (J**2).sum(axis=(1, 2, 3))
        return total / self.measurements

    def watch(self, W: Array) -> Array:
        """The nuclear norm of the product; not a number where that is none."""
        product = _product(self._matrices(W))
        fine = np.isfinite(product).all(axis=(1, 2))
        norms = np.full(len(W), np.nan)
        norms[fine] = np.linalg.svd(product[fine], compute_uv=False).sum(axis=1)
        return norms

    @property
    def parts(self) -> dict[str, slice]:
        return {f"W{i + 1}": slice(*self._ends[i : i + 2]) for i in range(self.depth)}

    @property
    def filters(self) -> NDArray[np.int64]:
        widths = np.concatenate([np.full(rows, columns) for rows, columns in self._shapes])
        return np.repeat(np.arange(len(widths)), widths)
