"""A network of two hidden layers on handwritten digits, 64-32-32-10: ReLU, no biases, no norm.

Squared loss Σ_c (f_c − truth)² / 2 or cross-entropy, mean over the images. Where no unit switches,
every output is linear in every single weight, so the trace is that of the Gauss-Newton matrix,
layer by layer in closed form. Labels are classes: they cannot be shifted.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from antipgd.paper.simulation.problems import codes
from antipgd.paper.simulation.problems.digit_images import (
    CLASSES,
    IMAGES,
    PIXELS,
    Digits,
    digit_images,
)
from antipgd.paper.simulation.problems.problem import Array, Compiled, Problem, Rows

TEST_IMAGES = 597
_ORDER = 20_220_717  # of all images, the same for every seed: the last ones are the test images
LOSSES = ("squared", "cross_entropy")


class Data(NamedTuple):
    """Images as rows, and their digits, to train and held out."""

    X: Array
    y: Digits
    X_test: Array
    y_test: Digits


def _softmax(logits: Array) -> Array:
    """Probabilities of the classes, the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


@dataclass(frozen=True)
class DigitsNetwork(Problem):
    """n images to train on, of 1,200 that are never tested on; `held_out` "test" are 597 images,
    the same for every seed, "validation" what is left of the 1,200.

    Starts at Gaussian weights of variance 2 init²/fan-in. The weights are those into each unit of
    the first layer, of the second, and of the outputs.
    """

    about = (
        "L(w) = mean squared loss / 2 or mean cross-entropy of a network 64-hidden-hidden-10 of "
        "ReLU without biases on scikit-learn's 8 x 8 digits; hidden: units of each layer, n: "
        "images to train on, init: scale of the start, loss_name: squared or cross_entropy, "
        "held_out: test or validation; nothing is watched, labels cannot be shifted"
    )

    hidden: int = 32
    n: int = 200
    init: float = 1.0
    loss_name: str = "squared"
    held_out: str = "test"

    def __post_init__(self) -> None:
        most = IMAGES - TEST_IMAGES - 1
        if self.hidden < 1 or not 1 <= self.n <= most:
            raise ValueError(
                f"digits_network needs hidden >= 1 and 1 <= n <= {most}; got hidden={self.hidden}, "
                f"n={self.n}"
            )
        if not 0 <= self.init < np.inf:
            raise ValueError(f"digits_network needs a finite init >= 0; got init={self.init}")
        for name, value, accepted in (
            ("loss_name", self.loss_name, LOSSES),
            ("held_out", self.held_out, ("test", "validation")),
        ):
            if value not in accepted:
                raise ValueError(f"{name} must be {' or '.join(accepted)}; got {value!r}")

    @property
    def examples(self) -> int:
        return self.n

    @property
    def entropy(self) -> bool:
        """Whether the loss is cross-entropy."""
        return self.loss_name == "cross_entropy"

    def data(self, rng: np.random.Generator) -> Data:
        images, y = digit_images()
        fixed = np.random.Generator(np.random.Philox(key=_ORDER)).permutation(IMAGES)
        ours, tested = fixed[:-TEST_IMAGES], fixed[-TEST_IMAGES:]
        chosen = rng.permutation(ours)
        train, rest = chosen[: self.n], chosen[self.n :]
        held = tested if self.held_out == "test" else rest
        X = np.ascontiguousarray(images.T)
        return Data(X[train], y[train], X[held], y[held])

    def start(self, rng: np.random.Generator) -> Array:
        shapes = self.shapes
        layers = [rng.standard_normal(shape) * np.sqrt(2 / shape[1]) for shape in shapes]
        return float(self.init) * np.concatenate([layer.ravel() for layer in layers])

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Of the three matrices."""
        return (self.hidden, PIXELS), (self.hidden, self.hidden), (CLASSES, self.hidden)

    def layers(self, W: Array) -> list[Array]:
        """The three matrices of each run, (R, out, in)."""
        ends = np.cumsum([rows * columns for rows, columns in self.shapes])[:-1]
        parts = np.split(W, ends, axis=1)
        return [
            part.reshape(len(W), *shape) for part, shape in zip(parts, self.shapes, strict=True)
        ]

    def _outputs(self, W: Array, X: Array) -> tuple[Array, Array, Array]:
        """Units of both layers and outputs, (R, examples, …)."""
        first, second, last = self.layers(W)
        a = np.maximum(X @ first.transpose(0, 2, 1), 0)
        b = np.maximum(a @ second.transpose(0, 2, 1), 0)
        return a, b, b @ last.transpose(0, 2, 1)

    def outputs(self, W: Array, X: Array) -> Array:
        """What the network says, (R, examples, 10)."""
        return self._outputs(W, X)[2]

    def _mean_loss(self, W: Array, X: Array, y: Digits) -> Array:
        return np.array([self._loss_of(self.outputs(w[None], X)[0], y) for w in W])

    def _loss_of(self, outputs: Array, y: Digits) -> float:
        if not self.entropy:
            return float(((outputs - np.eye(CLASSES)[y]) ** 2).sum() / (2 * len(y)))
        outputs = outputs - outputs.max(axis=1, keepdims=True)
        own = outputs[np.arange(len(y)), y]
        return float((np.log(np.exp(outputs).sum(axis=1)) - own).mean())

    def loss(self, W: Array, data: Data) -> Array:
        return self._mean_loss(W, data.X, data.y)

    def test_loss(self, W: Array, data: Data) -> Array:
        return self._mean_loss(W, data.X_test, data.y_test)

    def loss_of_nothing(self, data: Data) -> float:
        """L(0), the training loss of outputs that are all zero."""
        return self._loss_of(np.zeros((len(data.y), CLASSES)), data.y)

    def errors(self, W: Array, data: Data, test: bool = False) -> Array:
        """Shares of the images that are taken for another digit, shape (R,); a draw is an error."""
        X, y = (data.X_test, data.y_test) if test else (data.X, data.y)
        found = []
        for w in W:
            outputs = self.outputs(w[None], X)[0]
            own = outputs[np.arange(len(y)), y].copy()
            outputs[np.arange(len(y)), y] = -np.inf
            found.append(1 - (own > outputs.max(axis=1)).mean())
        return np.array(found)

    def gradient(
        self, W: Array, data: Data, rows: Rows | None = None, label_shift: Array | None = None
    ) -> Array:
        if label_shift is not None:
            raise ValueError("digits_network has classes for labels, which cannot be shifted")
        X, y = (data.X, data.y) if rows is None else (data.X[rows], data.y[rows])
        a, b, outputs = self._outputs(W, X)
        _, second, last = self.layers(W)
        residual = _softmax(outputs) if self.entropy else outputs
        residual = (residual - np.eye(CLASSES)[y]) / len(y)
        upper = (residual @ last) * (b > 0)
        lower = (upper @ second) * (a > 0)
        slopes = (
            lower.transpose(0, 2, 1) @ X,
            upper.transpose(0, 2, 1) @ a,
            residual.transpose(0, 2, 1) @ b,
        )
        return np.concatenate([slope.reshape(len(W), -1) for slope in slopes], axis=1)

    def _backs(self, w: Array, X: Array) -> tuple[list[Array], list[Array], Array]:
        """By layer: what comes in, (examples, in), and how the outputs follow the units, (examples,
        10, out); and the outputs."""
        _, second, last = (layer[0] for layer in self.layers(w[None]))
        a, b, outputs = (part[0] for part in self._outputs(w[None], X))
        upper = last * (b > 0)[:, None]
        lower = (upper @ second) * (a > 0)[:, None]
        itself = np.broadcast_to(np.eye(CLASSES), (len(X), CLASSES, CLASSES))
        return [X, a, b], [lower, upper, itself], outputs

    def layer_traces(self, w: Array, data: Data, temperature: float = 1.0) -> Array:
        """The trace of each layer's block of the Hessian, of the loss of temperature × outputs.

        Of the weights into unit j, ‖what comes in‖² · bᵀAb with b = ∂outputs/∂unit and A the
        second derivative by the outputs: 1, or diag p − ppᵀ.
        """
        inputs, backs, outputs = self._backs(w, data.X)
        found = []
        for x, back in zip(inputs, backs, strict=True):
            if self.entropy:
                p = _softmax(temperature * outputs)[..., None]
                curved = (p * back**2).sum(axis=1) - (p * back).sum(axis=1) ** 2
            else:
                curved = (back**2).sum(axis=1)
            found.append(float((curved.sum(axis=1) * (x**2).sum(axis=1)).mean()))
        return temperature**2 * np.array(found)

    def trace(self, W: Array, data: Data) -> Array:
        return np.array([self.layer_traces(w, data).sum() for w in W])

    def gauss_newton_spectrum(self, w: Array, data: Data) -> Array:
        """Eigenvalues of JᵀJ/n for squared loss, as many as there are outputs of all images, the
        others being zero: those of JJᵀ/n. Its trace is the Hessian's; what the Hessian has besides
        lies off the diagonal and vanishes with the residuals."""
        assert not self.entropy
        inputs, backs, _ = self._backs(w, data.X)
        count = self.n * CLASSES
        gram = np.zeros((count, count))
        for x, back in zip(inputs, backs, strict=True):
            flat = back.reshape(count, -1)
            gram += np.kron(x @ x.T, np.ones((CLASSES, CLASSES))) * (flat @ flat.T)
        return np.linalg.eigvalsh(gram / self.n).astype(np.float64)

    def compiled(self, data: Data) -> Compiled:
        # The kernel learns from two last columns how wide the layers are, and which loss it is.
        columns = np.tile([float(self.hidden), float(self.entropy)], (self.n, 1))
        X = np.concatenate([data.X, columns], axis=1)
        return Compiled(codes.DIGITS_NETWORK, X, data.y.astype(np.float64))
