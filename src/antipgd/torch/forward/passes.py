"""Training passes: which is open, what it reads, and which draw that is.

A pass opens with the outermost call of a module in training mode and ends with it, by an exception
too. While autograd runs backward, what is read is of the pass that is being recomputed. Knows
modules and their calls, not optimizers.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module, RNNBase

from antipgd.noise import Law
from antipgd.torch.drawing import Drawing
from antipgd.torch.forward.auditing import Audit
from antipgd.torch.forward.forming import Draw, Former
from antipgd.torch.forward.recomputing import Recipes
from antipgd.torch.forward.rounding import check_read

FAR_ENOUGH = 8  # frames between a module's call and its hook, where a compiler stands between


class Seat:
    """One parameter that takes noise, wherever in the model it is read."""

    __slots__ = (
        "coefficients", "dtype", "facts", "gathered", "key", "keys", "name", "parameter", "still",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        parameter: Tensor,
        keys: Callable[[int], int],
        row: int,
        gathered: bool = False,
    ) -> None:
        """`keys` are those of a step's draws; `gathered`: FSDP2 lets passes read another tensor."""
        self.name, self.parameter, self.dtype = name, parameter, parameter.dtype
        self.keys, self.gathered = keys, gathered
        self.key = np.array([keys(0)], np.uint64)
        self.coefficients = np.zeros((1, 1))
        self.still = True  # it carries no draw
        self.facts = torch.from_numpy(np.array([self.key[0], row], np.uint64).view(np.int64))


class Call:
    """A module's call that is under way."""

    __slots__ = ("flat_weights", "formed", "frame", "module", "recipes")

    def __init__(self, frame: Any, module: Module) -> None:
        self.frame, self.module = frame, module
        self.formed: dict[tuple[int, bool], tuple[Tensor, Tensor, int]] = {}
        self.flat_weights: list[Tensor] | None = None
        self.recipes: AbstractContextManager | None = None


