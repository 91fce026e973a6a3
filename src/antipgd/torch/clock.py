"""The clock: progress along a valley of minima in one step, by the kind of optimizer.

Σησ²/(1−momentum) for SGD, Σησ for optimizers that divide by the gradient's size.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from antipgd.torch.members import Member
from antipgd.torch.together import Together

ADAPTIVE = (
    torch.optim.Adadelta,
    torch.optim.Adafactor,
    torch.optim.Adagrad,
    torch.optim.RMSprop,
    torch.optim.Rprop,
)


Elements = dict[tuple[int, float], int]


def elements_by_sigma(members: Sequence[Member], sigmas: Sequence[float]) -> Elements:
    """How many elements are trained with noise, by their param group and σ."""
    found: Elements = {}
    for member, sigma in zip(members, sigmas, strict=True):
        if member.parameter.requires_grad:
            key = member.group, sigma
            found[key] = found.get(key, 0) + member.parameter.numel()
    return found


def progress(optimizers: Together, elements: Elements) -> float:
    """Mean progress over all elements that take noise, nan where it is unknown."""
    groups = list(zip(optimizers.owners, optimizers.param_groups, strict=True))
    total = sum(_of_group(groups, *key) * size for key, size in elements.items())
    return total / sum(elements.values()) if elements else 0.0


Owned = tuple[Optimizer, dict[str, Any]]  # a param group and whose it is


def _of_group(groups: Sequence[Owned], index: int, sigma: float) -> float:
    optimizer, group = groups[index]
    if _why_unknown(index, optimizer, group):
        return math.nan
    rate = abs(float(group["lr"]))
    if isinstance(optimizer, ADAPTIVE) or "betas" in group:
        return rate * sigma
    return rate * sigma * sigma / (1 - float(group.get("momentum") or 0))


def whys_unknown(optimizers: Together) -> list[str]:
    """Why param groups have no clock, a reason for each that has none."""
    groups = zip(optimizers.owners, optimizers.param_groups, strict=True)
    whys = [_why_unknown(i, optimizer, group) for i, (optimizer, group) in enumerate(groups)]
    return [why for why in whys if why]


def _why_unknown(index: int, optimizer: Optimizer, group: dict[str, Any]) -> str:
    """Why a param group has no clock, "" where it has one.

    With momentum 1 or more the velocity never decays: one draw's push would count for ever.
    """
    if group.get("lr") is None:
        return f"param group {index} has no lr"
    adaptive = isinstance(optimizer, ADAPTIVE) or "betas" in group
    momentum = float(group.get("momentum") or 0)
    if not adaptive and not momentum < 1:
        return f"param group {index} has momentum {momentum:g}"
    return ""
