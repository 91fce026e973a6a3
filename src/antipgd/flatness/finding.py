"""A finder for σ: one look at a trained point instead of a search.

What noise costs over a grid of σ, all with the same pairs of draws, in answers that it makes wrong
or in loss; the rule that picks one is `theory.finder`'s. Whether the steps one has suffice to fit
under that noise is rehearsed: a few steps of Anti-PGD on a copy. Knows no training loop.
"""

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from antipgd.checks import number, whole
from antipgd.estimate import Estimate
from antipgd.flatness.draws import Draws, expected_rises
from antipgd.flatness.effective import StabilityWarning
from antipgd.flatness.inputs import Parameters
from antipgd.flatness.judging import Errors
from antipgd.flatness.measuring import measuring
from antipgd.flatness.objective import Loss, Objective
from antipgd.theory import finder
from antipgd.torch.advice import drowned
from antipgd.torch.kinds import SGD, kind_of
from antipgd.torch.members import rms

GRID = tuple(np.geomspace(10**-3.5, 10**0.5, 17))  # times the root mean square of all weights
REHEARSED, AVERAGED = 200, 10  # steps, and over how many a cost is averaged
UNSTABLE = 2.0  # times its first cost, at which noise has not been learned but has broken learning
LOWERED = tuple(2 ** (-k / 2) for k in range(11))  # what an unstable σ is multiplied with
_BREAKS = (
    f"training breaks at this learning rate, also with noise {1 / LOWERED[-1]:.0f} times smaller: "
    f"lower it"
)


class TooFewStepsWarning(UserWarning):
    """The planned steps will hardly fit the data under this noise."""


