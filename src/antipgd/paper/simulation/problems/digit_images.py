"""The 8 × 8 grey images of handwritten digits that come with scikit-learn.

They are the test part of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak 1998).
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from antipgd.paper.simulation.problems.problem import Array

Digits = NDArray[np.int64]
PIXELS, CLASSES, IMAGES = 64, 10, 1797


@cache
def digit_images() -> tuple[Array, Digits]:
    """All images as columns with values from 0 to 1, and their digits."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "a problem on digits needs scikit-learn, which brings the images: "
            "pip install 'antipgd[paper]'"
        ) from error
    found = load_digits()
    return found.data.T / 16, found.target.astype(np.int64)
