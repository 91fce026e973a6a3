"""Where the elements of an array lie: in memory, and in the whole parameter.

The stream numbers the elements of a parameter in logical row-major order, whatever the memory
format (channels_last, transposed) and whichever part of it (shard) is here. A *piece* tells a
kernel both: `outer` panels of rows × columns whose columns are consecutive elements of the
parameter. Pieces are small enough to be shared out over threads. Knows nothing about noise.
"""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

PIECE_ELEMENTS = 2**18


@dataclass(frozen=True)
class Shard:
    """Which part of a parameter an array is: the parameter's shape, and where the part begins."""

    global_shape: tuple[int, ...]
    offset: tuple[int, ...]

    def __post_init__(self) -> None:
        # Python integers, which do not overflow as NumPy's narrow ones would.
        object.__setattr__(self, "global_shape", tuple(map(operator.index, self.global_shape)))
        object.__setattr__(self, "offset", tuple(map(operator.index, self.offset)))


@dataclass(frozen=True)
class _Axis:
    size: int
    memory_step: int  # in elements of the array
    element_jump: int  # in elements of the parameter


def row_major_strides(shape: Sequence[int]) -> list[int]:
    """How far apart neighbours along each axis are in row-major order."""
    return [prod(shape[i + 1 :]) for i in range(len(shape))]


def each_element_once(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether every axis steps over all that the axes with smaller strides (in elements) cover."""
    covered = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride < covered:
                return False
            covered = stride * size
    return True


def _each_element_once(array: NDArray) -> bool:
    apart = [s for s, size in zip(array.strides, array.shape, strict=True) if size > 1]
    whole = not any(stride % array.itemsize for stride in apart)
    return whole and each_element_once(array.shape, [s // array.itemsize for s in array.strides])


def check_array(array: NDArray) -> None:
    """Refuse an array that noise cannot be added to in place."""
    if array.dtype not in (np.float32, np.float64):
        raise TypeError(f"noise is added to float32 and float64 arrays; got {array.dtype}")
    if not array.flags.writeable:
        raise ValueError("noise is added in place; got a read-only array")
    if array.size and not _each_element_once(array):
        raise ValueError(
            f"noise is added to arrays with positive strides whose elements do not overlap; "
            f"got shape {array.shape} with strides {array.strides} bytes"
        )


def _check_shard(shape: tuple[int, ...], shard: Shard) -> None:
    ends = [o + s for o, s in zip(shard.offset, shape, strict=False)]
    if not (
        len(shard.global_shape) == len(shard.offset) == len(shape)
        and min(shard.offset, default=0) >= 0
        and (0 in shape or all(e <= g for e, g in zip(ends, shard.global_shape, strict=True)))
    ):
        raise ValueError(
            f"a part of shape {shape} at {shard.offset} does not lie in a parameter of "
            f"shape {shard.global_shape}"
        )


def _axes(shape: Sequence[int], strides: Sequence[int], shard: Shard) -> list[_Axis]:
    """The axes of an array with neighbours merged where both numberings allow it."""
    jumps = row_major_strides(shard.global_shape)
    merged: list[_Axis] = []
    for size, stride, jump in zip(shape, strides, jumps, strict=True):
        if size == 1:
            continue
        axis = _Axis(size, stride, jump)
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.memory_step == size * axis.memory_step
            and last.element_jump == size * jump
        ):
            merged[-1] = _Axis(last.size * size, axis.memory_step, jump)
        else:
            merged.append(axis)
    if not merged or merged[-1].element_jump != 1:
        merged.append(_Axis(1, 1, 1))
    return [_Axis(1, 0, 0)] * (3 - len(merged)) + merged


def _split(axes: list[_Axis]) -> Iterator[tuple[int, int, tuple[int, int, int]]]:
    """(memory offset, element offset, sizes) of parts of at most PIECE_ELEMENTS elements."""
    sizes = [axis.size for axis in axes]
    counts = list(sizes)
    for i in range(3):
        inner = prod(sizes[i + 1 :])
        counts[i] = min(sizes[i], max(1, PIECE_ELEMENTS // inner))
    for begin in product(*(range(0, sizes[i], counts[i]) for i in range(3))):
        part = [min(counts[i], sizes[i] - begin[i]) for i in range(3)]
        memory = sum(b * axis.memory_step for b, axis in zip(begin, axes, strict=True))
        element = sum(b * axis.element_jump for b, axis in zip(begin, axes, strict=True))
        yield memory, element, (part[0], part[1], part[2])


def layout_of(
    shape: tuple[int, ...], strides: Sequence[int], shard: Shard | None = None
) -> NDArray[np.int64]:
    """The pieces of an array with these strides (in elements), a row each:

    where it begins in memory, outer, rows, columns, memory steps of those three (all in elements),
    the parameter's element at the start, and the element jumps from panel to panel and from row to
    row.
    """
    shard = shard or Shard(shape, (0,) * len(shape))
    _check_shard(shape, shard)
    if 0 in shape:
        return np.empty((0, 10), np.int64)
    axes = _axes(shape, strides, shard)
    start = sum(
        o * j for o, j in zip(shard.offset, row_major_strides(shard.global_shape), strict=True)
    )
    leading, panel = axes[:-3], axes[-3:]
    rows = []
    for index in product(*(range(axis.size) for axis in leading)):
        memory = sum(i * axis.memory_step for i, axis in zip(index, leading, strict=True))
        element = start + sum(i * a.element_jump for i, a in zip(index, leading, strict=True))
        for more_memory, more_element, sizes in _split(panel):
            rows.append(
                (
                    memory + more_memory,
                    *sizes,
                    *(axis.memory_step for axis in panel),
                    element + more_element,
                    panel[0].element_jump,
                    panel[1].element_jump,
                )
            )
    return np.array(rows, np.int64)


def pieces_of(array: NDArray, shard: Shard | None = None) -> NDArray[np.int64]:
    """The pieces of one array as `layout_of` has them, but for their addresses in memory."""
    check_array(array)
    rows = layout_of(array.shape, [stride // array.itemsize for stride in array.strides], shard)
    rows[:, 0] = array.ctypes.data + rows[:, 0] * array.itemsize
    return rows
