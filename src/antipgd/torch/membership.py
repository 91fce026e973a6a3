"""Who takes noise, as the optimizer's list of parameters changes and tensors are frozen.

A parameter that is added joins with the next step. One that the optimizer lets go is left clean.
One that is frozen stays a member whose next σ is 0: it gives its last draws back within
len(taps) − 1 steps, so that w = z + ξ stays true, and takes new ones when it is unfrozen.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.optim import Optimizer

from antipgd.noise.laws import Law
from antipgd.noise.taps import Taps, telescopes
from antipgd.torch.adding import Adder
from antipgd.torch.carrying import take_out
from antipgd.torch.members import (
    Exclude,
    Member,
    as_rules,
    check_parameter,
    check_rules,
    find_members,
    group_names,
    rms,
    set_keys,
)


class Membership:
    """The members of one optimizer, and what adds to them."""

    def __init__(
        self,
        optimizer: Optimizer,
        model: torch.nn.Module | None,
        exclude: Exclude,
        law: Law,
        taps: Taps,
        namespace: str,
        relative: bool,
    ) -> None:
        self._model, self._rules = model, as_rules(exclude)
        self._law, self._taps, self._namespace, self._relative = law, taps, namespace, relative
        self._names: dict[int, str] = {}
        self._listed = _listed(optimizer)
        self._names = self._names_now(optimizer)
        self._kept = _parameters(optimizer)  # so that no identity is used twice
        check_rules(self._rules, list(self._names.values()))
        self.members = find_members(optimizer, self._names, self._rules, taps)
        self._adder = Adder([], law)

    @property
    def left_out(self) -> list[str]:
        """The names of parameters that are excluded."""
        members = {id(member.parameter) for member in self.members}
        return [name for key, name in self._names.items() if key not in members]

    def _names_now(self, optimizer: Optimizer) -> dict[int, str]:
        """Names by identity; a parameter keeps the one that it had when it was first seen."""
        listed = _parameters(optimizer)
        names = [name for row in group_names(optimizer, self._model) for name in row]
        return {id(p): self._names.get(id(p), name) for p, name in zip(listed, names, strict=True)}

    def set_keys(self, seed: int) -> None:
        """Draw from the streams of this seed."""
        set_keys(self.members, seed, self._namespace)
        self._adder = Adder(self._noisy(), self._law)

    def measure(self) -> None:
        """Measure every tensor for relative σ. Every rank must take part."""
        for member in self.members:
            if self._relative and not member.parameter.is_meta:
                member.scale = rms(member.parameter)

    def planned(self, optimizer: Optimizer) -> list[Member]:
        """The members that the optimizer's list gives now."""
        before = {id(member.parameter): member for member in self.members}
        members = find_members(optimizer, self._names_now(optimizer), self._rules, self._taps)
        for i, member in enumerate(members):
            old = before.get(id(member.parameter))
            if old is not None:
                place = {"group": member.group, "place": member.place, "position": member.position}
                members[i] = replace(old, **place)  # type: ignore[arg-type]
        return members

    def refresh(self, optimizer: Optimizer, seed: int, step: int) -> None:
        """Take in parameters that the optimizer has got, or let go, since the last step."""
        listed = _listed(optimizer)
        if listed == self._listed:
            return
        before = {id(member.parameter): member for member in self.members}
        members = self.planned(optimizer)
        set_keys(members, seed, self._namespace)
        for member in members:
            known = before.pop(id(member.parameter), None)
            if known is None and self._relative:
                member.scale = rms(member.parameter)
        if telescopes(self._taps) and before:
            take_out(Adder(list(before.values()), self._law), self._taps, step, None)
        self._listed, self._names, self.members = listed, self._names_now(optimizer), members
        self._kept = _parameters(optimizer)
        self._adder = Adder(self._noisy(), self._law)

    def _noisy(self) -> list[Member]:
        """Those that take noise, or carry some from before they were frozen."""
        return [m for m in self.members if m.parameter.requires_grad or any(m.sigmas)]

    def adder(self) -> Adder:
        """Adds to the members that take noise or carry some."""
        noisy = self._noisy()
        if noisy != self._adder.members:  # some were frozen, or are no longer
            for member in noisy:
                check_parameter(member.name, member.parameter)
            self._adder = Adder(noisy, self._law)
        return self._adder


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _listed(optimizer: Optimizer) -> list[list[int]]:
    return [[id(parameter) for parameter in group["params"]] for group in optimizer.param_groups]
