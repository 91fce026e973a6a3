"""Who takes noise, as the optimizer's list of parameters changes and tensors are frozen.

A parameter that is added joins with the next step. One that the optimizer lets go is reported, so
that it can be left clean. One that is frozen stays a member whose next σ is 0: it gives its last
draws back within len(taps) − 1 steps, so that w = z + ξ stays true, and takes new ones when it is
unfrozen.
"""

import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count

import torch
from torch import Tensor

from antipgd.noise.laws import Law
from antipgd.noise.taps import Taps
from antipgd.torch.adding import Adder
from antipgd.torch.advice import say_zeros
from antipgd.torch.members import (
    Exclude,
    Member,
    as_rules,
    check_parameter,
    check_rules,
    find_members,
    group_names,
    is_measurable,
    rms,
    set_keys,
    with_frozen,
)
from antipgd.torch.record import ELEMENT, FILTER
from antipgd.torch.shares import measured
from antipgd.torch.together import Grouped

_PLACED = ("group", "place", "position", "guest")
"""What of a member may change with the optimizer's list."""


class Membership:
    """The members of one optimizer, and what adds to them."""

    _model: Callable[[], torch.nn.Module | None]

    def __init__(
        self,
        optimizer: Grouped,
        model: torch.nn.Module | None,
        exclude: Exclude,
        law: Law,
        taps: Taps,
        namespace: str,
        relative: bool | str,
        frozen: Exclude = None,
        check: Callable[[str, Tensor], None] = check_parameter,
    ) -> None:
        self._model = (lambda: None) if model is None else weakref.ref(model)
        self._rules = as_rules(exclude)
        self._frozen, self._check = as_rules(frozen), check
        self._law, self._taps, self._namespace, self._relative = law, taps, namespace, relative
        self._names: dict[int, str] = {}
        self._listed = _listed(optimizer)
        self._names = self._names_now(optimizer)
        self._kept = _parameters(optimizer)  # so that no identity is used twice
        check_rules(self._rules, list(self._names.values()))
        self.members = self._found(optimizer, self._names)
        self._adder = Adder([], law)
        self._as_looked_at: tuple[list[bool], list[torch.dtype]] | None = None
        self._giving_back = False  # a frozen member has draws in it
        self._asleep: list[Member] = []  # zeros that are frozen: their σ is to be measured yet
        self.looks = 0
        """How often something was new about who takes noise."""

    def _found(self, optimizer: Grouped, names: Mapping[int, str]) -> list[Member]:
        """All members: the optimizer's own, and those that take noise though they are frozen."""
        members = find_members(optimizer, names, self._rules, self._taps, self._check)
        model = self._model()
        if self._frozen and model is not None:
            members = with_frozen(members, model, self._frozen, self._taps, optimizer, self._check)
        return members

    @property
    def left_out(self) -> list[str]:
        """The names of parameters that are excluded."""
        members = {id(member.parameter) for member in self.members}
        return [name for key, name in self._names.items() if key not in members]

    def _names_now(self, optimizer: Grouped) -> dict[int, str]:
        """Names by identity; a parameter keeps the one that it had when it was first seen.

        So a position may be the name of a tensor that once stood there: then the next free one is.
        """
        listed = [id(parameter) for parameter in _parameters(optimizer)]
        names = [name for row in group_names(optimizer, self._model()) for name in row]
        taken = {self._names[key] for key in listed if key in self._names}
        found = {}
        for key, name in zip(listed, names, strict=True):
            own = self._names.get(key, name)
            if self._names and key not in self._names and name in taken and name.isdigit():
                own = next(str(i) for i in count(int(name)) if str(i) not in taken)
            taken.add(own)
            found[key] = own
        return found

    def set_keys(self, seed: int) -> None:
        """Draw from the streams of this seed."""
        set_keys(self.members, seed, self._namespace)
        self._asleep = self._frozen_zeros()
        self._adder, self._as_looked_at = Adder(self._noisy(), self._law), None

    def measure(self, of: Callable[[Tensor], Tensor] | None = None) -> None:
        """Measure every tensor, or a function `of` it, for relative σ. Every rank takes part."""
        found = [self._measured(member, of or _itself) for member in self.members]
        for member, (scale, _) in zip(self.members, found, strict=True):
            if not math.isfinite(scale):
                raise ValueError(f"relative sigma: the weights of {member.name!r} are not finite")
        for member, (scale, shares) in zip(self.members, found, strict=True):
            member.scale, member.shares = scale, shares
        self._asleep = self._frozen_zeros()

    def _frozen_zeros(self) -> list[Member]:
        return [member for member in self.members if member.frozen and member.scale == 0]

    def _wake(self) -> None:
        """Measure zeros that were unfrozen, whose values may have come since.

        Those that take noise stay as they were measured: no other σ comes to them without a word.
        """
        awake = [member for member in self._asleep if not member.frozen]
        woken = [member for member in awake if member.scale == 0]  # others have units of their own
        for member in woken:
            member.scale, member.shares = self._measured(member, _itself)
        if awake:
            self._asleep = [member for member in self._asleep if member.frozen]
            say_zeros([member.name for member in woken if member.scale == 0])

    def _measured(
        self, member: Member, of: Callable[[Tensor], Tensor]
    ) -> tuple[float, Tensor | None]:
        """What σ of a member is multiplied by, and what of it each of its filters gets."""
        if not self._relative or not is_measurable(member.parameter):
            return member.scale, member.shares
        weights = of(member.parameter)
        scale = rms(weights)
        if self._relative == ELEMENT:
            return scale or 1.0, None  # zeros take noise as soon as they are none
        return scale, measured(weights, scale) if self._relative == FILTER else None

    def planned(self, optimizer: Grouped, seed: int) -> list[Member]:
        """The members that the optimizer's list gives now, refused where they cannot be."""
        before = {id(member.parameter): member for member in self.members}
        members = self._found(optimizer, self._names_now(optimizer))
        for i, member in enumerate(members):
            old = before.get(id(member.parameter))
            if old is not None:
                place = {name: getattr(member, name) for name in _PLACED}
                members[i] = replace(old, **place)
        set_keys(members, seed, self._namespace)
        return members

    def as_listed(self, optimizer: Grouped, seed: int) -> list[Member]:
        """The members as the optimizer lists them now, the new ones measured by all ranks."""
        if _listed(optimizer) == self._listed:
            return self.members
        members = self.planned(optimizer, seed)
        known = {id(member.parameter) for member in self.members}
        for member in members:
            if id(member.parameter) not in known:
                member.scale, member.shares = self._measured(member, _itself)
        return members

    def refresh(self, optimizer: Grouped, seed: int) -> list[Member]:
        """Take in parameters that the optimizer has got since the last step, or that were unfrozen;
        return those gone."""
        self._wake()
        members = self.as_listed(optimizer, seed)
        if members is self.members:
            return []
        zeros: list[Member] = []
        gone = {id(member.parameter): member for member in self.members}
        for i, member in enumerate(members):
            known = gone.pop(id(member.parameter), None)
            if known is not None:  # the same one, which a step that is under way may have
                for name in _PLACED:
                    setattr(known, name, getattr(member, name))
                members[i] = known
            elif member.scale == 0:
                zeros.append(member)
        self._listed, self._names = _listed(optimizer), self._names_now(optimizer)
        self.members = members
        self._kept = _parameters(optimizer)
        self._adder, self._as_looked_at = Adder(self._noisy(), self._law), None
        self._asleep += [member for member in zeros if member.frozen]
        say_zeros([member.name for member in zeros if not member.frozen])
        return list(gone.values())

    def _noisy(self) -> list[Member]:
        """Those that take noise, or carry some from before they were frozen."""
        return [m for m in self.members if not m.frozen or any(m.sigmas)]

    def adder(self) -> Adder:
        """Adds to the members that take noise or carry some, whose type may have changed."""
        parameters = [member.parameter for member in self.members]
        now = [p.requires_grad for p in parameters], [p.dtype for p in parameters]
        if now != self._as_looked_at or self._giving_back:
            noisy = self._noisy()
            for member in noisy:
                self._check(member.name, member.parameter)
            if noisy != self._adder.members:  # some were frozen, or are no longer
                self._adder = Adder(noisy, self._law)
            self._as_looked_at = now
            self.looks += 1
            self._giving_back = any(member.frozen for member in noisy)
        return self._adder


def _itself(weights: Tensor) -> Tensor:
    return weights


def _parameters(optimizer: Grouped) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _listed(optimizer: Grouped) -> list[list[int]]:
    return [[id(parameter) for parameter in group["params"]] for group in optimizer.param_groups]