class Passes:
    """The passes through one perturbed model."""

    def __init__(self, law: Law, drawing: Drawing, memory: str, number: int) -> None:
        self.law, self.drawing = str(law), drawing
        self.depth = 0
        self.off = 0
        self.seen = False  # whether a training pass began since the last step
        self.on_begin: Callable[[], None] = lambda: None
        self.refused_when_compiled = ""
        self.newest = torch.zeros((), dtype=torch.int64)
        self.table = torch.zeros(0, 1, dtype=torch.float64)
        self.audit: Audit | None = None
        self.number = number  # of the micro-batch in its step, or of the rank
        self._first_number = number
        self._newest = 0
        self._seats: list[Seat] = []
        self._rows: list[list[float]] = []
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

    def set_draws(self, seats: list[Seat], newest: int, rows: list[list[float]]) -> None:
        """Take these coefficients for the passes to come: a step was made."""
        self._arrived, self._began, self._mixed = False, 0, 0
        self.newest.fill_(newest)
        self._newest = newest
        same = seats is self._seats and rows == self._rows
        if not same or self.number != self._first_number:
            self.number = self._first_number
            self._seats, self._rows = seats, rows
            self._take_rows()

    def _take_rows(self) -> None:
        """Give each seat its coefficients and the key of the draw that this pass takes."""
        which, sign = self.drawing.of_pass(self.number)
        table = sign * np.array(self._rows, np.float64).reshape(len(self._seats), -1)
        if self.table.shape == table.shape:
            self.table.copy_(torch.from_numpy(table))
        else:
            self.table = torch.from_numpy(table.copy())
        takes = [any(row) for row in self._rows]
        for i, seat in enumerate(self._seats):
            seat.coefficients = table[i : i + 1]
            seat.still = not takes[i]
            if self.drawing.per != "step":
                seat.key = np.array([seat.keys(which)], np.uint64)

    def _next_micro_batch(self) -> None:
        """Another draw, if a gradient has come since the last pass began."""
        if self._arrived:
            self.number += 1
            self._mixed = self._began - 1  # passes whose gradient has not come yet
            self._arrived, self._began = False, 0
            self._take_rows()
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
            raise RuntimeError(
                "two threads call the perturbed model at once; give each a copy.deepcopy of it"
            )
        self.depth += 1
        call = Call(frame, module)
        self._calls.append(call)
        if self.off or not module.training:
            return
        if isinstance(module, RNNBase):
            self._swap_flat_weights(call)
        if self._recipes is not None and torch.is_grad_enabled():
            call.recipes = self._recipes.opened()

    def _begin(self) -> None:
        """The outermost call of a pass."""
        if torch._C._get_tracing_state() is not None and not self.off:
            raise RuntimeError(
                "torch.jit.trace of a model in training mode would keep one draw of the noise for "
                "ever; call model.eval() before, or trace inside noise.off()"
            )
        self._thread = threading.get_ident()
        if in_backward():  # a recomputation, which must repeat the draw of its pass
            if self._mixed > 0:
                raise RuntimeError(
                    "draws='micro-batch' cannot recompute a pass after the next one has begun (a "
                    "pipeline with activation checkpointing); use draws='step'"
                )
            return
        self.seen = True
        self.on_begin()
        if self.audit is not None:
            self.audit.begin_pass()
        if self.drawing.per == "micro-batch":
            self._next_micro_batch()

    def leave(self, module: Module, frame: Any) -> None:
        """A module's call ends."""
        for index in range(len(self._calls) - 1, -1, -1):
            call = self._calls[index]
            if call.module is module and _is_within(frame, call.frame):
                self._close(index)
                return

    def _close(self, index: int) -> None:
        """End the calls from `index` on, the innermost first."""
        changed = []
        while len(self._calls) > index:
            call = self._calls.pop()
            self.depth -= 1
            if call.flat_weights is not None:
                call.module.__dict__["_flat_weights"] = call.flat_weights
            if call.recipes is not None:
                call.recipes.__exit__(None, None, None)
            if self._recipes is not None:
                self._recipes.forget(w for _, w, _ in call.formed.values())
            changed += [w for _, w, version in call.formed.values() if w._version != version]
        if changed:
            raise RuntimeError(
                f"a weight of shape {tuple(changed[0].shape)} was changed in place in forward(): "
                f"it is a noisy copy there, so that the change would be lost; change it outside"
            )

    def settle(self) -> None:
        """Close what an interrupted pass has left open."""
        if self._calls:
            self._close(0)
        self.depth = 0

    def _is_stale(self) -> bool:
        """Whether the outermost call is over without a word (as by KeyboardInterrupt)."""
        return bool(self._calls) and not _is_running(self._calls[0].frame)

    def _swap_flat_weights(self, call: Call) -> None:
        """Recurrent layers read a list of their own."""
        module: Any = call.module
        call.flat_weights = module._flat_weights
        try:
            fresh = [getattr(module, name) for name in module._flat_weights_names]
        except BaseException:
            call.flat_weights = None
            raise
        module.__dict__["_flat_weights"] = fresh

    # Reading

    def read(self, module_ref: Callable[[], Module | None], seat: Seat, z: Tensor) -> Tensor:
        """What somebody reads who asks for this parameter now: w inside a pass, else z."""
        if self.off:
            return z
        if self.depth == 0:
            if not in_backward():
                return z
        elif self._calls and self._thread != threading.get_ident():
            return z
        elif self._is_stale():
            self.settle()
            return z
        module = module_ref()
        if module is None or not module.training or (seat.gathered and z is seat.parameter):
            return z
        return self._formed(seat, z)

    def _formed(self, seat: Seat, z: Tensor) -> Tensor:
        watched = self.audit is not None and self.audit.watches(seat.name)
        if seat.still and not watched:
            return z
        if z.dtype is not seat.dtype:  # the model was converted, or FSDP2 gathers another type
            check_read(seat.name, z, float(np.abs(seat.coefficients).max()))
            seat.dtype = z.dtype
        draw = self.draw_of(seat)
        if not self._calls:
            return self.former.form(z, draw)
        formed = self._calls[-1].formed
        key = (id(z), torch.is_grad_enabled())
        if key in formed:
            return formed[key][1]
        w = self.former.form(z, draw)
        formed[key] = z, w, w._version
        if self._recipes is not None:
            self._recipes.remember(z, w, seat.name, draw)
        if self.drawing.per == "micro-batch" and w.requires_grad:
            w.register_hook(self._gradient_came)
        if watched and self.audit is not None:
            if z is not seat.parameter and z.is_leaf and z.requires_grad:
                self.audit.watch_leaf(seat.name, z)
            self.audit.watch_formed(seat.name, w)
        return w

    def draw_of(self, seat: Seat) -> Draw:
        """What the passes to come add to a parameter."""
        return Draw(seat.key, self._newest, seat.coefficients)

    def _gradient_came(self, gradient: Tensor) -> None:
        self._arrived = True


def in_backward() -> bool:
    """Whether autograd runs a backward pass in this thread."""
    return torch._C._current_graph_task_id() != -1


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
        if frame is None:
            return False
        frame = frame.f_back
    return False
