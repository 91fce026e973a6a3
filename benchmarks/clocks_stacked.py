"""The problems and optimizers of `make clocks`, for the weights of all seeds at once.

Optimizers that act on each element by itself run as torch has them, on one tensor with the seeds
first; Muon is written out for a stack of matrices. tests/test_clocks.py has each seed by itself.
"""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from antipgd.paper.simulation.problems.matrix_sensing import MatrixSensing
from antipgd.paper.simulation.problems.quadratic_regression import QuadraticRegression


class Problem(Protocol):
    """Weights of all seeds in one tensor, seeds first."""

    start: Tensor

    def gradient(self, w: Tensor) -> Tensor: ...

    def trace(self, w: Tensor) -> Tensor: ...


def _stack(arrays: list) -> Tensor:
    return torch.stack([torch.from_numpy(np.ascontiguousarray(array)) for array in arrays])


def _times(rows: Tensor, matrices: Tensor) -> Tensor:
    """Each row with its matrix, which torch does faster than matrix times column."""
    return torch.bmm(rows[:, None], matrices)[:, 0]


class Regression:
    """The paper's quadratic regression, w of shape (seeds, 100)."""

    single = QuadraticRegression()

    def __init__(self, seeds) -> None:
        self.each = [self.single.data(np.random.default_rng([7, seed])) for seed in seeds]
        self.X, self.y = (_stack([getattr(d, name) for d in self.each]) for name in "Xy")
        self.XT = self.X.mT.contiguous()
        self.squares = (self.X**2).sum(1)
        self.start = torch.ones(len(seeds), self.single.d, dtype=torch.float64)

    def _back(self, w: Tensor) -> Tensor:
        """Xᵀ of the residuals."""
        return _times(_times(w * w, self.XT) - self.y, self.X)

    def gradient(self, w: Tensor) -> Tensor:
        return w * self._back(w) / self.single.n

    def trace(self, w: Tensor) -> Tensor:
        return (self._back(w) + 2 * w * w * self.squares).sum(1) / self.single.n


class Sensing:
    """The paper's matrix sensing in float32, w of shape (seeds, n, n)."""

    single = MatrixSensing()

    def __init__(self, seeds) -> None:
        self.each = [self.single.data(np.random.default_rng([7, seed])) for seed in seeds]
        self.B, self.y, self.Q = (
            _stack([getattr(d, name) for d in self.each]).float()
            for name in ("B", "y", "sum_of_squares")
        )
        self.BT = self.B.mT.contiguous()
        n = self.single.n
        rows, columns = np.triu_indices(n)
        self.pairs = torch.from_numpy(rows * n + columns)  # places of the packed pairs in n × n
        self.place = torch.zeros(n, n, dtype=torch.int64)  # and back
        self.place[rows, columns] = self.place[columns, rows] = torch.arange(len(rows))
        self.place = self.place.flatten()
        self.halves = torch.where(torch.eye(n).bool(), 1.0, 0.5)
        self.traces = self.B[:, :, torch.from_numpy(rows == columns)].sum(2)
        self.start = torch.eye(n).repeat(len(seeds), 1, 1)

    def _residual(self, U: Tensor) -> Tensor:
        packed = (U @ U.mT).flatten(1).index_select(1, self.pairs)
        return _times(packed, self.BT) - self.y

    def gradient(self, U: Tensor) -> Tensor:
        packed = _times(self._residual(U), self.B)
        sums = packed.index_select(1, self.place).view_as(U) * self.halves  # Σ_i r_i S_i
        return 2 / self.single.measurements * sums @ U

    def trace(self, U: Tensor) -> Tensor:
        first = 4 * (U * (self.Q @ U)).sum((1, 2))
        second = 2 * self.single.n * (self._residual(U) * self.traces).sum(1)
        return (first + second) / self.single.measurements


class SmallSensing(Sensing):
    """The same with 10 × 10 matrices of rank 2 and 30 measurements."""

    single = MatrixSensing(n=10, rank=2, measurements=30)


class StackedMuon:
    """torch.optim.Muon on each matrix of a stack, with torch's defaults but for the decay."""

    def __init__(self, w: Tensor, lr: float, weight_decay: float = 0.1) -> None:
        self.w, self.lr, self.weight_decay = w, lr, weight_decay
        self.buffer = torch.zeros_like(w)

    def step(self, gradient: Tensor) -> None:
        self.buffer.lerp_(gradient, 0.05)
        x = gradient.lerp(self.buffer, 0.95).bfloat16()
        x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
        for _ in range(5):
            gram = x @ x.mT
            gram = torch.baddbmm(gram, gram, gram, beta=-4.775, alpha=2.0315)
            x = torch.baddbmm(x, gram, x, beta=3.4445)
        self.w.mul_(1 - self.lr * self.weight_decay)
        self.w.add_(x, alpha=-self.lr)


class SignSGD(torch.optim.Optimizer):
    """w ← w − η sign(m), m as Lion's with betas (.9, .99): what sign methods have in common."""

    def __init__(self, params, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.sub_(group["lr"] * (0.9 * m + 0.1 * p.grad).sign())
                m.lerp_(p.grad, 0.01)


class Stepping:
    """An optimizer of torch's on a tensor whose gradient is given."""

    def __init__(self, kind: type, w: Tensor, lr: float, **options) -> None:
        self.parameter = torch.nn.Parameter(w)  # which shares w's memory
        self.optimizer = kind([self.parameter], lr=lr, **options)

    @property
    def lr(self) -> float:
        return self.optimizer.param_groups[0]["lr"]

    @lr.setter
    def lr(self, value: float) -> None:
        self.optimizer.param_groups[0]["lr"] = value

    def step(self, gradient: Tensor) -> None:
        self.parameter.grad = gradient
        self.optimizer.step()
