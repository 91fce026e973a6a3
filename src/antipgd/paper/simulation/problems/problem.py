"""What a problem is: a loss and its gradient in NumPy, vectorised over runs.

A problem is a frozen dataclass whose fields are its settings. It does not know noise, methods or
how it is run: mini-batch rows and label shifts are handed to `gradient`. The weights of R runs are
a float64 array W of shape (R, d); functions return one number (or one gradient) per row.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rows = NDArray[np.int64]


class Compiled(NamedTuple):
    """Data of a problem in the form its compiled kernel takes: see `problems.kernels`."""

    code: int
    matrix: Array
    vector: Array


class Problem(ABC):
    """Subclass this as a frozen dataclass for a problem of your own.

    `start`, `loss` and `gradient` are all it needs. Raise `version` when a change of the code
    changes results, so that stored runs of the old code count as stale.
    """

    version: ClassVar[int] = 1
    about: ClassVar[str] = ""
    """The formula, the settings, and what is watched, in a few lines for `antipgd list`."""

    @property
    def examples(self) -> int:
        """How many examples there are to choose mini-batches from and to shift labels of."""
        return 0

    def data(self, rng: np.random.Generator) -> Any:
        """The data of one seed; every function below gets them as they are."""
        return None

    @abstractmethod
    def start(self, rng: np.random.Generator) -> Array:
        """w_0 of shape (d,)."""

    @abstractmethod
    def loss(self, W: Array, data: Any) -> Array:
        """Training losses, shape (R,)."""

    @abstractmethod
    def gradient(
        self, W: Array, data: Any, rows: Rows | None = None, label_shift: Array | None = None
    ) -> Array:
        """Gradients of the training loss, shape (R, d).

        With `rows`, of the mean over these examples instead of all. `label_shift` of shape
        (R, number of examples used) is added to their labels. Neither is ever given if
        `examples` is 0.
        """

    def test_loss(self, W: Array, data: Any) -> Array:
        """Losses on held-out data, shape (R,); not a number if there are none."""
        return np.full(len(W), np.nan)

    def trace(self, W: Array, data: Any) -> Array:
        """Traces of the Hessian, shape (R,); by central differences unless a formula is given."""
        return numerical_trace(self, W, data)

    def hessian(self, w: Array, data: Any) -> Array:
        """The Hessian at one w of shape (d,); by central differences unless a formula is given."""
        return numerical_hessian(self, w, data)

    def curvature_gradient(self, w: Array, data: Any, M: Array) -> Array:
        """Σ_ij ∂_k H_ij M_ij for each k, M symmetric; M = 1 gives the gradient of the trace."""
        return numerical_curvature_gradient(self, w, data, M)

    def watch(self, W: Array) -> Array:
        """A quantity of the problem's own, measured too; leaving an interval can end a run."""
        return np.full(len(W), np.nan)

    @property
    def parts(self) -> dict[str, slice]:
        """Parts of the weights by name, so that noise can be put on one of them alone."""
        return {}

    @property
    def filters(self) -> Rows | None:
        """Which filter each weight belongs to, in numbers from 0 on, so that noise can be measured
        in units of each; None where there are none."""
        return None

    def compiled(self, data: Any) -> Compiled | None:
        """What the compiled kernel needs; None means that NumPy does the work."""
        return None


def numerical_trace(problem: Problem, W: Array, data: Any) -> Array:
    """Σ_j ∂_j g_j by central differences with steps near the cube root of the precision."""
    total = np.zeros(len(W))
    step = np.cbrt(np.finfo(np.float64).eps) * np.maximum(1.0, np.abs(W))
    for j in range(W.shape[1]):
        ahead, behind = W.copy(), W.copy()
        ahead[:, j] += step[:, j]
        behind[:, j] -= step[:, j]
        change = problem.gradient(ahead, data)[:, j] - problem.gradient(behind, data)[:, j]
        total += change / (ahead[:, j] - behind[:, j])
    return total


def _steps(w: Array) -> Array:
    """One step along each axis, a row each."""
    return np.diag(np.cbrt(np.finfo(np.float64).eps) * np.maximum(1.0, np.abs(w)))


def numerical_hessian(problem: Problem, w: Array, data: Any) -> Array:
    """∂_i g_j by central differences, made symmetric."""
    E = _steps(w)
    change = problem.gradient(w + E, data) - problem.gradient(w - E, data)
    H = change / (2 * E.sum(axis=1, keepdims=True))
    return (H + H.T) / 2


def numerical_curvature_gradient(problem: Problem, w: Array, data: Any, M: Array) -> Array:
    """Σ_ij ∂_k H_ij M_ij by central differences of the Hessian."""
    found = [
        ((problem.hessian(w + e, data) - problem.hessian(w - e, data)) * M).sum() / (2 * e.sum())
        for e in _steps(w)
    ]
    return np.array(found)
