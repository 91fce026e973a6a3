"""The handle: noise on one optimizer, by hooks around `step`, `state_dict` and `load_state_dict`.

w ← optimizer's step, then + ε (eq:def_antiPGD). The optimizer stays what it is: nothing of ours is
in its `state`, its class does not change. The injection is added to the weights, never passed
through momentum, moments, clipping or decay.
"""

import logging
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from antipgd.noise import STREAM_VERSION, Law, Schedule
from antipgd.noise.injection import carried_coefficients, check_sigma, injection_coefficients
from antipgd.noise.schedules import factor
from antipgd.noise.taps import Taps, telescopes
from antipgd.torch import saved
from antipgd.torch.adding import Adder
from antipgd.torch.members import Exclude, Member, find_members, group_names, rms
from antipgd.torch.parts import check_ranks_agree, is_sharded, local_part, reshard
from antipgd.torch.recalibration import recalibrated

log = logging.getLogger("antipgd")
ADAPTIVE = (
    torch.optim.Adadelta,
    torch.optim.Adafactor,
    torch.optim.Adagrad,
    torch.optim.RMSprop,
    torch.optim.Rprop,
)
_live: "weakref.WeakSet[Noise]" = weakref.WeakSet()


def attached_noises() -> list["Noise"]:
    """All noise of this process whose optimizer is still there."""
    return [noise for noise in _live if noise.attached and noise._optimizer() is not None]


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
        """Progress along a valley: Σησ²/(1−momentum) for SGD, Σησ for adaptive optimizers."""
        self.attached = False
        self.paused = False
        self._sigma = sigma
        self._schedule, self._exclude, self._model = schedule, exclude, model
        self._inside_clean = False
        self._sigmas: list[float] = []
        self._listed = sum(len(group["params"]) for group in optimizer.param_groups)
        self.members = self._find_members()
        self._adder = Adder(self.members, law)
        self._removers: list[Callable[[], None]] = []
        self._measure()

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer that the noise is attached to."""
        optimizer = self._optimizer()
        if optimizer is None:
            raise ReferenceError("the optimizer of this noise is gone")
        return optimizer

    # Setting up and saving

    def _find_members(self) -> list[Member]:
        names = group_names(self.optimizer, self._model)
        return find_members(
            self.optimizer, names, self._exclude, self.seed, self.namespace, self.taps
        )

    def _measure(self) -> None:
        for member in self.members:
            member.scale = rms(member.parameter) if self.relative else 1.0

    def begin(self) -> None:
        """Hook into the optimizer, and go on from the state that a checkpoint left in it."""
        self._sigmas = [self._sigma_of(member) for member in self.members]
        states = saved.states_of(self.optimizer.param_groups)
        if states:
            self._check_states(states)
        check_ranks_agree(self._agreement(states))
        hooks = [
            self.optimizer.register_step_pre_hook(self._before_step),
            self.optimizer.register_step_post_hook(self._after_step),
            self.optimizer.register_state_dict_post_hook(self._save),
            self.optimizer.register_load_state_dict_pre_hook(self._before_load),
            self.optimizer.register_load_state_dict_post_hook(self._load),
        ]
        self._removers = [hook.remove for hook in hooks]
        self.attached = True
        _live.add(self)
        if states:
            self._load(self.optimizer)
        self._log()

    def _agreement(self, states: Sequence[Any]) -> dict[str, Any]:
        """What all ranks must have alike, with the state that is about to be taken over."""
        agreed = ("version", "law", "taps", "namespace", "relative", "seed", "sigma", "step")
        state = states[0] if states else self._common_state()
        names = [member.name for member in self.members]
        sigmas = [self._sigma_of(member) for member in self.members]
        return {key: state[key] for key in agreed} | {"names": names, "sigma by tensor": sigmas}

    def _log(self) -> None:
        ratios = [
            self._sigma_of(member) / size
            for member in self.members
            if (size := rms(member.parameter)) > 0
        ]
        if not ratios:
            return
        low, middle, high = min(ratios), median(ratios), max(ratios)
        log.info(
            "noise on %d tensors, seed %d: sigma/rms from %.3g to %.3g, median %.3g",
            len(self.members), self.seed, low, high, middle,
        )  # fmt: skip
        if high > 1:
            log.warning(
                "sigma is up to %.3g times the root mean square of a tensor: the noise drowns its "
                "weights; consider a smaller sigma, relative=True or exclude=", high,
            )  # fmt: skip

    def _common_state(self) -> dict[str, Any]:
        return {
            "version": STREAM_VERSION,
            "law": str(self.law),
            "taps": list(self.taps),
            "namespace": self.namespace,
            "relative": self.relative,
            "seed": self.seed,
            "sigma": self._sigma,
            "step": self.step_count,
            "clock": self.clock,
            "paused": self.paused,
        }

    def group_states(self) -> list[dict[str, Any]]:
        """What a checkpoint keeps of the noise, one dictionary for each param group."""
        common = self._common_state()
        return [
            saved.group_state(common, [m for m in self.members if m.group == index])
            for index in range(len(self.optimizer.param_groups))
        ]

    def _save(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        if not self._inside_clean:
            self._refresh_members()
        for group, state in zip(state_dict["param_groups"], self.group_states(), strict=True):
            if self._inside_clean:  # the weights that are saved with it carry nothing
                state["sigmas"] = [[0.0] * len(row) for row in state["sigmas"]]
            group[saved.KEY] = state

    def _check_states(self, states: Sequence[Any]) -> None:
        current = self.group_states()
        if len(states) != len(current):
            raise ValueError(
                f"the checkpoint has {len(states)} param groups with noise, "
                f"this optimizer {len(current)}"
            )
        for state, own in zip(states, current, strict=True):
            saved.check_group_state(state, own)

    def _before_load(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        self._refuse_inside_clean("load_state_dict")
        self._refresh_members()
        states = saved.states_of(state_dict["param_groups"])
        if states:
            self._check_states(states)
        check_ranks_agree(self._agreement(states) | {"noise in the checkpoint": bool(states)})

    def _load(self, optimizer: Optimizer) -> None:
        """Take over the state that loading has left in the live param groups."""
        states = [group.pop(saved.KEY, None) for group in optimizer.param_groups]
        if None in states:
            log.warning("the checkpoint has no noise in it: its weights are taken to be clean")
            self.reset()
            return
        first = states[0]
        if first["seed"] != self.seed:
            self.seed = first["seed"]
            self.members = self._find_members()
        self._sigma, self.step_count = first["sigma"], first["step"]
        self.clock, self.paused = first["clock"], first["paused"]
        for index, state in enumerate(states):
            own = [member for member in self.members if member.group == index]
            for i, member in enumerate(own):
                member.first_lr, member.scale = state["first_lrs"][i], state["scales"][i]
                member.sigmas = list(state["sigmas"][i])
        self._adder = Adder(self.members, self.law)

    # Every step

    def _refresh_members(self) -> None:
        """Take in parameters that the optimizer has got, or let go, since the last step."""
        listed = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        known = {id(member.parameter) for member in self.members}
        if known <= listed and len(listed) == self._listed:
            return
        before = {id(member.parameter): member for member in self.members}
        members = self._find_members()
        for i, member in enumerate(members):
            old = before.pop(id(member.parameter), None)
            if old is not None:
                old.group = member.group
                members[i] = old
            elif self.relative:
                member.scale = rms(member.parameter)
        if self.removable and before:  # let go by the optimizer: leave them clean
            gone = list(before.values())
            carried = [carried_coefficients(self.taps, member.sigmas) for member in gone]
            Adder(gone, self.law).add(self.step_count, [[-c for c in row] for row in carried])
        self.members = members
        self._adder = Adder(members, self.law)
        self._listed = len(listed)

    def _factor(self, member: Member) -> float:
        if self._schedule == "lr":
            if not member.first_lr > 0:
                raise ValueError(
                    f"schedule='lr' follows the learning rate relative to its first value, "
                    f"which must be > 0; got {member.first_lr}"
                )
            return float(self.optimizer.param_groups[member.group]["lr"]) / member.first_lr
        assert not isinstance(self._schedule, str)
        return factor(self._schedule, self.step_count + 1)

    def _sigma_of(self, member: Member) -> float:
        """σ of the member's next draw."""
        own = self.optimizer.param_groups[member.group].get("sigma", self._sigma)
        return check_sigma(own) * self._factor(member) * member.scale

    def _rests(self) -> bool:
        """Whether a step adds nothing: paused, or every learning rate is 0."""
        return self.paused or all(float(g["lr"]) == 0 for g in self.optimizer.param_groups)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Find all that could go wrong before the optimizer moves the weights."""
        if self._rests():
            return
        self._refuse_inside_clean("optimizer.step()")
        started = torch.cuda.is_initialized()
        if started and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "noise cannot be captured in a CUDA graph: every replay would repeat one draw"
            )
        self._refresh_members()
        self._sigmas = [self._sigma_of(member) for member in self.members]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Add ε to every member, with or without a gradient, if the optimizer made a step."""
        if self._rests() or _is_inner_step(optimizer):
            return
        found_inf = getattr(optimizer, "found_inf", None)  # a fused step that GradScaler skips
        if found_inf is not None and float(found_inf) > 0:
            return
        sigmas = [
            [sigma, *member.sigmas]
            for sigma, member in zip(self._sigmas, self.members, strict=True)
        ]
        coefficients = [injection_coefficients(self.taps, row) for row in sigmas]
        self._adder.add(self.step_count + 1, coefficients)
        self.step_count += 1
        for member, row in zip(self.members, sigmas, strict=True):
            member.sigmas = row[: len(self.taps) - 1]
        self._advance_clock([row[0] for row in sigmas])

    def _advance_clock(self, sigmas: Sequence[float]) -> None:
        """Mean progress over all elements that take noise."""
        total = elements = 0.0
        for member, sigma in zip(self.members, sigmas, strict=True):
            group = self.optimizer.param_groups[member.group]
            rate = float(group["lr"])
            adaptive = isinstance(self.optimizer, ADAPTIVE) or "betas" in group
            momentum = float(group.get("momentum", 0) or 0)
            progress = rate * sigma if adaptive else rate * sigma**2 / (1 - momentum)
            total += progress * member.parameter.numel()
            elements += member.parameter.numel()
        self.clock += total / elements if elements else 0.0

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

    def _carried(self) -> list[list[float]]:
        if not self.removable:
            raise ValueError(
                f"taps {self.taps} do not sum to zero: there are no clean weights to go back to"
            )
        return [carried_coefficients(self.taps, member.sigmas) for member in self.members]

    def _member(self, parameter: Tensor) -> Member:
        for member in self.members:
            if member.parameter is parameter:
                return member
        raise KeyError("this parameter takes no noise here")

    def injected(self, parameter: Tensor) -> Tensor:
        """The noise that `parameter` carries now: w − z."""
        member = self._member(parameter)
        coefficients = self._carried()[self.members.index(member)]
        total = torch.zeros_like(parameter.detach())
        Adder([replace(member, parameter=total)], self.law).add(self.step_count, [coefficients])
        return total

    @contextmanager
    def clean(self, recalibrate: Iterable[Any] | None = None) -> Iterator[None]:
        """Inside, the weights are the clean z = w − ξ; after, they are w again, bit for bit.

        With `recalibrate`, an iterable of batches, the BatchNorm statistics are estimated anew at z
        (needs `model=` in attach) and are what they were, after. Costs a copy of the weights.
        """
        self._refuse_inside_clean("clean()")
        coefficients = [[-c for c in row] for row in self._carried()]
        if recalibrate is not None and self._model is None:
            raise ValueError("recalibrate needs the model: attach(..., model=model)")
        if self._model is None and any(is_sharded(member.parameter) for member in self.members):
            warnings.warn(
                "clean() without model=: FSDP2 may go on with weights it gathered before; "
                "give attach(..., model=model)",
                stacklevel=3,
            )
        members = list(self.members)
        kept = [member.parameter.detach().clone() for member in members]
        self._adder.add(self.step_count, coefficients)
        reshard(self._model)
        versions = [local_part(member.parameter)[0]._version for member in members]
        self._inside_clean = True
        try:
            if recalibrate is None:
                yield
            else:
                assert self._model is not None
                with recalibrated(self._model, recalibrate):
                    yield
        finally:
            self._inside_clean = False
            after = [local_part(member.parameter)[0]._version for member in members]
            with torch.no_grad():
                for member, w in zip(members, kept, strict=True):
                    member.parameter.copy_(w)
            reshard(self._model)
            changed = [m.name for m, a, b in zip(members, versions, after, strict=True) if a != b]
            if changed:
                warnings.warn(
                    f"changed inside clean() and set back after it: {', '.join(changed)}",
                    stacklevel=3,
                )

    def stop(self, remove: bool = True) -> None:
        """Take the noise out of the weights (unless `remove=False`) and detach."""
        self._refuse_inside_clean("stop()")
        if not self.attached:
            return
        if remove:
            self._adder.add(self.step_count, [[-c for c in row] for row in self._carried()])
            reshard(self._model)
        self.reset()
        for remover in self._removers:
            remover()
        self.attached = False

    def reset(self) -> None:
        """Say that the weights were just replaced by clean ones: they carry no draw."""
        self._refuse_inside_clean("reset()")
        for member in self.members:
            member.sigmas = [0.0] * (len(self.taps) - 1)

    def rescale(self) -> None:
        """Measure the tensors' root mean squares again, for the draws to come (relative σ)."""
        if not self.relative:
            raise ValueError("rescale() is for relative=True; sigma is absolute here")
        for member in self.members:
            weights = member.parameter.detach()
            inside = self._inside_clean or not self.removable
            member.scale = rms(weights if inside else weights - self.injected(member.parameter))

    def pause(self) -> None:
        """Add nothing and count no step until resume(); the weights keep what they carry."""
        self.paused = True

    def resume(self) -> None:
        """Go on after pause()."""
        self.paused = False

    def __repr__(self) -> str:
        names = {member.name for member in self.members}
        rows = [name for group in group_names(self.optimizer, self._model) for name in group]
        left_out = [name for name in rows if name not in names]
        lines = [
            f"Noise(law={self.law}, taps={self.taps}, sigma={self._sigma}"
            f"{' relative' if self.relative else ''}, seed={self.seed}, step={self.step_count})",
            *(
                f"  {m.name} {tuple(m.parameter.shape)}: sigma {self._sigma_of(m):.3g}"
                for m in self.members
            ),
            f"  excluded: {', '.join(left_out) or 'none'}",
            "  0 bytes per parameter",
        ]
        return "\n".join(lines)


def _is_inner_step(optimizer: Optimizer) -> bool:
    """Whether the hooks run for a `super().step()` inside the optimizer's own step.

    torch then runs them twice, or not, depending on which classes were made before.
    """
    frame, found = sys._getframe(1), 0
    here = Optimizer.profile_hook_step.__code__.co_filename
    while frame is not None:
        code = frame.f_code
        if code.co_name == "wrapper" and code.co_filename == here:
            found += frame.f_locals.get("self") is optimizer
        frame = frame.f_back  # type: ignore[assignment]
    return found > 1
