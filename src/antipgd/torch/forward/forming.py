"""w = z + Σ_j c_j ξ_{d−j} in fresh memory, with dw/dz = 1.

A copy that autograd knows as a copy, into whose memory the draws are then written. Weights of 16
bits are made in float32 and rounded to nearest. Knows tensors and draws, not when w is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipgd.noise.laws import Law
from antipgd.noise.placement import Shard
from antipgd.torch import kernel
from antipgd.torch.adding import compiled_targets
from antipgd.torch.parts import local_part

WIDE = (torch.float32, torch.float64)
NARROW = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Draw:
    """What is added to one parameter in one pass."""

    key: int
    newest: int
    coefficients: tuple[float, ...]

    @cached_property
    def is_nothing(self) -> bool:
        """Whether w is z."""
        return self.newest < 1 or not any(self.coefficients)

    @cached_property
    def as_arrays(self) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """The key and the coefficients as the compiled kernels take them."""
        return np.array([self.key], np.uint64), np.array([self.coefficients], np.float64)


@dataclass
class Former:
    """Makes w of one law; remembers how the parameters lie in memory."""

    law: Law
    _templates: dict[tuple, Any] = field(default_factory=dict)

    @cached_property
    def _law_arguments(self) -> tuple:
        from antipgd.noise.inplace import law_arguments

        return law_arguments(self.law)

    def form(self, z: Tensor, draw: Draw) -> Tensor:
        """w, through which gradients reach z unchanged."""
        if in_functorch():
            return self._form_by_sum(z, draw)
        w = z.clone()
        if not draw.is_nothing:
            target, shard = (w, None) if type(w) is Tensor else local_part(w)
            self._write(target.detach(), shard, draw)
        return w

    def _write(self, w: Tensor, shard: Shard | None, draw: Draw) -> None:
        """w += the draws, for memory that nobody has read yet."""
        if w.dtype in WIDE:
            self.add(w, shard, draw)
        else:
            wide = w.float()
            self.add(wide, shard, draw)
            w.copy_(wide)

    def _form_by_sum(self, z: Tensor, draw: Draw) -> Tensor:
        """w inside torch.func, whose tensors have no memory of their own: the same bits."""
        wide = torch.float32 if z.dtype in NARROW else z.dtype
        with torch._C._DisableFuncTorch():
            xi = torch.zeros(z.shape, dtype=wide, device=z.device)
            if not draw.is_nothing:
                self.add(xi, None, draw)
        return (z.to(wide) + xi).to(z.dtype)

    def add(self, tensor: Tensor, shard: Shard | None, draw: Draw) -> None:
        """tensor += the draws, in place; float32 or float64."""
        if tensor.device.type != "cpu" or compiled_targets() is None:
            with torch.no_grad():
                kernel.inject(tensor, draw.key, draw.newest, draw.coefficients, self.law, shard)
            return
        layout = (tensor.shape, tensor.stride(), tensor.dtype, shard)
        template = self._templates.get(layout)
        if template is None:
            from antipgd.noise.inplace import Template

            template = self._templates[layout] = Template(tensor.numpy(), shard)
        key, coefficients = draw.as_arrays
        template.inject(
            tensor.data_ptr(), key, draw.newest, coefficients, self._law_arguments,
            threads=torch.get_num_threads(),
        )  # fmt: skip


def in_functorch() -> bool:
    """Whether a transformation of torch.func is at work."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def as_draw(key: int, newest: int, coefficients: Sequence[float], sign: float = 1.0) -> Draw:
    """A draw with its sign in the coefficients."""
    return Draw(key, newest, tuple(sign * c for c in coefficients))
