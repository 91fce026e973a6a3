"""A small network that tells handwritten digits apart: real data, and a trace in closed form.

8 × 8 grey images of the digits 0 to 9 that come with scikit-learn (the test part of "Optical
Recognition of Handwritten Digits", Alpaydin and Kaynak 1998), one hidden layer of tanh units and
mean cross-entropy. Which images are trained on and which are held out is drawn by the seed. Labels
are classes: they can be chosen in mini-batches, but not shifted.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from antipgd.paper.simulation.problems.digit_images import (
    CLASSES,
    IMAGES,
    PIXELS,
    Digits,
    digit_images,
)
from antipgd.paper.simulation.problems.problem import Array, Problem, Rows


class Data(NamedTuple):
    """Images as columns with a one at the end, and their digits, to train and to test."""

    X: Array
    y: Digits
    X_test: Array
    y_test: Digits


def _softmax(logits: Array) -> Array:
    """Probabilities of the classes, which are axis 1."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers


@dataclass(frozen=True)
class DigitsClassifier(Problem):
    """`n` images to train on, `test` held out; starts at Gaussian weights of variance init²/fan-in.

    The weights are those into each hidden unit, the bias last, then those into each of the ten
    outputs, the bias last. Biases start at zero.
    """

    about = (
        "L(w) = mean cross-entropy of one layer of tanh units on scikit-learn's 8 x 8 digits; "
        "hidden: units, n: images to train on, test: held-out images, init: scale of the starting "
        "weights; nothing is watched, labels cannot be shifted"
    )

    hidden: int = 10
    n: int = 1200
    test: int = 597
    init: float = 1.0

    def __post_init__(self) -> None:
        if min(self.hidden, self.n, self.test) < 1 or self.n + self.test > IMAGES:
            raise ValueError(
                f"digits_classifier needs hidden, n, test >= 1 and n + test <= {IMAGES}; "
                f"got hidden={self.hidden}, n={self.n}, test={self.test}"
            )
        if not 0 <= self.init < np.inf:
            raise ValueError(f"digits_classifier needs a finite init >= 0; got init={self.init}")

    @property
    def examples(self) -> int:
        return self.n

    def data(self, rng: np.random.Generator) -> Data:
        images, y = digit_images()
        X = np.concatenate([images, np.ones((1, IMAGES))])
        order = rng.permutation(IMAGES)
        train, test = order[: self.n], order[self.n : self.n + self.test]
        chosen = (np.ascontiguousarray(X[:, part]) for part in (train, test))
        return Data(next(chosen), y[train], next(chosen), y[test])

    def start(self, rng: np.random.Generator) -> Array:
        inner = rng.standard_normal((self.hidden, PIXELS + 1)) / np.sqrt(PIXELS)
        outer = rng.standard_normal((CLASSES, self.hidden + 1)) / np.sqrt(self.hidden)
        inner[:, -1], outer[:, -1] = 0, 0
        return float(self.init) * np.concatenate([inner.ravel(), outer.ravel()])

    def _layers(self, W: Array) -> tuple[Array, Array]:
        """Weights into hidden units and into outputs, shapes (R, hidden, …) and (R, CLASSES, …)."""
        inner, outer = np.split(W, [self.hidden * (PIXELS + 1)], axis=1)
        return inner.reshape(len(W), self.hidden, -1), outer.reshape(len(W), CLASSES, -1)

    def _outputs(self, W: Array, X: Array) -> tuple[Array, Array]:
        """Hidden units with a one at the end, and logits: the examples are the last axis."""
        inner, outer = self._layers(W)
        units = np.ones((len(W), self.hidden + 1, X.shape[1]))
        np.tanh(inner @ X, out=units[:, :-1])
        return units, outer @ units

    def _cross_entropy(self, W: Array, X: Array, y: Digits) -> Array:
        logits = self._outputs(W, X)[1]
        logits -= logits.max(axis=1, keepdims=True)
        own = logits[:, y, np.arange(len(y))]
        return (np.log(np.exp(logits).sum(axis=1)) - own).mean(axis=1)

    def loss(self, W: Array, data: Data) -> Array:
        return self._cross_entropy(W, data.X, data.y)

    def test_loss(self, W: Array, data: Data) -> Array:
        return self._cross_entropy(W, data.X_test, data.y_test)

    def errors(self, W: Array, data: Data, test: bool = False) -> Array:
        """Shares of the images that are taken for another digit, shape (R,)."""
        X, y = (data.X_test, data.y_test) if test else (data.X, data.y)
        logits = self._outputs(W, X)[1]
        return (logits.max(axis=1) > logits[:, y, np.arange(len(y))]).mean(axis=1)

    def gradient(
        self, W: Array, data: Data, rows: Rows | None = None, label_shift: Array | None = None
    ) -> Array:
        if label_shift is not None:
            raise ValueError("digits_classifier has classes for labels, which cannot be shifted")
        X, y = (data.X, data.y) if rows is None else (data.X[:, rows], data.y[rows])
        units, logits = self._outputs(W, X)
        residual = _softmax(logits)
        residual[:, y, np.arange(len(y))] -= 1  # probabilities less the truth
        residual /= len(y)
        outer = self._layers(W)[1][..., :-1]
        back = (outer.transpose(0, 2, 1) @ residual) * (1 - units[:, :-1] ** 2)
        slopes = back @ X.T, residual @ units.transpose(0, 2, 1)
        return np.concatenate([slope.reshape(len(W), -1) for slope in slopes], axis=1)

    def trace(self, W: Array, data: Data) -> Array:
        return np.concatenate([self._trace(w[None], data) for w in W])  # lest memory run out

    def _trace(self, W: Array, data: Data) -> Array:
        """With logits f and L″ = ∂f·(diag p − ppᵀ)∂f + (p − truth)·∂²f, example by example:

        weights into output c have p_c(1−p_c)‖units‖² in all; those into unit h with outgoing
        weights v have ‖x‖² (h′² Var_p(v) + h″ (p − truth)·v), h″ = −2hh′.
        """
        units, logits = self._outputs(W, data.X)
        p, v = _softmax(logits), self._layers(W)[1][..., :-1].transpose(0, 2, 1)
        mean, h = v @ p, units[:, :-1]
        slope = 1 - h * h
        into_units = slope * (slope * ((v * v) @ p - mean**2) - 2 * h * (mean - v[..., data.y]))
        into_outputs = (p * (1 - p)).sum(axis=1) * (units**2).sum(axis=1)
        return (into_outputs + into_units.sum(axis=1) * (data.X**2).sum(axis=0)).mean(axis=1)
