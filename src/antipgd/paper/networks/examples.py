"""What a network is trained on: images, the order of an epoch, corrupted labels.

All of it comes from named parts of the seed through the noise stream, so that methods share it
and any epoch can be made again.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipgd.noise.stream import stream_key, stream_words
from antipgd.paper.networks.data import load, normalised, shrink, subset, validation_split
from antipgd.paper.networks.data.choosing import held_out_beside
from antipgd.paper.networks.spec import Training

_HELD_OUT = 0.2
_NAME = "network"


class ExamplesError(ValueError):
    """The data do not have what a training asks for."""


@dataclass(frozen=True)
class Examples:
    """Images (n, channels, height, width) and labels; `test` may be a held-out part of training."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of one image."""
        channels, height, width = self.train[0].shape[1:]
        return channels, height, width


def make_examples(spec: Training, device: str = "cpu") -> Examples:
    """The images of a training, all on its device."""
    images = load(spec.data)
    try:
        if spec.held_out:
            assert spec.images is not None
            images = held_out_beside(images, spec.images, spec.held_out, spec.seed)
        elif spec.images is not None:
            images = subset(images, total=spec.images, seed=spec.seed)
        if spec.validation:
            images = validation_split(images, _HELD_OUT, spec.seed)
        if spec.size is not None:
            images = shrink(images, spec.size)
    except ValueError as error:
        raise ExamplesError(str(error)) from error
    made = normalised(images)
    held_out = (made.validation_images, made.validation_labels)
    test = held_out if spec.tuned_on else (made.test_images, made.test_labels)
    examples = Examples(
        _tensors(made.train_images, made.train_labels, spec.channels_last, device),
        _tensors(*test, spec.channels_last, device),
        len(images.classes),
    )
    available = len(examples.train[1])
    if spec.batch > available:
        raise ExamplesError(f"batch={spec.batch} exceeds the {available} images left for training")
    return examples


def _tensors(
    images: NDArray[np.float32], labels: NDArray[np.int64], channels_last: bool, device: str
) -> tuple[Tensor, Tensor]:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    pixels = torch.from_numpy(images).contiguous(memory_format=layout)
    return pixels.to(device), torch.from_numpy(labels).to(device)


def _words(seed: int, purpose: str, epoch: int, shape: tuple[int, int]) -> NDArray[np.uint64]:
    count = shape[0] * shape[1]
    words = stream_words(stream_key(seed, _NAME, purpose), epoch, 0, -(-count // 4))
    return words.reshape(-1)[:count].reshape(shape).astype(np.uint64)


def epoch_order(seed: int, epoch: int, count: int) -> Tensor:
    """A permutation of `count` images: the ranks of 64-bit words of the stream."""
    low, high = _words(seed, "batch", epoch, (count, 2)).T
    return torch.from_numpy(np.argsort(high << np.uint64(32) | low, kind="stable"))


def corrupted(labels: Tensor, probability: float, classes: int, seed: int, epoch: int) -> Tensor:
    """Labels of which each is, with a probability, replaced by one drawn from all classes."""
    chance, drawn = _words(seed, "label", epoch, (len(labels), 2)).T
    uniform = (drawn * np.uint64(classes)) >> np.uint64(32)
    replaced = torch.from_numpy(chance < probability * 2**32).to(labels.device)
    others = torch.from_numpy(uniform.astype(np.int64)).to(labels.device)
    return torch.where(replaced, others, labels)
