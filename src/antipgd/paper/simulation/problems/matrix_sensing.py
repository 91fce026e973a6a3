"""Matrix sensing, §sec:matrix_sensing of the paper: L(U) = Σ_i (⟨A_i, UUᵀ⟩ − y_i)² / 2M.

The target X* has low rank; among the many U that fit the few measurements the flat ones have
nearly low rank too and generalise. w is U row by row. Only the symmetric part of a measurement
matters, so A_i is kept as a row of B over the pairs a ≤ b, with ⟨A_i, X⟩ = B_i · packed(X). The
text wants X* = VVᵀ and also ‖X*‖₂ = 1: `scaling` chooses.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipgd.paper.simulation.problems import codes
from antipgd.paper.simulation.problems.problem import Array, Compiled, Problem, Rows


class Data(NamedTuple):
    """Packed measurements and labels, to train and to test; Σ_i S_i² for the trace."""

    B: Array
    y: Array
    B_test: Array
    y_test: Array
    sum_of_squares: Array


def _pairs(n: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows and columns of the upper triangle, in the order in which it is packed."""
    return np.triu_indices(n)


def _packed_symmetric(X: Array) -> Array:
    a, b = _pairs(X.shape[-1])
    return X[..., a, b]


def _packed_measurements(A: Array) -> Array:
    """A_aa on the diagonal, A_ab + A_ba off it."""
    a, b = _pairs(A.shape[-1])
    packed = np.where(a == b, A[:, a, b], A[:, a, b] + A[:, b, a])
    return np.ascontiguousarray(packed)  # NumPy's indexing puts the pairs first in memory


def _sum_of_squares(A: Array) -> Array:
    S = (A + A.mT) / 2
    return (S @ S).sum(axis=0)


@dataclass(frozen=True)
class MatrixSensing(Problem):
    """Standard Gaussian measurements of an n × n matrix of this rank; starts at U = I.

    `scaling` is "unit" for ‖X*‖₂ = 1 or "raw" for X* = VVᵀ as drawn. The labels to train on have
    Gaussian noise of standard deviation `label_noise`.
    """

    about = (
        "L(U) = sum_i (<A_i, UU'> - y_i)^2 / 2 measurements; n: U is n x n, rank: of the target, "
        "measurements: to train on, test: held out, label_noise: its standard deviation, scaling: "
        "unit (target of norm 1) or raw; nothing is watched"
    )

    n: int = 20
    rank: int = 5
    measurements: int = 100
    test: int = 100
    label_noise: float = 0.01
    scaling: str = "unit"

    def __post_init__(self) -> None:
        if min(self.measurements, self.test) < 1 or not 1 <= self.rank <= self.n:
            raise ValueError(
                f"matrix_sensing needs measurements, test >= 1 and 1 <= rank <= n; got "
                f"measurements={self.measurements}, test={self.test}, rank={self.rank}, n={self.n}"
            )
        if not 0 <= self.label_noise < np.inf:
            raise ValueError(f"label_noise must be finite and >= 0; got {self.label_noise}")
        if self.scaling not in ("unit", "raw"):
            raise ValueError(f"scaling must be 'unit' or 'raw'; got {self.scaling!r}")

    @property
    def examples(self) -> int:
        return self.measurements

    def target(self, rng: np.random.Generator) -> Array:
        """X*, the first thing drawn by `data`."""
        V = rng.standard_normal((self.n, self.rank))
        X = V @ V.T
        return X / np.linalg.norm(X, 2) if self.scaling == "unit" else X

    def data(self, rng: np.random.Generator) -> Data:
        X = _packed_symmetric(self.target(rng))
        A = rng.standard_normal((self.measurements, self.n, self.n))
        noise = self.label_noise * rng.standard_normal(self.measurements)
        A_test = rng.standard_normal((self.test, self.n, self.n))
        B, B_test = _packed_measurements(A), _packed_measurements(A_test)
        return Data(B, B @ X + noise, B_test, B_test @ X, _sum_of_squares(A))

    def start(self, rng: np.random.Generator) -> Array:
        return np.eye(self.n).reshape(-1)

    def _matrices(self, W: Array) -> Array:
        return W.reshape(-1, self.n, self.n)

    def _residual(self, W: Array, B: Array, y: Array) -> Array:
        U = self._matrices(W)
        return _packed_symmetric(U @ U.mT) @ B.T - y

    def loss(self, W: Array, data: Data) -> Array:
        return (self._residual(W, data.B, data.y) ** 2).mean(axis=1) / 2

    def test_loss(self, W: Array, data: Data) -> Array:
        return (self._residual(W, data.B_test, data.y_test) ** 2).mean(axis=1) / 2

    def gradient(
        self, W: Array, data: Data, rows: Rows | None = None, label_shift: Array | None = None
    ) -> Array:
        B, y = (data.B, data.y) if rows is None else (data.B[rows], data.y[rows])
        residual = self._residual(W, B, y if label_shift is None else y + label_shift)
        a, b = _pairs(self.n)
        G = np.zeros((len(W), self.n, self.n))  # Σ_i r_i S_i
        G[:, a, b] = residual @ B / 2
        G += G.mT
        return (2 / len(B) * (G @ self._matrices(W))).reshape(len(W), -1)

    def trace(self, W: Array, data: Data) -> Array:
        """Σ_i (4‖S_i U‖² + 2n r_i tr S_i) / M."""
        U = self._matrices(W)
        first = 4 * (U * (data.sum_of_squares @ U)).sum(axis=(1, 2))
        a, b = _pairs(self.n)
        traces = data.B[:, a == b].sum(axis=1)
        second = 2 * self.n * self._residual(W, data.B, data.y) @ traces
        return (first + second) / self.measurements

    def _symmetric(self, B: Array) -> Array:
        """The S_i, of shape (measurements, n, n)."""
        a, b = _pairs(self.n)
        S = np.zeros((len(B), self.n, self.n))
        S[:, a, b] = B / 2
        return S + S.mT

    def hessian(self, w: Array, data: Data) -> Array:
        """Σ_i (4 vec(S_i U) vec(S_i U)ᵀ + 2 r_i S_i ⊗ 1) / M."""
        S = self._symmetric(data.B)
        first = (S @ self._matrices(w)[0]).reshape(len(S), -1)
        residual = self._residual(w[None], data.B, data.y)[0]
        second = np.kron(np.tensordot(residual, S, 1), np.eye(self.n))
        return (4 * first.T @ first + 2 * second) / self.measurements

    def curvature_gradient(self, w: Array, data: Data, M: Array) -> Array:
        n, S = self.n, self._symmetric(data.B)
        first = S @ self._matrices(w)[0]
        turned = (first.reshape(len(S), -1) @ M).reshape(len(S), n, n)
        weights = np.tensordot(S, np.einsum("abcb->ac", M.reshape(n, n, n, n)), 2)
        total = 8 * (S @ turned).sum(axis=0) + 4 * np.tensordot(weights, first, 1)
        return (total / self.measurements).reshape(-1)

    def compiled(self, data: Data) -> Compiled:
        return Compiled(codes.MATRIX_SENSING, data.B, data.y)
