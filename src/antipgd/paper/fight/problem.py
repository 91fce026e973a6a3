"""What a problem of the fight is: flat weights, a gradient, a score; no methods, no noise.

The weights are one flat vector of torch, float64 for small problems and float32 for networks.
`make(name, seed)` of `problems` gives the problem of a seed with its data and its start. It keeps
no state: `gradient` and `score` are functions of what they are given, so that methods may ask them
anywhere. BatchNorm therefore normalises by the batch in `gradient`, and `score` estimates its
statistics anew from training images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

LOSS, ACCURACY = "loss", "accuracy"
VALIDATION, TEST = "validation", "test"
SHUFFLED, REPLACEMENT, FULL = "shuffled", "replacement", "full"


@dataclass(frozen=True)
class Sizes:
    """What is fixed of a problem before anybody trains on it.

    `steps` is the length of a training at one gradient a step. Mini-batches have `batch` examples,
    those of `full` methods `full_batch`: all where that is affordable. The base optimizer, "sgd"
    (heavy ball with `momentum`) or "adamw", has learning rates that are multiples of `lr`, which
    fall to nothing over the last sixth of the steps. Ranks are by `kind`, "loss" or "accuracy".
    `network` says that the weights are those of a network: survival is measured. `seconds` is what
    a gradient of a mini-batch took on one core, `full_seconds` one of a full batch, `judging` what
    is measured at the end: for forecasts only.
    """

    name: str
    about: str
    kind: str
    examples: int
    batch: int
    full_batch: int
    steps: int
    lr: float
    momentum: float = 0.0
    optimizer: str = "sgd"
    network: bool = False
    seconds: float = 1e-4
    full_seconds: float = 0.0  # as `seconds` unless said
    judging: float = 0.1
    version: int = 1  # raised when a change of the code changes results


class Problem(Protocol):
    """A problem of one seed: its data, and where all contestants start."""

    sizes: Sizes
    layout: Sequence[tuple[str, tuple[int, ...]]]
    """Names and shapes of the tensors in the flat weights, in their order."""
    outputs: int
    """Columns of `label_noise`: classes, or 1 for a squared loss."""

    def start(self) -> Tensor:
        """The flat weights of the seed, a fresh copy."""

    def gradient(
        self, w: Tensor, rows: Tensor | None = None, label_noise: Tensor | None = None
    ) -> Tensor:
        """The flat gradient of the mean training loss over `rows` (all if None) at `w`.

        `label_noise` of shape (rows, outputs) is added to the targets: numbers with the squared
        loss, one-hot vectors with cross-entropy.
        """

    def score(self, w: Tensor) -> dict[str, float]:
        """`test_loss` and `train_loss`, `accuracy` (a share, held out) where there are classes."""

    def checksum(self) -> str:
        """A digest of all data: a method that changes them is found out."""


class Network(Problem, Protocol):
    """What survival asks of a problem whose `sizes.network` is true, beside the above."""

    def loss(self, w: Tensor, rows: Tensor | None = None) -> Tensor:
        """The training loss as torch differentiates it, with respect to the flat `w`."""

    def second_task(self) -> "Network":
        """Another task for the same layout, to fine-tune on: what is left of the first?"""
