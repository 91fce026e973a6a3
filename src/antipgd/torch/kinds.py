"""Which clock an optimizer has: derived for SGD, measured for a few others, unknown for the rest.

By exact class: what a step makes of noise is known of those that somebody looked at, not of all
that have `betas`. `make clocks` measures, docs/forms.md has the table. Knows no noise.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.optim import Optimizer

Group = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """A clock: Σ rate·σ^power over the steps, `rate` that of a param group."""

    name: str
    formula: str
    basis: str  # how it is known
    power: int
    rate: Callable[[Group], float]


def _lr(group: Group) -> float:
    return abs(float(group["lr"]))


def _momentum(group: Group) -> float:
    return float(group.get("momentum") or 0)


def _dampening(group: Group) -> float:
    """Which torch's SGD looks at only where there is momentum."""
    return float(group.get("dampening") or 0) if _momentum(group) else 0.0


def _of_sgd(group: Group) -> float:
    """η(1−dampening)/(1−momentum): what one gradient moves the weights by, in the end."""
    return _lr(group) * (1 - _dampening(group)) / (1 - _momentum(group))


SGD = Kind(
    "sgd", "Σησ²(1−dampening)/(1−momentum)", "derived, the limit of small learning rates", 2,
    _of_sgd,
)  # fmt: skip
ADAM = Kind("adam", "Σησ", "measured", 1, _lr)
MUON = Kind("muon", "Σησ", "measured on one problem, to 15 %", 1, _lr)
KINDS = {kind.name: kind for kind in (SGD, ADAM, MUON)}

Known = tuple[Kind, Mapping[str, float]]
_PLAIN = {"weight_decay": 0.0, "amsgrad": 0.0, "centered": 0.0}
KNOWN: dict[type, Known] = {
    torch.optim.SGD: (SGD, {}),
    torch.optim.Adam: (ADAM, _PLAIN),
    torch.optim.AdamW: (ADAM, _PLAIN),
    torch.optim.NAdam: (ADAM, _PLAIN),
    torch.optim.RAdam: (ADAM, _PLAIN),
    torch.optim.RMSprop: (ADAM, {**_PLAIN, "momentum": 0.0}),
}
"""The clock of a class, and the largest value of some options for which it was found to hold."""
if hasattr(torch.optim, "Muon"):  # not in torch 2.6
    KNOWN[torch.optim.Muon] = (MUON, _PLAIN)


def kind_of(optimizer: Optimizer) -> Kind | None:
    """The clock of an optimizer's class; None where nobody knows it.

    A subclass has that of its base unless it has a step of its own.
    """
    known = _known(optimizer)
    return None if known is None else known[0]


def _known(optimizer: Optimizer) -> Known | None:
    own: Any = type(optimizer)
    return _of_class(own)


@cache
def _of_class(own: type) -> Known | None:
    base = next((base for base in own.__mro__ if base in KNOWN), None)
    moves = ("step", "_init_group")
    if base is None or any(_method(own, m) is not _method(base, m) for m in moves):
        return None
    return KNOWN[base]


def _method(kind: type, name: str) -> object:
    """As it is written: torch wraps the step of every class that it makes an optimizer of."""
    return inspect.unwrap(getattr(kind, name))


def why_unknown(index: int, optimizer: Optimizer, group: Group) -> str:
    """Why param group number `index` has no clock, "" where it has one.

    With momentum 1 or more the velocity never decays: one draw's push would count for ever.
    """
    label, known = type(optimizer).__name__, _known(optimizer)
    if group.get("lr") is None:
        return f"param group {index} has no lr"
    if known is None:
        return f"nobody has measured that of {label}"
    kind, most = known
    if kind is SGD and not _momentum(group) < 1:
        return f"param group {index} has momentum {_momentum(group):g}"
    if kind is SGD and not _dampening(group) <= 1:
        return f"param group {index} has dampening {_dampening(group):g}"
    for option, limit in most.items():
        if not float(group.get(option) or 0) <= limit:
            return f"none was found to hold for {label} with {option}={group[option]}"
    return ""
