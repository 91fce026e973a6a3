"""Smaller images, and images as a network wants them.

Pixels are whole numbers and block means of them are binary fractions, so the sums here are exact in
floating point: no result depends on the order of summation, and so on no machine.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from antipgd.paper.networks.data.images import Images, Labels, Pixels

Floats = NDArray[np.float32]
_CHUNK = 1000  # images at a time: no second copy of a whole set, and several times faster


def _block_means(pixels: Pixels, block: int) -> Floats:
    n, height, width, channels = pixels.shape
    sums = np.zeros((n, height // block, width // block, channels), np.float32)
    for i in range(block):
        for j in range(block):
            sums += pixels[:, i::block, j::block]
    sums /= np.float32(block * block)
    return sums


def shrink(images: Images, size: int) -> Images:
    """Square images of side `size`, each pixel the mean of a block, as float32 on the old scale.

    Nothing is rounded: for 32 → 16 a pixel is a multiple of 1/4. Shrinking in two steps is the same
    as shrinking in one.
    """
    height, width, _ = images.shape
    if height != width or size < 1 or height % size:
        raise ValueError(f"size must divide the side of {height} x {width} images; got {size}")
    block = height // size
    return replace(
        images,
        train_images=_block_means(images.train_images, block),
        validation_images=_block_means(images.validation_images, block),
        test_images=_block_means(images.test_images, block),
    )


@dataclass(frozen=True, eq=False)
class Normalised:
    """Float32 images (n, channels, height, width) of mean 0 and standard deviation 1 in training.

    `mean` and `std` are those of the training images, one per channel. The arrays are fresh copies
    and may be written to.
    """

    train_images: Floats
    train_labels: Labels
    validation_images: Floats
    validation_labels: Labels
    test_images: Floats
    test_labels: Labels
    mean: tuple[float, ...]
    std: tuple[float, ...]


def _moments(pixels: Pixels) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of every channel, from exact sums."""
    sums = np.zeros((2, pixels.shape[-1]))
    for begin in range(0, len(pixels), _CHUNK):
        chunk = pixels[begin : begin + _CHUNK].astype(np.float64)
        # over the images first: three channels are too short an axis to be summed along quickly
        sums += chunk.sum(0).sum((0, 1)), np.square(chunk).sum(0).sum((0, 1))
    mean, square = sums / (pixels.size // pixels.shape[-1])
    return mean, np.sqrt(square - mean**2)


def normalised(images: Images) -> Normalised:
    """All parts with the channels' means and standard deviations of the training images."""
    if not len(images.train_images):
        raise ValueError(f"{images.name} has no training images to normalise by")
    mean, std = _moments(images.train_images)
    if not std.all():
        raise ValueError(f"a channel of {images.name} is the same in all training images")

    def apply(pixels: Pixels) -> Floats:
        result = np.empty(pixels.transpose(0, 3, 1, 2).shape, np.float32)
        for begin in range(0, len(pixels), _CHUNK):
            chunk = pixels[begin : begin + _CHUNK].transpose(0, 3, 1, 2)
            result[begin : begin + _CHUNK] = np.ascontiguousarray(chunk)
        result -= mean.astype(np.float32)[:, None, None]
        result /= std.astype(np.float32)[:, None, None]
        return result

    return Normalised(
        apply(images.train_images),
        images.train_labels.copy(),
        apply(images.validation_images),
        images.validation_labels.copy(),
        apply(images.test_images),
        images.test_labels.copy(),
        tuple(mean.tolist()),
        tuple(std.tolist()),
    )
