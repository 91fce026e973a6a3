"""A finder for σ: one look at a trained or half-trained point instead of a search.

Expected sharpness over a grid of σ, all with the same pairs of draws; the rule that picks one is
`theory.finder`'s. How many steps it takes until the trace has moved by a tenth follows from its
gradient, vᵀHv of random signs v differentiated once more. Up to `PROJECTED` parameters the Hessian
is made and the gradient projected on the directions that it leaves free (eigenvalues below 10⁻³ of
the largest); beyond, the whole gradient is used, and the steps are the fewest possible. Knows no
training loop.
"""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from antipgd.estimate import Estimate
from antipgd.flatness.inputs import Parameters
from antipgd.flatness.measuring import measuring
from antipgd.flatness.objective import Loss, Objective
from antipgd.flatness.probes import SHARPNESS, SKETCH
from antipgd.theory import finder
from antipgd.theory.equivalences import steps_for
from antipgd.torch.handle import ADAPTIVE
from antipgd.torch.members import rms

GRID = tuple(np.geomspace(1e-4, 1, 17))  # times the root mean square of all weights
PROJECTED = 1_000
FREE = 1e-3  # of the largest eigenvalue


class TooFewStepsWarning(UserWarning):
    """The planned steps will hardly move the trace."""


@dataclass(frozen=True)
class FoundSigma:
    """The σ to begin with, and what it was read from.

    `low` and `high` bound it by the error of the sharpness. `rows` are (σ, expected sharpness, its
    share of `scale`) for each σ of the grid, `table` is that in print. `clock` is the τ after which
    the trace has fallen by a tenth, in the units of `Noise.clock`, and `steps` how many steps that
    takes at `sigma`, the fewest possible if `at_least`; None where it is not known: for adaptive
    optimizers, or if nothing drives the trace.
    """

    sigma: float
    low: float
    high: float
    relative: bool
    fraction: float
    scale: float
    loss: float
    rows: tuple[tuple[float, Estimate, float], ...]
    clock: float | None
    steps: int | None
    at_least: bool

    @property
    def table(self) -> str:
        """What was measured and found, in lines of text."""
        lines = [f"{'sigma':>10}  {'sharpness':>10}  {'95 % interval':>22}  {'of scale':>8}"]
        for sigma, sharpness, share in self.rows:
            low, high = sharpness.interval()
            interval = f"[{low:.3g}, {high:.3g}]"
            lines.append(f"{sigma:10.3g}  {sharpness.mean:10.3g}  {interval:>22}  {share:8.2g}")
        lines.append(f"{self._title} [{self.low:.3g}, {self.high:.3g}], loss here {self.loss:.3g}")
        if self.steps is not None:
            about = "at least" if self.at_least else "about"
            lines.append(f"{about} {self.steps:,} steps to move the trace by a tenth")
        return "\n".join(lines)

    @property
    def _title(self) -> str:
        kind = "relative sigma" if self.relative else "sigma"
        return f"{self.fraction:g} of {self.scale:.3g} at {kind} {self.sigma:.3g}"

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
        axes.axhline(self.fraction * self.scale, color="grey", linestyle="--")
        axes.axvline(self.sigma, color="grey", linestyle="--")
        axes.set(xscale="log", yscale="log", xlabel="sigma", ylabel="expected sharpness")
        axes.set_title(self._title)
        return figure


def _scales(objective: Objective, relative: bool) -> Tensor:
    """What σ is multiplied with, element by element, as `attach` does it."""
    scales = [torch.full_like(tensor.detach(), rms(tensor) if relative else 1.0).flatten()
              for tensor in objective.tensors]  # fmt: skip
    return torch.cat(scales)


def _sharpness(
    objective: Objective, grid: Sequence[float], scales: Tensor, draws: int, seed: int, here: float
) -> list[Estimate]:
    rows, parts = objective.rows_at_once(matrices=3), []
    probes, signed = objective.probes(seed, "gaussian"), [s * f for s in grid for f in (1, -1)]
    for first in range(0, draws, rows):
        v = probes.rows(SHARPNESS, first, min(rows, draws - first)).mul_(scales)
        values = objective.values_at(v, signed).reshape(len(v), len(grid), 2)
        parts.append(values.mean(axis=2) - here)
    rounding = float(torch.finfo(objective.dtype).eps) * abs(here)
    found = [Estimate.of(column) for column in np.concatenate(parts).T]
    return [Estimate(one.mean, math.hypot(one.sem, rounding), one.n) for one in found]


def _dot(ones: Iterable[Tensor], others: Iterable[Tensor]) -> Tensor:
    return torch.stack([(a * b).sum() for a, b in zip(ones, others, strict=True)]).sum()


