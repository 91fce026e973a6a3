"""Which part of a parameter is on this rank, and whether the ranks agree.

A sharded parameter (FSDP2, tensor parallel) is a DTensor: its local tensor is a box of the whole,
and the stream gives that box its own part of the one global draw. DTensor's random operations
are not used: their draws depend on the sharding.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from antipgd.noise.placement import Shard


def is_distributed() -> bool:
    """Whether this process is a rank of a job."""
    return dist.is_available() and dist.is_initialized()


@cache
def _sharded_types() -> tuple[type, ...]:
    if not dist.is_available():
        return ()
    from torch.distributed.tensor import DTensor

    return (DTensor,)


def is_sharded(parameter: Tensor) -> bool:
    """Whether the parameter is a DTensor (which no process without torch.distributed has)."""
    return isinstance(parameter, _sharded_types())


def local_part(parameter: Tensor) -> tuple[Tensor, Shard | None]:
    """The tensor that lies on this rank, and its place in the whole (None: it is the whole)."""
    if not is_sharded(parameter):
        return parameter, None
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
    local: Tensor = parameter._local_tensor  # type: ignore[attr-defined]
    if any(placement.is_partial() for placement in placements):
        raise TypeError(f"noise cannot be added to a partial DTensor; got {placements}")
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, mesh, placements)
    if tuple(shape) != tuple(local.shape):
        raise TypeError(
            f"the part of a parameter on this rank has shape {tuple(local.shape)} where "
            f"{tuple(shape)} follows from its placements {placements}"
        )
    return local, Shard(tuple(parameter.shape), tuple(offset))


def reshard(model: torch.nn.Module | None) -> None:
    """Let FSDP2 gather the weights anew, where a forward pass has left gathered copies behind."""
    if model is None or not dist.is_available():
        return
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@dataclass(frozen=True)
class Gathered:
    """What a pass reads of a shard: whether that is tensor-parallel still, and its type."""

    tensor_parallel: bool
    dtype: torch.dtype


def gathered_parameters(model: torch.nn.Module) -> dict[int, Gathered]:
    """The shards (by identity) that FSDP2 gathers for a pass, which reads another tensor then."""
    if not dist.is_available():
        return {}
    from torch.distributed.fsdp import FSDPModule

    found = {}
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None)
            for group in [state._fsdp_param_group] if groups is None else groups:
                for one in [] if group is None else group.fsdp_params:
                    dtype = group.mp_policy.param_dtype or one.sharded_param.dtype
                    found[id(one.sharded_param)] = Gathered(bool(one.is_dtensor), dtype)
    return found


def full_tensor(result: Tensor) -> Tensor:
    """A result, gathered where it is distributed."""
    return result.full_tensor() if is_sharded(result) else result  # type: ignore[attr-defined]


def full_value(scalar: Tensor) -> float:
    """A scalar result as a number, gathered where it is distributed."""
    return float(full_tensor(scalar))


def agree(error: Exception | None, facts: dict[str, Any], own: Any = None) -> list[Any]:
    """Refuse on every rank alike what any rank refuses or on what they differ.

    Every rank of the job must call this together, with an `error` or with what must be the same
    everywhere. Returns what each rank has of its `own`, in the order of the ranks.
    """
    if not is_distributed():
        if error is not None:
            raise error
        return [own]
    everyone: list[Any] = [None] * dist.get_world_size()
    refusal = None if error is None else f"{type(error).__name__}: {error}"
    dist.all_gather_object(everyone, (refusal, facts, own))
    if error is not None:
        raise error
    for rank, (other, _, _) in enumerate(everyone):
        if other is not None:
            raise RuntimeError(f"rank {rank} refused, so all do: {other}")
    for key in facts:
        values = [theirs.get(key) for _, theirs, _ in everyone]
        if any(value != values[0] for value in values):
            raise RuntimeError(f"the ranks disagree on the noise: {key} is {values} by rank")
    return [theirs for _, _, theirs in everyone]
