"""Training passes: which is open, what it reads, and which draw that is.

A pass opens with the outermost call of a module in training mode and ends with it, by an exception
too. While autograd runs backward, what is read is of the pass that is being recomputed. Knows
modules and their calls, not optimizers.
"""

import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, RNNBase
from torch.nn.utils import parametrize
from torch.utils.hooks import RemovableHandle

from antipgd.noise import Law
from antipgd.torch.drawing import Drawing
from antipgd.torch.forward.auditing import Audit
from antipgd.torch.forward.formed import FlatWeights, Formed, check_unchanged
from antipgd.torch.forward.forming import Draw, Former, as_draw, in_functorch
from antipgd.torch.forward.recomputing import Recipes

FAR_ENOUGH = 8  # frames between a module's call and its hook, where a compiler stands between
_CALL = Module._call_impl.__code__


@dataclass(eq=False)
class Seat:
    """One parameter that takes noise, wherever in the model it is read."""

    name: str
    parameter: Tensor
    keys: Callable[[int], int]  # of a step's draw of some number
    row: int
    gathered: bool = False  # FSDP2 gives passes another tensor to read; this one is its shard
    coefficients: tuple[float, ...] = ()
    draw: Draw = field(default_factory=lambda: Draw(0, 0, ()))
    facts: Tensor = field(default_factory=lambda: torch.zeros(2, dtype=torch.int64))

    def __post_init__(self) -> None:
        key = self.keys(0)
        signed = key - 2**64 if key >= 2**63 else key
        self.facts = torch.tensor([signed, self.row])


@dataclass(eq=False)
class Call:
    """A module's call that is under way."""

    frame: Any
    module: Module
    formed: dict[tuple[int, bool], Formed] = field(default_factory=dict)
    swapped: dict[str, Any] = field(default_factory=dict)  # attributes as they were
    recipes: AbstractContextManager | None = None