def _differentiated(objective: Objective, batch: Any, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """vᵀHv of one batch for each row v, and its gradient; zero where there is none."""
    forms, slopes = vectors.new_zeros(len(vectors)), torch.zeros_like(vectors)
    gradient, tensors = objective.gradient_graph(batch), objective.tensors
    for k, v in enumerate(zip(*objective.pieces(vectors), strict=True)):
        slope = _dot(gradient, v)
        if not slope.requires_grad:
            continue
        product = torch.autograd.grad(slope, tensors, create_graph=True, materialize_grads=True)
        form = _dot(product, v)
        forms[k] = form.detach()
        if form.requires_grad:
            found = torch.autograd.grad(form, tensors, retain_graph=True, materialize_grads=True)
            slopes[k] = torch.cat([part.reshape(-1) for part in found])
    return forms, slopes


def _free(objective: Objective, rows: Tensor) -> Tensor:
    """Rows projected on the eigenvectors of the Hessian that it leaves free."""
    one = torch.eye(objective.size, dtype=objective.dtype, device=objective.device)
    hessian = objective.products(one)
    values, vectors = torch.linalg.eigh((hessian + hessian.T) / 2)
    stiff = vectors[:, values > FREE * values.abs().max()]
    return rows - (rows @ stiff) @ stiff.T


def _rate(objective: Objective, scales: Tensor, probes: int, seed: int) -> Estimate:
    """How fast the trace, weighted by `scales`², falls per unit of the clock at σ = 1."""
    v = objective.probes(seed).rows(SKETCH, 0, probes).mul_(scales)
    forms, slopes, weights = v.new_zeros(probes), torch.zeros_like(v), 0.0
    try:
        for weight, batch in objective.batches():
            form, slope = _differentiated(objective, batch, v)
            forms += weight * form
            slopes += weight * slope
            weights += weight
    except RuntimeError as error:
        raise RuntimeError(
            f"no third derivative of this loss ({error}); probes=0 leaves out the clock"
        ) from error
    slopes = (_free(objective, slopes) if objective.size <= PROJECTED else slopes).double()
    inner = (slopes @ slopes.T / weights**2).cpu().numpy()
    return finder.flattening_rate((forms / weights).cpu().numpy(), inner)


def _unit(lr: float | None, momentum: float, optimizer: Optimizer | None) -> float | None:
    """η/(1−momentum), or None for an adaptive optimizer, whose clock is another one."""
    if (lr is None) == (optimizer is None):
        raise ValueError(f"give lr= or optimizer=, one of them; got lr={lr!r}")
    if optimizer is not None:
        groups = [(g["lr"], g.get("momentum", 0) or 0) for g in optimizer.param_groups]
        if isinstance(optimizer, ADAPTIVE) or "betas" in optimizer.param_groups[0]:
            return None
        if len(set(groups)) > 1:
            raise ValueError(f"param groups differ in (lr, momentum), {groups}: give lr= instead")
        lr, momentum = map(float, groups[0])
    if not (isinstance(lr, int | float) and 0 < lr < math.inf and 0 <= momentum < 1):
        raise ValueError(
            f"lr must be a finite number > 0, momentum >= 0 and < 1; got {lr!r}, {momentum!r}"
        )
    return lr / (1 - momentum)


def find_sigma(
    loss: Loss,
    params: Parameters,
    batches: Iterable[Any] | None = None,
    *,
    lr: float | None = None,
    momentum: float = 0.0,
    optimizer: Optimizer | None = None,
    steps: int | None = None,
    fraction: float = finder.FRACTION,
    scale: float | None = None,
    grid: Sequence[float] | None = None,
    relative: bool = False,
    draws: int = 32,
    probes: int = 16,
    seed: int = 0,
    batch_norm: str | None = None,
    float64: bool = False,
) -> FoundSigma:
    """The σ at which E L(w + σξ) − L(w) is `fraction` of what there is to lose.

    For a trained or half-trained point, with `loss`, `params`, `batches` and the last options as
    in `hessian_trace`. `scale` is what there is to lose, by default L(0) − L(w), where L(0) is the
    loss with all weights at zero. The grid is by default 17 σ from 10⁻⁴ to 1 times the root mean
    square of the weights. With `relative` σ is in units of each tensor's own, as in `attach`.
    `draws` pairs take 2 × draws × len(grid) passes over the batches, `probes` one third derivative
    each. Learning rate and momentum are given or read from `optimizer`; if `steps` are planned and
    too few to move the trace by a tenth, a `TooFewStepsWarning` says so.

    >>> import torch
    >>> u, v = torch.full((50,), 0.2).double(), torch.zeros(1).double()
    >>> found = find_sigma(lambda: v @ v * (u @ u) / 2, [u, v], lr=0.1, scale=1.0)
    >>> print(f"{found.sigma:.1f}", found.steps > 0)  # σ²/2 · (2 + …) = 0.05
    0.2 True
    """
    unit = _unit(lr, momentum, optimizer)
    finder.check_fraction(fraction)
    finder.check_whole("draws", draws, 2)
    finder.check_whole("probes", probes, 0 if probes == 0 else 3)
    finder.check_whole("steps", 1 if steps is None else steps, 1)
    sigmas = None if grid is None else finder.check_grid(grid)
    scale = None if scale is None else finder.check_scale(scale)
    with measuring(loss, params, batches, batch_norm=batch_norm, float64=float64) as objective:
        flat, here = objective.flat(), objective.value()
        if scale is None:
            scale = finder.loss_scale(float(objective.values_at(-flat[None], [1.0])[0, 0]), here)
        if sigmas is None:
            size = 1.0 if relative else rms(flat) or 1.0
            sigmas = [float(step * size) for step in GRID]
        scales = _scales(objective, relative)
        sharpness = _sharpness(objective, sigmas, scales, draws, seed, here)
        choice = finder.choose_sigma(sigmas, sharpness, scale, fraction)
        clock = needed = None
        at_least = objective.size > PROJECTED
        if probes and unit is not None:
            tau = finder.flattening_clock(_rate(objective, scales, probes, seed).mean)
            if math.isfinite(tau):
                clock = tau * float(scales.double().square().mean())
                needed = steps_for(tau, unit, choice.sigma)
    if steps is not None and needed is not None and steps < needed:
        warnings.warn(
            f"{steps:,} steps are too few at sigma {choice.sigma:.3g}: the trace needs "
            f"{'at least' if at_least else 'about'} {needed:,} to move by a tenth",
            TooFewStepsWarning, stacklevel=2,
        )  # fmt: skip
    rows = tuple((s, one, one.mean / scale) for s, one in zip(sigmas, sharpness, strict=True))
    return FoundSigma(choice.sigma, choice.low, choice.high, relative, fraction, scale, here, rows,
                      clock, needed, at_least)  # fmt: skip
