"""What the noise does while it trains: σ²/2 tr ∇²L, or the expected sharpness, every so many steps.

Measured at z, after the noise's own hook; whatever is measured, training goes on with the same
bits. Draws and probes are the same at every reading, lest they look like change. What is too little
and too much noise is `theory.finder`'s to say. Knows no training loop.
"""

import math
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from antipgd.estimate import Estimate
from antipgd.flatness.inputs import Parameters, named_tensors
from antipgd.flatness.measuring import measuring
from antipgd.flatness.objective import Loss, Objective
from antipgd.flatness.planning import MIN_PRODUCTS
from antipgd.flatness.probes import SHARPNESS
from antipgd.flatness.trace import Trace, hessian_trace
from antipgd.noise.injection import carried_coefficients
from antipgd.theory.finder import check_scale, check_whole, too_little, too_much
from antipgd.torch import Noise

QUANTITIES = ("regulariser", "sharpness")
_SHORT = 0.25  # of σ, where the expected sharpness still is of second order


class InertNoiseWarning(UserWarning):
    """The noise adds next to nothing to the loss."""


class ExplosiveNoiseWarning(UserWarning):
    """The noise costs more than there is to learn."""


@dataclass(frozen=True)
class Reading:
    """One look at the noise, after a step.

    `sigma` is the root mean square over the elements that take noise, `loss` is L(z), `noisy_loss`
    L(w). `regulariser` is σ²/2 tr ∇²L at z, with several σ the sum over tensors; `sharpness` is
    E L(z + σξ) − L(z) where that is watched, and the regulariser then 16 times the same at σ/4.
    """

    step: int
    sigma: float
    clock: float
    loss: float
    noisy_loss: float
    regulariser: Estimate
    sharpness: Estimate | None = None
    trace: Trace | None = None

    @property
    def cost(self) -> Estimate:
        """What the noise adds to the loss, by what is watched."""
        return self.regulariser if self.sharpness is None else self.sharpness


@dataclass(eq=False)
class Monitor:
    """Looks at the noise every so many steps; made by `monitor`. `last` is the newest reading."""

    noise: Noise
    loss: Loss
    params: Parameters
    batches: Iterable[Any] | None
    every: int
    callback: Callable[[Reading], object]
    quantity: str
    samples: int  # products or draws
    scale: float
    options: dict[str, Any]
    seed: int
    last: Reading | None = None

    def __post_init__(self) -> None:
        self._named = named_tensors(self.params)
        self._warned: set[type[Warning]] = set()
        self._counted = self.noise.step_count
        hook = self.noise.optimizer.register_step_post_hook(self._after_step)
        self._remove = hook.remove

    def stop(self) -> None:
        """Look no more. The noise stays."""
        self._remove()

    def _sigmas(self) -> dict[str, float]:
        """The standard deviation of what each parameter carries now."""
        taps = self.noise.taps
        carried = {id(m.parameter): math.hypot(*carried_coefficients(taps, m.sigmas))
                   for m in self.noise.members}  # fmt: skip
        return {name: carried.get(id(tensor), 0.0) for name, tensor in self._named.items()}

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Registered after the noise's own hook, so the step has its noise already."""
        if self.noise.step_count == self._counted:  # inner or skipped step, paused or stopped
            return
        self._counted = self.noise.step_count
        if self._counted % self.every == 0:
            self.last = self._read()
            self._warn(self.last)
            self.callback(self.last)

    def _read(self) -> Reading:
        sigmas, tensors = self._sigmas(), self._named.items()
        each = [torch.full_like(t.detach(), sigmas[name], dtype=torch.float64)
                for name, t in tensors]  # fmt: skip
        noise = [self.noise.injected(t) if sigmas[name] else torch.zeros_like(t.detach())
                 for name, t in tensors]  # fmt: skip
        scales, carried = (torch.cat([part.flatten() for part in parts]) for parts in (each, noise))
        sigma = math.sqrt(float(scales.square().sum()) / max(1, int((scales > 0).sum())))
        with warnings.catch_warnings(), self.noise.clean(), _evaluating(self.params):
            warnings.filterwarnings("ignore", "changed inside clean")  # and set back, here, too
            measured = self._measured(sigmas, scales, carried)
        return Reading(self.noise.step_count, sigma, self.noise.clock, *measured)

    def _measured(
        self, sigmas: dict[str, float], scales: Tensor, carried: Tensor
    ) -> tuple[Any, ...]:
        """From `loss` on, the fields of a reading."""
        finite = True

        def watched(*batch: Any) -> Tensor:
            nonlocal finite
            value = self.loss(*batch)
            finite = bool(torch.isfinite(value.detach()).all())
            return value

        try:
            with measuring(watched, self.params, self.batches, **self.options) as objective:
                loss = objective.value()
                noisy = float(objective.values_at(carried.to(objective.dtype)[None], [1.0])[0, 0])
                if self.quantity == "sharpness":
                    return loss, noisy, *self._sharpness(objective, scales, loss)
        except ValueError:
            if finite:
                raise
            return math.nan, math.nan, Estimate(math.nan, math.nan, 1)
        trace = hessian_trace(
            self.loss, self.params, self.batches, max_probes=self.samples, seed=self.seed,
            **self.options,
        )  # fmt: skip
        weights = {name: sigma**2 / 2 for name, sigma in sigmas.items()}
        return loss, noisy, trace.weighted(weights), None, trace

    def _sharpness(
        self, objective: Objective, scales: Tensor, loss: float
    ) -> tuple[Estimate, Estimate]:
        """Its second order and itself, from the same pairs of draws."""
        rows, parts = objective.rows_at_once(matrices=3), []
        probes = objective.probes(self.seed, "gaussian")
        for first in range(0, self.samples, rows):
            v = probes.rows(SHARPNESS, first, min(rows, self.samples - first)).mul_(scales)
            values = objective.values_at(v, [_SHORT, -_SHORT, 1.0, -1.0])
            parts.append(values.reshape(len(v), 2, 2).mean(axis=2) - loss)
        short, whole = (Estimate.of(column) for column in np.concatenate(parts).T)
        rounding, square = float(torch.finfo(objective.dtype).eps) * abs(loss), _SHORT**2
        second = short.mean / square, math.hypot(short.sem, rounding) / square, short.n
        return Estimate(*second), Estimate(whole.mean, math.hypot(whole.sem, rounding), whole.n)

    def _warn(self, reading: Reading) -> None:
        """Once each, and nothing of a σ that is zero on purpose."""
        second = None if reading.sharpness is None else reading.regulariser
        much = too_much(reading.loss, reading.noisy_loss, reading.cost, second, self.scale)
        little = too_little(reading.cost, self.scale) if reading.sigma > 0 else None
        category = ExplosiveNoiseWarning if much else InertNoiseWarning
        if (much or little) and category not in self._warned:
            self._warned.add(category)
            what = f"the noise is {'explosive' if much else 'inert'} at step {reading.step}, "
            warnings.warn(
                f"{what}sigma {reading.sigma:.3g}: {much or little}", category, stacklevel=5
            )


