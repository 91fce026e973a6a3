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

from antipgd.checks import number, whole
from antipgd.estimate import Estimate
from antipgd.flatness.draws import Draws, expected_rises
from antipgd.flatness.inputs import Parameters
from antipgd.flatness.measuring import measuring
from antipgd.flatness.objective import Loss, Objective
from antipgd.flatness.probes import SKETCH
from antipgd.theory import finder
from antipgd.theory.equivalences import steps_for
from antipgd.torch.clock import ADAPTIVE
from antipgd.torch.members import rms

GRID = tuple(np.geomspace(1e-4, 1, 17))  # times the root mean square of all weights
PROJECTED = 1_000
FREE = 1e-3  # of the largest eigenvalue


class TooFewStepsWarning(UserWarning):
    """The planned steps will hardly move the trace."""


@dataclass(frozen=True, kw_only=True, repr=False)
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
        return "\n".join([*lines, *self._summary])

    @property
    def _summary(self) -> list[str]:
        lines = [f"{self._title} [{self.low:.3g}, {self.high:.3g}], loss here {self.loss:.3g}"]
        if self.steps is not None:
            about = "at least" if self.at_least else "about"
            lines.append(f"{about} {self.steps:,} steps to move the trace by a tenth")
        return lines

    def __repr__(self) -> str:
        return f"FoundSigma({'; '.join(self._summary)})"

    def metrics(self) -> dict[str, float]:
        """For a log: every single number, without those that are not known."""
        found = {"sigma": self.sigma, "sigma_low": self.low, "sigma_high": self.high,
                 "loss": self.loss, "scale": self.scale, "fraction": self.fraction,
                 "clock": self.clock, "steps": self.steps}  # fmt: skip
        return {name: float(value) for name, value in found.items() if value is not None}

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
    return number("lr", lr, 0, above=True) / (1 - number("momentum", momentum, 0, 1))


@dataclass(frozen=True)
class _Search:
    """What is asked for, checked; `look` answers it."""

    unit: float | None  # of the clock, η/(1−momentum)
    fraction: float
    scale: float | None
    grid: Sequence[float] | None
    relative: bool
    draws: int
    probes: int
    seed: int

    def __post_init__(self) -> None:
        number("fraction", self.fraction, 0, 1, above=True, closed=True)
        whole("draws", self.draws, 2)
        whole("probes", self.probes, 0 if self.probes == 0 else 3)
        if self.grid is not None:
            finder.check_grid(self.grid)
        if self.scale is not None:
            number("scale", self.scale, 0, above=True)

    def look(self, objective: Objective) -> FoundSigma:
        """The σ, the table it was read from, and the steps it takes."""
        flat, here = objective.flat(), objective.value()
        scale, grid = self.scale, self.grid
        if scale is None:
            scale = finder.loss_scale(float(objective.values_at(-flat[None], [1.0])[0, 0]), here)
        if grid is None:
            size = 1.0 if self.relative else rms(flat) or 1.0
            grid = [float(step * size) for step in GRID]
        sigmas, scales = [float(sigma) for sigma in grid], _scales(objective, self.relative)
        drawn = Draws(self.seed, scales=scales)
        sharpness = expected_rises(objective, sigmas, drawn, self.draws, at=here)
        choice = finder.choose_sigma(sigmas, sharpness, scale, self.fraction)
        clock, steps = self._clock(objective, scales, choice.sigma)
        return FoundSigma(
            sigma=choice.sigma, low=choice.low, high=choice.high, relative=self.relative,
            fraction=self.fraction, scale=float(scale), loss=here, clock=clock, steps=steps,
            at_least=objective.size > PROJECTED,
            rows=tuple((sigma, one, one.mean / scale)
                       for sigma, one in zip(sigmas, sharpness, strict=True)),
        )  # fmt: skip

    def _clock(
        self, objective: Objective, scales: Tensor, sigma: float
    ) -> tuple[float | None, int | None]:
        """After how long the trace has moved by a tenth, and in how many steps."""
        if not self.probes or self.unit is None:
            return None, None
        tau = finder.flattening_clock(_rate(objective, scales, self.probes, self.seed).mean)
        if not math.isfinite(tau):
            return None, None
        return tau * float(scales.double().square().mean()), steps_for(tau, self.unit, sigma)


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
    in `at`. `scale` is what there is to lose, by default L(0) − L(w), where L(0) is the loss with
    all weights at zero. The grid is by default 17 σ from 10⁻⁴ to 1 times the root mean square of
    the weights. With `relative` σ is in units of each tensor's own, as in `attach`. `draws` pairs
    take 2 × draws × len(grid) passes over the batches, `probes` one third derivative each. Learning
    rate and momentum are given or read from `optimizer`; if `steps` are planned and too few to move
    the trace by a tenth, a `TooFewStepsWarning` says so.

    >>> import torch
    >>> u, v = torch.full((50,), 0.2).double(), torch.zeros(1).double()
    >>> found = find_sigma(lambda: v @ v * (u @ u) / 2, [u, v], lr=0.1, scale=1.0)
    >>> print(f"{found.sigma:.1f}", found.steps > 0)  # σ²/2 · (2 + …) = 0.05
    0.2 True
    """
    unit = _unit(lr, momentum, optimizer)
    search = _Search(unit, fraction, scale, grid, relative, draws, probes, seed)
    if steps is not None:
        whole("steps", steps, 1)
    with measuring(loss, params, batches, batch_norm=batch_norm, float64=float64) as objective:
        found = search.look(objective)
    if steps is not None and found.steps is not None and steps < found.steps:
        warnings.warn(_too_few(steps, found), TooFewStepsWarning, stacklevel=2)
    return found


def _too_few(steps: int, found: FoundSigma) -> str:
    about = "at least" if found.at_least else "about"
    return (f"{steps:,} steps are too few at sigma {found.sigma:.3g}: the trace needs {about} "
            f"{found.steps:,} to move by a tenth")  # fmt: skip