@dataclass(frozen=True, kw_only=True, repr=False)
class FoundSigma:
    """The σ to begin with, and what it was read from.

    `judged` is "errors", the share of answers that are wrong, or "loss". σ costs `share` of
    `scale`, which is that of zero weights less `here`; `low` and `high` bound it by the error of
    the cost. `rows` are (σ, cost, its share of `scale`) for each σ of the grid, `table` is that in
    print. `steps` is how many steps of Anti-PGD from here, rehearsed with full gradients, halve
    that cost; None if 200 did not; `left` of it is left in the last half of them. Both are None
    without a learning rate and for other optimizers than SGD. `enough` says whether the planned
    steps are as many, the fewest that training anew may take. `lowered` is the σ of the rule where
    its noise broke the rehearsal, which that of `sigma` does not; else None. `breaks` says that
    noise 32 times smaller broke it as well, so that the learning rate is at fault.
    `drowns` is what `attach` and `perturb` warn of, if they would at these weights.
    """

    sigma: float
    low: float
    high: float
    relative: bool
    judged: str
    share: float
    scale: float
    here: float
    loss: float
    rows: tuple[tuple[float, Estimate, float], ...]
    steps: int | None
    left: float | None
    planned: int | None
    lowered: float | None
    drowns: str | None

    @property
    def breaks(self) -> bool:
        """Whether training breaks at this learning rate, however small the noise."""
        return self.left is not None and self.left > UNSTABLE

    @property
    def enough(self) -> bool | None:
        """Whether the planned steps suffice; None where that is not known."""
        if self.planned is None or self.left is None or self.breaks:
            return None
        if self.steps is None:
            return False if self.planned <= REHEARSED else None
        return self.planned >= self.steps

    @property
    def table(self) -> str:
        """What was measured and found, in lines of text."""
        lines = [f"{'sigma':>10}  {self.judged + ' +':>10}  {'95 % interval':>22}  {'of scale':>8}"]
        for sigma, cost, share in self.rows:
            low, high = cost.interval()
            interval = f"[{low:.3g}, {high:.3g}]"
            lines.append(f"{sigma:10.3g}  {cost.mean:10.3g}  {interval:>22}  {share:8.2g}")
        return "\n".join([*lines, *self._summary])

    @property
    def _summary(self) -> list[str]:
        lines = [f"{self._title} [{self.low:.3g}, {self.high:.3g}]", self._cost]
        if self.lowered is not None:
            lines = [f"{self._title}, lowered from {self.lowered:.3g}", "which breaks training at "
                     "this learning rate; a smaller one takes more noise"]  # fmt: skip
        if self.left is not None:
            lines.append(f"{self._rehearsed}{self._plan}")
        return lines if self.drowns is None else [*lines, self.drowns]

    @property
    def _cost(self) -> str:
        if self.judged == "errors":
            rise = self.share * self.scale
            return f"there {rise:.1%} more answers are wrong than the {self.here:.1%} without noise"
        return (
            f"there the loss is higher by {self.share:g} of {self.scale:.3g}, from {self.here:.3g}"
        )

    @property
    def _rehearsed(self) -> str:
        if self.breaks:
            return _BREAKS
        if self.steps is not None and self.lowered is not None:
            return f"{self.steps} steps from here bring it to half of what the rule allows"
        if self.steps is not None:
            return f"{self.steps} steps from here halve that"
        return f"in {REHEARSED} steps from here it came to {self.left:.0%} of its cost"

    @property
    def _plan(self) -> str:
        if self.enough is None:
            return ""
        return f": the {self.planned:,} planned are {'enough' if self.enough else 'too few'}"

    def __repr__(self) -> str:
        return f"FoundSigma({'; '.join(self._summary)})"

    def __str__(self) -> str:
        return "\n".join(self._summary)

    def metrics(self) -> dict[str, float]:
        """For a log: every single number, without those that are not known."""
        found = {"sigma": self.sigma, "sigma_low": self.low, "sigma_high": self.high,
                 self.judged: self.here, "loss": self.loss, "scale": self.scale,
                 "share": self.share, "steps": self.steps, "left": self.left}  # fmt: skip
        return {name: float(value) for name, value in found.items() if value is not None}

    @property
    def _title(self) -> str:
        return f"{'relative sigma' if self.relative else 'sigma'} {self.sigma:.3g}"

    def plot(self) -> Any:
        """The table as a matplotlib figure."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError("plot() needs matplotlib: pip install 'antipgd[paper]'") from error
        shown = [(s, one) for s, one, _ in self.rows if 0 < one.mean < math.inf]
        means = [one.mean for _, one in shown]
        reach = [one.mean - one.interval()[0] for _, one in shown]
        figure = Figure(figsize=(5, 3.4), layout="constrained")
        axes = figure.subplots()
        axes.errorbar([s for s, _ in shown], means, reach, fmt="o-", capsize=2)
        axes.axhline(self.share * self.scale, color="grey", linestyle="--")
        axes.axvline(self.sigma, color="grey", linestyle="--")
        judged = "answers made wrong" if self.judged == "errors" else "expected sharpness"
        axes.set(xscale="log", yscale="log", xlabel="sigma", ylabel=judged)
        axes.set_title(f"{self.share:g} of {self.scale:.3g} at {self._title}")
        return figure


def _scales(objective: Objective, relative: bool) -> Tensor:
    """What σ is multiplied with, element by element, as `attach` does it."""
    scales = [torch.full_like(tensor.detach(), rms(tensor) if relative else 1.0).flatten()
              for tensor in objective.tensors]  # fmt: skip
    return torch.cat(scales)


@dataclass(frozen=True)
class Rate:
    """The options of SGD that a rehearsal follows."""

    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False

    def move(self, velocity: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The velocity after a step with this gradient, and how far the weights go."""
        velocity = self.momentum * velocity + (1 - self.dampening) * gradient
        ahead = gradient + self.momentum * velocity if self.nesterov else velocity
        return velocity, self.lr * ahead


def _of_group(group: dict[str, Any]) -> Rate:
    """Of a param group of SGD, which looks at dampening only where there is momentum."""
    momentum = float(group.get("momentum") or 0)
    dampening = float(group.get("dampening") or 0) if momentum else 0.0
    return Rate(float(group["lr"]), momentum, dampening, bool(group.get("nesterov")))


def _rate(lr: float | None, momentum: float, optimizer: Optimizer | None) -> Rate | None:
    """None where it is not known, or for another optimizer than SGD."""
    if lr is not None and optimizer is not None:
        raise ValueError(f"give lr= or optimizer=, not both; got lr={lr!r}")
    if optimizer is not None:
        if kind_of(optimizer) is not SGD:  # whose steps can be rehearsed
            return None
        rates = list(dict.fromkeys(map(_of_group, optimizer.param_groups)))
        if len(rates) > 1:
            raise ValueError(
                f"param groups differ in (lr, momentum) or in how it is used, {rates}: give lr= "
                f"instead"
            )
        lr, momentum = rates[0].lr, rates[0].momentum
    number("momentum", momentum, 0, 1)
    if lr is None:
        return None
    number("lr", lr, 0, above=True)
    return Rate(lr, momentum) if optimizer is None else rates[0]


