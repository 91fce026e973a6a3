"""Training passes: which is open, what it reads, and which draw that is.

A pass opens with the outermost call of a module in training mode and ends with it, by an exception
too. While autograd runs backward, what is read is of the pass that is being recomputed. Knows
modules and their calls, not optimizers.
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Module, RNNBase
from torch.utils.hooks import RemovableHandle

from antipgd.noise import Law
from antipgd.torch.drawing import Drawing
from antipgd.torch.forward.auditing import Audit
from antipgd.torch.forward.calls import (
    Call,
    forget_parametrized,
    in_a_call,
    in_backward,
    is_running,
    is_within,
    may_be_recomputed,
)
from antipgd.torch.forward.compiled import former_of, know_read
from antipgd.torch.forward.formed import FlatWeights, check_unchanged
from antipgd.torch.forward.formed import formed as as_formed
from antipgd.torch.forward.forming import Draw, Known, in_functorch
from antipgd.torch.forward.placing import Places
from antipgd.torch.forward.recomputing import Recipes
from antipgd.torch.forward.rounding import check_read
from antipgd.torch.gpu.tables import Place
from antipgd.torch.stepping import is_captured


class Seat:
    """One parameter that takes noise, wherever in the model it is read."""

    __slots__ = (
        "coefficients", "dtype", "gathered", "key", "keys", "known", "name", "parameter", "place",
        "shares", "still",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        parameter: Tensor,
        keys: Callable[[int], int],
        gathered: bool = False,
    ) -> None:
        """`keys` are those of a step's draws; `gathered`: FSDP2 lets passes read another tensor."""
        self.name, self.parameter, self.dtype = name, parameter, parameter.dtype
        self.keys, self.gathered = keys, gathered
        self.key = np.array([keys(0)], np.uint64)
        self.coefficients = np.zeros((1, 1))
        self.shares: Tensor | float | None = None  # of its filters or elements
        self.still = True  # it carries no draw
        self.known = Known()
        self.place: Place | None = None  # of what it draws, in a device's memory


