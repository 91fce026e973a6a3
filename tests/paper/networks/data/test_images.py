"""Images say what they are and cannot change."""

import dataclasses

import numpy as np
import pytest

from antipgd.paper.networks.data import Images


def made(**changes):
    values = {
        "name": "made",
        "train_images": np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3),
        "train_labels": np.array([0, 1]),
        "test_images": np.zeros((1, 4, 4, 3), np.uint8),
        "test_labels": np.array([1]),
        "classes": ("cat", "dog"),
    }
    return Images(**values | changes)


def test_arrays_cannot_be_written_to():
    images = made()
    with pytest.raises(ValueError, match="read-only"):
        images.train_images[0] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        images.name = "other"


def test_the_callers_array_stays_writable():
    labels = np.array([0, 1])
    made(train_labels=labels)
    labels[0] = 1
    assert labels.tolist() == [1, 1]


def test_without_a_split_validation_is_empty():
    images = made()
    assert images.validation_images.shape == (0, 4, 4, 3)
    assert images.validation_labels.shape == (0,)


def test_the_digest_sees_every_part_and_nothing_of_the_memory_layout():
    images = made()
    fortran = made(train_images=np.asfortranarray(images.train_images))
    assert fortran.digest == images.digest == made(name="other").digest
    other = [
        made(train_labels=np.array([1, 1])),
        made(test_images=np.ones((1, 4, 4, 3), np.uint8)),
        made(train_images=images.train_images.astype(np.float32)),
        made(validation_images=images.test_images, validation_labels=images.test_labels),
        made(
            train_images=images.train_images.reshape(2, 2, 8, 3),
            test_images=images.test_images.reshape(1, 2, 8, 3),
        ),
    ]
    assert len({images.digest, *(changed.digest for changed in other)}) == 1 + len(other)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_labels": np.array([0, 2])}, r"train_labels must lie from 0 to 1; got 0 to 2"),
        ({"train_labels": np.array([0])}, r"train_labels must be int64 \(2,\); got int64 \(1,\)"),
        ({"test_labels": np.array([1], np.int32)}, r"test_labels must be int64 \(1,\); got int32"),
        (
            {"test_images": np.zeros((1, 4, 4, 1), np.uint8)},
            r"test_images must be .*\(n, 4, 4, 3\)",
        ),
        ({"test_images": np.zeros((1, 4, 4, 3))}, r"test_images must be .*; got float64"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        made(**changes)


def test_unknown_part():
    with pytest.raises(ValueError, match="unknown part 'dev'; accepted: train, validation, test"):
        made().part("dev")
