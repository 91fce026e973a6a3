"""A finder for σ: one look at a trained point instead of a search.

What noise costs over a grid of σ, all with the same pairs of draws, in answers that it makes wrong
or in loss; the rule that picks one is `theory.finder`'s. Whether the steps one has suffice to fit
under that noise is rehearsed: a few steps of Anti-PGD on a copy. Knows no training loop.
"""

import logging
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from antipgd.checks import number, whole
from antipgd.flatness.draws import Draws, expected_rises
from antipgd.flatness.effective import StabilityWarning
from antipgd.flatness.found import BREAKS, MASKED, FoundSigma
from antipgd.flatness.inputs import Parameters
from antipgd.flatness.judging import Errors
from antipgd.flatness.measuring import measuring
from antipgd.flatness.objective import Loss, Objective
from antipgd.flatness.rehearsing import LOWERED, REHEARSED, UNSTABLE, Rate, rate_of, rehearsal
from antipgd.theory import finder
from antipgd.torch.advice import TriedSigma, Units, drowned
from antipgd.torch.members import rms

log = logging.getLogger("antipgd")
GRID = tuple(np.geomspace(10**-3.5, 10**0.5, 17))  # times the root mean square of all weights
AVERAGED = 10  # steps, over which a cost is averaged


def _scales(objective: Objective, relative: bool) -> Tensor:
    """What σ is multiplied with, element by element, as `attach` does it."""
    scales = [torch.full_like(tensor.detach(), rms(tensor) if relative else 1.0).flatten()
              for tensor in objective.tensors]  # fmt: skip
    return torch.cat(scales)


def _as_tensor(errors: Loss) -> Loss:
    """The same function, where it gives a plain number as well."""

    def share(*batch: Any) -> Tensor:
        return torch.as_tensor(errors(*batch))

    return share


class TooFewStepsWarning(UserWarning):
    """The planned steps will hardly fit the data under this noise."""


