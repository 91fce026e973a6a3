"""A set of labelled images, in plain NumPy, that cannot change under its digest.

Images are (n, height, width, channels). What belongs to training, validation and test is decided
once, here, so that no later step can mix them.
"""

from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8] | NDArray[np.float32]
Labels = NDArray[np.int64]
PARTS = ("train", "validation", "test")


def _no_pixels() -> Pixels:
    return np.empty((0, 0, 0, 0), np.uint8)


def _no_labels() -> Labels:
    return np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Images:
    """Images and labels of training and test, and of validation where it was split off.

    `classes[label]` is the name of a label. Arrays are read-only.
    """

    name: str
    train_images: Pixels
    train_labels: Labels
    test_images: Pixels
    test_labels: Labels
    classes: tuple[str, ...]
    validation_images: Pixels = field(default_factory=_no_pixels)
    validation_labels: Labels = field(default_factory=_no_labels)

    def __post_init__(self) -> None:
        if not len(self.validation_images):
            empty = np.empty((0, *self.shape), self.train_images.dtype)
            object.__setattr__(self, "validation_images", empty)
        for part in PARTS:
            self._check(part)
            for kind in ("images", "labels"):
                view = getattr(self, f"{part}_{kind}").view()
                view.flags.writeable = False
                object.__setattr__(self, f"{part}_{kind}", view)

    def _check(self, part: str) -> None:
        images, labels = self.part(part)
        if images.dtype not in (np.uint8, np.float32) or images.shape[1:] != self.shape:
            raise ValueError(
                f"{part}_images must be uint8 or float32 (n, {', '.join(map(str, self.shape))}); "
                f"got {images.dtype} {images.shape}"
            )
        if labels.dtype != np.int64 or labels.shape != images.shape[:1]:
            raise ValueError(
                f"{part}_labels must be int64 ({len(images)},); got {labels.dtype} {labels.shape}"
            )
        if len(labels) and not 0 <= labels.min() <= labels.max() < len(self.classes):
            raise ValueError(
                f"{part}_labels must lie from 0 to {len(self.classes) - 1}; got "
                f"{labels.min()} to {labels.max()}"
            )

    def part(self, name: str) -> tuple[Pixels, Labels]:
        """Images and labels of train, validation or test."""
        if name not in PARTS:
            raise ValueError(f"unknown part {name!r}; accepted: {', '.join(PARTS)}")
        return getattr(self, f"{name}_images"), getattr(self, f"{name}_labels")

    @property
    def shape(self) -> tuple[int, ...]:
        """(height, width, channels) of one image."""
        return self.train_images.shape[1:]

    @cached_property
    def digest(self) -> str:
        """BLAKE2b-128 of all pixels and labels, with types and shapes; the same on any machine."""
        digest = blake2b(digest_size=16)
        for part in PARTS:
            for array in self.part(part):
                portable = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
                digest.update(f"{part} {portable.dtype.str} {portable.shape}\0".encode())
                digest.update(portable.reshape(-1).view(np.uint8).data)
        return digest.hexdigest()
