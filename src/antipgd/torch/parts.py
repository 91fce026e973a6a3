"""Which part of a parameter is on this rank, and whether the ranks agree.

A sharded parameter (FSDP2, tensor parallel) is a DTensor: its local tensor is a box of the whole,
and the stream gives that box its own part of the one global draw. DTensor's random operations
are not used: their draws depend on the sharding.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from antipgd.noise.placement import Shard


def is_sharded(parameter: Tensor) -> bool:
    """Whether the parameter is a DTensor (which no process without torch.distributed has)."""
    if not dist.is_available():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(parameter, DTensor)


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


def full_value(scalar: Tensor) -> float:
    """A scalar result as a number, gathered where it is distributed."""
    return float(scalar.full_tensor() if is_sharded(scalar) else scalar)  # type: ignore[attr-defined]


def common_seed(seed: int | None) -> int:
    """The seed given, else torch.initial_seed() of rank 0, which is never advanced."""
    if seed is not None:
        if isinstance(seed, bool) or not hasattr(seed, "__index__"):
            raise ValueError(f"seed must be an integer from 0 to 2**64 - 1; got {seed!r}")
        return int(seed)
    found = [torch.initial_seed() % 2**64]
    if dist.is_available() and dist.is_initialized():
        dist.broadcast_object_list(found, src=0)
    return found[0]


def check_ranks_agree(what: dict[str, Any]) -> None:
    """Refuse to go on when ranks differ; every rank of the job must call this together."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, what)
    for key in what:
        values = [other[key] for other in everyone]
        if any(value != values[0] for value in values):
            raise RuntimeError(f"the ranks disagree on the noise: {key} is {values} by rank")
