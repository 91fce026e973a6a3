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


class Regression:
    """The paper's quadratic regression, w of shape (seeds, 100)."""

    single = QuadraticRegression()

    def __init__(self, seeds) -> None:
        self.each = [self.single.data(np.random.default_rng([7, seed])) for seed in seeds]
        self.X, self.y = (_stack([getattr(d, name) for d in self.each]) for name in "Xy")
        self.start = torch.ones(len(seeds), self.single.d, dtype=torch.float64)

    def _back(self, w: Tensor) -> Tensor:
        """Xᵀ of the residuals."""
        residual = torch.einsum("snd,sd->sn", self.X, w * w) - self.y
        return torch.einsum("sn,snd->sd", residual, self.X)

    def gradient(self, w: Tensor) -> Tensor:
        return w * self._back(w) / self.single.n

    def trace(self, w: Tensor) -> Tensor:
        squares = (self.X**2).sum(1)
        return (self._back(w) + 2 * w * w * squares).sum(1) / self.single.n


class Sensing:
    """The paper's matrix sensing, w of shape (seeds, n, n)."""

    single = MatrixSensing()

    def __init__(self, seeds) -> None:
        self.each = [self.single.data(np.random.default_rng([7, seed])) for seed in seeds]
        n = self.single.n
        rows, columns = np.triu_indices(n)
        S = np.zeros((len(seeds), self.single.measurements, n, n))
        S[:, :, rows, columns] = np.stack([data.B for data in self.each]) / 2
        S += S.swapaxes(2, 3)
        self.S = torch.from_numpy(S).flatten(2)
        self.traces = torch.from_numpy(np.trace(S, axis1=2, axis2=3))
        self.y, self.Q = (_stack([getattr(d, k) for d in self.each])
                          for k in ("y", "sum_of_squares"))  # fmt: skip
        self.start = torch.eye(n, dtype=torch.float64).repeat(len(seeds), 1, 1)

    def _residual(self, U: Tensor) -> Tensor:
        return (self.S @ (U @ U.mT).flatten(1)[:, :, None])[..., 0] - self.y

    def gradient(self, U: Tensor) -> Tensor:
        sums = self._residual(U)[:, None] @ self.S  # Σ_i r_i S_i
        return 2 / self.single.measurements * sums.view_as(U) @ U

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
