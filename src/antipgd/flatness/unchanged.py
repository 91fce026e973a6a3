"""Are the weights still those that were looked at? A digest of every parameter and buffer.

Not by torch's version counters: an optimizer that writes through `.data`, a NumPy view and batch
norm's own statistics change values and do not count, while `noise.clean()` and our own measurements
count and give every bit back. Reading all values costs about what drawing noise for them does.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn


def _digest(tensor: Tensor) -> bytes:
    values = tensor.detach().reshape(-1).contiguous().cpu()
    found = hashlib.blake2b(f"{tensor.dtype} {tensor.device} {tuple(tensor.shape)}".encode())
    found.update(values.view(torch.uint8).numpy().data)
    return found.digest()


class Unchanged:
    """What a module or tensors, and the buffers of other modules that were called, hold now."""

    def __init__(
        self, module: nn.Module | None, named: Mapping[str, Tensor], called: Iterable[nn.Module]
    ) -> None:
        self._module, self._named, self._called = module, named, list(called)
        self._identities = {name: id(tensor) for name, tensor in self._parameters()}
        self._digests = {name: _digest(tensor) for name, tensor in self._tensors()}

    def _parameters(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._named.items() if self._module is None else self._module.named_parameters()

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._parameters()
        for place, part in enumerate(self._called):
            for name, buffer in part.named_buffers(recurse=False):
                yield f"{name} of {type(part).__name__} ({place})", buffer

    def changed(self) -> str | None:
        """Which tensor is another one or holds other values, if one does."""
        if self._identities != {name: id(tensor) for name, tensor in self._parameters()}:
            return "parameters were replaced, added or removed"
        now = {name: _digest(tensor) for name, tensor in self._tensors()}
        different = [name for name in self._digests | now
                     if self._digests.get(name) != now.get(name)]  # fmt: skip
        return f"the values of {different[0]!r} changed" if different else None
