"""A few elements of each parameter, and the marks by which torch shows that one was written to.

The elements lie on a diagonal of the tensor: a view of it in any memory layout. Knows tensors and
members, not what the elements are for.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipgd.noise.placement import Shard, row_major_strides
from antipgd.torch.members import Member
from antipgd.torch.parts import is_sharded, local_part

MOST = 16  # elements of a tensor
Marks = tuple[list[int], list[int], list[torch.dtype]]


def spacing(shape: Sequence[int]) -> tuple[int, list[int]]:
    """How many elements are taken of a tensor, and the way along each axis to the next."""
    count = min(MOST, max(shape, default=1)) if prod(shape) else 0
    return count, [max(size - 1, 0) // max(count - 1, 1) for size in shape]


def diagonal(tensor: Tensor) -> Tensor:
    """The elements that are taken, as a view of the tensor."""
    count, ways = spacing(tensor.shape)
    stride = sum(way * along for way, along in zip(ways, tensor.stride(), strict=True))
    return tensor.detach().as_strided((count,), (stride,))


def elements(parameter: Tensor) -> NDArray[np.int64]:
    """Which elements of the whole parameter those are, of the part that is on this rank."""
    tensor, shard = local_part(parameter)
    shard = shard or Shard(tuple(tensor.shape), (0,) * tensor.dim())
    count, ways = spacing(tensor.shape)
    strides = row_major_strides(shard.global_shape)
    first = sum(offset * stride for offset, stride in zip(shard.offset, strides, strict=True))
    way = sum(way * stride for way, stride in zip(ways, strides, strict=True))
    return first + way * np.arange(count, dtype=np.int64)


def as_text(row: NDArray[np.float64]) -> str:
    """Elements as a checkpoint has them: float32, the text of their bytes."""
    with np.errstate(over="ignore"):
        return row.astype("<f4").tobytes().hex()


def as_row(text: str) -> NDArray[np.float64]:
    """Elements from a checkpoint."""
    return np.frombuffer(bytes.fromhex(text), "<f4").astype(np.float64)


class Sampler:
    """Takes the elements of many members at once; good while no tensor moves."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)
        self._sharded = any(is_sharded(member.parameter) for member in members)
        self._locals = [local_part(member.parameter)[0] for member in members]
        by_kind: dict[tuple, list[int]] = {}
        for i, tensor in enumerate(self._locals):
            by_kind.setdefault((tensor.device, tensor.dtype), []).append(i)
        self._kinds = list(by_kind.values())
        self._views = [[diagonal(self._locals[i]) for i in kind] for kind in self._kinds]
        self._spots: dict[int, tuple[int, int, int]] = {}  # member: kind, start and place in it
        for number, (kind, views) in enumerate(zip(self._kinds, self._views, strict=True)):
            starts = accumulate((len(view) for view in views), initial=0)
            for place, (i, start) in enumerate(zip(kind, starts, strict=False)):
                self._spots[i] = number, start, place
        self._places = self._where()

    def _tensors(self) -> list[Tensor]:
        if self._sharded:  # whose local tensors may be exchanged
            return [getattr(m.parameter, "_local_tensor", m.parameter) for m in self.members]
        return self._locals

    def _versions(self) -> list[int]:
        return [tensor._version for tensor in self._tensors()]

    def _where(self) -> tuple[list[int], list[torch.dtype]]:
        tensors = self._tensors()
        return [tensor.data_ptr() for tensor in tensors], [tensor.dtype for tensor in tensors]

    def marks(self) -> Marks:
        """Version, address and type of each tensor as it is now."""
        return self._versions(), *self._where()

    def marks_in_place(self) -> Marks:
        """The marks of tensors that are known not to have moved."""
        return self._versions(), *self._places

    def fits(self, members: Sequence[Member]) -> bool:
        """Whether these are its members, and lie where they lay."""
        return members == self.members and self._where() == self._places

    def take(self) -> list[Tensor]:
        """The elements now, one tensor for each device and type; waits for no device."""
        return [torch.cat(views) for views in self._views]

    def rows(self, taken: Sequence[Tensor]) -> list[NDArray[np.float64]]:
        """What was taken, member by member."""
        flat = [values.cpu().to(torch.float64).numpy() for values in taken]
        spots = [self._spots[i] for i in range(len(self.members))]
        return [
            flat[kind][start : start + len(self._views[kind][place])]
            for kind, start, place in spots
        ]

    def is_like(self, index: int, taken: Sequence[Tensor]) -> bool:
        """Whether one member has the values that were taken; other devices are not waited for."""
        kind, start, place = self._spots[index]
        view = self._views[kind][place]
        return view.device.type != "cpu" or torch.equal(
            view, taken[kind][start : start + len(view)]
        )
