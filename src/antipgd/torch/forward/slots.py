"""Where a parameter is read: a dictionary behind `module._parameters` that gives w in a pass.

`module.weight` asks it with `[]`; `parameters()`, `state_dict()`, optimizers, copies and pickles go
through its items, which are z always. Beside it two hooks around the module's call say that a
pass is open. Copies of a module have none of this.
"""

import contextlib
import copy
import sys
import weakref
from collections.abc import Callable, Set
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.utils.parametrize import ParametrizationList

from antipgd.torch.forward.compiled import leave_alone, operator
from antipgd.torch.forward.passes import Passes, Seat


class Slots(dict):
    """The parameters of one module by name: z, but w for who reads one inside a training pass."""

    __slots__ = ("module", "passes", "seats")
    passes: Passes
    module: Callable[[], Module | None]
    seats: dict[str, Seat]

    def __getitem__(self, name: str) -> Tensor | None:
        z = dict.__getitem__(self, name)
        seat = self.seats.get(name)
        if seat is None or z is None:
            return z
        if torch.compiler.is_compiling():
            return _read_compiled(self, seat, z)
        return self.passes.read(self.module, seat, z)

    def __setitem__(self, name: str, value: Tensor | None) -> None:
        dict.__setitem__(self, name, self.passes.source_of(value))

    def __deepcopy__(self, memo: dict) -> dict:
        return {name: copy.deepcopy(z, memo) for name, z in self.items()}

    def __reduce_ex__(self, protocol: object) -> tuple:
        return dict, (list(self.items()),)


def _read_compiled(slots: Slots, seat: Seat, z: Tensor) -> Tensor:
    """What a compiled pass reads; traced, so it decides by what compilers guard."""
    passes = slots.passes
    module = slots.module()
    if passes.depth == 0 or passes.off or module is None or not module.training:
        return z
    if passes.refused_when_compiled:
        raise RuntimeError(passes.refused_when_compiled)
    if seat.place is None:
        return z
    facts, newest, table = seat.place
    return torch.ops.antipgd.perturbed.default(z, facts, newest, table, passes.law)


class Enter:
    """Says that a module's call begins."""

    def __init__(self, passes: Passes) -> None:
        self.passes = passes

    def __call__(self, module: Module, args: Any) -> None:
        """The forward pre-hook."""
        if torch.compiler.is_compiling():
            # Not is_exporting(), which torch 2.9 to 2.11 take for True in all that they compile.
            if module.training and torch.compiler._is_exporting_flag:
                self.passes.refuse_to_be_kept("torch.export")
            if module.training or self.passes.depth > 0:
                self.passes.depth += 1
                self.passes.seen = True
                if self.passes.off > 0:
                    self.passes.clean = True
                else:
                    self.passes.noisy = True
            elif torch.is_grad_enabled() and not torch.compiler._is_exporting_flag:
                self.passes.evaluated = True
            return
        self.passes.enter(module, _call(sys._getframe(1)))

    def __deepcopy__(self, memo: dict) -> "_Gone":
        return _Gone()

    def __reduce__(self) -> tuple:
        return _inert()


class Leave:
    """Says that a module's call ends, by an exception too."""

    def __init__(self, passes: Passes) -> None:
        self.passes = passes

    def __call__(self, module: Module, args: Any, output: Any) -> None:
        """The forward hook."""
        if torch.compiler.is_compiling():
            if self.passes.depth > 0:
                self.passes.depth -= 1
            return
        self.passes.leave(module, sys._getframe(1))

    def __deepcopy__(self, memo: dict) -> "_Gone":
        return _Gone()

    def __reduce__(self) -> tuple:
        return _inert()


def _call(frame: Any) -> Any:
    """The frame of the module's call that a hook's caller belongs to."""
    while frame.f_code.co_name == "inner":  # of torch.nn.Module._call_impl
        frame = frame.f_back
    return frame


class _Gone:
    """What a copied module has of a hook: it takes itself away when it is called."""

    def __call__(self, module: Module, *args: Any) -> None:
        if torch.compiler.is_compiling():  # which cannot follow, and need not
            return
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in hooks.items() if hook is self]:
                del hooks[key]
                module._forward_hooks_always_called.pop(key, None)


def _inert() -> tuple:
    """A pickled hook: something of Python's own that takes anything and does nothing."""
    return getattr, (contextlib.nullcontext(), "__exit__")


@cache
def _prepare() -> None:
    """What must be known before anything is traced."""
    operator()
    for function in (Enter.__call__, Leave.__call__, Slots.__getitem__):
        leave_alone(function)


def install(module: Module, passes: Passes) -> tuple[Slots | None, Callable[[], None]]:
    """Stand behind a module, with no seats yet; returns also what undoes it.

    Where another noise has seats, only hear of the calls: a parameter takes noise once.
    """
    _prepare()
    slots = None if seats_of_others(module, passes) else _put_slots(module, passes)
    if isinstance(
        module, ParametrizationList
    ):  # called by who reads a weight, inside passes or not
        passes.silent.update(module.modules())
    if module not in passes.silent:
        _add_hooks(module, passes)
    ref = weakref.ref(module)

    def undo() -> None:
        found = ref()
        if found is not None:
            _take_hooks(found, passes.hook_id)
            own = slots_of(found)
            if own is not None and own.passes is passes:
                found.__dict__["_parameters"] = dict(own.items())

    return slots, undo


def _put_slots(module: Module, passes: Passes) -> Slots:
    slots = Slots(module._parameters)
    slots.passes, slots.module, slots.seats = passes, weakref.ref(module), {}
    module.__dict__["_parameters"] = slots
    return slots


def refuse_mixed(model: Module, passes: Passes, own: Set[int]) -> None:
    """Refuse a module of which another noise has some parameters and this one (`own`) others."""
    for name, module in model.named_modules():
        if seats_of_others(module, passes) and own & {id(z) for z in module._parameters.values()}:
            raise ValueError(
                f"{name or 'the model'!r} has parameters that take noise already and others that "
                f"would take this; give perturb both optimizers at once: perturb(model, [a, b], …)"
            )


def seats_of_others(module: Module, passes: Passes) -> bool:
    """Whether another noise has parameters in this module."""
    slots = slots_of(module)
    return slots is not None and slots.passes is not passes and bool(slots.seats)


def _add_hooks(module: Module, passes: Passes) -> None:
    """Under one number in all modules, so that layers which are alike share compiled code.

    Last, never first: FSDP2 must have gathered its weights before a pass is open.
    """
    module._forward_pre_hooks[passes.hook_id] = Enter(passes)
    module._forward_hooks[passes.hook_id] = Leave(passes)
    module._forward_hooks_always_called[passes.hook_id] = True


def _take_hooks(module: Module, hook_id: int) -> None:
    hooks: Any = (
        module._forward_pre_hooks, module._forward_hooks, module._forward_hooks_always_called,
    )  # fmt: skip
    for found in hooks:
        found.pop(hook_id, None)


def slots_of(module: Module) -> Slots | None:
    """What stands behind a module, if anything does."""
    found = module.__dict__.get("_parameters")
    return found if isinstance(found, Slots) else None
