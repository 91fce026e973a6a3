"""The python version of CIFAR-10: pickles, read without running anything that is in them.

A pickle may name any function to be called. Here the three names that these files need stand for
an inert record of their arguments, and every other name is refused; not even NumPy is called.
"""

import io
import pickle
import pickletools
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

_PUTS = ("PUT", "BINPUT", "LONG_BINPUT")
# What unpickling of arbitrary bytes raises.
_BROKEN = (
    pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, KeyError, TypeError,
    ValueError, OverflowError, MemoryError,
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


def _check_memo(content: bytes) -> None:
    """Refuse a place in the memo beyond the number of operations: the unpickler makes room for all
    places before the one that a few bytes name."""
    found = pickletools.genops(content)
    last = max((int(place) for code, place, _ in found if code.name in _PUTS and place), default=0)
    if last > len(content):
        raise ValueError(f"it names place {last} of its memo in {len(content)} bytes")


def _batch(content: bytes, images: int) -> bytes:
    _check_memo(content)
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
