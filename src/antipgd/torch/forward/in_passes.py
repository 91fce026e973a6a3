"""Noise that is only in training passes: z ← z − η∇L(z + ξ_n), with z in the parameters.

After each step the passes to come get the next draw: the same ξ_n that noise in the weights would
carry then.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from antipgd.noise import stream_key
from antipgd.torch.carrying import carried
from antipgd.torch.clock import elements_by_sigma
from antipgd.torch.drawing import name_of_draw
from antipgd.torch.forward.auditing import Audit
from antipgd.torch.forward.calls import in_backward
from antipgd.torch.forward.listening import Listening
from antipgd.torch.forward.passes import Passes, Seat
from antipgd.torch.forward.refusals import check_owned
from antipgd.torch.forward.rounding import check_rounding
from antipgd.torch.forward.slots import Slots, install, refuse_mixed, slots_of
from antipgd.torch.handle import Noise, log
from antipgd.torch.members import Member
from antipgd.torch.membership import Membership
from antipgd.torch.parts import Gathered, gathered_parameters, local_part
from antipgd.torch.recalibration import recalibrated
from antipgd.torch.record import ELEMENT, Record
from antipgd.torch.settings import Settings
from antipgd.torch.shares import of
from antipgd.torch.stepping import (
    hear_steps,
    is_inner_step,
    refuse_capture,
    rests,
    was_skipped,
)


class InPasses(Noise):
    """The noise in a model's training passes; made by `perturb`."""

    form = "forward"

    def __init__(
        self,
        settings: Settings,
        optimizers: Sequence[Optimizer],
        roll: Membership,
        model: Module,
        passes: Passes,
        audit: bool,
    ) -> None:
        super().__init__(settings, optimizers, roll, model)
        self._passes = passes
        self._audits = audit
        self._audited: set[str] = set()
        self._seats: list[Seat] = []
        self._seated: list[Member] = []  # the members that have them
        self._undo: dict[int, Callable[[], None]] = {}  # by module
        self._stepped: set[int] = set()  # optimizers that made a step since the draw
        self._loaded: dict[int, int] = {}  # the steps of what was loaded since the last step
        self._waits = False  # for the end of a backward pass in which a step was made
        self._waiting: set[int] = set()  # optimizers that made it
        self._planned: list[float] = []  # σ of the draw that a step under way leads to
        self._places: list[tuple[Slots, str, Seat]] = []
        self._listening = Listening()
        passes.on_begin = self._pass_begins

    # Setting up

    def adopt(self, records: Sequence[Record], first: int = 0) -> None:
        """Go on from checked records."""
        super().adopt(records, first)
        if self.step_count:
            self._listening.has_stepped()
        if self.attached:
            self._seat()

    def check_sigmas(self, sigmas: Sequence[float]) -> None:
        """Refuse σ that the type of the weights would round away."""
        check_rounding(self.members, sigmas, self._gathered())

    def _gathered(self) -> dict[int, Gathered]:
        return {} if self.model is None else gathered_parameters(self.model)

    def hook(self, alone: bool = False) -> None:
        """Act from here on."""
        super().hook(alone)
        self._seat()
        self._removers += [self._listening.of(optimizer) for optimizer in self.optimizers]

    def _step_hooks(self, optimizer: Optimizer) -> list[Any]:
        return hear_steps(optimizer, self._before_step, self._after_step)

    def _seat(self) -> None:
        """Give every member its seat, and stand behind every module of the model."""
        model = self.model
        if model is None:
            return
        self._passes.check_seats([member.parameter for member in self.members])
        gathered = gathered_parameters(model)
        self._seats = [
            Seat(m.name, m.parameter, self._keys(m), id(m.parameter) in gathered)
            for m in self.members
        ]
        self._stand_behind(model)
        self._audit()
        self._set_draws()
        self._seated = self.members

    def _audit(self) -> None:
        """Look at parameters that nobody has looked at yet."""
        fresh = {
            seat.name: seat.parameter
            for seat in self._seats
            if seat.parameter.requires_grad and seat.name not in self._audited
        }
        if self._audits and fresh:
            if self._passes.audit is None:
                self._passes.audit = Audit()
            self._passes.audit.watch(fresh.items())
            self._audited |= set(fresh)

    def _stand_behind(self, model: Module) -> None:
        """Give seats where the parameters are read; a slot keeps its own while it is not known.

        functional_call puts other tensors there, FSDP2 gathered ones.
        """
        by_parameter = {id(seat.parameter): seat for seat in self._seats}
        by_name = {seat.name: seat for seat in self._seats}
        refuse_mixed(model, self._passes, by_parameter.keys())
        self._places = []
        for module in model.modules():
            slots = slots_of(module)
            if slots is None or slots.passes is not self._passes:
                slots, self._undo[id(module)] = install(module, self._passes)
            if slots is None:
                continue
            before, slots.seats = slots.seats, {}
            for name, parameter in slots.items():
                seat = by_parameter.get(id(parameter))
                if seat is None and name in before:
                    seat = by_name.get(before[name].name)
                if seat is not None:
                    slots.seats[name] = seat
                    self._places.append((slots, name, seat))

    def _pass_begins(self) -> bool:
        """Mend what has happened since the last one; False where nothing changes draws any more."""
        if self.together.are_all_gone:
            log.warning("the optimizer of this noise is gone: passes read clean weights from now")
            self.stop()
            return False
        self._backward_ended()  # one that failed after a step was made in it
        self._catch_up()
        self._follow_moved()
        self._listening.pass_begins(self._seats)
        return True

    def _follow_moved(self) -> None:
        """A parameter that stands elsewhere than before (under a parametrization) is followed."""
        for slots, name, seat in self._places:
            if not seat.gathered and slots.get(name) is not seat.parameter:
                model = self.model
                if model is not None:
                    self._stand_behind(model)
                return

    def _keys(self, member: Member) -> Callable[[int], int]:
        prefix = f"{self.namespace}/" if self.namespace else ""
        known = {0: member.key}

        def key(number: int) -> int:
            if number not in known:
                name = name_of_draw(prefix + member.drawn_as, number)
                known[number] = stream_key(self.seed, name)
            return known[number]

        return key

    def _take_shares(self) -> None:
        for seat, member in zip(self._seats, self.members, strict=True):
            by_element = self.relative == ELEMENT and member.scale > 0
            seat.shares = member.scale if by_element else member.shares

    def _set_draws(self) -> None:
        """Let the passes to come read what the members carry now."""
        self._take_shares()
        newest, rows = 0, []
        for row in carried(self.members, self.taps):
            newest, coefficients = self.drawing.terms(self.step_count, row)
            rows.append(coefficients)
        self._passes.set_draws(self._seats, newest, rows)

    # Saving and loading

    def _relist(self) -> None:
        self.roll.refresh(self.together, self.seed)
        super()._relist()
        if self.attached and self.members is not self._seated:
            if self.model is not None:  # a library may have put others in the optimizer's list
                check_owned(self.model, self.optimizers)
            self._seat()

    def _save(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        super()._save(optimizer, state_dict)
        self._parting.look(self._progress)

    def _load(self, optimizer: Optimizer) -> None:
        super()._load(optimizer)
        self._loaded[id(optimizer)] = self.step_count
        self._set_draws()

    def reset(self) -> None:
        """Let the passes read clean weights until the next draw."""
        super().reset()
        if self.attached:
            self._set_draws()

    # Every step

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Find all that could go wrong before the optimizer moves the weights."""
        self._listening.step_begins()
        if self._waits and in_backward():
            return  # one of many steps in this backward pass, of which the first has looked
        self._catch_up()
        if not is_inner_step(optimizer):
            self._passes.settle()
        if self._passes.audit is not None:
            self._passes.audit.check()
            if not self._passes.audit.is_watching:
                self._passes.audit = None
        if rests(optimizer):  # as when torch.distributed.checkpoint loads one after the other
            return
        self._check_loaded()
        if self.paused:
            return
        refuse_capture()
        self._relist()
        self._planned = self._next_sigmas(self.members)

    def _check_loaded(self) -> None:
        steps = set(self._loaded.values())
        if len(steps) > 1:
            raise RuntimeError(
                f"the optimizers were loaded from different steps of the noise: "
                f"{sorted(steps)}; load the states that were saved together"
            )
        if self._loaded and len(self._loaded) < len(self.optimizers):
            warnings.warn(
                f"{len(self._loaded)} of {len(self.optimizers)} optimizers were loaded; the noise "
                f"goes on from step {self.step_count}",
                stacklevel=5,
            )
        self._loaded.clear()

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Count the step, once for several optimizers that step one after the other."""
        self._listening.step_ends()
        if is_inner_step(optimizer):
            return
        if not (self.paused or rests(optimizer) or was_skipped(optimizer)):
            self._count(optimizer)
        elif not in_backward():
            self._passes.count_anew()
        if optimizer is self.optimizers[0]:
            self._parting.step(self._progress)

    def _count(self, optimizer: Optimizer) -> None:
        own = {id(optimizer)}
        if in_backward():  # a step of one parameter, as soon as its gradient is there
            self._waiting |= own
            self._advance_after_backward()
            return
        if self._waits:  # for a backward pass that failed
            self._advance_waiting()
        if self._passes.seen or not self._stepped or own <= self._stepped:
            self._advance(own)
            self._stepped = set()
        else:
            self._count_progress(own)
        self._stepped |= own

    def _advance_after_backward(self) -> None:
        if not self._waits:
            self._waits = True
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._backward_ended)

    def _backward_ended(self) -> None:
        if self._waits:
            self._advance_waiting()
            self._stepped = set()

    def _advance_waiting(self) -> None:
        self._waits = False
        by, self._waiting = self._waiting, set()
        self._advance(by)

    def _advance(self, by: set[int]) -> None:
        """n ← n + 1 by a step of these optimizers, and a new draw where the last one was held long
        enough."""
        if self.step_count % self.drawing.hold == 0:
            for member, sigma in zip(self.members, self._planned, strict=True):
                member.sigmas = [sigma, *member.sigmas][: len(self.taps) - 1]
        self.step_count += 1
        self._count_progress(by)
        passes, noisy = self._passes, any(member.sigmas[0] for member in self.members)
        trained, evaluated = passes.seen, passes.evaluated
        passes.seen = passes.evaluated = False
        self._set_draws()
        self._listening.counted(self.step_count, noisy, trained, evaluated)  # last: it may warn

    def _count_progress(self, by: set[int]) -> None:
        """Let the clock go on by the newest draw, for what these optimizers have moved."""
        sigmas = [member.sigmas[0] for member in self.members]
        self.counting.advance(self.together, elements_by_sigma(self.members, sigmas), by)

    # What users call

    @property
    def sigma(self) -> float:
        """The standard deviation (or its ratio to the rms) of the draws to come."""
        return self._sigma

    @sigma.setter
    def sigma(self, value: float) -> None:
        before = self._sigma
        Noise.sigma.fset(self, value)  # type: ignore[attr-defined]
        try:
            check_rounding(self.members, self.sigmas(), self._gathered())
        except ValueError:
            self._sigma = before
            raise

    def injected(self, parameter: Tensor) -> Tensor:
        """What the passes to come add to `parameter`: w − z, before w is rounded to its type."""
        seats = [seat for seat in self._seats if seat.parameter is parameter]
        if not seats:
            raise KeyError("this parameter takes no noise here")
        wide = torch.float64 if parameter.dtype == torch.float64 else torch.float32
        total = torch.zeros_like(parameter.detach(), dtype=wide)
        target, shard = local_part(total)
        draw = self._passes.draw_of(seats[0])
        self._passes.former.add(target, shard, draw._replace(shares=None))
        if draw.shares is not None:
            target.mul_(of(draw.shares, local_part(parameter.detach())[0].to(wide), shard))
        return total

    @contextmanager
    def clean(self, recalibrate: Iterable[Any] | None = None) -> Iterator[None]:
        """Inside, passes read the clean weights z, whatever mode the model is in.

        With `recalibrate`, an iterable of batches, the BatchNorm statistics are estimated anew at z
        and are what they were, after.
        """
        model = self.model
        if model is None:
            raise ReferenceError("the model of this noise is gone")
        self._passes.off += 1
        try:
            with nullcontext() if recalibrate is None else recalibrated(model, recalibrate):
                yield
        finally:
            self._passes.off -= 1

    def stop(self, remove: bool = True) -> None:
        """End it: passes read z, and nothing of the noise acts or is saved any more."""
        if not remove:
            raise ValueError(
                "remove=False: the weights are clean already, there is nothing to leave"
            )
        if not self.attached:
            return
        self._passes.end()
        for undo in self._undo.values():
            undo()
        self._undo.clear()
        if self._passes.audit is not None:
            self._passes.audit.stop()
        super().reset()
        self._unhook()

    def rescale(self) -> None:
        """Measure the tensors' root mean squares again, for the draws to come (relative σ)."""
        if not self.relative:
            raise ValueError("rescale() is for relative=True; sigma is absolute here")
        if self.relative == ELEMENT:
            return  # each pass has the sizes of its own
        self.roll.measure()
        self._take_shares()

    def metrics(self) -> dict[str, float]:
        """What to log at every step."""
        return super().metrics() | {"noise/draw": float(self._passes.newest)}
