"""The clock: progress along a valley of minima in one step, by the kind of optimizer.

Σησ²/(1−momentum) for SGD, Σησ for optimizers that divide by the gradient's size.
"""

import math
from collections.abc import Sequence
from functools import cache, partial

import torch
from torch.optim import Optimizer

from antipgd.torch.members import Member

ADAPTIVE = (
    torch.optim.Adadelta,
    torch.optim.Adafactor,
    torch.optim.Adagrad,
    torch.optim.RMSprop,
    torch.optim.Rprop,
)


def progress(optimizer: Optimizer, members: Sequence[Member], sigmas: Sequence[float]) -> float:
    """Mean progress over all elements that take noise, nan where it is unknown."""
    total = elements = 0.0
    of_group = cache(partial(_of_group, optimizer))  # most tensors of a group have one σ
    for member, sigma in zip(members, sigmas, strict=True):
        if not member.frozen:
            size = member.parameter.numel()
            total += of_group(member.group, sigma) * size
            elements += size
    return total / elements if elements else 0.0


def _of_group(optimizer: Optimizer, index: int, sigma: float) -> float:
    if why_unknown(optimizer, index):
        return math.nan
    group = optimizer.param_groups[index]
    rate = abs(float(group["lr"]))
    if isinstance(optimizer, ADAPTIVE) or "betas" in group:
        return rate * sigma
    return rate * sigma * sigma / (1 - float(group.get("momentum") or 0))


def why_unknown(optimizer: Optimizer, index: int) -> str:
    """Why a param group has no clock, "" where it has one.

    With momentum 1 or more the velocity never decays: one draw's push would count for ever.
    """
    group = optimizer.param_groups[index]
    if group.get("lr") is None:
        return f"param group {index} has no lr"
    adaptive = isinstance(optimizer, ADAPTIVE) or "betas" in group
    momentum = float(group.get("momentum") or 0)
    if not adaptive and not momentum < 1:
        return f"param group {index} has momentum {momentum:g}"
    return ""
