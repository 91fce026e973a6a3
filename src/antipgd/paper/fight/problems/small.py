"""The paper's small problems: quadratic regression, matrix sensing, student and teacher.

NumPy's gradients of `paper.simulation` in float64. Every seed has data of its own, so "validation"
is the same as "test": tuning has other seeds.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antipgd.noise.stream import stream_key
from antipgd.paper.fight.problem import LOSS, Sizes
from antipgd.paper.simulation.problems import (
    MatrixSensing,
    QuadraticRegression,
    StudentTeacher,
)
from antipgd.paper.simulation.problems import Problem as Formula

_FORMULAS: Mapping[str, Formula] = {
    "regression": QuadraticRegression(),
    "sensing": MatrixSensing(),
    "student_teacher": StudentTeacher(),
}
SIZES = {
    one.name: one
    for one in (
        Sizes("regression", "quadratic regression: 100 weights, 40 examples, a sparse target", LOSS,
              examples=40, batch=4, full_batch=40, steps=5000, lr=0.1,
              seconds=8e-5, full_seconds=5e-5),
        Sizes("sensing", "matrix sensing: 400 weights, 100 measurements, a target of rank 5", LOSS,
              examples=100, batch=10, full_batch=100, steps=4000, lr=0.04,
              seconds=2e-4, full_seconds=1.5e-4),
        Sizes("student_teacher", "student and teacher: 440 weights of ReLU units, 60 examples, a "
              "teacher of two units", LOSS, examples=60, batch=6, full_batch=60, steps=5000,
              lr=0.05, seconds=1.2e-4, full_seconds=1e-4),
    )
}  # fmt: skip


class Small:
    """One of them, of a seed."""

    outputs = 1

    def __init__(self, name: str, seed: int) -> None:
        self.sizes, self._formula = SIZES[name], _FORMULAS[name]
        self.data: Any = self._formula.data(_generator(seed, name, "data"))
        self._start = self._formula.start(_generator(seed, name, "start"))
        self.layout = _layout(self._formula, len(self._start))

    def start(self) -> Tensor:
        return torch.from_numpy(self._start.copy())

    def gradient(
        self, w: Tensor, rows: Tensor | None = None, label_noise: Tensor | None = None
    ) -> Tensor:
        chosen = None if rows is None else rows.numpy()
        shift = None if label_noise is None else label_noise.numpy().reshape(1, -1)
        return torch.from_numpy(
            self._formula.gradient(w.numpy()[None], self.data, chosen, shift)[0]
        )

    def score(self, w: Tensor) -> dict[str, float]:
        W = w.numpy()[None]
        with np.errstate(over="ignore", invalid="ignore"):
            return {
                "test_loss": float(self._formula.test_loss(W, self.data)[0]),
                "train_loss": float(self._formula.loss(W, self.data)[0]),
                "trace": float(self._formula.trace(W, self.data)[0]),
            }

    def checksum(self) -> str:
        digest = hashlib.blake2b(digest_size=8)
        for array in self.data:
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def _generator(seed: int, name: str, purpose: str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=stream_key(seed, f"fight {name}", purpose)))


def _layout(formula: Formula, size: int) -> list[tuple[str, tuple[int, ...]]]:
    """Matrices where there are some: methods that scale by filters need them."""
    if isinstance(formula, MatrixSensing):
        return [("U", (formula.n, formula.n))]
    if isinstance(formula, StudentTeacher):
        return [("inner", (formula.hidden, formula.d)), ("outer", (1, formula.hidden))]
    return [("w", (size,))]


def make(name: str, seed: int, held_out: str) -> Small:
    """The problem of a seed."""
    return Small(name, seed)
