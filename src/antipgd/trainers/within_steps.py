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
        self.sigma = check_sigma(sigma)
        self.settings = _checked(form, settings)
        self.noise: Noise | None = None
        self._clean: AbstractContextManager[None] | None = None  # entered between steps
        self._versions: list[int] = []
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
    def _members(self) -> list[Member]:
        return [] if self.noise is None else self.noise.members

    # Steps

    def open(self) -> None:
        """Let the noise act: a step begins."""
        self._rest_no_more()
        if self._clean is not None:
            self._leave()

    def close(self) -> None:
        """Be at the clean weights: a step is over. Without them (taps) nothing happens."""
        if self._clean is None and self.noise is not None and self.noise.removable:
            self._enter(self.noise)

    def rest(self) -> None:
        """Stay at the clean weights, and count no step, until the next one is opened."""
        self.close()
        if self.noise is not None and not self.noise.paused:
            self._rests = True
            self.noise.pause()

    def _rest_no_more(self) -> None:
        if self._rests and self.noise is not None:
            self.noise.resume()
        self._rests = False

    def _enter(self, noise: Noise) -> None:
        self._clean = noise.clean()
        self._clean.__enter__()
        self._versions = [member.parameter._version for member in noise.members]

    def _leave(self) -> None:
        """Be at w again; what was written between steps (clipped, loaded) is the new z."""
        assert self._clean is not None
        clean, self._clean = self._clean, None
        if self.form == "forward":
            clean.__exit__(None, None, None)
            return
        pairs = zip((m.parameter for m in self._members), self._versions, strict=True)
        written = [(w, w.detach().clone()) for w, version in pairs if w._version != version]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "changed inside clean")  # it is put on again
            clean.__exit__(None, None, None)
        self._put_on(written)

    @torch.no_grad()
    def _put_on(self, written: Sequence[tuple[Tensor, Tensor]]) -> None:
        """w = z + ξ where z is another one now; where it is the same, w keeps its bits."""
        noise: Any = self.noise
        others = [(w, z, noise.injected(w)) for w, z in written]
        others = [(w, z, xi) for w, z, xi in others if not torch.equal(w - xi, z)]
        for w, z, xi in others:
            w.copy_(z + xi)
        if others:
            noise.vouch()

    # Checkpoints

    def _save(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Beside the record of clean weights: the noisy ones, and the record of what they carry."""
        noise = self.noise
        if self._clean is None or noise is None or self._is_sharded():
            return  # within a step weights and record are those of `attach`
        self._leave()
        records = noise.records()
        noisy = [(m.group, m.parameter.detach().clone()) for m in noise.members]
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
        before, z = noise.records(), [m.parameter.detach().clone() for m in noise.members]
        told = [{**group, KEY: one["noise"]} for group, one in zip(groups, saved, strict=True)]
        records = noise.checked(told)
        self._write([weights for one in saved for weights in one["weights"]])
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
        noise = self.noise
        if noise is None or not noise.attached:
            return
        self._rest_no_more()
        self.close()
        records = noise.records()
        weights = [member.parameter.detach().clone() for member in noise.members]
        if self._clean is not None:
            self._leave()
        if self._hook is not None:
            self._hook.remove()
        if self.form == "weights":
            noise.stop(remove=False)
            self._write(weights)
        else:
            noise.stop()
        for group, record in zip(noise.together.param_groups, records, strict=True):
            group[KEY] = record.text()


def _checked(form: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings, refused by name where the form does not take them."""
    parameters = inspect.signature(FORMS[form]).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "model"]
    for name in settings:
        if name not in known:
            raise TypeError(f"form={form!r} takes no {name!r}; {nearest(name, known)}")
    return settings
