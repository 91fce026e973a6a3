"""Noise that is in the weights: w ← optimizer's step, then + ε (eq:def_antiPGD).

The injection is added to the weights after the step, never passed through momentum, moments,
clipping or decay. The clean weights are there inside `clean()`.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from antipgd.noise.injection import injection_coefficients
from antipgd.torch import saved
from antipgd.torch.adding import Adder
from antipgd.torch.carrying import carried, take_out, taken_out
from antipgd.torch.clock import progress
from antipgd.torch.drawing import draw_of
from antipgd.torch.handle import Noise, Settings
from antipgd.torch.members import Member
from antipgd.torch.membership import Membership
from antipgd.torch.parts import is_sharded
from antipgd.torch.recalibration import recalibrated
from antipgd.torch.record import Record
from antipgd.torch.stepping import is_inner_step, refuse_capture, rests, was_skipped


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
        self._adder = self.roll.adder()  # of the step under way, with its σ
        self._sigmas: list[float] = []

    def _step_hooks(self, optimizer: Optimizer) -> list[Any]:
        unseen: Any = torch.compiler.disable  # imports torch's compiler, so not before it is needed
        return [
            optimizer.register_step_pre_hook(unseen(self._before_step)),
            optimizer.register_step_post_hook(unseen(self._after_step)),
        ]

    def hook(self) -> None:
        """Act from here on."""
        super().hook()
        self._plan()

    def adopt(self, records: Sequence[Record], first: int = 0) -> None:
        """Go on from checked records."""
        super().adopt(records, first)
        self._adder = Adder(self._adder.members, self.law)  # the old one has the old keys

    # Saving and loading

    def _saved_members(self) -> tuple[list[Member], bool]:
        if self._inside_clean:  # where nobody joins or leaves
            return self.roll.as_listed(self.together, self.seed), False
        return self.members, True

    def _look_again(self) -> None:
        if not self._inside_clean:
            self._refresh()
        saved.mark(self.together, self._write)

    def _refuse_load(self) -> None:
        self._refuse_inside_clean("load_state_dict")

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

    def _plan(self) -> None:
        self._adder = self.roll.adder()
        self._sigmas = self._next_sigmas(self._adder.members)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Find all that could go wrong before the optimizer moves the weights."""
        if self.paused or rests(optimizer):
            return
        self._refuse_inside_clean("optimizer.step()")
        refuse_capture()
        self._refresh()
        self._plan()

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Add ε to every member, with or without a gradient, if the optimizer made a step."""
        if self.paused or rests(optimizer) or is_inner_step(optimizer) or was_skipped(optimizer):
            return
        members = self._adder.members
        if self.step_count % self.drawing.hold == 0:
            self._add(members)
        self.step_count += 1
        self.clock += progress(self.together, members, self._sigmas)

    def _add(self, members: Sequence[Member]) -> None:
        """w ← w + ε."""
        sigmas = [[s, *member.sigmas] for s, member in zip(self._sigmas, members, strict=True)]
        coefficients = [injection_coefficients(self.taps, row) for row in sigmas]
        self._adder.add(self._newest + 1, coefficients)
        for member, row in zip(members, sigmas, strict=True):
            member.sigmas = row[: len(self.taps) - 1]

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
            take_out(self.roll.adder(), self.taps, self._newest, self.model)
        self.reset()
        self._unhook()

    def reset(self) -> None:
        """Say that the weights were just replaced by clean ones: they carry no draw."""
        self._refuse_inside_clean("reset()")
        super().reset()

    def rescale(self) -> None:
        """Measure the tensors' root mean squares again, for the draws to come (relative σ)."""
        if not self.relative:
            raise ValueError("rescale() is for relative=True; sigma is absolute here")
        as_they_are = self._inside_clean or not self.removable
        self.roll.measure(lambda w: w if as_they_are else w.detach() - self.injected(w))
