"""The python version of CIFAR-10: pickles, read without running anything that is in them.

A pickle may name any function to be called. Here the three names that these files need stand for
an inert record of their arguments, and every other name is refused; not even NumPy is called.
"""

import io
import pickle
import pickletools
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from antipgd.paper.networks.data.cifar10 import (
    BATCHES,
    CHANNELS,
    PLANE,
    Published,
    batch,
    label_bytes,
)
from antipgd.paper.networks.data.errors import DataError

NAMES = BATCHES  # without an ending

# A batch has a dictionary, two lists and an array of six tuples in some 40,000 operations.
_MOST_OPERATIONS, _MOST_HOLDERS, _MOST_COPIES = 1_000_000, 16, 16
_PUTS = ("PUT", "BINPUT", "LONG_BINPUT")
_COPIES = ("GET", "BINGET", "LONG_BINGET", "DUP")
_HOLDERS = (
    "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "LIST", "EMPTY_LIST", "DICT", "EMPTY_DICT", "EMPTY_SET",
    "FROZENSET",
)  # fmt: skip
# What unpickling of arbitrary bytes raises.
_BROKEN = (
    pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, KeyError, TypeError,
    ValueError, OverflowError, MemoryError, RecursionError,
)  # fmt: skip


class _Inert:
    """What was to be made with which arguments, and not made."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    _NEEDED = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._NEEDED:
            raise DataError(f"it asks for {module}.{name}, which no batch of CIFAR-10 needs")
        return _Inert


def _pixels(array: _Inert, images: int) -> np.ndarray:
    _, shape, dtype, fortran, content = array.state
    if shape != (images, CHANNELS * PLANE) or dtype.arguments[0] not in ("u1", b"u1"):
        raise ValueError(f"its data are {dtype.arguments[0]!r} of shape {shape}")
    return np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


def _check_operations(content: bytes) -> None:
    """Refuse few bytes that would take much memory, time or stack, before anything is made.

    The unpickler makes room for all places of its memo before the one that is named. Tuples in
    tuples are hashed and shown by recursion, without end where each holds copies of another. That
    the lengths which it names are there, `genops` sees to.
    """
    count, last = Counter[str](), 0
    for number, (code, place, _) in enumerate(pickletools.genops(content)):
        count[code.name] += 1
        if code.name in _PUTS:
            last = max(last, int(str(place)))
        if number > _MOST_OPERATIONS:
            raise ValueError(f"it has more than {_MOST_OPERATIONS:,} operations")
    if last > count.total():
        raise ValueError(f"it names place {last} of its memo in {count.total()} operations")
    holders = sum(count[name] for name in _HOLDERS)
    copies = sum(count[name] for name in _COPIES)
    if holders > _MOST_HOLDERS or copies > _MOST_COPIES:
        raise ValueError(f"it has {holders} tuples and lists, and {copies} copies: too many")


def _batch(content: bytes, images: int) -> bytes:
    _check_operations(content)
    values = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    return batch(label_bytes(values[b"labels"], images), _pixels(values[b"data"], images))


def batches(files: Mapping[str, bytes], published: Published) -> dict[str, bytes]:
    """The binary batches of pickled ones."""
    found = {}
    for name in NAMES:
        try:
            found[name] = _batch(files[name], published.images)
        except DataError as error:
            raise DataError(f"{name} is refused, nothing of it was run: {error}") from None
        except _BROKEN as error:
            raise DataError(f"{name} is not a pickled batch of CIFAR-10: {error}") from error
    return found
