"""What a user hands over: parameters, checked and by name, and batches of any nesting."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from antipgd.flatness.state import same_values
from antipgd.noise.stream import canonical_name

_WITHOUT = {"g": np.dtype(np.float64), "G": np.dtype(np.complex128)}  # types that torch lacks
Parameters = nn.Module | Mapping[str, Tensor] | Iterable[Tensor] | Iterable[tuple[str, Tensor]]


def named_tensors(params: Parameters) -> dict[str, Tensor]:
    """The parameters by name: the trainable ones of a module, else the tensors given."""
    if isinstance(params, nn.Module):
        trainable = {k: p for k, p in params.named_parameters() if p.requires_grad}
        params = trainable
    if isinstance(params, Tensor):
        raise TypeError("params must be a module or several tensors; got one tensor, pass [tensor]")
    pairs: list[tuple[Any, Any]] = (
        list(params.items())
        if isinstance(params, Mapping)
        else [v if isinstance(v, tuple) and _named(v) else (k, v) for k, v in enumerate(params)]
    )
    named = {canonical_name(name): tensor for name, tensor in pairs}
    if len(named) < len(pairs):
        names = [canonical_name(name) for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two parameters have the name {twice!r}, which their probes come from")
    return _checked(named)


def _named(entry: tuple[Any, ...]) -> bool:
    return len(entry) == 2 and isinstance(entry[0], str)


def _checked(named: dict[str, Tensor]) -> dict[str, Tensor]:
    if not named:
        raise ValueError("params is empty: there must be a tensor, or a module that trains one")
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"params must hold tensors; {name!r} is a {type(tensor).__name__}")
        if tensor.dtype not in (torch.float32, torch.float64):
            raise TypeError(
                f"parameter {name!r} is {tensor.dtype}; accepted are float32 and float64 "
                f"(second derivatives need the precision)"
            )
        if tensor.is_inference():
            raise ValueError(
                f"parameter {name!r} was made under inference_mode, which leaves it without "
                f"derivatives; make the model outside"
            )
        if not tensor.is_leaf:
            raise ValueError(f"parameter {name!r} is computed from other tensors; pass those")
        if hasattr(tensor, "device_mesh"):
            raise TypeError(f"parameter {name!r} is sharded; pass an unsharded model")
    if len({id(tensor) for tensor in named.values()}) < len(named):
        raise ValueError("a tensor is listed twice in params")
    if not sum(tensor.numel() for tensor in named.values()):
        raise ValueError("all tensors in params are empty; there must be at least one element")
    kinds = {(tensor.dtype, tensor.device) for tensor in named.values()}
    if len(kinds) > 1:
        raise TypeError(
            f"parameters must share one dtype and device; got {sorted(map(str, kinds))}"
        )
    return named


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """The tensors of a batch, whatever lists, tuples, dictionaries and dataclasses they are in.

    Arrays of numbers count as tensors.
    """
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, np.ndarray) and batch.dtype.kind in "biufc":
        yield _as_tensor(batch)
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from tensors_in(part)
    elif isinstance(batch, list | tuple):
        for part in batch:
            yield from tensors_in(part)
    elif _is_record(batch):
        for name in _fields(batch):
            yield from tensors_in(getattr(batch, name))


def _as_tensor(array: NDArray[Any]) -> Tensor:
    """A copy, also of what torch does not take: reversed, with foreign bytes, long doubles."""
    kind = _WITHOUT.get(array.dtype.char, array.dtype)
    return torch.from_numpy(np.array(array, dtype=kind.newbyteorder("="), order="C"))


def _is_record(batch: Any) -> bool:
    return is_dataclass(batch) and not isinstance(batch, type)


def _fields(batch: Any) -> list[str]:
    """Those that are set."""
    return [field.name for field in fields(batch) if hasattr(batch, field.name)]


def converted(batch: Any, convert: Callable[[Tensor], Tensor]) -> Any:
    """The batch with its tensors converted; the batch itself where none changes."""
    if isinstance(batch, Tensor):
        return convert(batch)
    if isinstance(batch, Mapping):
        found = {key: converted(part, convert) for key, part in batch.items()}
        return found if any(found[key] is not batch[key] for key in found) else batch
    if _is_record(batch):
        return _converted_record(batch, convert)
    if not isinstance(batch, list | tuple):
        return batch
    parts = [converted(part, convert) for part in batch]
    if all(new is old for new, old in zip(parts, batch, strict=True)):
        return batch
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)


def _converted_record(batch: Any, convert: Callable[[Tensor], Tensor]) -> Any:
    found = {name: converted(getattr(batch, name), convert) for name in _fields(batch)}
    changed = {name: part for name, part in found.items() if part is not getattr(batch, name)}
    if not changed:
        return batch
    other = copy.copy(batch)
    for name, part in changed.items():
        object.__setattr__(other, name, part)  # also of a frozen one
    return other


def differentiable(tensor: Tensor) -> Tensor:
    """Tensors made under inference_mode cannot take part in a graph; a copy can."""
    return tensor.clone() if tensor.is_inference() else tensor


def double(tensor: Tensor) -> Tensor:
    """In double precision where it is a floating-point number."""
    return tensor.double() if tensor.is_floating_point() else differentiable(tensor)


def examples_in(batch: Any) -> int:
    """The first axis of the first tensor that has one; else 1."""
    return next((len(tensor) for tensor in tensors_in(batch) if tensor.dim() > 0), 1)


def same_tensors(one: Any, other: Any) -> bool:
    """Whether two batches hold the same values."""
    pairs = list(tensors_in(one)), list(tensors_in(other))
    return len(pairs[0]) == len(pairs[1]) and all(
        same_values(a, b) for a, b in zip(*pairs, strict=True)
    )
