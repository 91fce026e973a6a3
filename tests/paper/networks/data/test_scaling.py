"""Smaller and normalised images against loops that anybody can check."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from antipgd.paper.networks.data import Images, normalised, shrink, validation_split


@pytest.fixture(scope="module")
def images():
    generator = np.random.default_rng(2)
    pixels = generator.integers(0, 256, (24, 12, 12, 3), np.uint8)
    pixels[..., 2] //= 4  # channels that differ, so that mixing them up shows
    labels = np.arange(20) % 2
    made = Images("made", pixels[:20], labels, pixels[20:], labels[:4], ("a", "b"))
    return validation_split(made, 0.2, seed=0)


def naive_shrink(pixels, size):
    block = pixels.shape[1] // size
    result = np.empty((len(pixels), size, size, pixels.shape[3]), np.float32)
    for n, y, x, c in np.ndindex(result.shape):
        values = [
            Fraction(int(pixels[n, y * block + i, x * block + j, c]))
            for i in range(block)
            for j in range(block)
        ]
        result[n, y, x, c] = np.float32(float(sum(values) / len(values)))
    return result


@pytest.mark.parametrize("size", [1, 3, 4, 6, 12])
def test_shrinking_is_the_mean_of_blocks(images, size):
    small = shrink(images, size)
    for part in ("train", "validation", "test"):
        pixels, labels = small.part(part)
        assert pixels.dtype == np.float32
        assert (pixels == naive_shrink(images.part(part)[0], size)).all()
        assert (labels == images.part(part)[1]).all()


def test_shrinking_twice_is_shrinking_once():
    pixels = np.random.default_rng(3).integers(0, 256, (5, 32, 32, 3), np.uint8)
    labels = np.zeros(5, np.int64)
    made = Images("made", pixels, labels, pixels[:1], labels[:1], ("a",))
    assert shrink(shrink(made, 16), 4).digest == shrink(made, 4).digest


@pytest.mark.parametrize("size", [0, -4, 5, 24])
def test_sizes_that_do_not_divide(images, size):
    with pytest.raises(ValueError, match=f"must divide the side of 12 x 12 images; got {size}"):
        shrink(images, size)


def naive_normalised(pixels, train):
    result = np.empty((len(pixels), 3, *pixels.shape[1:3]))
    for n, c in np.ndindex(result.shape[:2]):
        channel = train[..., c].astype(np.float64)
        result[n, c] = (pixels[n, :, :, c] - channel.mean()) / channel.std()
    return result


@pytest.mark.parametrize("size", [12, 6])
def test_all_parts_are_normalised_by_the_training_images(images, size):
    small = shrink(images, size)
    found = normalised(small)
    for part in ("train", "validation", "test"):
        pixels = getattr(found, f"{part}_images")
        assert pixels.dtype == np.float32
        assert pixels.flags.c_contiguous
        expected = naive_normalised(small.part(part)[0], small.train_images)
        np.testing.assert_allclose(pixels, expected, rtol=0, atol=1e-6)
        assert (getattr(found, f"{part}_labels") == small.part(part)[1]).all()
    assert found.train_images.mean((0, 2, 3)) == pytest.approx(0, abs=1e-6)
    assert found.train_images.std((0, 2, 3)) == pytest.approx(1, abs=1e-6)


def test_the_moments_do_not_depend_on_the_order_of_the_images(images):
    backwards = replace(
        images, train_images=images.train_images[::-1], train_labels=images.train_labels[::-1]
    )
    assert normalised(backwards).mean == normalised(images).mean
    assert normalised(backwards).std == normalised(images).std


def test_the_test_images_have_no_say(images):
    other = replace(images, test_images=np.zeros_like(images.test_images))
    assert normalised(other).mean == normalised(images).mean


def test_the_arrays_can_be_written_to(images):
    found = normalised(images)
    found.train_images[0] = 0
    found.train_labels[0] = 0


def test_a_channel_without_variation_is_refused(images):
    pixels = images.train_images.copy()
    pixels[..., 1] = 7
    with pytest.raises(ValueError, match="a channel of made is the same in all training images"):
        normalised(replace(images, train_images=pixels))


def test_nothing_to_normalise_by(images):
    empty = replace(
        images, train_images=images.train_images[:0], train_labels=np.empty(0, np.int64)
    )
    with pytest.raises(ValueError, match="made has no training images"):
        normalised(empty)