class Passes:
    """The passes through one perturbed model."""

    def __init__(self, law: Law, drawing: Drawing, memory: str, number: int) -> None:
        self.law, self.drawing = str(law), drawing
        self.depth = 0
        self.off = 0
        self.seen = False  # whether a training pass began since the last step
        self.evaluated = False  # whether one in eval mode did, with gradients
        self.on_begin: Callable[[], bool] = lambda: True  # whether there is noise still
        self.noisy = self.clean = False  # whether one with noise did, or one inside off()
        self.hook_id = RemovableHandle(OrderedDict()).id  # of the hooks around the modules' calls
        self.silent: weakref.WeakSet[Module] = weakref.WeakSet()  # whose calls open no pass
        self.refused_when_compiled = ""
        self.newest = 0  # the newest draw that the passes to come read
        self._places = Places(law)
        self._lasts = drawing.per != "micro-batch"  # a draw, for the step: who reads memory may
        self.audit: Audit | None = None
        self.number = number  # of the micro-batch in its step, or of the rank
        self._first_number = number
        self._seats: list[Seat] = []
        self._rows: list[list[float]] = []
        self._arrived = False  # whether a gradient came since the pass began
        self._began = self._mixed = 0
        self._thread = 0
        self._calls: list[Call] = []
        self.former = former_of(self.law)
        self._recipes = Recipes(self.former, self._places) if memory == "recompute" else None
        if drawing.per == "micro-batch":
            self.refuse_when_compiled(
                "draws='micro-batch' does not work under torch.compile, which cannot count passes; "
                "use draws='step'"
            )

    def refuse_when_compiled(self, why: str) -> None:
        """Refuse passes that torch.compile makes."""
        self.refused_when_compiled = why

    # Which draw

    def set_draws(self, seats: list[Seat], newest: int, rows: list[list[float]]) -> None:
        """Take these coefficients for the passes to come: a step was made."""
        self._arrived, self._began, self._mixed = False, 0, 0
        self.noisy = self.clean = False
        self.newest = newest
        self._places.advance(newest)
        same = seats is self._seats and rows == self._rows
        same = same and self._fit(seats)
        if not same or self.number != self._first_number:
            self.number = self._first_number
            self._seats, self._rows = seats, rows
            self._take_rows()

    def check_seats(self, parameters: list[Tensor]) -> None:
        """Refuse other parameters than those before, where graphs were captured."""
        self._places.check_rows(parameters)

    def end(self) -> None:
        """Nothing reads noise any more: neither calls nor captured graphs."""
        self.settle()
        self._places.end()

    def count_anew(self) -> None:
        """Take the draws of this step from the first on: one that does not count was made."""
        self._arrived, self._began, self._mixed = False, 0, 0
        if self.number != self._first_number:
            self.number = self._first_number
            self._take_rows()

    def _take_rows(self) -> None:
        """Give each seat its coefficients and the key of the draw that this pass takes."""
        if self.audit is not None:
            self.audit.know(self._seats)
        which, sign = self.drawing.of_pass(self.number)
        table = sign * np.array(self._rows, np.float64).reshape(len(self._seats), -1)
        takes = [any(row) for row in self._rows]
        for i, seat in enumerate(self._seats):
            seat.coefficients = table[i : i + 1]
            seat.still = not takes[i]
            if self.drawing.per != "step":
                seat.key = np.array([seat.keys(which)], np.uint64)
        if self._lasts:
            self._place(table)

    def _fit(self, seats: list[Seat]) -> bool:
        """Whether what these draw is in the memory of their devices, where it is to be there."""
        return not self._lasts or self._places.fit([seat.parameter for seat in seats])

    def _place(self, table: NDArray[np.float64]) -> None:
        """Write what the seats draw into the memory of their devices."""
        parameters = [seat.parameter for seat in self._seats]
        keys = np.array([seat.key[0] for seat in self._seats], np.uint64)
        places = self._places.take(parameters, keys, table)
        if self._seats and self._seats[-1].place is places[-1]:  # they have them
            return
        self.former.prepare(parameters)
        for seat, place in zip(self._seats, places, strict=True):
            seat.place = place
            know_read(place.facts, seat.keys(0))

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
        if "_is_replica" in module.__dict__:
            raise RuntimeError(
                "torch.nn.DataParallel hands its replicas weights without noise; "
                "use DistributedDataParallel"
            )
        if self._is_stale():
            self.settle()
        if self.depth == 0:
            if not module.training:
                self.evaluated = self.evaluated or torch.is_grad_enabled()
                return
            if not (in_backward() or self.on_begin()):
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
        if isinstance(module, RNNBase) and getattr(module._parameters, "passes", None) is self:
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
        if in_backward():  # a recomputation, which must repeat the draw of its pass
            if self._mixed > 0:
                raise RuntimeError(
                    "draws='micro-batch' cannot recompute a pass after the next one has begun (a "
                    "pipeline with activation checkpointing); use draws='step'"
                )
            return
        self.seen = True
        if may_be_recomputed():
            self.noisy, self.clean = self.noisy or not self.off, self.clean or self.off > 0
        forget_parametrized()
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
        if not in_backward():
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
            if call.module is module and is_within(frame, call.frame):
                self._close(index)
                return

    def _close(self, index: int) -> None:
        """End the calls from `index` on, the innermost first."""
        closed = []
        while len(self._calls) > index:
            call = self._calls.pop()
            self.depth -= 1
            if call.swapped:
                vars(call.module).update(call.swapped)
            if call.recipes is not None:
                call.recipes.__exit__(None, None, None)
            if self._recipes is not None:
                self._recipes.forget(one.w for one in call.formed.values())
            if call.formed:
                closed.append(call)
        if index == 0:
            forget_parametrized()
        for call in closed:
            check_unchanged(call.module, list(call.formed.values()), self.audit, self.former)

    def settle(self) -> None:
        """Close what an interrupted pass has left open."""
        if self._calls:
            self._close(0)
        self.depth = 0

    def _is_stale(self) -> bool:
        """Whether the outermost call is over without a word (as by KeyboardInterrupt)."""
        return bool(self._calls) and not is_running(self._calls[0].frame)

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
            if not in_backward():
                module = module_ref()
                return z if module is None or module.training else self._read_clean(seat, z)
        elif not self._calls:
            if not in_a_call():  # a compiled pass was broken off
                return z
        elif self._thread != threading.get_ident():
            return z
        else:
            try:
                self._calls[0].frame.clear()  # which a frame that is executing refuses
            except RuntimeError:
                pass
            else:
                self.settle()
                return z
        module = module_ref()
        if module is None or (seat.gathered and z is seat.parameter):
            return z
        if not module.training or self._is_off():
            return self._read_clean(seat, z)
        return self._formed(seat, z)

    def _read_clean(self, seat: Seat, z: Tensor) -> Tensor:
        """z, rightly: its gradient, if there will be one, need not come through w."""
        if self.audit is not None and torch.is_grad_enabled():
            self.audit.excuse(seat.name)
        return z

    def _formed(self, seat: Seat, z: Tensor) -> Tensor:
        watched = self.audit is not None and self.audit.watches(seat.name)
        if seat.still and not watched and not is_captured():  # σ may come while a graph lives
            return z
        if z.dtype is not seat.dtype and not seat.still:
            # The model was converted, or FSDP2 gathers another type.
            check_read(seat.name, z, float(np.abs(seat.coefficients).max()))
            seat.dtype = z.dtype
        formed = self._calls[-1].formed if self._calls else {}
        key = (id(z), torch.is_grad_enabled())
        if key in formed:
            return formed[key].w
        draw = self.draw_of(seat)
        w = self.former.form(z, draw, seat.known)
        formed[key] = as_formed(seat.name, z, w, draw)
        if self._recipes is not None and self._calls:
            self._recipes.remember(z, w, seat.name, draw)
        if self.drawing.per == "micro-batch" and w.requires_grad:
            w.register_hook(self._gradient_came)
        if watched and self.audit is not None and not in_functorch():
            self.audit.watch_read(seat.name, seat.parameter, z, w)
        return w

    def draw_of(self, seat: Seat) -> Draw:
        """What the passes to come add to a parameter."""
        return Draw(seat.key, self.newest, seat.coefficients, seat.place, seat.shares)

    def source_of(self, tensor: Tensor | None) -> Tensor | None:
        """z, where somebody puts back as a parameter what he has read as w."""
        for call in self._calls:
            for one in call.formed.values():
                if one.w is tensor:
                    return one.z
        return tensor

    def _gradient_came(self, gradient: Tensor) -> None:
        self._arrived = True