@dataclass(frozen=True)
class _Search:
    """What is asked for, checked; `look` answers it."""

    rate: Rate | None
    errors: Loss | bool | None
    share: float
    scale: float | None
    grid: Sequence[float] | None
    relative: bool
    draws: int
    steps: int | None
    seed: int

    def __post_init__(self) -> None:
        number("share", self.share, 0, 1, above=True, closed=True)
        whole("draws", self.draws, 2)
        if self.grid is not None:
            finder.check_grid(self.grid)
        if self.scale is not None:
            number("scale", self.scale, 0, above=True)
        if self.steps is not None:
            whole("steps", self.steps, 1)
        if not (self.errors is None or isinstance(self.errors, bool) or callable(self.errors)):
            raise TypeError(
                f"errors must be a function of a batch, True, False or None; got {self.errors!r}"
            )

    def _judged(self, objective: Objective, loss: Loss) -> tuple[str, Objective, bool]:
        """What is judged, as a function of the weights, and whether the loss may mask answers."""
        if callable(self.errors):
            return "errors", objective.judged_by(_as_tensor(self.errors)), False
        counted = Errors(loss)
        judged = objective.judged_by(counted)
        if self.errors is not False:
            judged.value()
        if self.errors and not counted.seen:
            raise ValueError(
                "errors=True, but the loss calls none of torch's losses of classification: give "
                "errors= a function of a batch, the share of answers that are wrong"
            )
        return ("errors", judged, counted.single) if counted.seen else ("loss", objective, False)

    def look(self, objective: Objective, loss: Loss) -> FoundSigma:
        """The σ, the table it was read from, and the steps it takes."""
        judged, watched, single = self._judged(objective, loss)
        flat, here, scale, grid = objective.flat(), watched.value(), self.scale, self.grid
        if scale is None:
            at_zero = float(watched.values_at(-flat[None], [1.0])[0, 0])
            named = "share of wrong answers" if judged == "errors" else "loss"
            scale = finder.loss_scale(at_zero, here, named)
        if grid is None:
            size = 1.0 if self.relative else rms(flat) or 1.0
            grid = [float(step * size) for step in GRID]
        sigmas = [float(sigma) for sigma in grid]
        drawn = Draws(self.seed, scales=_scales(objective, self.relative))
        costs = expected_rises(watched, sigmas, drawn, self.draws, at=here)
        choice = finder.choose_sigma(sigmas, costs, scale, self.share)
        sigma, steps, left = self._fitting(objective, watched, choice, drawn, here)
        lower = sigma / choice.sigma
        return FoundSigma(
            sigma=TriedSigma(sigma, self.relative, self._units(objective)),
            relative=self.relative,
            low=lower * choice.low, high=lower * choice.high,
            judged=judged, share=self.share, scale=float(scale), here=here,
            loss=objective.steady_value(),
            steps=steps, left=left, planned=self.steps,
            lowered=None if lower == 1 else choice.sigma,
            drowns=self._drowns(objective, sigma), masked=MASKED if single else None,
            rows=tuple((sigma, one, one.mean / scale)
                       for sigma, one in zip(sigmas, costs, strict=True)),
        )  # fmt: skip

    def _units(self, objective: Objective) -> Units:
        """What a relative σ is in units of, so that it can be used in those."""
        if not self.relative:
            return ()
        named = zip(objective.names, objective.tensors, strict=True)
        return tuple((name, tuple(tensor.shape), rms(tensor)) for name, tensor in named)

    def _drowns(self, objective: Objective, sigma: float) -> str | None:
        named = zip(objective.names, objective.tensors, strict=True)
        noisy = [(name, t, sigma * (rms(t) if self.relative else 1.0)) for name, t in named]
        return drowned(noisy, self.relative)

    def _fitting(
        self, objective: Objective, watched: Objective, choice: finder.Choice, drawn: Draws,
        here: float,
    ) -> tuple[float, int | None, float | None]:  # fmt: skip
        """A σ that does not break training; steps that halve its cost; what is left of it."""
        if self.rate is None:
            return choice.sigma, None, None
        for times in LOWERED:
            sigma = times * choice.sigma
            costs = list(rehearsal(objective, watched, sigma, drawn, self.rate, here))
            left = float(np.mean(costs[-REHEARSED // 2 :])) / choice.target
            if left <= UNSTABLE:
                return sigma, finder.first_below(costs, choice.target / 2, AVERAGED), left
        return choice.sigma, None, left  # it is not the noise that breaks training


def find_sigma(
    loss: Loss,
    params: Parameters,
    batches: Iterable[Any] | None = None,
    *,
    errors: Loss | bool | None = None,
    lr: float | None = None,
    momentum: float = 0.0,
    optimizer: Optimizer | None = None,
    steps: int | None = None,
    share: float = finder.FRACTION,
    scale: float | None = None,
    grid: Sequence[float] | None = None,
    relative: bool = False,
    draws: int = 32,
    seed: int = 0,
    batch_norm: str | None = None,
    float64: bool = False,
) -> FoundSigma:
    """The σ that costs a fixed share of chance in what the network is judged by.

    For a network trained without noise, with `loss`, `params`, `batches` and the last options as in
    `at`. A loss that calls torch's cross-entropy (or `nll_loss`, `binary_cross_entropy`, with
    logits or without) is judged by the answers that noise makes wrong: σ where they are `share` of
    those that zero weights get wrong beyond it. Any other is judged by itself: σ where it rises by
    `share` of L(0) − L(w). All answers count but those of `ignore_index`, also where the loss masks
    them out after reduction="none", which the result says. `errors` overrides that: a function of a
    batch (the share of wrong answers in it; an `argmax` names the first class at zero weights,
    where the loss's own count takes one by chance: give `scale` where classes differ in size), or
    False for the loss. `scale` is what there is to lose, in place of what zero weights give less
    that here. The grid is by default 17 σ from 0.0003 to 3 times the root mean square of the
    weights. With `relative` σ is in units of each tensor's own, here: `attach` and `perturb` keep
    those units if they are given what was found (`found` or `found.sigma`). `draws` pairs take 2 ×
    draws × len(grid) passes over the batches. With a learning rate and momentum, given or read from
    `optimizer`, it also rehearses up to 200 steps with that noise and tells after how many its cost
    has halved; if `steps` are planned and fewer, a `TooFewStepsWarning` says so. A σ that breaks
    the rehearsal is lowered; where that does not help, σ is the rule's and a `StabilityWarning`
    says that the learning rate is too large.

    >>> import torch
    >>> u, v = torch.full((50,), 0.2).double(), torch.zeros(1).double()
    >>> found = find_sigma(lambda: v @ v * (u @ u) / 2, [u, v], lr=0.1, scale=1.0)
    >>> print(f"{found.sigma:.1f}", found.steps > 0)  # σ²/2 · (2 + …) = 0.05
    0.2 True
    """
    rate = rate_of(lr, momentum, optimizer)
    search = _Search(rate, errors, share, scale, grid, relative, draws, steps, seed)
    with measuring(loss, params, batches, batch_norm=batch_norm, float64=float64) as objective:
        found = search.look(objective, loss)
    if found.masked:
        log.info("find_sigma: %s", found.masked)
    if found.breaks:
        warnings.warn(BREAKS, StabilityWarning, stacklevel=2)
    if found.enough is False:
        warnings.warn(_too_few(found), TooFewStepsWarning, stacklevel=2)
    return found


def _too_few(found: FoundSigma) -> str:
    needed = f"{found.steps}" if found.steps is not None else f"more than {REHEARSED}"
    return (f"{found.planned:,} steps are too few at sigma {found.sigma:.3g}: it takes {needed} to "
            f"halve what the noise costs; train longer or use a smaller sigma")  # fmt: skip
