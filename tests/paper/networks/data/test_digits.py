"""The embedded digits, and `load`."""

import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

from antipgd.paper.networks.data import DataUsageError, load


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def test_every_digit_is_in_one_part_unchanged(digits):
    found = np.concatenate([digits.train_images, digits.test_images])[..., 0]
    labels = np.concatenate([digits.train_labels, digits.test_labels])
    source = load_digits()
    assert found.dtype == np.uint8
    assert (found.min(), found.max()) == (0, 16)
    ours = sorted((int(k), image.tobytes()) for k, image in zip(labels, found, strict=True))
    images = source.images.astype(np.uint8)
    assert ours == sorted(
        (int(k), image.tobytes()) for k, image in zip(source.target, images, strict=True)
    )


def test_the_test_part_is_every_fifth_of_each_class(digits):
    seen = dict.fromkeys(range(10), 0)
    expected = []
    for image, label in zip(*(load_digits()[name] for name in ("images", "target")), strict=True):
        seen[int(label)] += 1
        if seen[int(label)] % 5 == 0:
            expected.append(image)
    assert (digits.test_images[..., 0] == np.array(expected)).all()


def test_it_is_always_the_same(digits):
    """The number is fixed here, so that records made with these data can be compared for ever."""
    assert digits.digest == "504e1e6b1649feab248cdaf28d723bad"
    assert digits.train_images.shape == (1442, 8, 8, 1)
    assert digits.test_images.shape == (355, 8, 8, 1)
    assert digits.classes == tuple("0123456789")


def test_unknown_names():
    with pytest.raises(DataUsageError, match="unknown data set 'svhn'; accepted: digits, cifar10"):
        load("svhn")


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataUsageError, match=r"needs scikit-learn: .*pip install '\.\[network\]'"):
        load("digits")
