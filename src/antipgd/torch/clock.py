"""The clock: progress along a valley of minima in one step, by the kind of optimizer.

Σησ²/(1−momentum) for SGD, Σησ for optimizers that divide by the gradient's size.
"""

import math
from collections.abc import Sequence
from functools import cache, partial

import torch

from antipgd.torch.members import Member
from antipgd.torch.together import Together

ADAPTIVE = (
    torch.optim.Adadelta,
    torch.optim.Adafactor,
    torch.optim.Adagrad,
    torch.optim.RMSprop,
    torch.optim.Rprop,
)


def progress(optimizers: Together, members: Sequence[Member], sigmas: Sequence[float]) -> float:
    """Mean progress over all elements that take noise, nan where it is unknown."""
    total = elements = 0.0
    of_group = cache(partial(_of_group, optimizers))  # most tensors of a group have one σ
    for member, sigma in zip(members, sigmas, strict=True):
        if member.parameter.requires_grad:
            size = member.parameter.numel()
            total += of_group(member.group, sigma) * size
            elements += size
    return total / elements if elements else 0.0


def _of_group(optimizers: Together, index: int, sigma: float) -> float:
    if why_unknown(optimizers, index):
        return math.nan
    group = optimizers.param_groups[index]
    rate = abs(float(group["lr"]))
    if isinstance(optimizers.owner(index), ADAPTIVE) or "betas" in group:
        return rate * sigma
    return rate * sigma * sigma / (1 - float(group.get("momentum") or 0))


def why_unknown(optimizers: Together, index: int) -> str:
    """Why a param group has no clock, "" where it has one.

    With momentum 1 or more the velocity never decays: one draw's push would count for ever.
    """
    group = optimizers.param_groups[index]
    if group.get("lr") is None:
        return f"param group {index} has no lr"
    adaptive = isinstance(optimizers.owner(index), ADAPTIVE) or "betas" in group
    momentum = float(group.get("momentum") or 0)
    if not adaptive and not momentum < 1:
        return f"param group {index} has momentum {momentum:g}"
    return ""
