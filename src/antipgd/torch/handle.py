"""The handle that both forms share: what a noise is, how it is saved and loaded, what one can ask.

The optimizer stays what it is: nothing of ours is in its `state`, its class does not change. Where
the noise is (in the weights after each step, or only in the passes that read them) is known to the
two forms below this, `in_weights` and `forward`.
"""

import logging
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from antipgd.noise import STREAM_VERSION, Plateau
from antipgd.noise.injection import check_sigma
from antipgd.noise.schedules import advise_on_hold
from antipgd.noise.taps import telescopes
from antipgd.torch import matching, saved
from antipgd.torch.advice import described
from antipgd.torch.clock import Clock, Counting
from antipgd.torch.detached import DetachedNoise
from antipgd.torch.layers import in_turn
from antipgd.torch.members import Member
from antipgd.torch.membership import Membership
from antipgd.torch.parting import Parting
from antipgd.torch.parts import agree
from antipgd.torch.record import Record, facts_of
from antipgd.torch.settings import Settings
from antipgd.torch.sigma import by_group, highest_rate, next_sigmas
from antipgd.torch.together import Together

MOST_RISE = 2
"""What schedule="lr" may multiply σ by without a word."""

log = logging.getLogger("antipgd")
live: "weakref.WeakSet[Noise]" = weakref.WeakSet()
"""All noise of this process that acts, or did."""


