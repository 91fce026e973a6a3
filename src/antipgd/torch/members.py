"""The parameters that take noise: their names, keys, checks and exclusions.

A member is one parameter of the optimizer with its place in the stream and the σ's it was last
given. Knows optimizers and tensors, not when noise is added.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor
from torch.optim import Optimizer

from antipgd.noise import canonical_name, stream_key
from antipgd.noise.taps import Taps
from antipgd.torch.parts import full_value

Predicate = Callable[[str, Tensor], bool]
Exclude = str | Predicate | Iterable[str | Predicate] | None


def vectors(name: str, parameter: Tensor) -> bool:
    """For `exclude`: biases and the scales of normalisation layers, all that is not a matrix."""
    return parameter.dim() <= 1


def biases(name: str, parameter: Tensor) -> bool:
    """For `exclude`: parameters whose own name is `bias`."""
    return name.rsplit(".", 1)[-1] == "bias"


def norms(model: torch.nn.Module) -> Predicate:
    """For `exclude`: scales and biases of the BatchNorm, LayerNorm, … layers of a model."""
    found = {
        id(parameter)
        for module in model.modules()
        if "Norm" in type(module).__name__
        for parameter in module.parameters(recurse=False)
    }
    return lambda name, parameter: id(parameter) in found


@dataclass(eq=False)
class Member:
    """One parameter that takes noise."""

    parameter: Tensor
    name: str
    group: int
    key: int
    first_lr: float  # that schedule="lr" is relative to
    scale: float  # what sigma is multiplied with: 1, or the tensor's rms where σ is relative
    sigmas: list[float]  # of the last len(taps) − 1 draws, newest first; 0 before it joined


def group_names(optimizer: Optimizer, model: torch.nn.Module | None) -> list[list[str]]:
    """A name for every parameter: from the model, from the optimizer, or its position."""
    known = {} if model is None else {id(p): name for name, p in model.named_parameters()}
    position = 0
    names = []
    for group in optimizer.param_groups:
        own = group.get("param_names")
        row = []
        for i, parameter in enumerate(group["params"]):
            name = known.get(id(parameter)) or (own[i] if own else str(position))
            row.append(canonical_name(name))
            position += 1
        names.append(row)
    return names


def is_excluded(exclude: Exclude, name: str, parameter: Tensor) -> bool:
    """Whether a name, a pattern such as `*.bias`, or a predicate takes the parameter out."""
    if exclude is None:
        return False
    rules = [exclude] if isinstance(exclude, str) or callable(exclude) else exclude
    return any(
        rule(name, parameter) if callable(rule) else fnmatchcase(name, canonical_name(rule))
        for rule in rules
    )


def check_parameter(name: str, parameter: Tensor) -> None:
    """Refuse what noise cannot be added to, with the way out."""
    if parameter.dtype in (torch.float16, torch.bfloat16):
        raise TypeError(
            f"parameter {name!r} is {parameter.dtype}: rounding would slowly move its clean "
            f"weights away. Keep float32 weights and use torch.autocast or FSDP2 mixed precision"
        )
    if parameter.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"noise is added to float32 and float64; {name!r} is {parameter.dtype}")


def rms(parameter: Tensor) -> float:
    """The root mean square of a tensor to four digits, 0 for an empty one.

    Only four, lest it depend on how the tensor is sharded and so in which order it is summed.
    """
    if parameter.numel() == 0:
        return 0.0
    norm = full_value(torch.linalg.vector_norm(parameter.detach()))
    return float(f"{norm / math.sqrt(parameter.numel()):.4g}")


def find_members(
    optimizer: Optimizer,
    names: Sequence[Sequence[str]],
    exclude: Exclude,
    seed: int,
    namespace: str,
    taps: Taps,
) -> list[Member]:
    """All parameters of the optimizer that take noise, checked; two of one name are refused."""
    members: list[Member] = []
    seen: dict[str, Tensor] = {}
    for index, (group, row) in enumerate(zip(optimizer.param_groups, names, strict=True)):
        for parameter, name in zip(group["params"], row, strict=True):
            if is_excluded(exclude, name, parameter):
                continue
            check_parameter(name, parameter)
            if name in seen:
                raise ValueError(
                    f"two parameters have the name {name!r}, so they would get the same noise; "
                    f"give the optimizer distinct names through model.named_parameters()"
                )
            seen[name] = parameter
            key = stream_key(seed, f"{namespace}/{name}" if namespace else name)
            rate = float(group.get("initial_lr", group["lr"]))
            nothing = [0.0] * (len(taps) - 1)
            members.append(Member(parameter, name, index, key, rate, 1.0, nothing))
    return members
