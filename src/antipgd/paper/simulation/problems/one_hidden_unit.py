"""A linear network with one hidden unit, §subsec:wv_sparse: L(u, v) = Σ_i (y_i − v uᵀx_i)² / 2M.

Only the first m features bear on the label, d more are spurious; w = (u_1, …, u_{m+d}, v). The
paper likens the spurious weights and v to the widening valley. The population is the limit of many
standard Gaussian samples, L = ‖v u − c‖²/2; it is also the test loss.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from antipgd.paper.simulation.problems import codes
from antipgd.paper.simulation.problems.problem import Array, Compiled, Problem, Rows


class Data(NamedTuple):
    """Features and labels."""

    X: Array
    y: Array


@dataclass(frozen=True)
class OneHiddenUnit(Problem):
    """m relevant and d spurious features, labels Xc with ‖c‖ = `signal`.

    With `samples` = 0 the loss is that of the population. Starts at ‖u‖² = D with equal
    coordinates and at the given v.
    """

    about = (
        "L(u, v) = sum_i (y_i - v u'x_i)^2 / 2 samples; m: relevant features, d: spurious ones, "
        "samples: how many (0: the population), signal: norm of the target, D: |u|^2 at the "
        "start, v: v at the start; --leave watches |spurious part of u|^2 at w"
    )

    m: int = 5
    d: int = 20
    samples: int = 0
    signal: float = 1.0
    D: float = 1.0
    v: float = 0.0

    def __post_init__(self) -> None:
        if min(self.m, self.d) < 1 or self.samples < 0:
            raise ValueError(
                f"one_hidden_unit needs m, d >= 1 and samples >= 0; got m={self.m}, d={self.d}, "
                f"samples={self.samples}"
            )
        if not 0 <= self.D < np.inf or not np.isfinite([self.signal, self.v]).all():
            raise ValueError(
                f"one_hidden_unit needs a finite D >= 0, a finite signal and a finite v; got "
                f"D={self.D}, signal={self.signal}, v={self.v}"
            )

    @property
    def examples(self) -> int:
        return self.samples

    @property
    def features(self) -> int:
        """Relevant and spurious ones together."""
        return self.m + self.d

    @property
    def target(self) -> Array:
        """c, equal on the relevant features and zero on the spurious."""
        return np.where(np.arange(self.features) < self.m, self.signal / np.sqrt(self.m), 0.0)

    def data(self, rng: np.random.Generator) -> Data:
        if self.samples:
            X = rng.standard_normal((self.samples, self.features))
        else:  # pseudo-samples with the moments of the population, XᵀX/M = I exactly
            X = np.sqrt(self.features) * np.eye(self.features)
        return Data(X, X @ self.target)

    def start(self, rng: np.random.Generator) -> Array:
        return np.append(np.full(self.features, np.sqrt(self.D / self.features)), self.v)

    def loss(self, W: Array, data: Data) -> Array:
        residual = W[:, -1:] * (W[:, :-1] @ data.X.T) - data.y
        return (residual**2).mean(axis=1) / 2

    def test_loss(self, W: Array, data: Data) -> Array:
        return ((W[:, -1:] * W[:, :-1] - self.target) ** 2).sum(axis=1) / 2

    def gradient(
        self, W: Array, data: Data, rows: Rows | None = None, label_shift: Array | None = None
    ) -> Array:
        X, y = (data.X, data.y) if rows is None else (data.X[rows], data.y[rows])
        u, v = W[:, :-1], W[:, -1:]
        residual = v * (u @ X.T) - (y if label_shift is None else y + label_shift)
        slope = residual @ X / len(X)  # with respect to the product v u
        return np.concatenate([v * slope, (u * slope).sum(axis=1, keepdims=True)], axis=1)

    def trace(self, W: Array, data: Data) -> Array:
        u, v = W[:, :-1], W[:, -1]
        return (v**2 * (data.X**2).sum() + ((u @ data.X.T) ** 2).sum(axis=1)) / len(data.X)

    def watch(self, W: Array) -> Array:
        """The squared norm of the spurious part of u."""
        return (W[:, self.m : -1] ** 2).sum(axis=1)

    @property
    def parts(self) -> dict[str, slice]:
        return {"u": slice(0, self.features), "v": slice(self.features, self.features + 1)}

    def compiled(self, data: Data) -> Compiled:
        # The kernel learns from a last column where the spurious features begin.
        column = np.full((len(data.X), 1), float(self.m))
        return Compiled(codes.ONE_HIDDEN_UNIT, np.concatenate([data.X, column], axis=1), data.y)
