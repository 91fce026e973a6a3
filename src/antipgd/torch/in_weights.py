"""Noise that is in the weights: w ← optimizer's step, then + ε (eq:def_antiPGD).

The injection is added to the weights after the step, never passed through momentum, moments,
clipping or decay. The clean weights are there inside `clean()`.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from antipgd.torch import matching
from antipgd.torch.adding import Adder
from antipgd.torch.carrying import carried, take_out, taken_out
from antipgd.torch.clock import Elements, elements_by_sigma
from antipgd.torch.drawing import draw_of
from antipgd.torch.handle import Noise
from antipgd.torch.members import Member, rms
from antipgd.torch.membership import Membership
from antipgd.torch.parts import is_sharded, reshard
from antipgd.torch.recalibration import recalibrated
from antipgd.torch.record import FILTER, Record
from antipgd.torch.rounding import Rounding
from antipgd.torch.settings import Settings
from antipgd.torch.sigma import by_group
from antipgd.torch.stepping import (
    hear_steps,
    is_inner_step,
    refuse_capture,
    rests,
    was_skipped,
)
from antipgd.torch.watching import Watch


class InWeights(Noise):
    """The noise on one optimizer; made by `attach`."""

    form = "weights"

    def __init__(
        self,
        settings: Settings,
        optimizers: Sequence[Optimizer],
        roll: Membership,
        model: torch.nn.Module | None,
    ) -> None:
        super().__init__(settings, optimizers, roll, model)
        self._kept_model = model  # which knows nothing of us, and may be a wrapper made for us
        self._inside_clean = False
        self._watch = Watch(self.law, self.taps)
        self._rounding = Rounding([], [], [])
        self._adder = self.roll.adder()  # of the step under way, with its σ
        self._sigmas: list[float] = []
        self._last: tuple[Adder, list[float]] | None = None  # of the last draw
        self._alike = 0  # how many draws before it were like it
        self._table = np.empty((0, len(self.taps)))
        self._elements: Elements = {}
        self._planned = -1  # the look at the members that these were made after
        self._kinds: list[tuple[int, float | None, bool]] = []
        self._by_group: list[float] = []  # σ of these

    def _step_hooks(self, optimizer: Optimizer) -> list[Any]:
        return hear_steps(optimizer, self._before_step, self._after_step)

    def foresee(self, sigmas: Sequence[float]) -> None:
        """Warn where rounding is going to move the clean weights. Every rank takes part."""
        rows = [(m, s) for m, s in zip(self.members, sigmas, strict=True) if not m.frozen]
        sizes = [rms(member.parameter) for member, _ in rows]
        self._rounding = Rounding([m for m, _ in rows], [s for _, s in rows], sizes)

    def hook(self, alone: bool = False) -> None:
        """Act from here on; not `alone`: every rank does."""
        super().hook(alone)
        self._plan()
        self._adder.try_kernels()

    def adopt(self, records: Sequence[Record], first: int = 0) -> None:
        """Go on from checked records."""
        super().adopt(records, first)
        self._last, self._planned = None, -1
        self._watch.expect(self.members, matching.samples_of(records))
        self._adder = Adder(self._adder.members, self.law)  # the old one has the old keys

    # Saving and loading

    def _saved_members(self) -> tuple[list[Member], bool]:
        if self._inside_clean:  # where nobody joins or leaves
            return self.roll.as_listed(self.together, self.seed), False
        return self.members, True

    def _samples(self, members: Sequence[Member]) -> tuple[str, ...]:
        return self._watch.samples(members)

    def _look_again(self) -> None:
        if not self._inside_clean:
            self._check_weights(thorough=True)
        self._relist()

    def _relist(self) -> None:
        if not self._inside_clean:
            self._refresh()
        super()._relist()

    def _refuse_load(self) -> None:
        self._refuse_inside_clean("load_state_dict")

    def _load(self, optimizer: Optimizer) -> None:
        self._watch.forget()  # the weights may be the checkpoint's already, which tells
        super()._load(optimizer)

    # Every step

    @property
    def _newest(self) -> int:
        """The draw that the weights carry."""
        return draw_of(self.step_count, self.drawing.hold)

    def _refresh(self) -> None:
        """Take in what the optimizer lists now, and leave clean what it has let go."""
        gone = self.roll.refresh(self.together, self.seed)
        if self.removable and gone:
            take_out(Adder(gone, self.law), self.taps, self._newest, None)
            for member in gone:
                member.sigmas = [0.0] * len(member.sigmas)

    def _plan(self) -> None:
        self._adder = self.roll.adder()
        members, step = self._adder.members, self.step_count + 1
        if self._planned != self.roll.looks:
            self._kinds = list({(m.group, m.first_lr, m.guest) for m in members if not m.frozen})
        found = by_group(self._kinds, self.together, self._sigma, self._schedule, step)
        if self.drawing.layers == "one" or self.drawing.hold > 1:
            found.append(float(self.drawing.number(step)))  # whose turn it is, and if it is held
        if self._planned == self.roll.looks and found == self._by_group:
            return  # σ of a thousand tensors is what it was
        self._sigmas = self._next_sigmas(members)
        self._elements = elements_by_sigma(members, self._acting(members, self._sigmas))
        self._planned, self._by_group = self.roll.looks, found

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Find all that could go wrong before the optimizer moves the weights."""
        if not self._inside_clean:
            self._check_weights()
        if self.paused or rests(optimizer):
            return
        self._refuse_inside_clean("optimizer.step()")
        refuse_capture()
        self._refresh()
        self._plan()

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Add ε to every member, with or without a gradient, if the optimizer made a step."""
        if is_inner_step(optimizer):
            return
        if self.paused or rests(optimizer) or was_skipped(optimizer):
            self._watch.remember()
        else:
            self._count()
        self._parting.step(self._progress)

    def _count(self) -> None:
        members = self._adder.members
        if self.step_count % self.drawing.hold == 0:
            self._add(members)
        self.step_count += 1
        self._watch.remember(members, self._adder.has_moved)
        self.counting.advance(self.together, self._elements)
        if self.step_count >= self._rounding.next:
            self._rounding.passed(self.step_count)

    def _add(self, members: Sequence[Member]) -> None:
        """w ← w + ε."""
        now = self._adder, self._sigmas
        self._alike = self._alike + 1 if now == self._last else 0
        self._last = now
        if self._alike < len(self.taps):  # else all that the weights carry has these σ
            table = np.empty((len(members), len(self.taps)))
            table[:, 0] = self._sigmas
            table[:, 1:] = np.reshape([m.sigmas for m in members], table[:, 1:].shape)
            self._table = table * self.taps  # as injection_coefficients has it
            for member, sigma in zip(members, self._sigmas, strict=True):
                member.sigmas = [sigma, *member.sigmas][:-1]
        self._adder.add(self._newest + 1, self._table)

    def _check_weights(self, thorough: bool = False) -> None:
        """Refuse weights that were replaced since the noise last left them."""
        self._catch_up()
        if self._watch.is_changed(thorough) and not is_inner_step(self.optimizer):
            self._watch.judge(self._newest)
        if thorough:
            self._parting.look(self._progress)

    # What users call

    def _refuse_inside_clean(self, what: str) -> None:
        if self._inside_clean:
            raise RuntimeError(f"{what} inside clean(): the weights are clean here; leave it first")

    def injected(self, parameter: Tensor) -> Tensor:
        """The noise that `parameter` carries now: w − z."""
        own = [member for member in self.members if member.parameter is parameter]
        if not own:
            raise KeyError("this parameter takes no noise here")
        total = torch.zeros_like(parameter.detach())
        alone = Adder([replace(own[0], parameter=total)], self.law)
        alone.add(self._newest, carried(own, self.taps))
        return total

    @contextmanager
    def clean(self, recalibrate: Iterable[Any] | None = None) -> Iterator[None]:
        """Inside, the weights are the clean z = w − ξ; after, they are w again, bit for bit.

        With `recalibrate`, an iterable of batches, the BatchNorm statistics are estimated anew at z
        (needs `model=` in attach) and are what they were, after. Costs a copy of the weights.
        """
        self._refuse_inside_clean("clean()")
        self._check_weights(thorough=True)
        model = self.model
        if recalibrate is not None and model is None:
            raise ValueError("recalibrate needs the model: attach(..., model=model)")
        if model is None and any(is_sharded(member.parameter) for member in self.members):
            warnings.warn(
                "clean() without model=: FSDP2 may go on with weights it gathered before; "
                "give attach(..., model=model)",
                stacklevel=3,
            )
        estimated: Any = nullcontext()
        if recalibrate is not None and model is not None:
            estimated = recalibrated(model, recalibrate)
        with taken_out(self.roll.adder(), self.taps, self._newest, model):
            self._inside_clean = True
            try:
                with estimated:
                    yield
            finally:
                self._inside_clean = False

    def stop(self, remove: bool = True) -> None:
        """Take the noise out of the weights (unless `remove=False`) and detach."""
        self._refuse_inside_clean("stop()")
        if not self.attached:
            return
        if remove:
            self._check_weights(thorough=True)
            take_out(self.roll.adder(), self.taps, self._newest, self.model)
        self.reset()
        self._unhook()

    def reset(self) -> None:
        """Say that the weights were just replaced by clean ones: they carry no draw."""
        self._refuse_inside_clean("reset()")
        super().reset()
        self._last, self._planned = None, -1
        self._watch.forget()

    def vouch(self) -> None:
        """Say that the weights, though changed from outside, still carry the noise."""
        self._refuse_inside_clean("vouch()")
        self._watch.remember()

    def rescale(self) -> None:
        """Measure the tensors' root mean squares again, for the draws to come (relative σ)."""
        if not self.relative:
            raise ValueError("rescale() is for relative=True; sigma is absolute here")
        self._planned = -1
        if self.relative == FILTER:
            self._reshape()
            return
        as_they_are = self._inside_clean or not self.removable
        self.roll.measure(lambda w: w if as_they_are else w.detach() - self.injected(w))

    def _reshape(self) -> None:
        """Measure the filters at z, and let what the weights carry have the new shares, too."""
        self._refuse_inside_clean("rescale() of filters")
        self._check_weights(thorough=True)
        adder = self.roll.adder()
        take_out(adder, self.taps, self._newest, None)
        self.roll.measure()
        adder.add(self._newest, carried(adder.members, self.taps))
        reshard(self.model)
        self._watch.remember()
