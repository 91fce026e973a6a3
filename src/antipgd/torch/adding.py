"""Adding injections to the parameters: the compiled kernel on CPUs, plain torch elsewhere.

Both give the same bits. Every write bumps the tensor's version counter, so that a backward pass
through an older graph fails as after any in-place change.
"""

import logging
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from antipgd.noise.laws import Law
from antipgd.noise.placement import Shard
from antipgd.torch import kernel
from antipgd.torch.members import Member
from antipgd.torch.parts import local_part

log = logging.getLogger("antipgd")


@cache
def compiled_targets() -> Any:
    """`Targets`, or None without numba, which is optional; imported with the first CPU tensor."""
    try:
        from antipgd.noise.inplace import Targets
    except ImportError:
        log.info("numba is not installed: the noise comes from plain torch (antipgd[cpu])")
        return None
    return Targets


class Adder:
    """Adds injections to a list of members; remembers where their memory lies."""

    def __init__(self, members: Sequence[Member], law: Law) -> None:
        self.members = list(members)
        self._law = law
        self._places: list[Any] = []
        self._locals: list[tuple[Tensor, Shard | None]] = []
        self._targets: list[tuple[Any, list[int]]] = []
        self._others: list[int] = []

    def _prepare(self) -> None:
        """Look where the weights lie, and plan anew if any has moved since."""
        locals_ = [local_part(member.parameter) for member in self.members]
        places = [(t.data_ptr(), t.stride(), t.dtype, shard) for t, shard in locals_]
        if places == self._places:
            return
        self._places, self._locals = places, locals_
        compiled = [i for i, (tensor, _) in enumerate(locals_) if tensor.device.type == "cpu"]
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
        self._others = sorted(set(range(len(locals_))) - set(compiled))

    def add(self, newest: int, coefficients: Sequence[Sequence[float]]) -> None:
        """members[i] += Σ_j coefficients[i][j] · ξ_{newest−j}."""
        self._prepare()
        if not any(any(row) for row in coefficients):
            return
        for targets, own in self._targets:
            threads = torch.get_num_threads()
            targets.inject(newest, [coefficients[i] for i in own], self._law, threads=threads)
            torch.autograd.graph.increment_version([self._locals[i][0] for i in own])
        with torch.no_grad():
            for i in self._others:
                tensor, shard = self._locals[i]
                key = self.members[i].key
                kernel.inject(tensor, key, newest, coefficients[i], self._law, shard)
