"""The widening valley, eq:def_wv of the paper: L(u, v) = v²‖u‖²/2, w = (u_1, …, u_d, v).

Every point with v = 0 is a minimum; the smaller ‖u‖, the flatter. There are no data. The
trace of the Hessian is d·v² + ‖u‖² (its printed corner ‖u‖ should read ‖u‖²).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from antipgd.paper.simulation.problems import codes
from antipgd.paper.simulation.problems.problem import Array, Compiled, Problem, Rows


@dataclass(frozen=True)
class WideningValley(Problem):
    """Starts at ‖u‖² = D with equal coordinates and at the given v, by default in a minimum."""

    about = (
        "L(u, v) = v^2 |u|^2 / 2; d: dimensions of u, D: |u|^2 at the start, v: v at the start; "
        "--leave watches |u|^2 at w"
    )

    d: int = 100
    D: float = 1.0
    v: float = 0.0

    def __post_init__(self) -> None:
        if self.d < 1 or not 0 <= self.D < np.inf or not np.isfinite(self.v):
            raise ValueError(
                f"widening_valley needs d >= 1, a finite D >= 0 and a finite v; got d={self.d}, "
                f"D={self.D}, v={self.v}"
            )

    def start(self, rng: np.random.Generator) -> Array:
        return np.append(np.full(self.d, np.sqrt(self.D / self.d)), self.v)

    def loss(self, W: Array, data: Any) -> Array:
        return W[:, -1] ** 2 * self.watch(W) / 2

    def gradient(
        self, W: Array, data: Any, rows: Rows | None = None, label_shift: Array | None = None
    ) -> Array:
        v = W[:, -1:]
        return np.concatenate([v * v * W[:, :-1], v * self.watch(W)[:, None]], axis=1)

    def trace(self, W: Array, data: Any) -> Array:
        return self.watch(W) + self.d * W[:, -1] ** 2

    def hessian(self, w: Array, data: Any) -> Array:
        u, v = w[:-1], w[-1]
        H = np.diag(np.append(np.full(self.d, v * v), u @ u))
        H[:-1, -1] = H[-1, :-1] = 2 * v * u
        return H

    def curvature_gradient(self, w: Array, data: Any, M: Array) -> Array:
        u, v, cross, corner = w[:-1], w[-1], M[:-1, -1], M[-1, -1]
        of_v = 2 * v * np.trace(M[:-1, :-1]) + 4 * u @ cross
        return np.append(4 * v * cross + 2 * u * corner, of_v)

    def watch(self, W: Array) -> Array:
        """‖u‖², whose exit from (αD, D/α) thm:main_tube is about."""
        return (W[:, :-1] ** 2).sum(axis=1)

    @property
    def parts(self) -> dict[str, slice]:
        return {"u": slice(0, self.d), "v": slice(self.d, self.d + 1)}

    def compiled(self, data: Any) -> Compiled:
        return Compiled(codes.WIDENING_VALLEY, np.empty((0, 0)), np.empty(0))