class Noise:
    """The noise on one optimizer (`attach`) or on one model (`perturb`)."""

    form: ClassVar[str]

    def __init__(
        self,
        settings: Settings,
        optimizers: Sequence[Optimizer],
        roll: Membership,
        model: torch.nn.Module | None,
    ) -> None:
        self.together = Together(optimizers)  # whose hooks keep this handle alive
        self.law, self.taps, self.seed = settings.law, settings.taps, settings.seed
        self.namespace, self.relative = settings.namespace, settings.relative
        self.drawing = settings.drawing
        self.step_count = 0
        self.counting = Counting(self.taps)
        self.attached = False
        self.paused = False
        self._sigma = settings.sigma
        self._schedule = settings.schedule
        if isinstance(self._schedule, Plateau):
            self._schedule = replace(self._schedule)  # it remembers: each noise has its own
        self._model = None if model is None else weakref.ref(model)
        self.roll = roll
        self.roll.set_keys(self.seed)
        self._parting = Parting(alone=True)
        self._pending: list[Record] = []
        self._has_asked = False
        self._has_risen = False
        self._removers: list[Callable[[], None]] = []

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers whose steps are counted."""
        return self.together.each

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer whose steps are counted, where there is one."""
        found = self.optimizers
        if len(found) > 1:
            raise AttributeError(f"this noise has {len(found)} optimizers: see .optimizers")
        return found[0]

    @property
    def model(self) -> torch.nn.Module | None:
        """The model, if it was given and is still there."""
        return None if self._model is None else self._model()

    @property
    def members(self) -> list[Member]:
        """The parameters that take noise, or would if they were not frozen."""
        return self.roll.members

    @property
    def left_out(self) -> list[str]:
        """The names of the parameters that are excluded."""
        return self.roll.left_out

    # Setting up

    def adopt(self, records: Sequence[Record], first: int = 0) -> None:
        """Go on from checked records, of the param groups from number `first` on."""
        one = records[0]
        self.seed, self._sigma, self.step_count = one.seed, one.sigma, one.step
        self.counting.adopt(one.clock, one.clocks, self.together, self.members)
        self.paused = one.paused
        if isinstance(self._schedule, Plateau) and one.plateau is not None:
            self._schedule.state = one.plateau
        self._parting.resumed()
        matching.take_over(records, self.members, first)
        self.roll.set_keys(self.seed)

    def checked(self, groups: Sequence[Mapping[str, Any]], first: int = 0) -> list[Record]:
        """The records in `groups`, refused where they are not about this noise."""
        records = saved.read_groups(groups)
        members = self.roll.planned(self.together, self.seed)
        if records:
            expected = self._identity() | {"form": self.form}
            follows_lr = self._schedule == "lr"
            matching.check_records(records, members, groups, expected, follows_lr, first)
            self._ask_for_schedule(records[0])
        return records

    def _ask_for_schedule(self, record: Record) -> None:
        if record.scheduled and self._schedule is None:
            warnings.warn(
                f"the noise in the checkpoint had a schedule, which is code and not saved: give "
                f"schedule= again; without it sigma is {record.sigma:.3g} from here on",
                stacklevel=4,
            )

    def draw_from(self, seed: int) -> None:
        """Take this seed instead."""
        self.seed = seed
        self.roll.set_keys(seed)

    def sigmas(self) -> list[float]:
        """σ of each member's next draw, whosever turn it is."""
        return self._sigmas_at(self.step_count + 1, self.members)

    def sigmas_to_come(self) -> list[float]:
        """σ of each member's next draw; what a schedule will scale where that is 0 so far."""
        step, members = self.step_count + 1, self.members
        whole = next_sigmas(members, self.together, self._sigma, None, step, self.taps)
        return [now or later for now, later in zip(self.sigmas(), whole, strict=True)]

    def _sigmas_at(self, step: int, members: Sequence[Member]) -> list[float]:
        return next_sigmas(members, self.together, self._sigma, self._schedule, step, self.taps)

    def check_sigmas(self, sigmas: Sequence[float]) -> None:
        """Refuse σ that the weights cannot take."""

    def advise_on_hold(self) -> None:
        """Warn of a schedule that begins or ends while a draw is held."""
        advise_on_hold(self._schedule, self.drawing.hold, 6)

    def foresee(self, sigmas: Sequence[float]) -> None:
        """Warn of what these σ will lead to. Every rank takes part."""

    def hook(self, alone: bool = False) -> None:
        """Act from here on; not `alone`: every rank does."""
        self._parting = Parting(alone)
        for optimizer in self.optimizers:
            hooks = [
                *self._step_hooks(optimizer),
                optimizer.register_state_dict_post_hook(self._save),
                optimizer.register_load_state_dict_pre_hook(self._before_load),
                optimizer.register_load_state_dict_post_hook(self._load),
            ]
            self._removers += [hook.remove for hook in hooks]
        self.attached = True
        saved.mark(self.together, self._write)
        live.add(self)

    def _step_hooks(self, optimizer: Optimizer) -> list[Any]:
        raise NotImplementedError

    # Saving and loading

    def _identity(self) -> dict[str, Any]:
        """The fields of a record that must be this noise's own."""
        return {
            "stream": STREAM_VERSION, "law": str(self.law), "taps": self.taps,
            "namespace": self.namespace, "relative": self.relative, "hold": self.drawing.hold,
            "draws": self.drawing.per, "antithetic": self.drawing.antithetic,
            "layers": self.drawing.layers,
        }  # fmt: skip

    def _saved_members(self) -> tuple[list[Member], bool]:
        """The members as they are saved, and whether the weights carry their draws."""
        return self.members, True

    def records(self, only: Iterable[int] | None = None) -> list[Record]:
        """What a checkpoint keeps, one record for each param group (or `only` some)."""
        common = self._identity() | self.counting.saved() | {
            "form": self.form, "seed": self.seed, "sigma": self._sigma, "step": self.step_count,
            "paused": self.paused, "scheduled": self._schedule is not None,
            "plateau": self._schedule.state if isinstance(self._schedule, Plateau) else None,
        }  # fmt: skip
        members, carried = self._saved_members()
        indices = range(len(self.together.param_groups)) if only is None else only
        return [
            matching.record_of(common, own, carried, self._samples(own))
            for index in indices
            for own in [[m for m in members if m.group == index]]
        ]

    def _samples(self, members: Sequence[Member]) -> tuple[str, ...]:
        """Elements of the weights by which a resume knows them; () where they are clean."""
        return ()

    def _write(self, mark: saved.Live) -> str:
        self._look_again()
        index = saved.place_of(mark, self.together)  # None: it was taken out, and left clean
        return saved.EXPECTED if index is None else self.records([index])[0].text()

    def _look_again(self) -> None:
        """Find what has changed since the last step, before it is saved."""
        self._catch_up()
        self._relist()

    def _catch_up(self) -> None:
        """Take over what a class that runs no hooks (those of bitsandbytes) has loaded."""
        for optimizer in self.together.if_there or []:
            if saved.is_loaded(optimizer):
                self._before_load(optimizer, {"param_groups": optimizer.param_groups, "state": {}})
                self._load(optimizer)

    def _relist(self) -> None:
        """Take in what the optimizers list now."""
        saved.mark(self.together, self._write)

    def _save(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        self._look_again()
        self._ask_for_reports()
        records = self.records(self.together.span(optimizer))
        for group, record in zip(state_dict["param_groups"], records, strict=True):
            group[saved.KEY] = record.text()

    def _ask_for_reports(self) -> None:
        """Say, once, that a plateau is waited for that nobody reports."""
        if self._is_told_nothing() and self.step_count and not self._has_asked:
            self._has_asked = True
            warnings.warn(
                f"schedule=Plateau was told of no loss in {self.step_count} steps, so there is no "
                f"noise yet: call noise.report(loss) after each epoch",
                stacklevel=4,
            )

    def _is_told_nothing(self) -> bool:
        return isinstance(self._schedule, Plateau) and self._schedule.state[0] is None

    def facts(self, records: Sequence[Record]) -> dict[str, Any]:
        """What all ranks must have alike, with the records that are about to be taken over."""
        return {"noise in the checkpoint": bool(records)} | facts_of(records or self.records())

    def _refuse_load(self) -> None:
        """Refuse where nothing can be loaded now."""

    def _before_load(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        """Refuse, on all ranks if on one, before torch overwrites anything."""
        found: list[Record] = []
        error = None
        try:
            self._refuse_load()
            groups = saved.check_loadable(optimizer, state_dict)
            found = self.checked(groups, self.together.span(optimizer).start)
        except Exception as refusal:
            error = refusal
        agree(error, {} if error else self.facts(found))
        self._pending = found

    def _load(self, optimizer: Optimizer) -> None:
        """Take over what was checked before loading."""
        self._relist()
        if self._pending:
            self.adopt(self._pending, self.together.span(optimizer).start)
        else:
            log.warning(
                "the checkpoint has no noise in it: its weights are taken to be clean, and the "
                "noise begins at step 0"
            )
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Count from 0, with a schedule that was told nothing; of several optimizers, too."""
        self.step_count, self.counting.parts = 0, {}
        if isinstance(self._schedule, Plateau):
            self._schedule = replace(self._schedule, state=Plateau().state)
        self._parting.resumed()
        self.reset()

    # Every step

    def _next_sigmas(self, members: Sequence[Member]) -> list[float]:
        """σ of the next draw of each, 0 where it is another layer's turn."""
        step = self.step_count + 1
        found = self._sigmas_at(step, members)
        if self._schedule == "lr" and not self._has_risen:
            self._check_rise(members)
        if self.drawing.layers == "all":
            return found
        return in_turn(members, found, self.drawing.number(step))

    def _check_rise(self, members: Sequence[Member]) -> None:
        """Say, once, that σ has grown far beyond what was given, with the learning rate."""
        times, first, now = highest_rate(members, self.together)
        if times > MOST_RISE:
            self._has_risen = True
            warnings.warn(
                f"schedule='lr': sigma is now {times:.3g} times what was given, because the "
                f"learning rate began at {first:.3g} and is {now:.3g}. Make OneCycleLR before the "
                f"noise, which is relative to its max_lr then; make the noise before what else "
                f"lowers the rate at first (CyclicLR, a warm-up by hand). A checkpoint goes on as "
                f"it began",
                stacklevel=4,
            )

    def _progress(self) -> dict[str, Any]:
        """What ranks that take the same steps have alike."""
        sigmas = [member.sigmas for member in self.members]
        clock = repr(self.counting.parts)
        return {"step": self.step_count, "clock": clock, "sigma of draws": sigmas}

    # What users call

    @property
    def sigma(self) -> float:
        """The standard deviation (or its ratio to the rms) of the draws to come."""
        return self._sigma

    @sigma.setter
    def sigma(self, value: float) -> None:
        self._sigma = check_sigma(value)

    @property
    def clock(self) -> Clock:
        """Progress along a valley, a number with its `kind`; set it to begin anew."""
        return self.counting.read(self.together, self.members)

    @clock.setter
    def clock(self, value: float) -> None:
        self.counting.restart(value, self.together, self.members)

    @property
    def removable(self) -> bool:
        """Whether clean weights exist: the taps sum to zero."""
        return telescopes(self.taps)

    def injected(self, parameter: Tensor) -> Tensor:
        """The noise between `parameter` and its clean value: w − z."""
        raise NotImplementedError

    def clean(self, recalibrate: Iterable[Any] | None = None) -> AbstractContextManager[None]:
        """A block in which the model is at its clean weights z, whatever mode it is in.

        With `recalibrate`, an iterable of batches, the BatchNorm statistics are estimated anew at z
        and are what they were, after.
        """
        raise NotImplementedError

    def off(self) -> AbstractContextManager[None]:
        """A block without noise."""
        return self.clean()

    def recalibrate(self, batches: Iterable[Any]) -> AbstractContextManager[None]:
        """A block at the clean weights, with BatchNorm statistics that are estimated there.

        Those of training were gathered along noisy weights and do not belong to the clean ones.
        """
        return self.clean(recalibrate=batches)

    def stop(self, remove: bool = True) -> None:
        """End it: the weights are clean, and nothing of the noise acts or is saved any more."""
        raise NotImplementedError

    def _unhook(self) -> None:
        if self._is_told_nothing():
            warnings.warn(
                "schedule=Plateau was never told of a loss, so there was no noise at all: call "
                "noise.report(loss)", stacklevel=3,
            )  # fmt: skip
        for remover in self._removers:
            remover()
        for optimizer in self.together.if_there or []:
            for group in optimizer.param_groups:
                group.pop(saved.KEY, None)
        self.attached = False

    def reset(self) -> None:
        """Say that the weights carry no draw."""
        for member in self.members:
            member.sigmas = [0.0] * (len(self.taps) - 1)

    def rescale(self) -> None:
        """Measure the tensors' root mean squares again, for the draws to come (relative σ)."""
        raise NotImplementedError

    def pause(self) -> None:
        """Draw nothing and count no step until resume(); what was drawn last stays."""
        self.paused = True

    def resume(self) -> None:
        """Go on after pause()."""
        self.paused = False

    def report(self, loss: float) -> bool:
        """Tell `schedule=Plateau(…)` of a loss; whether noise acts from the next step on.

        Report the same number on all ranks, such as the mean over them: it decides their σ.
        """
        if not isinstance(self._schedule, Plateau):
            raise ValueError(
                f"report() is for schedule=antipgd.noise.Plateau(…); this noise has "
                f"schedule={self._schedule!r}"
            )
        return self._schedule.report(loss, self.step_count)

    def _acting(self, members: Sequence[Member], planned: list[float]) -> list[float]:
        """σ of the draws that the next step leads to: those planned, or those that are held."""
        if len(self.taps) < 2 or self.step_count % self.drawing.hold == 0:
            return planned
        return [member.sigmas[0] for member in members]

    def _scheduled_sigma(self) -> float:
        """The largest of the groups' σ after the next step, before `relative` scales it."""
        if len(self.taps) > 1 and self.step_count % self.drawing.hold:
            held = [m.sigmas[0] / m.scale for m in self.members if m.scale > 0]
            return max(held, default=0.0)
        kinds = {(m.group, m.first_lr, m.guest) for m in self.members}
        step = self.step_count + 1
        found = by_group([*kinds], self.together, self._sigma, self._schedule, step)
        return max(found, default=0.0)

    def metrics(self) -> dict[str, float]:
        """What to log at every step: σ of the next draw, as the schedule has it, or of the one that
        is held; the steps counted, the clock, tensors that take noise."""
        return {
            "noise/sigma": self._scheduled_sigma(),
            "noise/step": float(self.step_count),
            "noise/clock": float(self.clock),
            "noise/tensors": float(sum(not member.frozen for member in self.members)),
            "noise/paused": float(self.paused),
        }

    def __reduce__(self) -> tuple[type, tuple]:
        """A copy acts on no optimizer: it is this noise's settings and no more."""
        return DetachedNoise, (
            str(self.law), self.taps, self.seed, self._sigma, self.relative, self.namespace,
            self.step_count, self.clock,
        )  # fmt: skip

    def __repr__(self) -> str:
        how = " relative" if self.relative else ""
        how += f" to each {self.relative}" if isinstance(self.relative, str) else ""
        how += " × schedule" if self._schedule else ""
        how += ", one layer a draw" if self.drawing.layers == "one" else ""
        ended = "" if self.attached else ", stopped"
        title = (
            f"Noise(form={self.form}, law={self.law}, taps={self.taps}, "
            f"sigma={self._sigma}{how}, seed={self.seed}, step={self.step_count}){ended}"
        )
        held = self.together.if_there  # while it is described
        if held is None:
            return f"{title}, whose optimizer is gone"
        return described(title, self.members, self.sigmas(), self.left_out, self.clock)
