"""The handle: noise on one optimizer, by hooks around `step`, `state_dict` and `load_state_dict`.

w ← optimizer's step, then + ε (eq:def_antiPGD). The optimizer stays what it is: nothing of ours is
in its `state`, its class does not change. The injection is added to the weights, never passed
through momentum, moments, clipping or decay.
"""

import logging
import math
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from antipgd.noise import STREAM_VERSION, Law, Schedule
from antipgd.noise.injection import check_sigma
from antipgd.noise.taps import Taps, telescopes
from antipgd.torch import matching, saved
from antipgd.torch.adding import Adder
from antipgd.torch.advice import described
from antipgd.torch.carrying import carried, take_out, taken_out
from antipgd.torch.clock import ADAPTIVE as ADAPTIVE
from antipgd.torch.clock import Elements, elements_by_sigma, progress
from antipgd.torch.detached import DetachedNoise
from antipgd.torch.members import Exclude, Member
from antipgd.torch.membership import Membership
from antipgd.torch.parting import Parting
from antipgd.torch.parts import agree, is_sharded
from antipgd.torch.recalibration import recalibrated
from antipgd.torch.record import Record, facts_of
from antipgd.torch.rounding import Rounding
from antipgd.torch.sigma import next_sigmas
from antipgd.torch.stepping import is_inner_step, refuse_capture, rests, was_skipped
from antipgd.torch.watching import Watch

log = logging.getLogger("antipgd")
_live: "weakref.WeakSet[Noise]" = weakref.WeakSet()


def attached_noises() -> list[tuple["Noise", Optimizer]]:
    """All noise of this process whose optimizer is still there, and stays while this is held."""
    found = [(noise, noise._optimizer()) for noise in _live if noise.attached]
    return [(noise, optimizer) for noise, optimizer in found if optimizer is not None]