def _rehearsal(
    objective: Objective, watched: Objective, sigma: float, draws: Draws, rate: Rate, here: float
) -> Iterator[float]:
    """What the noise costs, step by step of Anti-PGD from here: z ← z − η·velocity(∇L(z + ξ)).

    Ends where that is not finite: it would stay so.
    """
    z = velocity = torch.zeros_like(objective.flat())
    for step in range(REHEARSED):
        noisy = z + sigma * draws.directions(objective, step, 1)[0]
        cost = float(watched.values_at(noisy[None], [1.0])[0, 0]) - here
        yield cost
        if not math.isfinite(cost):
            return
        velocity, way = rate.move(velocity, objective.gradient_at(noisy))
        z = z - way


def _as_tensor(errors: Loss) -> Loss:
    """The same function, where it gives a plain number as well."""

    def share(*batch: Any) -> Tensor:
        return torch.as_tensor(errors(*batch))

    return share


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

    def _judged(self, objective: Objective, loss: Loss) -> tuple[str, Objective]:
        """What is judged, and as a function of the weights."""
        if callable(self.errors):
            return "errors", objective.judged_by(_as_tensor(self.errors))
        counted = Errors(loss)
        judged = objective.judged_by(counted)
        if self.errors is not False:
            judged.value()
        if self.errors and not counted.seen:
            raise ValueError(
                "errors=True, but the loss calls none of torch's losses of classification: give "
                "errors= a function of a batch, the share of answers that are wrong"
            )
        return ("errors", judged) if counted.seen else ("loss", objective)

    def look(self, objective: Objective, loss: Loss) -> FoundSigma:
        """The σ, the table it was read from, and the steps it takes."""
        judged, watched = self._judged(objective, loss)
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
            sigma=sigma, low=lower * choice.low, high=lower * choice.high, relative=self.relative,
            judged=judged, share=self.share, scale=float(scale), here=here, loss=objective.value(),
            steps=steps, left=left, planned=self.steps,
            lowered=None if lower == 1 else choice.sigma,
            drowns=self._drowns(objective, sigma),
            rows=tuple((sigma, one, one.mean / scale)
                       for sigma, one in zip(sigmas, costs, strict=True)),
        )  # fmt: skip

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
            costs = list(_rehearsal(objective, watched, sigma, drawn, self.rate, here))
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
    `share` of L(0) − L(w). `errors` overrides that: a function of a batch (the share of wrong
    answers in it; an `argmax` names the first class at zero weights, where the loss's own count
    takes one by chance: give `scale` where classes differ in size), or False for the loss. `scale`
    is what there is to lose, in place of what zero weights give less that here. The grid is by
    default 17 σ from 0.0003 to 3 times the root mean square of the weights. With `relative` σ is in
    units of each tensor's own, as in `attach`. `draws` pairs take 2 × draws × len(grid) passes over
    the batches. With a learning rate and momentum, given or read from `optimizer`, it also
    rehearses up to 200 steps with that noise and tells after how many its cost has halved; if
    `steps` are planned and fewer, a `TooFewStepsWarning` says so. A σ that breaks the rehearsal is
    lowered; where that does not help, σ is the rule's and a `StabilityWarning` says that the
    learning rate is too large.

    >>> import torch
    >>> u, v = torch.full((50,), 0.2).double(), torch.zeros(1).double()
    >>> found = find_sigma(lambda: v @ v * (u @ u) / 2, [u, v], lr=0.1, scale=1.0)
    >>> print(f"{found.sigma:.1f}", found.steps > 0)  # σ²/2 · (2 + …) = 0.05
    0.2 True
    """
    rate = _rate(lr, momentum, optimizer)
    search = _Search(rate, errors, share, scale, grid, relative, draws, steps, seed)
    with measuring(loss, params, batches, batch_norm=batch_norm, float64=float64) as objective:
        found = search.look(objective, loss)
    if found.breaks:
        warnings.warn(_BREAKS, StabilityWarning, stacklevel=2)
    if found.enough is False:
        warnings.warn(_too_few(found), TooFewStepsWarning, stacklevel=2)
    return found


def _too_few(found: FoundSigma) -> str:
    needed = f"{found.steps}" if found.steps is not None else f"more than {REHEARSED}"
    return (f"{found.planned:,} steps are too few at sigma {found.sigma:.3g}: it takes {needed} to "
            f"halve what the noise costs; train longer or use a smaller sigma")  # fmt: skip
