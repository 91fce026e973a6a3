"""Small networks on few images: digits, Fashion-MNIST and CIFAR-10, without and with BatchNorm.

A seed draws the training images and the start. While something is tuned, scores are of other
training images; judged is the test set. Cross-entropy; float32.
"""

import hashlib
from dataclasses import dataclass, replace
from functools import cache
from math import prod

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import log_softmax, one_hot

from antipgd.paper.fight.problem import ACCURACY, TEST, VALIDATION, Sizes
from antipgd.paper.fight.second import turned
from antipgd.paper.networks.data import Images, load, normalised, shrink
from antipgd.paper.networks.data.choosing import held_out_beside
from antipgd.paper.networks.models import make_network

_HELD_OUT = 2000  # test images at most
_AT_ONCE = 1000  # images of a pass that asks for no gradient


@dataclass(frozen=True)
class _Setting:
    data: str
    side: int
    model: str
    width: int
    norm: str
    validation: int


_SETTINGS = {
    "digits": _Setting("digits", 8, "mlp", 32, "none", 300),
    "fashion": _Setting("fashion-mnist", 14, "lenet", 8, "none", 1000),
    "fashion_batch_norm": _Setting("fashion-mnist", 14, "lenet", 8, "batch", 1000),
    "cifar10": _Setting("cifar10", 16, "lenet", 16, "none", 1000),
    "cifar10_batch_norm": _Setting("cifar10", 16, "lenet", 16, "batch", 1000),
}
_FASHION = Sizes(
    "fashion", "Fashion-MNIST: a CNN without norm, 1,000 images of 14 x 14", ACCURACY,
    examples=1000, batch=50, full_batch=250, steps=1200, lr=0.05, momentum=0.9, network=True,
    seconds=2.5e-3, full_seconds=4.5e-3, judging=1.5,
)  # fmt: skip
_CIFAR = Sizes(
    "cifar10", "CIFAR-10: a CNN without norm, 2,000 images of 16 x 16", ACCURACY, examples=2000,
    batch=50, full_batch=250, steps=2000, lr=0.02, momentum=0.9, network=True, seconds=3.8e-3,
    full_seconds=8e-3, judging=2.5,
)  # fmt: skip


def _normed(sizes: Sizes) -> Sizes:
    about = sizes.about.replace("without norm", "with BatchNorm")
    return replace(sizes, name=f"{sizes.name}_batch_norm", about=about)


SIZES = {
    one.name: one
    for one in (
        Sizes("digits", "digits: an MLP without norm, 200 images of 8 x 8", ACCURACY, examples=200,
              batch=20, full_batch=200, steps=1500, lr=0.05, momentum=0.9, network=True,
              seconds=7e-4, full_seconds=8e-4, judging=0.5),
        _FASHION, _normed(_FASHION), _CIFAR, _normed(_CIFAR),
    )
}  # fmt: skip


@cache
def _shrunk(data: str, side: int) -> Images:
    """Read once a process; its arrays cannot be written to."""
    images = load(data)
    few = replace(images, test_images=images.test_images[:_HELD_OUT],
                  test_labels=images.test_labels[:_HELD_OUT])  # fmt: skip
    return few if few.shape[0] == side else shrink(few, side)


Labelled = tuple[Tensor, Tensor]