class Noise:
    """The noise on one optimizer; made by `attach`."""

    def __init__(
        self,
        optimizer: Optimizer,
        sigma: float,
        relative: bool,
        law: Law,
        taps: Taps,
        seed: int,
        schedule: Schedule | str | None,
        exclude: Exclude,
        model: torch.nn.Module | None,
        namespace: str,
    ) -> None:
        self._optimizer = weakref.ref(optimizer)  # whose hooks keep this handle alive
        self.law, self.taps, self.seed, self.namespace = law, taps, seed, namespace
        self.relative = relative
        self.step_count = 0
        self.clock = 0.0
        """Progress along a valley: Σησ²/(1−momentum) for SGD, Σησ for adaptive optimizers; nan
        where that is unknown: without learning rate, or with momentum 1 or more."""
        self.attached = False
        self.paused = False
        self._sigma, self._schedule, self._model = sigma, schedule, model
        self._inside_clean = False
        self.roll = Membership(optimizer, model, exclude, law, taps, namespace, relative)
        self.roll.set_keys(seed)
        self._watch, self._parting = Watch(law, taps), Parting(alone=True)
        self.rounding = Rounding([], [], [])
        self._adder = self.roll.adder()  # of the step under way, with its σ
        self._sigmas: list[float] = []
        self._elements: Elements = {}
        self._planned = -1  # the look at the members that these were made after
        self._pending: list[Record] = []
        self._removers: list[Callable[[], None]] = []

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer that the noise is attached to."""
        optimizer = self._optimizer()
        if optimizer is None:
            raise ReferenceError("the optimizer of this noise is gone")
        return optimizer

    @property
    def members(self) -> list[Member]:
        """The parameters that take noise, or would if they were not frozen."""
        return self.roll.members

    @property
    def left_out(self) -> list[str]:
        """The names of the parameters that are excluded."""
        return self.roll.left_out

    # Setting up

    def adopt(self, records: Sequence[Record]) -> None:
        """Go on from checked records."""
        first = records[0]
        self.seed, self._sigma, self.step_count = first.seed, first.sigma, first.step
        self.clock = math.nan if first.clock is None else first.clock
        self.paused = first.paused
        matching.take_over(records, self.members)
        self._watch.expect(self.members, matching.samples_of(records))
        self.roll.set_keys(self.seed)
        self._adder = Adder(self._adder.members, self.law)  # the old one has the old keys

    def checked(self, groups: Sequence[Mapping[str, Any]]) -> list[Record]:
        """The records in `groups`, refused where they are not about this noise."""
        records = saved.read_groups(groups)
        members = self.roll.planned(self.optimizer, self.seed)
        if records:
            expected = matching.expected_of(self.law, self.taps, self.namespace, self.relative)
            matching.check_records(records, members, groups, expected, self._schedule == "lr")
        return records

    def draw_from(self, seed: int) -> None:
        """Take this seed instead."""
        self.seed = seed
        self.roll.set_keys(seed)

    def sigmas(self) -> list[float]:
        """σ of each member's next draw."""
        return self._next_sigmas(self.members)

    def hook(self, alone: bool = False) -> None:
        """Act on the optimizer from here on; not `alone`: every rank does."""
        self._parting = Parting(alone)
        unseen: Any = torch.compiler.disable  # imports torch's compiler, so not before it is needed
        hooks = [
            self.optimizer.register_step_pre_hook(unseen(self._before_step)),
            self.optimizer.register_step_post_hook(unseen(self._after_step)),
            self.optimizer.register_state_dict_post_hook(self._save),
            self.optimizer.register_load_state_dict_pre_hook(self._before_load),
            self.optimizer.register_load_state_dict_post_hook(self._load),
        ]
        self._removers = [hook.remove for hook in hooks]
        self.attached = True
        saved.mark(self.optimizer, self._write)
        self._plan()
        _live.add(self)

    # Saving and loading

    def records(self, only: int | None = None) -> list[Record]:
        """What a checkpoint keeps of the noise, one record for each param group (or `only` one)."""
        common = {
            "stream": STREAM_VERSION, "law": str(self.law), "taps": self.taps,
            "namespace": self.namespace, "relative": self.relative, "seed": self.seed,
            "sigma": self._sigma, "step": self.step_count, "paused": self.paused,
            "clock": self.clock if math.isfinite(self.clock) else None,
        }  # fmt: skip
        members = self.members
        if self._inside_clean:  # where nobody joins or leaves
            members = self.roll.as_listed(self.optimizer, self.seed)
        carried, found = not self._inside_clean, []
        for index in range(len(self.optimizer.param_groups)) if only is None else [only]:
            own = [member for member in members if member.group == index]
            found.append(matching.record_of(common, own, carried, self._watch.samples(own)))
        return found

    def _write(self, mark: saved.Live) -> str:
        self._look_again()
        index = saved.place_of(mark, self.optimizer)  # None: it was taken out, and left clean
        return saved.EXPECTED if index is None else self.records(index)[0].text()

    def _look_again(self) -> None:
        if not self._inside_clean:
            self._check_weights(thorough=True)
            self.roll.refresh(self.optimizer, self.seed, self.step_count)
        saved.mark(self.optimizer, self._write)

    def _save(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        self._look_again()
        for group, record in zip(state_dict["param_groups"], self.records(), strict=True):
            group[saved.KEY] = record.text()

    def facts(self, records: Sequence[Record]) -> dict[str, Any]:
        """What all ranks must have alike, with the records that are about to be taken over."""
        return {"noise in the checkpoint": bool(records)} | facts_of(records or self.records())

    def _before_load(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        """Refuse, on all ranks if on one, before torch overwrites anything."""
        found: list[Record] = []
        error = None
        try:
            self._refuse_inside_clean("load_state_dict")
            found = self.checked(saved.check_loadable(optimizer, state_dict))
        except Exception as refusal:
            error = refusal
        agree(error, {} if error else self.facts(found))
        self._pending = found

    def _load(self, optimizer: Optimizer) -> None:
        """Take over what was checked before loading."""
        self.roll.refresh(optimizer, self.seed, self.step_count)
        saved.mark(self.optimizer, self._write)
        if self._pending:
            self.adopt(self._pending)
        else:
            log.warning("the checkpoint has no noise in it: its weights are taken to be clean")
            self.reset()

    # Every step

    def _next_sigmas(self, members: Sequence[Member]) -> list[float]:
        step = self.step_count + 1
        return next_sigmas(members, self.optimizer, self._sigma, self._schedule, step, self.taps)

    def _plan(self) -> None:
        self._adder = self.roll.adder()
        sigmas = self._next_sigmas(self._adder.members)
        if self._planned != self.roll.looks or sigmas != self._sigmas:
            self._elements = elements_by_sigma(self._adder.members, sigmas)
        self._planned, self._sigmas = self.roll.looks, sigmas

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Find all that could go wrong before the optimizer moves the weights."""
        if not self._inside_clean:
            self._check_weights()
        if self.paused or rests(optimizer):
            return
        self._refuse_inside_clean("optimizer.step()")
        refuse_capture()
        self.roll.refresh(optimizer, self.seed, self.step_count)
        self._plan()

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Add ε to every member, with or without a gradient, if the optimizer made a step."""
        if is_inner_step(optimizer):
            return
        self._add(optimizer)
        self._parting.step(self._progress)

    def _add(self, optimizer: Optimizer) -> None:
        if self.paused or rests(optimizer) or was_skipped(optimizer):
            self._watch.remember()
            return
        members = self._adder.members
        table = np.empty((len(members), len(self.taps)))
        table[:, 0] = self._sigmas
        table[:, 1:] = np.reshape([m.sigmas for m in members], table[:, 1:].shape)
        self._adder.add(self.step_count + 1, table * self.taps)  # as injection_coefficients has it
        self.step_count += 1
        for member, sigma in zip(members, self._sigmas, strict=True):
            member.sigmas = [sigma, *member.sigmas][:-1]
        self._watch.remember(members, self._adder.has_moved)
        self.clock += progress(optimizer, self._elements)
        if self.step_count >= self.rounding.next:
            self.rounding.passed(self.step_count)

    def _check_weights(self, thorough: bool = False) -> None:
        """Refuse weights that were replaced since the noise last left them."""
        if self._watch.is_changed(thorough) and not is_inner_step(self.optimizer):
            self._watch.judge(self.step_count)
        if thorough:
            self._parting.look(self._progress)

    def _progress(self) -> dict[str, Any]:
        """What ranks that take the same steps have alike."""
        sigmas = [member.sigmas for member in self.members]
        return {"step": self.step_count, "clock": repr(self.clock), "sigma of draws": sigmas}

    # What users call

    @property
    def sigma(self) -> float:
        """The standard deviation (or its ratio to the rms) of the draws to come."""
        return self._sigma

    @sigma.setter
    def sigma(self, value: float) -> None:
        self._sigma = check_sigma(value)

    @property
    def removable(self) -> bool:
        """Whether clean weights exist: the taps sum to zero."""
        return telescopes(self.taps)

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
        alone.add(self.step_count, carried(own, self.taps))
        return total

    @contextmanager
    def clean(self, recalibrate: Iterable[Any] | None = None) -> Iterator[None]:
        """Inside, the weights are the clean z = w − ξ; after, they are w again, bit for bit.

        With `recalibrate`, an iterable of batches, the BatchNorm statistics are estimated anew at z
        (needs `model=` in attach) and are what they were, after. Costs a copy of the weights.
        """
        self._refuse_inside_clean("clean()")
        self._check_weights(thorough=True)
        if recalibrate is not None and self._model is None:
            raise ValueError("recalibrate needs the model: attach(..., model=model)")
        if self._model is None and any(is_sharded(member.parameter) for member in self.members):
            warnings.warn(
                "clean() without model=: FSDP2 may go on with weights it gathered before; "
                "give attach(..., model=model)",
                stacklevel=3,
            )
        estimated: Any = nullcontext()
        if recalibrate is not None and self._model is not None:
            estimated = recalibrated(self._model, recalibrate)
        with taken_out(self.roll.adder(), self.taps, self.step_count, self._model):
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
            take_out(self.roll.adder(), self.taps, self.step_count, self._model)
        self.reset()
        for remover in self._removers:
            remover()
        optimizer = self._optimizer()  # which may be gone
        for group in [] if optimizer is None else optimizer.param_groups:
            group.pop(saved.KEY, None)
        self.attached = False

    def reset(self) -> None:
        """Say that the weights were just replaced by clean ones: they carry no draw."""
        self._refuse_inside_clean("reset()")
        for member in self.members:
            member.sigmas = [0.0] * (len(self.taps) - 1)
        self._watch.forget()

    def vouch(self) -> None:
        """Say that the weights, though changed from outside, still carry the noise."""
        self._refuse_inside_clean("vouch()")
        self._watch.remember()

    def rescale(self) -> None:
        """Measure the tensors' root mean squares again, for the draws to come (relative σ)."""
        if not self.relative:
            raise ValueError("rescale() is for relative=True; sigma is absolute here")
        as_they_are = self._inside_clean or not self.removable
        self.roll.measure(lambda w: w if as_they_are else w.detach() - self.injected(w))

    def pause(self) -> None:
        """Add nothing and count no step until resume(); the weights keep what they carry."""
        self.paused = True

    def resume(self) -> None:
        """Go on after pause()."""
        self.paused = False

    def __reduce__(self) -> tuple[type, tuple]:
        """A copy acts on no optimizer: it is this noise's settings and no more."""
        return DetachedNoise, (
            str(self.law), self.taps, self.seed, self._sigma, self.relative, self.namespace,
            self.step_count, self.clock,
        )  # fmt: skip

    def __repr__(self) -> str:
        relative = " relative" if self.relative else ""
        title = (
            f"Noise(law={self.law}, taps={self.taps}, sigma={self._sigma}{relative}, "
            f"seed={self.seed}, step={self.step_count})"
        )
        if self._optimizer() is None:
            return f"{title}, whose optimizer is gone"
        return described(title, self.members, self.sigmas(), self.left_out, self.optimizer)
