"""Images flipped and shifted in training, by words of the noise stream.

What happens to an image is a function of (seed, epoch, image), so methods share it and any epoch
can be made again. What is measured, BatchNorm's statistics too, is measured on plain images.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from antipgd.noise.stream import stream_key, stream_words
from antipgd.paper.networks.spec import Training

_NAME = "network augmentation"  # in the stream that also has the order of an epoch
_MARGIN = 8  # an image is shifted by up to an eighth of its side: 4 pixels of 32


@dataclass(frozen=True)
class Changes:
    """For every training image: whether it is mirrored, and by how many pixels it is shifted."""

    mirrored: Tensor
    down: Tensor
    right: Tensor

    def of(self, rows: Tensor) -> "Changes":
        """Those of some of the images."""
        return Changes(self.mirrored[rows], self.down[rows], self.right[rows])


def epoch_changes(
    augment: str, seed: int, epoch: int, count: int, side: tuple[int, int]
) -> Changes:
    """What happens in an epoch to `count` images: one block of the stream each.

    Its first word mirrors half of them; with "flip_crop" the second and third shift them.
    """
    words = stream_words(stream_key(seed, _NAME, "batch"), epoch, 0, count).astype(np.uint64)
    mirrored = torch.from_numpy(words[:, 0] >= 2**31)
    if augment == "flip":
        still = torch.zeros(count, dtype=torch.int64)
        return Changes(mirrored, still, still)

    def shifts(column: int, length: int) -> Tensor:
        margin = margin_of(length)
        drawn = (words[:, column] * np.uint64(2 * margin + 1)) >> np.uint64(32)
        return torch.from_numpy(drawn.astype(np.int64) - margin)

    return Changes(mirrored, shifts(1, side[0]), shifts(2, side[1]))


def margin_of(length: int) -> int:
    """By how many pixels an image of that side is shifted at most."""
    return max(1, length // _MARGIN)


def changed(images: Tensor, changes: Changes) -> Tensor:
    """Images shifted, with zeros (the mean, once normalised) coming in, and then mirrored."""
    count, _, height, width = images.shape
    below, beside = margin_of(height), margin_of(width)
    padded = pad(images, (beside, beside, below, below))
    columns = torch.arange(width).expand(count, width)
    columns = torch.where(changes.mirrored[:, None], columns.flip(1), columns)
    columns = columns + beside - changes.right[:, None]
    lines = torch.arange(height) + below - changes.down[:, None]
    place = torch.arange(count)[:, None, None]
    picked = (place, lines[:, :, None], columns[:, None, :])
    where = [index.to(images.device) for index in picked]
    # channels last, so that a pixel is picked at once
    found = padded.permute(0, 2, 3, 1)[where[0], where[1], where[2]].permute(0, 3, 1, 2)
    last = images.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if last else torch.contiguous_format
    return found.contiguous(memory_format=layout)


def epoch_images(spec: Training, images: Tensor, epoch: int) -> Callable[[Tensor], Tensor]:
    """Rows → these of the images, as an epoch of a training has them."""
    if spec.augment == "none":
        return lambda rows: images[rows]
    side = images.shape[2], images.shape[3]
    changes = epoch_changes(spec.augment, spec.seed, epoch, len(images), side)
    return lambda rows: changed(images[rows], changes.of(rows))
