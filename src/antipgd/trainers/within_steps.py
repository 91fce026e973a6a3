"""Noise that acts within training steps only: what callbacks of all trainers share.

Between two steps the model is at its clean weights z, in either form: whatever a trainer does there
(validate, save, average, export) it does at z. With noise in the weights, the noisy ones stand in
the model from `open` to `close`. They are saved beside the clean ones, in the optimizer's state, so
that training resumes with their bits. Knows no host.
"""

import inspect
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from antipgd.checks import nearest, one_of
from antipgd.noise.injection import check_sigma
from antipgd.torch import Noise, attach, perturb
from antipgd.torch.advice import number_of
from antipgd.torch.left_behind import leave_on_purpose
from antipgd.torch.members import Member
from antipgd.torch.parts import is_sharded
from antipgd.torch.saved import KEY

FORMS: dict[str, Callable[..., Noise]] = {"forward": perturb, "weights": attach}
NOISY = "antipgd_noisy"
"""Where a param group of a saved optimizer has its noisy weights."""


class NoiseWithinSteps:
    """One training's noise; `noise` is the handle from `begin` to `end`."""

    def __init__(self, sigma: float, form: str, settings: dict[str, Any]) -> None:
        self.form = one_of("form", form, FORMS)
        sigma = number_of(sigma)
        check_sigma(sigma)
        self.sigma = sigma  # as it is: one that was found is not warned of
        self.settings = _checked(form, settings)
        self.noise: Noise | None = None
        self._clean: AbstractContextManager[None] | None = None  # entered between steps
        self._z: list[Tensor] = []  # as the last step left it; with noise in the weights
        self._rests = False
        self._hook: Any = None

    def begin(self, model: torch.nn.Module, optimizers: Sequence[Optimizer]) -> None:
        """Make the noise, whose steps are those of the optimizers, and end an earlier one."""
        self.end()
        if self.form == "forward":
            self.noise = perturb(model, optimizers, self.sigma, **self.settings)
            return
        if len(optimizers) != 1:
            raise ValueError(
                f"form='weights' takes one optimizer; got {len(optimizers)}: use form='forward'"
            )
        self.noise = attach(optimizers[0], self.sigma, model=model, **self.settings)
        if self.noise.removable:
            self._hook = self.noise.optimizer.register_state_dict_post_hook(self._save)

    @property
    def _acting(self) -> Noise | None:
        """The noise, unless it has ended: a host may go on to call, with another model."""
        return self.noise if self.noise is not None and self.noise.attached else None

    @property
    def _members(self) -> list[Member]:
        return [] if self.noise is None else self.noise.members

    def _weights(self) -> list[Tensor]:
        return [member.parameter.detach().clone() for member in self._members]

    # Steps

    def open(self) -> None:
        """Let the noise act: a step begins."""
        self._rest_no_more()
        if self._clean is not None:
            self._leave()

    def close(self) -> None:
        """Be at the clean weights: a step is over. Without them (taps) nothing happens."""
        noise = self._acting
        if self._clean is None and noise is not None and noise.removable:
            self._enter(noise)

    def rest(self) -> None:
        """Stay at the clean weights, and count no step, until the next one is opened."""
        self.close()
        noise = self._acting
        if noise is not None and not noise.paused:
            self._rests = True
            noise.pause()

    def _rest_no_more(self) -> None:
        if self._rests and self.noise is not None:
            self.noise.resume()
        self._rests = False

    def _enter(self, noise: Noise) -> None:
        self._clean = noise.clean()
        self._clean.__enter__()
        if self.form == "weights":
            self._z = self._weights()

    def _leave(self) -> None:
        """Be at w again, bit for bit unless something was written between steps."""
        assert self._clean is not None
        clean, self._clean = self._clean, None
        pairs = zip(self._members, self._z, strict=True) if self.form == "weights" else ()
        written = [(m.parameter, m.parameter.detach().clone())
                   for m, z in pairs if not torch.equal(m.parameter, z)]  # fmt: skip
        self._z = []
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "changed inside clean")  # it is put on again
            clean.__exit__(None, None, None)
        if written:
            self._put_on(written)

    @torch.no_grad()
    def _put_on(self, written: Sequence[tuple[Tensor, Tensor]]) -> None:
        """What was written (clipped, loaded) is the new z: w = z + ξ."""
        noise: Any = self.noise
        for w, z in written:
            w.copy_(z + noise.injected(w))
        noise.vouch()

    # Checkpoints

    def _save(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Beside the record of clean weights: the noisy ones, and the record of what they carry."""
        noise = self.noise
        if self._clean is None or noise is None or self._is_sharded():
            return  # within a step weights and record are those of `attach`
        self._leave()
        records = noise.records()
        noisy = list(zip((m.group for m in noise.members), self._weights(), strict=True))
        self._enter(noise)
        for index, (group, record) in enumerate(zip(state["param_groups"], records, strict=True)):
            own = [weights for number, weights in noisy if number == index]
            group[NOISY] = {"noise": record.text(), "weights": own}

    def _is_sharded(self) -> bool:
        return any(is_sharded(member.parameter) for member in self._members)

    def resume(self) -> None:
        """Go on with the noisy weights of a checkpoint, if it has some; call it once all is loaded.

        Where the model's weights are not those that were saved with them, these are taken as clean.
        """
        noise = self.noise
        if noise is None:
            return
        groups = noise.together.param_groups
        saved = [group.pop(NOISY, None) for group in groups]
        if self.form == "forward" or not all(isinstance(one, dict) for one in saved):
            return
        self.open()
        before, z = noise.records(), self._weights()
        told = [{**group, KEY: one["noise"]} for group, one in zip(groups, saved, strict=True)]
        records = noise.checked(told)
        noisy = [weights for one in saved for weights in one["weights"]]
        if [weights.shape for weights in noisy] != [weights.shape for weights in z]:
            raise ValueError("the checkpoint's noisy weights are not of this model's shapes")
        self._write(noisy)
        noise.adopt(records)
        with noise.clean():
            same = all(map(torch.equal, (m.parameter for m in noise.members), z))
        if not same:
            self._write(z)
            noise.adopt(before)
            warnings.warn(
                "the model's weights are not those that were saved with the optimizer: they are "
                "taken as clean, without the noise that the saved ones carried",
                stacklevel=3,
            )

    @torch.no_grad()
    def _write(self, weights: Sequence[Tensor]) -> None:
        for member, value in zip(self._members, weights, strict=True):
            member.parameter.copy_(value)

    # The end

    def end(self) -> None:
        """Stop: the weights are what they were between the steps, also if they were replaced there.

        The optimizer keeps the record, so that a checkpoint made after the end resumes, too.
        """
        noise = self._acting
        if noise is None:
            return
        self._rest_no_more()
        self.close()
        records = noise.records()
        weights = self._weights()
        if self._clean is not None:
            self._leave()
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if self.form == "weights":
            noise.stop(remove=False)
            self._write(weights)
        else:
            noise.stop()
        for group, record in zip(noise.together.param_groups, records, strict=True):
            group[KEY] = record.text()
        for optimizer in noise.optimizers:
            leave_on_purpose(optimizer)


def _checked(form: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings, refused by name where the form does not take them."""
    parameters = inspect.signature(FORMS[form]).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "model"]
    for name in settings:
        if name not in known:
            raise TypeError(f"form={form!r} takes no {name!r}; {nearest(name, known)}")
    return settings
