"""Launching the kernel: for many tensors in place, or for one that is formed of another.

`Targets` and `Template` are on a GPU what those of `antipgd.noise.inplace` are on a CPU.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipgd.noise.laws import Law
from antipgd.noise.placement import Shard, layout_of
from antipgd.noise.transforms import student_constants
from antipgd.torch.gpu.kernel import add_draws
from antipgd.torch.gpu.stream import LAWS
from antipgd.torch.gpu.tables import (
    ELEMENTS,
    TIMES,
    Place,
    Plan,
    as_signed,
    described,
    place_of,
    planned,
)

OPTIONS = {"enable_fp_fusion": False, "num_warps": 4}
"""How the kernel is compiled; a fused multiply-add would draw other bits."""


def constants_of(law: Law, dtype: torch.dtype, one_run: bool) -> dict[str, Any]:
    """What the kernel is compiled for."""
    unit = LAWS[law.name]
    return {
        "LAW": list(LAWS).index(law.name),
        "UNIT": unit,
        "LANES": ELEMENTS // unit,
        "CHUNK": TIMES * ELEMENTS // unit,
        "DOUBLE": dtype == torch.float64,
        "ONE_RUN": one_run,
    }


def _on(device: torch.device) -> AbstractContextManager:
    """Triton launches on the current device, which need not be that of the tensors."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def launch(source: Tensor, target: Tensor, plans: Sequence[Plan], place: Place, law: Law) -> None:
    """target = source + the draws, wherever the plans say; both of one type and layout."""
    student = (0.0,) * 4 if law.df is None else astuple(student_constants(law.df))
    for plan in plans:
        constants = constants_of(law, target.dtype, plan.one_run)
        with _on(target.device):
            add_draws[(len(plan.chunks),)](
                source, target, plan.chunks, plan.pieces, place.facts, place.newest, place.table,
                place.table.shape[1], *student, **constants, **OPTIONS,
            )  # fmt: skip


class Targets:
    """Tensors of one type on one device that take noise together, in one launch.

    Made once, used at every step, as long as none of them moves.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        keys: Sequence[int],
        shards: Sequence[Shard | None],
        law: Law,
    ) -> None:
        self._law = law
        there = [tensor for tensor in tensors if tensor.numel()]
        self._base = (there or list(tensors))[0].detach()
        device, size = self._base.device, self._base.element_size()
        pieces = [
            described(
                layout_of(tuple(tensor.shape), tensor.stride(), shard),
                (tensor.data_ptr() - self._base.data_ptr()) // size, owner, LAWS[law.name],
            )
            for owner, (tensor, shard) in enumerate(zip(tensors, shards, strict=True))
        ]  # fmt: skip
        self._plans = planned(pieces, LAWS[law.name], device)
        facts = torch.tensor([[as_signed(key), row] for row, key in enumerate(keys)])
        self._rows = np.empty((0, 0))
        self._place = Place(
            facts.to(device), torch.zeros((), dtype=torch.int64, device=device), facts
        )

    def inject(self, newest: int, coefficients: NDArray[np.float64]) -> None:
        """tensors[i] += Σ_j coefficients[i][j] · ξ_{newest−j}, draws before step 1 being zero."""
        if not np.array_equal(coefficients, self._rows):  # else they are there
            self._rows = coefficients.copy()
            table = torch.from_numpy(self._rows).to(self._base.device)
            self._place = self._place._replace(table=table)
        self._place.newest.fill_(newest)
        launch(self._base, self._base, self._plans, self._place, self._law)


class Template:
    """How tensors of one layout lie, and their copies, whatever memory they are in."""

    def __init__(self, like: Tensor, shard: Shard | None, law: Law) -> None:
        self.law, self._device = law, like.device
        self.plans = self.copied = self._planned(tuple(like.shape), like.stride(), shard)
        strides = torch.empty_like(like, device="meta").stride()
        self.has_gaps = strides != like.stride()
        if self.has_gaps:
            self.copied = self._planned(tuple(like.shape), strides, shard)

    def _planned(
        self, shape: tuple[int, ...], strides: tuple[int, ...], shard: Shard | None
    ) -> tuple[Plan, ...]:
        unit = LAWS[self.law.name]
        pieces = described(layout_of(shape, strides, shard), 0, 0, unit)
        return planned([pieces], unit, self._device)

    def inject(self, tensor: Tensor, place: Place) -> None:
        """tensor += the draws."""
        launch(tensor, tensor, self.plans, place, self.law)

    def form(self, z: Tensor, place: Place) -> Tensor:
        """w = z + the draws, in new memory that lies as z does; gradients reach z unchanged."""
        return _Formed.apply(z, self, place)  # type: ignore[no-untyped-call]


OLDEST = (7, 0)
"""The compute capability that Triton needs."""


def check_device(device: torch.device) -> None:
    """Refuse a GPU that is too old."""
    if device.type == "cuda" and (found := torch.cuda.get_device_capability(device)) < OLDEST:
        raise RuntimeError(f"compute capability must be at least {OLDEST}; got {found}")


def try_on(device: torch.device, law: Law) -> None:
    """Add a draw to one element and wait for it."""
    target = torch.zeros(1, device=device)
    Template(target, None, law).inject(target, place_of(0, 1, (1.0,), device))
    target.tolist()


class _Formed(torch.autograd.Function):
    """A copy with something added to it."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, template: Template, place: Place) -> Tensor:
        w = torch.empty_like(z)
        source = w.copy_(z) if template.has_gaps else z
        launch(source, w, template.copied, place, template.law)
        return w

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return *gradients, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return tangents[0].clone()
