"""Student and teacher: two layers of ReLU that learn another such network from few examples.

f(x) = Σ_j v_j max(u_jᵀx, 0) without biases, L = Σ_i (f(x_i) − y_i)² / 2n; the labels are those of a
teacher of the same form with fewer units. A network without any norm, with many minima where
there are fewer examples than weights, and a Hessian in closed form: where no unit switches, f is
linear in every single weight, so the trace is that of the squared Jacobian.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from antipgd.paper.simulation.problems import codes
from antipgd.paper.simulation.problems.problem import Array, Compiled, Problem, Rows

_BATCH = 4_000_000  # numbers held at a time


class Data(NamedTuple):
    """Inputs and labels, to train and held out."""

    X: Array
    y: Array
    X_test: Array
    y_test: Array


@dataclass(frozen=True)
class StudentTeacher(Problem):
    """`hidden` units learn from n Gaussian examples in d dimensions what `teacher` units say.

    The teacher's units have inner weights of norm one, outer ones ±√(2/teacher). The student starts
    at Gaussian weights of variance init²/d and init²/hidden. There are two sets of `test` held-out
    examples, "test" and "validation", and `held_out` says which is measured on: choose settings on
    one, judge them on the other.
    """

    about = (
        "L(u, v) = sum_i (sum_j v_j max(u_j'x_i, 0) - y_i)^2 / 2n; teacher: its units, hidden: the "
        "student's, d: inputs, n: Gaussian examples, test: held-out examples, init: scale of the "
        "start, held_out: test or validation; --leave watches how many units are active, that is "
        "|v||u| above 1 % of the largest, at w"
    )

    teacher: int = 2
    hidden: int = 40
    d: int = 10
    n: int = 60
    test: int = 1000
    init: float = 1.0
    held_out: str = "test"

    def __post_init__(self) -> None:
        if min(self.teacher, self.hidden, self.d, self.n, self.test) < 1:
            raise ValueError(
                f"student_teacher needs teacher, hidden, d, n, test >= 1; got "
                f"teacher={self.teacher}, hidden={self.hidden}, d={self.d}, n={self.n}, "
                f"test={self.test}"
            )
        if not 0 <= self.init < np.inf:
            raise ValueError(f"student_teacher needs a finite init >= 0; got init={self.init}")
        if self.held_out not in ("test", "validation"):
            raise ValueError(f"held_out must be 'test' or 'validation'; got {self.held_out!r}")

    @property
    def examples(self) -> int:
        return self.n

    def data(self, rng: np.random.Generator) -> Data:
        inner = rng.standard_normal((self.teacher, self.d))
        inner /= np.linalg.norm(inner, axis=1, keepdims=True)
        outer = np.sqrt(2 / self.teacher) * rng.choice([-1.0, 1.0], self.teacher)
        sets = {}
        for name, count in (("train", self.n), ("test", self.test), ("validation", self.test)):
            X = rng.standard_normal((count, self.d))
            sets[name] = X, np.maximum(X @ inner.T, 0) @ outer
        return Data(*sets["train"], *sets[self.held_out])

    def start(self, rng: np.random.Generator) -> Array:
        inner = rng.standard_normal(self.hidden * self.d) / np.sqrt(self.d)
        outer = rng.standard_normal(self.hidden) / np.sqrt(self.hidden)
        return float(self.init) * np.concatenate([inner, outer])

    def _layers(self, W: Array) -> tuple[Array, Array]:
        """u and v, shapes (R, hidden, d) and (R, hidden)."""
        inner, outer = np.split(W, [self.hidden * self.d], axis=1)
        return inner.reshape(len(W), self.hidden, self.d), outer

    def _units(self, W: Array, X: Array) -> Array:
        """Values of the hidden units, shape (R, examples, hidden)."""
        return np.maximum(X @ self._layers(W)[0].transpose(0, 2, 1), 0)

    def _half_mean_square(self, W: Array, X: Array, y: Array) -> Array:
        few = max(1, _BATCH // (len(X) * self.hidden))
        found = [
            (((self._units(V, X) @ self._layers(V)[1][..., None])[..., 0] - y) ** 2).mean(axis=1)
            for V in (W[i : i + few] for i in range(0, len(W), few))
        ]
        return np.concatenate(found) / 2

    def loss(self, W: Array, data: Data) -> Array:
        return self._half_mean_square(W, data.X, data.y)

    def test_loss(self, W: Array, data: Data) -> Array:
        return self._half_mean_square(W, data.X_test, data.y_test)

    def loss_of_nothing(self, data: Data) -> float:
        """L(0), the training loss of a network that always says zero."""
        return float((data.y**2).mean() / 2)

    def gradient(
        self, W: Array, data: Data, rows: Rows | None = None, label_shift: Array | None = None
    ) -> Array:
        X, y = (data.X, data.y) if rows is None else (data.X[rows], data.y[rows])
        units, v = self._units(W, X), self._layers(W)[1]
        residual = (units @ v[..., None])[..., 0] - (y if label_shift is None else y + label_shift)
        residual = residual / len(X)
        back = residual[..., None] * v[:, None] * (units > 0)
        inner = back.transpose(0, 2, 1) @ X
        outer = (residual[:, None] @ units)[:, 0]
        return np.concatenate([inner.reshape(len(W), -1), outer], axis=1)

    def trace(self, W: Array, data: Data) -> Array:
        """Σ_i (‖units‖² + ‖x_i‖² Σ v_j² over the units that are on) / n."""
        units, v = self._units(W, data.X), self._layers(W)[1]
        on = ((units > 0) @ (v**2)[..., None])[..., 0]
        return ((units**2).sum(axis=2) + on * (data.X**2).sum(axis=1)).mean(axis=1)

    def hessian(self, w: Array, data: Data) -> Array:
        """JᵀJ/n, and the residuals between the weights into a unit and the one out of it."""
        units, v = self._units(w[None], data.X)[0], self._layers(w[None])[1][0]
        on = (units > 0).astype(np.float64)
        J = np.concatenate([((v * on)[..., None] * data.X[:, None]).reshape(self.n, -1), units], 1)
        H = J.T @ J
        cross = (on * (units @ v - data.y)[:, None]).T @ data.X
        for j in range(self.hidden):
            into, out = slice(self.d * j, self.d * (j + 1)), self.hidden * self.d + j
            H[into, out] += cross[j]
            H[out, into] += cross[j]
        return H / self.n

    def watch(self, W: Array) -> Array:
        """How many units are active: |v|‖u‖, which is how much a unit can say, above 1 % of the
        largest."""
        u, v = self._layers(W)
        sizes = np.sqrt((u**2).sum(axis=2)) * np.abs(v)
        active = sizes > codes.ACTIVE * sizes.max(axis=1, keepdims=True)
        return active.sum(axis=1).astype(np.float64)

    @property
    def parts(self) -> dict[str, slice]:
        inner = self.hidden * self.d
        return {"inner": slice(0, inner), "outer": slice(inner, inner + self.hidden)}

    @property
    def filters(self) -> Rows:
        """Of each unit what goes into it; what comes out of all of them is one filter."""
        return np.append(np.repeat(np.arange(self.hidden), self.d), [self.hidden] * self.hidden)

    def compiled(self, data: Data) -> Compiled:
        return Compiled(codes.STUDENT_TEACHER, data.X, data.y)
