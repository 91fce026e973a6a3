"""The data of the network experiments, as NumPy arrays; knows neither torch nor experiments.

`load` gives a set of images, `subset`, `validation_split` and `shrink` a smaller one, `normalised`
what a network takes. `antipgd data NAME` fetches what does not come with a package.
Needs the `network` extra.
"""

from pathlib import Path

from antipgd.checks import nearest
from antipgd.paper.networks.data.choosing import subset, validation_split
from antipgd.paper.networks.data.data_set import DataSet
from antipgd.paper.networks.data.digits import DIGITS
from antipgd.paper.networks.data.errors import DataError, DataUsageError
from antipgd.paper.networks.data.fashion_mnist import fashion_mnist
from antipgd.paper.networks.data.images import Images
from antipgd.paper.networks.data.scaling import Normalised, normalised, shrink
from antipgd.paper.networks.data.sources import cifar10, fetch

DATA_SETS: dict[str, DataSet] = {one.name: one for one in (DIGITS, cifar10(), fashion_mnist())}


def load(name: str, *, cache: Path | str | None = None) -> Images:
    """A data set by its name; `cache` is where fetched ones lie, unless they lie where they should.

    >>> load("digits").train_images.shape
    (1442, 8, 8, 1)
    """
    if name not in DATA_SETS:
        raise DataUsageError(f"unknown data set {name!r}; {nearest(name, DATA_SETS)}")
    return DATA_SETS[name].load(cache)


__all__ = [
    "DATA_SETS",
    "DataError",
    "DataSet",
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
