"""The parameters that take noise: their names, keys, checks and exclusions.

A member is one parameter of the optimizer with its place in the stream and the σ's it was last
given. Knows optimizers and tensors, not when noise is added.
"""

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from antipgd.checks import nearest
from antipgd.noise import canonical_name, stream_key
from antipgd.noise.taps import Taps
from antipgd.torch.parts import full_value
from antipgd.torch.together import Grouped

ADDED_TO = (torch.float32, torch.float64)
ALWAYS_FITS = torch.finfo(torch.float16).max  # in any type
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
    """One parameter that may take noise: it does unless it is frozen."""

    parameter: Tensor
    name: str
    position: str  # among all parameters of the optimizer: its name where it has no other
    group: int
    place: int  # in its group
    drawn_as: str  # keys its draws: its own name, or that in the checkpoint it came from
    first_lr: float | None  # that schedule="lr" is relative to; None: the group has none
    scale: float  # what sigma is multiplied with: 1, or an rms, mostly its own, if σ is relative
    sigmas: list[float]  # of the last len(taps) − 1 draws, newest first; 0 before it joined
    key: int = 0
    shares: Tensor | None = None  # of σ, by filter, where it is relative to them
    even_frozen: bool = False  # takes noise though nothing trains it: a base below adapters
    guest: bool = False  # no optimizer has it: it only stands behind its group

    @property
    def frozen(self) -> bool:
        """Whether it takes no noise now; it may carry some from before."""
        return not (self.parameter.requires_grad or self.even_frozen)


def set_keys(members: Iterable[Member], seed: int, namespace: str) -> None:
    """Give every member its place in the stream; no two may have the same."""
    seen: dict[int, Tensor] = {}
    for member in members:
        name = member.drawn_as
        member.key = stream_key(seed, f"{namespace}/{name}" if namespace else name)
        if seen.get(member.key) is member.parameter:
            raise ValueError(
                f"the optimizer lists parameter {name!r} twice, so it would take its noise twice; "
                f"list it once"
            )
        if member.key in seen:
            raise ValueError(
                f"two parameters have the name {name!r}, so they would get the same noise; "
                f"give the optimizer distinct names through model.named_parameters()"
            )
        seen[member.key] = member.parameter


def group_names(optimizer: Grouped, model: torch.nn.Module | None) -> list[list[str]]:
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


def as_rules(exclude: Exclude) -> list[str | Predicate]:
    """What is to be excluded, as a list."""
    if exclude is None:
        return []
    return [exclude] if isinstance(exclude, str) or callable(exclude) else list(exclude)


def is_excluded(rules: Sequence[str | Predicate], name: str, parameter: Tensor) -> bool:
    """Whether a name, a pattern such as `*.bias`, or a predicate takes the parameter out."""
    return any(
        rule(name, parameter) if callable(rule) else fnmatchcase(name, canonical_name(rule))
        for rule in rules
    )


def check_rules(
    rules: Sequence[str | Predicate], names: Sequence[str], label: str = "exclude"
) -> None:
    """Refuse a name or pattern that matches nothing; a predicate may."""
    for rule in rules:
        if callable(rule) or any(fnmatchcase(name, canonical_name(rule)) for name in names):
            continue
        if any(name.endswith(f".{rule}") for name in names):
            hint = f"did you mean '*.{rule}'?"
        else:
            hint = nearest(str(rule), difflib.get_close_matches(str(rule), names, n=5, cutoff=0))
        raise ValueError(f"{label} {rule!r} matches no parameter; {hint}")


def check_parameter(name: str, parameter: Tensor) -> None:
    """Refuse what noise cannot be added to, with the way out."""
    if parameter.dtype in (torch.float16, torch.bfloat16):
        raise TypeError(
            f"parameter {name!r} is {parameter.dtype}: rounding would slowly move its clean "
            f"weights away. Keep float32 weights and use torch.autocast or FSDP2 mixed precision"
        )
    if parameter.dtype not in ADDED_TO:
        raise TypeError(f"noise is added to float32 and float64; {name!r} is {parameter.dtype}")
    if parameter.is_meta:
        raise TypeError(
            f"parameter {name!r} is on the meta device, where it has no values; attach after "
            f"model.to_empty(device=…) and its initialisation"
        )


