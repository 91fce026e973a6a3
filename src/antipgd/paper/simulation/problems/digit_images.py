"""The 8 × 8 grey images of handwritten digits that come with scikit-learn.

They are the test part of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak 1998).
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from antipgd.extras import needed_by
from antipgd.paper.simulation.problems.problem import Array

Digits = NDArray[np.int64]
PIXELS, CLASSES, IMAGES = 64, 10, 1797


@cache
def digit_images() -> tuple[Array, Digits]:
    """All images as columns with values from 0 to 1, and their digits."""
    with needed_by("a problem on digits", "paper"):
        from sklearn.datasets import load_digits
    found = load_digits()
    return found.data.T / 16, found.target.astype(np.int64)
