"""The w that a module's call has read, and what must not have happened to them when it ends.

A w is a copy: what is written into it would be lost, and who keeps it keeps one draw's noise.
"""

import copy
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from antipgd.torch.forward.auditing import Audit
from antipgd.torch.forward.forming import Draw, Former, in_functorch
from antipgd.torch.parts import is_sharded
from antipgd.torch.stepping import is_captured

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Formed(NamedTuple):
    """One w, and what it was when it was made."""

    name: str
    z: Tensor
    w: Tensor
    draw: Draw
    version: int
    address: int  # 0: it has none of its own

    @property
    def was_changed(self) -> bool:
        """Whether it was changed in place, or given other memory, as far as torch has noticed."""
        if _version(self.w) != self.version:
            return True
        return self.address != 0 and self.w.data_ptr() != self.address

    def differs(self, former: Former) -> bool:
        """Whether its values are others: `.data` is written without torch noticing."""
        if self.address == 0 or _is_freed(self.z):
            return False
        with torch.no_grad():
            again = former.form(self.z.detach(), self.draw)
        return not torch.equal(_bits(again), _bits(self.w.detach()))


def formed(name: str, z: Tensor, w: Tensor, draw: Draw) -> Formed:
    """A w that was made just now."""
    has_memory = not (in_functorch() or is_sharded(w))
    return Formed(name, z, w, draw, _version(w), w.data_ptr() if has_memory else 0)


def _version(w: Tensor) -> int:
    """How often it was written to; inside torch.inference_mode() nobody counts."""
    return 0 if w.is_inference() else w._version


class FlatWeights(list):
    """The w of a recurrent layer as it reads them; copies and pickles have its parameters."""

    def __init__(self, ws: Sequence[Tensor], clean: list[Tensor]) -> None:
        super().__init__(ws)
        self.clean = clean

    def __deepcopy__(self, memo: dict) -> list[Tensor]:
        return copy.deepcopy(self.clean, memo)

    def __reduce_ex__(self, protocol: object) -> tuple:
        return list, (list(self.clean),)


def check_unchanged(
    module: Module, formed: Sequence[Formed], audit: Audit | None, former: Former
) -> None:
    """Refuse a w that was written; say where a w is kept, when it is first read."""
    if audit is None and not any(one.was_changed for one in formed):
        return
    captured = is_captured()  # when no number can be read
    fresh = [one for one in formed if audit and not captured and audit.looks_first_at(one.name)]
    for one in formed:
        first = any(one is other for other in fresh)
        if one.was_changed or (first and one.differs(former)):
            raise RuntimeError(
                f"{one.name!r} was changed in forward(): it is a noisy copy there, so that the "
                f"change would be lost; change the parameter outside the training pass"
            )
    for name in _keeping(module, {one.address for one in fresh} - {0}) if fresh else ():
        warnings.warn(
            f"{type(module).__name__} keeps a noisy weight in its attribute {name!r} after the "
            f"pass: whoever reads it later, in eval mode too, reads this draw",
            stacklevel=4,
        )


def _keeping(module: Module, addresses: set[int]) -> list[str]:
    """The attributes that hold the memory of one of these."""
    held: dict[str, Any] = {**vars(module), **module._buffers}
    return [
        name
        for name, value in held.items()
        if type(value) is Tensor and value.layout == torch.strided and _address(value) in addresses
    ]


def _address(tensor: Tensor) -> int:
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return 0 if wrapped else tensor.data_ptr()


def _is_freed(z: Tensor) -> bool:
    """Whether FSDP2 has taken the gathered tensor's memory away, as it does when a call ends."""
    return z.untyped_storage().nbytes() < z.numel() * z.element_size()


def _bits(tensor: Tensor) -> Tensor:
    """Compared as integers, since nan is not itself."""
    return tensor.view(_INTEGERS[tensor.element_size()])
