"""What the noise does while it trains: σ²/2 tr ∇²L, or the expected sharpness, every so many steps.

Measured at z, after the noise's own hook; whatever is measured, training goes on with the same
bits. Draws and probes are the same at every reading, lest they look like change. What is too little
and too much noise is `theory.finder`'s to say. Knows no training loop.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from antipgd.checks import number, one_of, whole
from antipgd.estimate import Estimate
from antipgd.flatness.draws import Draws, expected_rises
from antipgd.flatness.inputs import Parameters, named_tensors
from antipgd.flatness.measuring import measuring
from antipgd.flatness.objective import Loss, Objective
from antipgd.flatness.planning import MIN_PRODUCTS
from antipgd.flatness.state import evaluating
from antipgd.flatness.trace import Trace, measured_trace
from antipgd.noise.injection import carried_coefficients
from antipgd.theory.finder import too_little, too_much
from antipgd.torch import Noise
from antipgd.torch.layers import layers_of
from antipgd.torch.record import ELEMENT
from antipgd.torch.shares import of

QUANTITIES = ("regulariser", "sharpness")
_SHORT = 0.25  # of σ, where the expected sharpness still is of second order


class InertNoiseWarning(UserWarning):
    """The noise adds next to nothing to the loss."""


class ExplosiveNoiseWarning(UserWarning):
    """The noise costs more than there is to learn."""


@dataclass(frozen=True, kw_only=True, repr=False)
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

    def __repr__(self) -> str:
        costs = [f"regulariser {self.regulariser}"]
        if self.sharpness is not None:
            costs.append(f"sharpness {self.sharpness}")
        return (f"Reading(step {self.step}, sigma {self.sigma:.3g}, loss {self.loss:.4g} at z and "
                f"{self.noisy_loss:.4g} at w; {'; '.join(costs)})")  # fmt: skip

    def metrics(self) -> dict[str, float]:
        """For a log: every single number, those with an error also as `…_sem`."""
        found = {"step": self.step, "sigma": self.sigma, "clock": self.clock, "loss": self.loss,
                 "noisy_loss": self.noisy_loss}  # fmt: skip
        for name in ("regulariser", "sharpness", "trace"):
            estimate = getattr(self, name)
            if estimate is not None:
                found |= {name: estimate.mean, f"{name}_sem": estimate.sem}
        return {name: float(value) for name, value in found.items()}


@dataclass(eq=False, kw_only=True, repr=False)
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
        hook = self.noise.optimizers[-1].register_step_post_hook(self._after_step)
        self._remove = hook.remove

    def __repr__(self) -> str:
        return f"Monitor({self.quantity}, every {self.every} steps, last {self.last})"

    def stop(self) -> None:
        """Look no more. The noise stays."""
        self._remove()

    def _sigmas(self) -> dict[str, float]:
        """The standard deviation of what each parameter carries now; where layers take turns, such
        that its square is the mean over a round of them."""
        members, taps = self.noise.members, self.noise.taps
        rows = [member.sigmas for member in members]
        turns = 1
        if self.noise.drawing.layers == "one":
            rows = [[sigma] * (len(taps) - 1) for sigma in self.noise.sigmas()]
            turns = max(1, len(layers_of(members)))
        carried = {id(m.parameter): math.hypot(*carried_coefficients(taps, row)) / math.sqrt(turns)
                   for m, row in zip(members, rows, strict=True)}  # fmt: skip
        return {name: carried.get(id(tensor), 0.0) for name, tensor in self._named.items()}

    def _scales(self, sigmas: dict[str, float]) -> list[Tensor]:
        """σ of every element of each parameter."""
        shared = {id(m.parameter): m.scale if self.noise.relative == ELEMENT else m.shares
                  for m in self.noise.members}  # fmt: skip
        found = []
        for name, tensor in self._named.items():
            part = tensor.detach().double()
            shares = shared.get(id(tensor))
            even = torch.ones_like(part) if shares is None else of(shares, part, None)
            found.append(sigmas[name] * even.expand_as(part))
        return found

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
        each = self._scales(sigmas)
        noise = [self.noise.injected(t) if sigmas[name] else torch.zeros_like(t.detach())
                 for name, t in tensors]  # fmt: skip
        scales, carried = (torch.cat([part.flatten() for part in parts]) for parts in (each, noise))
        sigma = math.sqrt(float(scales.square().sum()) / max(1, int((scales > 0).sum())))
        with warnings.catch_warnings(), self.noise.clean(), evaluating(_module(self.params)):
            warnings.filterwarnings("ignore", "changed inside clean")  # and set back, here, too
            measured = self._measured(sigmas, scales, carried)
        return Reading(step=self.noise.step_count, sigma=sigma, clock=self.noise.clock, **measured)

    def _measured(
        self, sigmas: dict[str, float], scales: Tensor, carried: Tensor
    ) -> dict[str, Any]:
        """From `loss` on, the fields of a reading; all from one setting."""
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
                    costs = self._sharpness(objective, scales, loss)
                else:
                    costs = self._regulariser(objective, sigmas)
                return {"loss": loss, "noisy_loss": noisy, **costs}
        except ValueError:
            if finite:
                raise
            nothing = Estimate(math.nan, math.nan, 1)
            return {"loss": math.nan, "noisy_loss": math.nan, "regulariser": nothing}

    def _regulariser(self, objective: Objective, sigmas: dict[str, float]) -> dict[str, Any]:
        trace = measured_trace(objective, max_probes=self.samples, seed=self.seed)
        weights = {name: sigma**2 / 2 for name, sigma in sigmas.items()}
        return {"regulariser": trace.weighted(weights), "trace": trace}

    def _sharpness(self, objective: Objective, scales: Tensor, loss: float) -> dict[str, Any]:
        """Its second order and itself, from the same pairs of draws."""
        drawn, square = Draws(self.seed, scales=scales), _SHORT**2
        short, sharpness = expected_rises(objective, [_SHORT, 1.0], drawn, self.samples, at=loss)
        second = Estimate(short.mean / square, short.sem / square, short.n)
        return {"regulariser": second, "sharpness": sharpness}

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


def _module(params: Parameters) -> nn.Module | None:
    return params if isinstance(params, nn.Module) else None


def _check_quantity(noise: Noise, quantity: str) -> None:
    """Refuse what would be that of other noise."""
    one_of("quantity", quantity, QUANTITIES)
    if quantity == "regulariser" and isinstance(noise.relative, str):
        raise ValueError(
            f"quantity='regulariser' weighs the traces of tensors, and with relative="
            f"{noise.relative!r} sigma differs within them; use quantity='sharpness', whose "
            f"second order it is"
        )
    if quantity == "sharpness" and noise.drawing.layers == "one":
        raise ValueError(
            "quantity='sharpness' is of noise on all layers at once, and with layers='one' they "
            "take turns; use quantity='regulariser', the mean over their turns"
        )


def _check_noise(noise: Noise, params: Parameters) -> None:
    """Refuse noise that cannot be monitored, or of other parameters."""
    if not isinstance(noise, Noise):
        raise TypeError(f"noise must be what attach() returned; got {type(noise).__name__}")
    if not noise.attached:
        raise ValueError("the noise was stopped; attach() anew before monitoring it")
    if not noise.removable:
        raise ValueError(f"taps {noise.taps} do not sum to zero: there is no z to measure at")
    named = {id(tensor) for tensor in named_tensors(params).values()}
    for member in noise.members:
        if id(member.parameter) not in named and not member.frozen:
            raise ValueError(f"parameter {member.name!r} takes noise, but is not in params")


def _loss_at_zero(
    loss: Loss, params: Parameters, batches: Iterable[Any] | None, options: dict[str, Any]
) -> float:
    """The loss with all weights at zero, as a scale."""
    with (
        evaluating(_module(params)),
        measuring(loss, params, batches, **options) as objective,
    ):
        scale = float(objective.values_at(-objective.flat()[None], [1.0])[0, 0])
    if not 0 < scale < math.inf:
        raise ValueError(f"the loss with all weights at zero, {scale:.4g}, is no scale; give "
                         f"scale= a loss > 0 to compare with")  # fmt: skip
    return scale


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

    `loss`, `params`, `batches` and the options are those of `at`; a few batches will do. A module
    is measured in evaluation mode. "regulariser" costs up to `max_probes` products with the
    Hessian, "sharpness" 4 × `draws` passes over the batches. Where σ differs within a tensor
    (relative="filter" or "element") only the sharpness is measured, where layers take turns only
    the regulariser, as a mean over their turns. `scale` is the loss that warnings
    compare with, by default that of the model with all weights at zero. What the callback raises
    ends the training step, with weights, gradients and generators as they were. `stop()` ends it.
    """
    if isinstance(batches, Iterator):
        raise ValueError("batches can be gone through only once; pass list(batches)")
    params = list(params) if isinstance(params, Iterator) else params
    _check_noise(noise, params)
    if not callable(callback):
        raise TypeError(f"callback must be a function of a Reading; got {callback!r}")
    _check_quantity(noise, quantity)
    size = sum(tensor.numel() for tensor in named_tensors(params).values())
    probes = whole("max_probes", max_probes, min(MIN_PRODUCTS["auto"], size))
    options: dict[str, Any] = {"batch_norm": batch_norm, "float64": float64}
    return Monitor(
        noise=noise, loss=loss, params=params, batches=batches, callback=callback,
        every=whole("every", every, 1), quantity=quantity, options=options, seed=seed,
        samples=whole("draws", draws, 2) if quantity == "sharpness" else probes,
        scale=number("scale", _loss_at_zero(loss, params, batches, options)
                     if scale is None else scale, 0, above=True),
    )  # fmt: skip
