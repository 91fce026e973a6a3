"""w = z + Σ_j c_j ξ_{d−j} in fresh memory, with dw/dz = 1.

A copy that autograd knows as a copy, into whose memory the draws are then written; on a GPU both
at once. Weights of 16 bits are made in float32 and rounded to nearest. Knows tensors and draws, not
when w is read.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipgd.noise.laws import Law
from antipgd.noise.placement import Shard
from antipgd.torch import kernel
from antipgd.torch.adding import compiled_targets
from antipgd.torch.gpu.choosing import chosen
from antipgd.torch.gpu.tables import Place, keep_for_graph, place_of
from antipgd.torch.parts import is_sharded, local_part
from antipgd.torch.shares import of
from antipgd.torch.stepping import is_captured, refuse_capture

WIDE = (torch.float32, torch.float64)
NARROW = (torch.bfloat16, torch.float16)
MANY = 2**19  # elements from which on several threads are worth their start


class Draw(NamedTuple):
    """What is added to one parameter in one pass, as the compiled kernels take it."""

    key: NDArray[np.uint64]  # one
    newest: int
    coefficients: NDArray[np.float64]  # one row
    place: Place | None = None  # the same in a device's memory, as long as the step lasts
    shares: Tensor | float | None = None  # that the sum is multiplied with, as `shares.of` takes


def as_draw(key: int, newest: int, coefficients: Sequence[float]) -> Draw:
    """A draw from plain numbers."""
    return Draw(np.array([key], np.uint64), newest, np.array([coefficients], np.float64))


@dataclass
class Former:
    """Makes w of one law; remembers how the parameters lie in memory."""

    law: Law
    _templates: dict[tuple, Any] = field(default_factory=dict)

    @cached_property
    def _law_arguments(self) -> tuple:
        from antipgd.noise.inplace import law_arguments

        return law_arguments(self.law)

    def form(self, z: Tensor, draw: Draw, known: "Known | None" = None) -> Tensor:
        """w, through which gradients reach z unchanged.

        `known` remembers how the last w of this parameter lay: most lie as the last one did.
        """
        if in_functorch():
            return self._form_by_sum(z, draw)
        if draw.shares is not None:
            known = None
        elif known is None or known.dtype is None or not z.is_cpu:  # else it lay on a CPU, and does
            launching = chosen(z, self.law)
            if launching is not None and not is_sharded(z):
                return self._template(launching, z, None).form(z, _place(draw, z.device))
        w = z.clone()
        if known is not None and known.fits(w):
            known.inject(w.data_ptr(), draw.key, draw.newest, draw.coefficients)
            return w
        target, shard = local_part(w) if is_sharded(w) else (w, None)
        if target.dtype in WIDE or (draw.shares is None and chosen(target, self.law) is not None):
            template = self.add(target, shard, draw)
            if known is not None and template is not None and w.numel() < MANY:
                known.remember(w, template.on_one_thread(self._law_arguments))
        else:
            target = target.detach()
            wide = target.float()
            self.add(wide, shard, draw)
            target.copy_(wide)
        return w

    def _form_by_sum(self, z: Tensor, draw: Draw) -> Tensor:
        """w inside torch.func, whose tensors have no memory of their own: the same bits."""
        wide = torch.float32 if z.dtype in NARROW else z.dtype
        with torch._C._DisableFuncTorch():
            xi = torch.zeros(z.shape, dtype=wide, device=z.device)
            self.add(xi, None, draw._replace(shares=None))
        if draw.shares is not None:
            xi = xi * of(draw.shares, z.detach().to(wide), None)
        return (z.to(wide) + xi).to(z.dtype)

    def prepare(self, tensors: Iterable[Tensor]) -> None:
        """Write how these lie into the memory of their GPUs.

        Before a compiled call could: what is allocated inside one may lie in the memory of its
        graphs, which is theirs to use again.
        """
        for tensor in tensors:
            launching = None if is_sharded(tensor) else chosen(tensor, self.law)
            if launching is not None:
                self._template(launching, tensor.detach(), None)

    def _template(self, launching: Any, tensor: Tensor, shard: Shard | None) -> Any:
        """How a tensor on a GPU lies."""
        layout = (tensor.shape, tensor.stride(), tensor.dtype, shard, tensor.device)
        if layout not in self._templates:
            self._templates[layout] = launching.Template(tensor, shard, self.law)
        return self._templates[layout]

    def _add_shaped(
        self, tensor: Tensor, shard: Shard | None, draw: Draw, shares: Tensor | float
    ) -> None:
        """The draws by themselves, then times their shares."""
        _refuse_shaped_capture()
        xi = torch.zeros_like(tensor)
        self.add(xi, shard, draw._replace(shares=None))
        with torch.no_grad():
            tensor.add_(xi.mul_(of(shares, tensor, shard)))

    def add(self, tensor: Tensor, shard: Shard | None, draw: Draw) -> Any:
        """tensor += the draws, in place, in memory that nobody has read yet.

        Of 32 or 64 bits, unless the GPU kernel is chosen.

        Returns the template of its layout, if the CPU kernel has one.
        """
        if draw.shares is not None:
            self._add_shaped(tensor.detach(), shard, draw, draw.shares)
            return None
        if (launching := chosen(tensor, self.law)) is not None:
            tensor = tensor.detach()
            template = self._template(launching, tensor, shard)
            template.inject(tensor, _place(draw, tensor.device))
            return None
        if not tensor.is_cpu or compiled_targets() is None:
            refuse_capture()
            tensor = tensor.detach()
            with torch.no_grad():
                coefficients = draw.coefficients[0].tolist()
                kernel.inject(tensor, int(draw.key[0]), draw.newest, coefficients, self.law, shard)
            return None
        layout = (tensor.shape, tensor.stride(), tensor.dtype, shard)
        template = self._templates.get(layout)
        if template is None:
            from antipgd.noise.inplace import Template

            template = self._templates[layout] = Template(tensor.detach().numpy(), shard)
        threads = 1 if tensor.numel() < MANY else torch.get_num_threads()
        template.inject(
            tensor.data_ptr(), draw.key, draw.newest, draw.coefficients, self._law_arguments,
            threads,
        )  # fmt: skip
        return template


def _refuse_shaped_capture() -> None:
    if is_captured():
        raise RuntimeError(
            "relative='filter' and 'element' cannot be captured in a CUDA graph, whose replays "
            "would not know shares that are measured anew; use relative=True"
        )


def _place(draw: Draw, device: torch.device) -> Place:
    """The draw in a device's memory; brought there if it is not."""
    if draw.place is not None and draw.place.table.device == device:
        if is_captured():
            keep_for_graph(draw.place)
        return draw.place
    refuse_capture()
    return place_of(int(draw.key[0]), draw.newest, draw.coefficients[0], device)


class Known:
    """How the last w of a parameter lay in memory."""

    __slots__ = ("dtype", "inject", "shape", "strides")

    def __init__(self) -> None:
        self.dtype: torch.dtype | None = None

    def remember(self, w: Tensor, inject: Callable[..., None]) -> None:
        """This is the last one, a whole tensor on the CPU; `inject` adds to such."""
        if type(w) is Tensor:
            self.shape, self.strides, self.dtype = w.shape, w.stride(), w.dtype
            self.inject = inject

    def fits(self, w: Tensor) -> bool:
        """Whether this w lies as the last one did."""
        return (
            self.dtype is w.dtype
            and type(w) is Tensor
            and w.is_cpu
            and w.stride() == self.strides
            and w.shape == self.shape
        )


def in_functorch() -> bool:
    """Whether a transformation of torch.func is at work."""
    return torch._C._functorch.peek_interpreter_stack() is not None