@contextmanager
def _evaluating(params: Parameters) -> Generator[None]:
    """A module in evaluation mode, as one measures it."""
    parts = params.modules() if isinstance(params, nn.Module) else ()
    modes = [(part, part.training) for part in parts]
    try:
        for part, _ in modes:
            part.training = False
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def monitor(
    noise: Noise,
    loss: Loss,
    params: Parameters,
    batches: Iterable[Any] | None = None,
    *,
    every: int,
    callback: Callable[[Reading], object],
    quantity: str = "regulariser",
    max_probes: int = 96,
    draws: int = 32,
    scale: float | None = None,
    seed: int = 0,
    batch_norm: str | None = None,
    float64: bool = False,
) -> Monitor:
    """Call `callback` with a `Reading` after every `every`-th counted step of the noise.

    `loss`, `params`, `batches` and the options are those of `hessian_trace`; a few batches will do.
    A module is measured in evaluation mode. "regulariser" costs up to `max_probes` products with
    the Hessian, "sharpness" 4 × `draws` passes over the batches. `scale` is the loss that warnings
    compare with, by default that of the model with all weights at zero. What the callback raises
    ends the training step, with weights, gradients and generators as they were. `stop()` ends it.
    """
    if not isinstance(noise, Noise):
        raise TypeError(f"noise must be what attach() returned; got {type(noise).__name__}")
    if not noise.attached:
        raise ValueError("the noise was stopped; attach() anew before monitoring it")
    if not noise.removable:
        raise ValueError(f"taps {noise.taps} do not sum to zero: there is no z to measure at")
    if not callable(callback):
        raise TypeError(f"callback must be a function of a Reading; got {callback!r}")
    if quantity not in QUANTITIES:
        raise ValueError(f"quantity must be one of {', '.join(QUANTITIES)}; got {quantity!r}")
    if isinstance(batches, Iterator):
        raise ValueError("batches can be gone through only once; pass list(batches)")
    params = list(params) if isinstance(params, Iterator) else params
    named = {id(tensor): tensor.numel() for tensor in named_tensors(params).values()}
    for member in noise.members:
        if id(member.parameter) not in named and not member.frozen:
            raise ValueError(f"parameter {member.name!r} takes noise, but is not in params")
    probes = check_whole("max_probes", max_probes, min(MIN_PRODUCTS["auto"], sum(named.values())))
    samples = check_whole("draws", draws, 2) if quantity == "sharpness" else probes
    check_whole("every", every, 1)
    options: dict[str, Any] = {"batch_norm": batch_norm, "float64": float64}
    if scale is None:
        with _evaluating(params), measuring(loss, params, batches, **options) as objective:
            scale = float(objective.values_at(-objective.flat()[None], [1.0])[0, 0])
        if not 0 < scale < math.inf:
            raise ValueError(f"the loss with all weights at zero, {scale:.4g}, is no scale; give "
                             f"scale= a loss > 0 to compare with")  # fmt: skip
    return Monitor(
        noise, loss, params, batches, every, callback, quantity, samples, check_scale(scale),
        options, seed,
    )  # fmt: skip
