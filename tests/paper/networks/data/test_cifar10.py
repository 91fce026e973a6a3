"""Six batches as published, and the arrays that are in them."""

import numpy as np
import pytest

from antipgd.paper.networks.data.cifar10 import BATCHES, CIFAR10, batch, check_batches, images_of
from antipgd.paper.networks.data.errors import DataError


@pytest.fixture
def batches(small):
    return {name[:-4]: content for name, content in small.binary.items()}


def test_the_arrays_are_the_images(small, batches):
    images = images_of(batches)
    assert (images.train_images == np.concatenate([small.pixels[n] for n in BATCHES[:5]])).all()
    assert (images.train_labels == np.concatenate([small.labels[n] for n in BATCHES[:5]])).all()
    assert (images.test_images == small.pixels["test_batch"]).all()
    assert images.test_labels.tolist() == small.labels["test_batch"]
    assert images.train_images.flags.c_contiguous
    assert len(images.classes) == 10


def test_a_batch_is_written_as_the_format_says(small, batches):
    planes = small.pixels["data_batch_1"].transpose(0, 3, 1, 2).reshape(-1, 3072)
    assert batch(bytes(small.labels["data_batch_1"]), planes) == batches["data_batch_1"]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda pixels: pixels[..., ::-1].transpose(0, 3, 1, 2),  # blue, green, red
        lambda pixels: pixels,  # channels last
        lambda pixels: pixels.transpose(0, 3, 2, 1),  # columns for rows
    ],
    ids=["channels swapped", "channels last", "transposed"],
)
def test_pixels_in_another_order_do_not_pass(small, batches, wrong):
    planes = wrong(small.pixels["data_batch_2"]).reshape(-1, 3072)
    mistaken = batch(bytes(small.labels["data_batch_2"]), planes)
    check_batches(batches, small.published, "here")
    with pytest.raises(DataError, match="here: data_batch_2 is not CIFAR-10's"):
        check_batches(batches | {"data_batch_2": mistaken}, small.published, "here")


def test_a_wrong_checksum_is_told_with_the_right_one(small, batches):
    expected = small.published.batch_md5["test_batch"]
    with pytest.raises(
        DataError, match=f"expected MD5 {expected}, found 900150983cd24fb0d6963f7d28e17f72"
    ):
        check_batches(batches | {"test_batch": b"abc"}, small.published, "here")


def test_what_was_published_is_complete():
    assert tuple(CIFAR10.batch_md5) == BATCHES
    assert CIFAR10.largest > 31_035_999  # the largest pickled batch
    assert CIFAR10.largest_archive > 6 * CIFAR10.largest