class Passes:
    """The passes through one perturbed model."""

    def __init__(self, law: Law, drawing: Drawing, memory: str, number: int) -> None:
        self.law, self.drawing = str(law), drawing
        self.depth = 0
        self.off = 0
        self.seen = False  # whether a training pass began since the last step
        self.noisy = self.clean = False  # whether one with noise did, or one inside off()
        self.hook_id = RemovableHandle(OrderedDict()).id  # of the hooks around the modules' calls
        self.silent: weakref.WeakSet[Module] = weakref.WeakSet()  # whose calls open no pass
        self.refused_when_compiled = ""
        self.newest = torch.zeros((), dtype=torch.int64)
        self.table = torch.zeros(0, 1, dtype=torch.float64)
        self.audit: Audit | None = None
        self.number = number  # of the micro-batch in its step, or of the rank
        self._first_number = number
        self._arrived = False  # whether a gradient came since the pass began
        self._began = self._mixed = 0
        self._thread = 0
        self._calls: list[Call] = []
        self.former = Former(law)
        self._recipes = Recipes(self.former) if memory == "recompute" else None
        if drawing.per == "micro-batch":
            self.refused_when_compiled = (
                "draws='micro-batch' does not work under torch.compile, which cannot count passes; "
                "use draws='step'"
            )

    # Which draw

    def set_draws(self, seats: Sequence[Seat], newest: int) -> None:
        """Take these seats' coefficients for the passes to come: a step was made."""
        self.number = self._first_number
        self._arrived, self._began, self._mixed = False, 0, 0
        self.noisy = self.clean = False
        self.newest.fill_(newest)
        width = max((len(seat.coefficients) for seat in seats), default=1)
        if self.table.shape != (len(seats), width):
            self.table = torch.zeros(len(seats), width, dtype=torch.float64)
        if seats:
            sign = self.drawing.of_pass(self.number)[1]
            self.table.copy_(
                torch.tensor([seat.coefficients for seat in seats], dtype=torch.float64) * sign
            )
        self._number_changed(seats)

    def _number_changed(self, seats: Sequence[Seat]) -> None:
        self._seats = list(seats)
        if self.audit is not None:
            self.audit.know(seats)
        which, sign = self.drawing.of_pass(self.number)
        newest = int(self.newest)
        for seat in seats:
            seat.draw = as_draw(seat.keys(which), newest, seat.coefficients, sign)

    def _next_micro_batch(self) -> None:
        """Another draw, if a gradient has come since the last pass began."""
        if self._arrived:
            self.number += 1
            self._mixed = self._began - 1  # passes whose gradient has not come yet
            self._arrived, self._began = False, 0
            self._number_changed(self._seats)
        self._began += 1

    # Opening and closing

    def enter(self, module: Module, frame: Any) -> None:
        """A module's call begins."""
        if getattr(module, "_is_replica", False):
            raise RuntimeError(
                "torch.nn.DataParallel hands its replicas weights without noise; "
                "use DistributedDataParallel"
            )
        if self._is_stale():
            self.settle()
        if self.depth == 0:
            if not module.training:
                return
            self._begin()
        elif self._calls and self._thread != threading.get_ident():
            if not module.training:
                return
            raise RuntimeError(
                "two threads call the perturbed model at once; give each a copy.deepcopy of it"
            )
        self.depth += 1
        call = Call(frame, module)
        self._calls.append(call)
        if self._is_off() or not module.training:
            return
        if isinstance(module, RNNBase):
            self._swap_flat_weights(call)
        if self._recipes is not None and torch.is_grad_enabled():
            call.recipes = self._recipes.opened()

    def _begin(self) -> None:
        """The outermost call of a pass."""
        if torch._C._get_tracing_state() is not None:
            self.refuse_to_be_kept("torch.jit.trace")
        if torch.compiler.is_exporting():
            self.refuse_to_be_kept("torch.export")
        self._thread = threading.get_ident()
        if _in_backward():  # a recomputation, which must repeat the draw of its pass
            if self._mixed > 0:
                raise RuntimeError(
                    "draws='micro-batch' cannot recompute a pass after the next one has begun (a "
                    "pipeline with activation checkpointing); use draws='step'"
                )
            return
        self.seen = True
        self.noisy, self.clean = self.noisy or not self.off, self.clean or self.off > 0
        _forget_parametrized()
        if self.audit is not None:
            self.audit.begin_pass()
        if self.drawing.per == "micro-batch":
            self._next_micro_batch()

    def refuse_to_be_kept(self, by: str) -> None:
        """Refuse a program that would repeat one draw whenever it runs."""
        if not self.off:
            raise RuntimeError(
                f"{by} of a model in training mode would keep one draw of the noise for ever; "
                f"call model.eval() before, or do it inside noise.off()"
            )

    def _is_off(self) -> bool:
        """Whether what is read now is without noise; in backward, as the pass was."""
        if not _in_backward():
            return self.off > 0
        if self.noisy and self.clean:
            raise RuntimeError(
                "activation checkpointing recomputes a pass, and since the last step there were "
                "passes both with noise and inside noise.off(): which one it was is unknown. "
                "Call backward() before the next pass is of the other kind, with a step between, "
                "or do not checkpoint"
            )
        if not self.noisy and not self.clean:
            raise RuntimeError(
                "activation checkpointing recomputes a pass after a step was made, whose weights "
                "and draw are gone; call backward() before optimizer.step()"
            )
        return self.clean

    def leave(self, module: Module, frame: Any) -> None:
        """A module's call ends."""
        for index in range(len(self._calls) - 1, -1, -1):
            call = self._calls[index]
            if call.module is module and _is_within(frame, call.frame):
                self._close(index)
                return

    def _close(self, index: int) -> None:
        """End the calls from `index` on, the innermost first."""
        closed = []
        while len(self._calls) > index:
            call = self._calls.pop()
            self.depth -= 1
            vars(call.module).update(call.swapped)
            if call.recipes is not None:
                call.recipes.__exit__(None, None, None)
            if self._recipes is not None:
                self._recipes.forget(one.w for one in call.formed.values())
            closed.append(call)
        if index == 0:
            _forget_parametrized()
        for call in closed:
            if call.formed:
                check_unchanged(call.module, list(call.formed.values()), self.audit, self.former)

    def settle(self) -> None:
        """Close what an interrupted pass has left open."""
        if self._calls:
            self._close(0)
        self.depth = 0

    def _is_stale(self) -> bool:
        """Whether the outermost call is over without a word (as by KeyboardInterrupt)."""
        return bool(self._calls) and not _is_running(self._calls[0].frame)

    def _swap_flat_weights(self, call: Call) -> None:
        """Recurrent layers read a list of their own, and make it anew if a weight is not in it."""
        module: Any = call.module
        fresh = [getattr(module, name) for name in module._flat_weights_names]
        for name, now in (
            ("_flat_weights", FlatWeights(fresh, module._flat_weights)),
            ("_flat_weight_refs", [weakref.ref(w) for w in fresh]),
        ):
            call.swapped[name] = vars(module)[name]
            vars(module)[name] = now

    # Reading

    def read(self, module_ref: Callable[[], Module | None], seat: Seat, z: Tensor) -> Tensor:
        """What somebody reads who asks for this parameter now: w inside a pass, else z."""
        if self.depth == 0:
            if not _in_backward():
                return z
        elif not self._calls:
            if not _in_a_call():  # a compiled pass was broken off
                return z
        elif self._thread != threading.get_ident():
            return z
        elif self._is_stale():
            self.settle()
            return z
        module = module_ref()
        if module is None or not module.training or (seat.gathered and z is seat.parameter):
            return z
        return z if self._is_off() else self._formed(seat, z)

    def _formed(self, seat: Seat, z: Tensor) -> Tensor:
        watched = self.audit is not None and self.audit.watches(seat.name)
        if seat.draw.is_nothing and not watched:
            return z
        formed = self._calls[-1].formed if self._calls else {}
        key = (id(z), torch.is_grad_enabled())
        if key in formed:
            return formed[key].w
        w = self.former.form(z, seat.draw)
        formed[key] = Formed.of(seat.name, z, w, seat.draw)
        if self._recipes is not None and self._calls:
            self._recipes.remember(z, w, seat.name, seat.draw)
        if self.drawing.per == "micro-batch" and w.requires_grad:
            w.register_hook(self._gradient_came)
        if watched and self.audit is not None and not in_functorch():
            self.audit.watch_read(seat.name, seat.parameter, z, w)
        return w

    def source_of(self, tensor: Tensor | None) -> Tensor | None:
        """z, where somebody puts back as a parameter what he has read as w."""
        for call in self._calls:
            for one in call.formed.values():
                if one.w is tensor:
                    return one.z
        return tensor

    def _gradient_came(self, gradient: Tensor) -> None:
        self._arrived = True


def _forget_parametrized() -> None:
    """Let nobody inside torch's parametrize.cached() read what is of another pass, or of none."""
    if parametrize._cache_enabled:
        parametrize._cache.clear()


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _in_a_call() -> bool:
    frame: Any = sys._getframe(1)
    while frame is not None:
        if "_call_impl" in frame.f_code.co_name:
            return True
        frame = frame.f_back
    return False


def _is_running(frame: Any) -> bool:
    try:
        frame.clear()  # which a frame that is executing refuses
    except RuntimeError:
        return True
    return False


def _is_within(frame: Any, outer: Any) -> bool:
    for _ in range(FAR_ENOUGH):
        if frame is outer:
            return True
        if frame is None or frame.f_code is _CALL:  # of another call, inside this one
            return False
        frame = frame.f_back
    return False
