"""The data of the network experiments, as NumPy arrays; knows neither torch nor experiments.

`load` gives a set of images, `subset`, `validation_split` and `shrink` a smaller one, `normalised`
what a network takes. `antipgd data cifar10` fetches what does not come with a package.
Needs the `network` extra.
"""

from pathlib import Path

from antipgd.paper.datasets.cache import cache_folder
from antipgd.paper.datasets.choosing import subset, validation_split
from antipgd.paper.datasets.cifar10 import images_of
from antipgd.paper.datasets.digits import handwritten_digits
from antipgd.paper.datasets.errors import DataError, DataUsageError
from antipgd.paper.datasets.images import Images
from antipgd.paper.datasets.scaling import Normalised, normalised, shrink
from antipgd.paper.datasets.sources import fetch, load_batches

DATASETS = {
    "digits": "1,797 grey images of 8 x 8 in 10 classes, embedded in scikit-learn",
    "cifar10": "60,000 colour images of 32 x 32 in 10 classes",
}


def load(name: str, *, cache: Path | str | None = None) -> Images:
    """A dataset by its name; `cache` is where fetched ones lie, unless they lie where they should.

    >>> load("digits").train_images.shape
    (1442, 8, 8, 1)
    """
    if name == "digits":
        return handwritten_digits()
    if name == "cifar10":
        return images_of(load_batches(cache_folder(cache)))
    raise DataUsageError(f"unknown dataset {name!r}; accepted: {', '.join(DATASETS)}")


__all__ = [
    "DATASETS",
    "DataError",
    "DataUsageError",
    "Images",
    "Normalised",
    "fetch",
    "load",
    "normalised",
    "shrink",
    "subset",
    "validation_split",
]
