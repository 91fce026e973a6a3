"""The clock: progress along a valley of minima, a number that says which clock counted it.

Kinds of clocks have different units, so that what they count is never added up.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any

from torch.optim import Optimizer

from antipgd.checks import number
from antipgd.noise.taps import Taps, carried, telescopes
from antipgd.torch.kinds import KINDS, Group, Kind, kind_of, why_unknown
from antipgd.torch.members import Member
from antipgd.torch.together import Together

UNKNOWN, MIXED = "unknown", "mixed"
EARLIER = "it was unknown at an earlier step, or is in the checkpoint"
APART = "clocks of different kinds are not added up"


class Clock(float):
    """A number that counts progress, nan where that is unknown.

    `kind` is "sgd", "adam" or "muon", or "unknown", or "mixed" where optimizers have clocks of
    different kinds, which `parts` has apart. `why` is the reason of nan, "" where there is none.
    """

    kind: str
    parts: Mapping[str, float]
    why: str

    def __new__(cls, parts: Mapping[str, float], why: str = "") -> "Clock":
        value = next(iter(parts.values())) if len(parts) == 1 else math.nan
        self = super().__new__(cls, value)
        self.parts = MappingProxyType(dict(parts))
        known = UNKNOWN if math.isnan(value) else next(iter(parts))
        self.kind = MIXED if len(parts) > 1 else known
        self.why = why
        return self

    @property
    def measured(self) -> bool:
        """Whether an experiment says that this clock counts progress; that of SGD is derived."""
        return self.kind in KINDS and KINDS[self.kind].basis.startswith("measured")

    def __str__(self) -> str:
        return float.__repr__(self)  # which tables and logs take for a number

    def __repr__(self) -> str:
        return f"Clock({self}, {self.kind!r})"

    def __reduce__(self) -> tuple[type, tuple]:
        return Clock, (dict(self.parts), self.why)

    def line(self) -> str:
        """The number, which clock it is and how that is known, or why there is none."""
        if self.kind == UNKNOWN:
            return f"clock unknown: {self.why}"
        if self.kind == MIXED:
            parts = ", ".join(f"{name} {value:.4g}" for name, value in self.parts.items())
            return f"clock mixed: {parts}; {self.why}"
        kind = KINDS[self.kind]
        return f"clock {float(self):.4g}: {self.kind}, {kind.formula}, {kind.basis}"


Elements = dict[tuple[int, float], int]


def elements_by_sigma(members: Sequence[Member], sigmas: Sequence[float]) -> Elements:
    """How many elements are trained with noise, by their param group and σ."""
    found: Elements = {}
    for member, sigma in zip(members, sigmas, strict=True):
        if member.parameter.requires_grad:
            key = member.group, sigma
            found[key] = found.get(key, 0) + member.parameter.numel()
    return found


class Counting:
    """What the steps of a noise have added up to, by kind of clock."""

    def __init__(self, taps: Taps) -> None:
        self.parts: dict[str, float] = {}
        self._taps = taps
        # w − z has variance σ²·spread² then; else it grows for ever
        self._spread = math.hypot(*carried(taps)[:-1]) if telescopes(taps) else math.nan

    def advance(self, optimizers: Together, elements: Elements, by: Set[int] | None = None) -> None:
        """Count a step: for each kind the mean over all its elements that take noise.

        `by` are the optimizers (their identities) that have made it, if not all have: nothing else
        has moved.
        """
        owned = list(zip(optimizers.owners, optimizers.param_groups, strict=True))
        rates = {i: self._rate(i, *owned[i]) for i in {index for index, _ in elements}}
        sums: dict[str, tuple[float, int]] = {}
        for (index, sigma), size in elements.items():
            name, rate, power = rates[index]
            total, count = sums.get(name, (0.0, 0))
            moved = by is None or id(owned[index][0]) in by
            sums[name] = total + (rate * sigma**power * size if moved else 0.0), count + size
        for name, (total, count) in sums.items():
            progress = total / count if count else 0.0  # tensors without elements
            self.parts[name] = self.parts.get(name, 0.0) + progress

    def _rate(self, index: int, optimizer: Optimizer, group: Group) -> tuple[str, float, int]:
        """The kind of a param group, its progress in a step at σ = 1, and the power of σ."""
        kind = kind_of(optimizer)
        if kind is None or why_unknown(index, optimizer, group):
            return _name(kind), math.nan, 1
        return kind.name, kind.rate(group) * self._spread**kind.power, kind.power

    def read(self, optimizers: Together, members: Iterable[Member]) -> Clock:
        """The clock as it stands; of optimizers that are gone, what they have left."""
        parts, whys = dict(self.parts), []
        held = optimizers.if_there  # while they are asked
        if held is not None:
            for name, why in self._present(optimizers, members):
                parts.setdefault(name, 0.0)
                if why:
                    parts[name] = math.nan
                    whys.append(why)
        if not whys and any(map(math.isnan, parts.values())):
            whys = [EARLIER]
        if len(parts) > 1:
            whys = [APART, *whys]
        return Clock(parts or {UNKNOWN: math.nan}, "; ".join(dict.fromkeys(whys)))

    def _present(self, optimizers: Together, members: Iterable[Member]) -> list[tuple[str, str]]:
        """(kind, why it is unknown) of each param group that takes noise, else of all."""
        owners, groups = optimizers.owners, optimizers.param_groups
        taking = {m.group for m in members if m.parameter.requires_grad}
        return [
            (_name(kind_of(owners[i])), self._why() or why_unknown(i, owners[i], groups[i]))
            for i in sorted(taking) or range(len(groups))
        ]

    def _why(self) -> str:
        if math.isnan(self._spread):
            return f"taps {self._taps} do not sum to zero: flat directions diffuse"
        return ""

    def restart(self, value: float, optimizers: Together, members: Iterable[Member]) -> None:
        """Go on from this number; where there are several kinds, from 0."""
        names = {name for name, _ in self._present(optimizers, members)}
        if number("clock", value, 0) and len(names) > 1:
            kinds = ", ".join(sorted(names))
            raise ValueError(f"clock must be 0 where there are several ({kinds}); got {value}")
        self.parts = dict.fromkeys(names, float(value)) if value else {}

    def saved(self) -> dict[str, Any]:
        """As a record has it: the one number, and by kind."""
        parts = [(k, v if math.isfinite(v) else None) for k, v in sorted(self.parts.items())]
        one = parts[0][1] if len(parts) == 1 else None
        return {"clock": one if parts else 0.0, "clocks": tuple(parts)}

    def adopt(
        self,
        clock: float | None,
        parts: Sequence[tuple[str, float | None]],
        optimizers: Together,
        members: Iterable[Member],
    ) -> None:
        """Go on from a record; one without `parts` is older and has one number, of unsaid kind.

        That number counts where it was counted as it is now: in one kind, which had that formula
        then, without dampening, and for taps that carry one draw.
        """
        if parts or clock == 0:
            self.parts = {name: math.nan if v is None else v for name, v in parts}
            return
        names = {name for name, _ in self._present(optimizers, members)}
        damped = any(group.get("dampening") for group in optimizers.param_groups)
        same = names in ({"sgd"}, {"adam"}) and self._spread == 1 and not damped
        value = math.nan if clock is None or not same else clock
        self.parts = dict.fromkeys(names, value)


def _name(kind: Kind | None) -> str:
    return UNKNOWN if kind is None else kind.name
