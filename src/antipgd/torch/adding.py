"""Adding injections to the parameters: compiled kernels on CPUs and GPUs, plain torch elsewhere.

All give the same bits. Every write bumps the tensor's version counter, so that a backward pass
through an older graph fails as after any in-place change.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipgd.noise.laws import Law
from antipgd.noise.placement import Shard
from antipgd.torch import kernel
from antipgd.torch.gpu.choosing import chosen
from antipgd.torch.members import Member
from antipgd.torch.parts import is_sharded, local_part
from antipgd.torch.shares import of_part

log = logging.getLogger("antipgd")
Rows = Sequence[Sequence[float]] | NDArray[np.float64]


@cache
def compiled_targets() -> Any:
    """`Targets`, or None without numba, which is optional; imported with the first CPU tensor."""
    try:
        from antipgd.noise.inplace import Targets
    except ImportError as error:  # not there, or not for this NumPy
        log.info("the noise comes from plain torch, slower and with the same bits: %s", error)
        return None
    return Targets


class Adder:
    """Adds injections to a list of members; remembers where their memory lies."""

    def __init__(self, members: Sequence[Member], law: Law) -> None:
        self.members = list(members)
        self._law = law
        self._sharded = any(is_sharded(member.parameter) for member in members)
        self._tensors = [member.parameter for member in members]
        self._places: Any = None
        self.has_moved = True
        """Whether, when it last added, a tensor lay elsewhere than the time before."""
        self._locals: list[tuple[Tensor, Shard | None]] = []
        self._targets: list[tuple[Any, list[int]]] = []
        self._on_gpu: list[tuple[Any, list[int]]] = []
        self._others: list[int] = []
        self._shaped: list[int] = []  # whose noise is shared out over filters

    def try_kernels(self) -> None:
        """Find out now whether the GPU kernel runs where the weights are."""
        for member in self.members:
            chosen(local_part(member.parameter)[0], self._law)

    def _prepare(self) -> None:
        """Look where the weights lie, and plan anew if any has moved since."""
        if self._sharded or self._places is None:
            self._locals = [local_part(member.parameter) for member in self.members]
            self._tensors = [tensor for tensor, _ in self._locals]
        tensors = self._tensors  # at every step of every tensor, so quickly
        places = (
            [t.data_ptr() for t in tensors],
            [hash(t.stride()) for t in tensors],  # a thousand tuples would wake the collector
            [t.dtype for t in tensors],
            [shard for _, shard in self._locals] if self._sharded else [],
        )
        self.has_moved = places != self._places
        if not self.has_moved:
            return
        self._places = places
        self._shaped = [i for i, m in enumerate(self.members) if m.shares is not None]
        free = set(range(len(tensors))) - set(self._shaped)
        on_gpu = self._plan_gpu(free)
        compiled = self._plan_cpu(free - on_gpu)
        self._others = sorted(free - on_gpu - compiled)

    def _plan_gpu(self, free: set[int]) -> set[int]:
        """Whom of these the GPU kernel takes: all of one type on one device together."""
        kinds: dict[tuple, list[int]] = {}
        for i in sorted(free):
            tensor = self._locals[i][0]
            if (launching := chosen(tensor, self._law)) is not None:
                kinds.setdefault((launching, tensor.device, tensor.dtype), []).append(i)
        self._on_gpu = []
        for (launching, *_), own in kinds.items():
            tensors, shards = zip(*(self._locals[i] for i in own), strict=True)
            keys = [self.members[i].key for i in own]
            self._on_gpu.append((launching.Targets(tensors, keys, shards, self._law), own))
        return {i for own in kinds.values() for i in own}

    def _plan_cpu(self, free: set[int]) -> set[int]:
        """Whom the CPU kernels take of these."""
        locals_ = self._locals
        compiled = sorted(i for i in free if locals_[i][0].device.type == "cpu")
        targets: Any = compiled_targets() if compiled else None
        if targets is None:
            compiled = []
        self._targets = []
        for dtype in (torch.float32, torch.float64):
            own = [i for i in compiled if locals_[i][0].dtype == dtype]
            if own:
                arrays = [locals_[i][0].detach().numpy() for i in own]
                keys = [self.members[i].key for i in own]
                self._targets.append((targets(arrays, keys, [locals_[i][1] for i in own]), own))
        return set(compiled)

    def add(self, newest: int, coefficients: Rows) -> None:
        """members[i] += Σ_j coefficients[i][j] · ξ_{newest−j}."""
        self._prepare()
        table = np.asarray(coefficients, np.float64)
        if not table.any():
            return
        for targets, own in self._targets:
            rows = table if len(own) == len(table) else table[own]
            targets.inject(newest, rows, self._law, threads=torch.get_num_threads())
            torch.autograd.graph.increment_version([self._tensors[i] for i in own])
        for targets, own in self._on_gpu:
            targets.inject(newest, table[own])
            torch.autograd.graph.increment_version([self._tensors[i] for i in own])
        with torch.no_grad():
            for i in self._others:
                tensor, shard = self._locals[i]
                key = self.members[i].key
                kernel.inject(tensor, key, newest, table[i].tolist(), self._law, shard)
            for i in self._shaped:
                self._add_shaped(i, newest, table[i : i + 1])

    def _add_shaped(self, i: int, newest: int, row: NDArray[np.float64]) -> None:
        """The same by itself in memory of its own, then times the share of each filter."""
        member, (tensor, shard) = self.members[i], self._locals[i]
        assert member.shares is not None
        if row.any() and tensor.numel() > 0:
            eps = torch.zeros_like(member.parameter.detach())
            Adder([replace(member, parameter=eps, shares=None)], self._law).add(newest, row)
            tensor.add_(local_part(eps)[0].mul_(of_part(member.shares, tensor, shard)))