def check_fits_type(sigma: float, taps: Taps, member: Member, label: str) -> None:
    """Refuse a σ that is not finite in the type of the weights it is added to."""
    most = sum(map(abs, taps)) * sigma
    dtype = member.parameter.dtype
    if not most <= ALWAYS_FITS and not most <= torch.finfo(dtype).max:
        raise ValueError(
            f"{label} must be finite in {dtype}, the type of {member.name!r}, also times the taps; "
            f"got {sigma}"
        )


def is_measurable(parameter: Tensor) -> bool:
    """Whether the tensor has a root mean square; a frozen one may be quantised, or on no device."""
    return not parameter.is_meta and parameter.dtype in (*ADDED_TO, torch.float16, torch.bfloat16)


def rms(parameter: Tensor) -> float:
    """The root mean square of a tensor to four digits, 0 for an empty one.

    Only four, lest it depend on how the tensor is sharded and so in which order it is summed.
    """
    if parameter.numel() == 0:
        return 0.0
    norm = full_value(torch.linalg.vector_norm(parameter.detach()))
    return float(f"{norm / math.sqrt(parameter.numel()):.4g}")


def _first_rate(group: Mapping[str, Any]) -> float | None:
    """The learning rate that schedule="lr" is relative to: the one that a scheduler began with.

    OneCycleLR begins with a small part of the largest, which it notes.
    """
    rate = group.get("initial_lr", group.get("lr"))
    if rate is not None and {"initial_lr", "max_lr", "min_lr"} <= group.keys():
        rate = group["max_lr"]
    return None if rate is None else float(rate)


def find_members(
    optimizer: Grouped,
    names: Mapping[int, str],
    rules: Sequence[str | Predicate],
    taps: Taps,
    check: Callable[[str, Tensor], None] = check_parameter,
) -> list[Member]:
    """All parameters of the optimizer that are not excluded, with their `names` by identity.

    `check` refuses those that cannot take noise.
    """
    members: list[Member] = []
    position = 0
    for index, group in enumerate(optimizer.param_groups):
        rate = _first_rate(group)
        for place, parameter in enumerate(group["params"]):
            name = names[id(parameter)]
            if not is_excluded(rules, name, parameter):
                if parameter.requires_grad:
                    check(name, parameter)
                members.append(
                    Member(
                        parameter, name, str(position), index, place, name,
                        rate, 1.0, [0.0] * (len(taps) - 1),
                    )
                )  # fmt: skip
            position += 1
    return members


def with_frozen(
    members: Sequence[Member],
    model: torch.nn.Module,
    rules: Sequence[str | Predicate],
    taps: Taps,
    optimizer: Grouped,
    check: Callable[[str, Tensor], None],
) -> list[Member]:
    """The members, and those parameters of the model that are to take noise though frozen.

    Those that no optimizer has stand behind the first param group, whose learning rate they follow
    under schedule="lr" and with which they are saved, but whose own σ they do not take.
    """
    named = {canonical_name(name): p for name, p in model.named_parameters()}
    check_rules(rules, list(named), "frozen")
    known = {id(member.parameter): member for member in members}
    group = optimizer.param_groups[0]
    rate = _first_rate(group)
    more: list[Member] = []
    for name, parameter in named.items():
        if not is_excluded(rules, name, parameter):
            continue
        check(name, parameter)
        if id(parameter) in known:
            known[id(parameter)].even_frozen = True
        else:
            place = len(group["params"]) + len(more)
            more.append(
                Member(
                    parameter, name, name, 0, place, name, rate, 1.0,
                    [0.0] * (len(taps) - 1), even_frozen=True, guest=True,
                )
            )  # fmt: skip
    return [*members, *more]