class Classifier:
    """A network on images of a seed, as a function of flat weights."""

    def __init__(
        self, sizes: Sizes, network: nn.Module, train: Labelled, held_out: Labelled, classes: int
    ) -> None:
        self.sizes, self.outputs = sizes, classes
        self.train, self.held_out = train, held_out
        self._network = network
        self.layout = [(name, tuple(p.shape)) for name, p in network.named_parameters()]
        self._lengths = [prod(shape) for _, shape in self.layout]
        self._start = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
        for parameter in network.parameters():
            parameter.requires_grad_(False)

    def start(self) -> Tensor:
        return self._start.clone()

    def _logits(self, parts: list[Tensor], images: Tensor) -> Tensor:
        """In whatever mode the network is in."""
        named = {name: part for (name, _), part in zip(self.layout, parts, strict=True)}
        return functional_call(self._network, named, (images,))

    def _parts(self, w: Tensor) -> list[Tensor]:
        shapes = (shape for _, shape in self.layout)
        return [
            part.view(shape) for part, shape in zip(w.split(self._lengths), shapes, strict=True)
        ]

    def _mean_loss(
        self, parts: list[Tensor], rows: Tensor | None, label_noise: Tensor | None
    ) -> Tensor:
        images, labels = self.train if rows is None else (part[rows] for part in self.train)
        self._network.train()
        logs = log_softmax(self._logits(parts, images), 1)
        if label_noise is None:
            return nn.functional.nll_loss(logs, labels)
        return -((one_hot(labels, self.outputs) + label_noise) * logs).sum(1).mean()

    def loss(
        self, w: Tensor, rows: Tensor | None = None, label_noise: Tensor | None = None
    ) -> Tensor:
        return self._mean_loss(self._parts(w), rows, label_noise)

    def logits(self, w: Tensor, rows: Tensor | None = None) -> Tensor:
        """Of training images, as the training loss has them."""
        self._network.train()
        return self._logits(self._parts(w), self.train[0] if rows is None else self.train[0][rows])

    def labels(self, rows: Tensor | None = None) -> Tensor:
        """Their classes."""
        return self.train[1] if rows is None else self.train[1][rows]

    def gradient(
        self, w: Tensor, rows: Tensor | None = None, label_noise: Tensor | None = None
    ) -> Tensor:
        parts = [part.detach().requires_grad_() for part in self._parts(w)]
        with torch.enable_grad():
            slopes = torch.autograd.grad(self._mean_loss(parts, rows, label_noise), parts)
        return torch.cat([slope.reshape(-1) for slope in slopes])

    def _set_statistics(self, parts: list[Tensor]) -> None:
        """BatchNorm's, of all training images at these weights."""
        norms = [one for one in self._network.modules() if isinstance(one, nn.BatchNorm2d)]
        if not norms:
            return
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the mean over all batches
        self._network.train()
        for images in self.train[0].split(self.sizes.full_batch):
            self._logits(parts, images)

    def _judge(self, parts: list[Tensor], labelled: Labelled) -> tuple[float, float]:
        """Mean loss and the share that is right."""
        images, labels = labelled
        logs = torch.cat(
            [log_softmax(self._logits(parts, some), 1) for some in images.split(_AT_ONCE)]
        )
        right = (logs.argmax(1) == labels).double().mean()
        return float(nn.functional.nll_loss(logs.double(), labels)), float(right)

    @torch.no_grad()
    def score(self, w: Tensor) -> dict[str, float]:
        parts = self._parts(w)
        self._set_statistics(parts)
        self._network.eval()
        train_loss, train_accuracy = self._judge(parts, self.train)
        test_loss, accuracy = self._judge(parts, self.held_out)
        return {"test_loss": test_loss, "accuracy": accuracy, "train_loss": train_loss,
                "train_accuracy": train_accuracy}  # fmt: skip

    def second_task(self) -> "Classifier":
        """The same images turned, and every class called by the next."""
        train, held_out = (turned(*part, self.outputs) for part in (self.train, self.held_out))
        return Classifier(self.sizes, self._network, train, held_out, self.outputs)

    def checksum(self) -> str:
        digest = hashlib.blake2b(digest_size=8)
        for tensor in (*self.train, *self.held_out):
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()


def make(name: str, seed: int, held_out: str) -> Classifier:
    """The problem of a seed."""
    sizes, how = SIZES[name], _SETTINGS[name]
    images = _shrunk(how.data, how.side)
    chosen = held_out_beside(images, sizes.examples, how.validation, seed)
    ready = normalised(chosen)
    train, validation, test = (
        (torch.from_numpy(getattr(ready, f"{part}_images")),
         torch.from_numpy(getattr(ready, f"{part}_labels")))
        for part in ("train", VALIDATION, TEST)
    )  # fmt: skip
    shown = validation if held_out == VALIDATION else test
    shape = (images.shape[2], how.side, how.side)
    network = make_network(how.model, how.width, shape, len(images.classes), seed, how.norm)
    return Classifier(sizes, network, train, shown, len(images.classes))
