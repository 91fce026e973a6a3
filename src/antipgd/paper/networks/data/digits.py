"""Handwritten digits that come with scikit-learn: 1,797 grey images of 8 x 8, nothing to fetch.

They are the test part of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, 1998,
UCI Machine Learning Repository). Values are whole numbers from 0 to 16 and stay so.
"""

import numpy as np
from numpy.typing import NDArray

from antipgd.paper.networks.data.data_set import DataSet
from antipgd.paper.networks.data.errors import network_extra
from antipgd.paper.networks.data.images import Images

_TEST_EVERY = 5


def _in_test(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Every fifth image of each class, in the order of the file."""
    chosen = np.zeros(len(labels), np.bool_)
    for label in np.unique(labels):
        chosen[np.flatnonzero(labels == label)[_TEST_EVERY - 1 :: _TEST_EVERY]] = True
    return chosen


def handwritten_digits() -> Images:
    """The digits, a fifth of every class for the test: always the same split."""
    with network_extra():
        from sklearn.datasets import load_digits
    found = load_digits()
    images = found.images.astype(np.uint8)[..., None]
    labels = found.target.astype(np.int64)
    test = _in_test(labels)
    return Images(
        "digits", images[~test], labels[~test], images[test], labels[test], tuple("0123456789")
    )


DIGITS = DataSet(
    name="digits",
    about="1,797 grey images of 8 x 8 in 10 classes, embedded in scikit-learn",
    shape=(1, 8, 8),
    training=1442,
    testing=355,
    load=lambda cache: handwritten_digits(),
)
