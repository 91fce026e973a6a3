"""The clock: progress along a valley of minima in one step, by the kind of optimizer.

Σησ²/(1−momentum) for SGD, Σησ for optimizers that divide by the gradient's size.
"""

import math
from collections.abc import Sequence

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


Elements = dict[tuple[int, float], int]


def elements_by_sigma(members: Sequence[Member], sigmas: Sequence[float]) -> Elements:
    """How many elements take noise, by their param group and σ."""
    found: Elements = {}
    for member, sigma in zip(members, sigmas, strict=True):
        if not member.frozen:
            key = member.group, sigma
            found[key] = found.get(key, 0) + member.parameter.numel()
    return found


def progress(optimizer: Optimizer, elements: Elements) -> float:
    """Mean progress over all elements that take noise, nan where it is unknown."""
    total = sum(_of_group(optimizer, *key) * size for key, size in elements.items())
    return total / sum(elements.values()) if elements else 0.0


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
