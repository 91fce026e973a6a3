"""The one loop behind every E L(w + σξ) − L(w): draws on the weights, and how far the loss rises.

The pair ±ξ makes one sample, in which all odd orders cancel. Draws are common to all σ and to all
models with the same parameters. Sharpness, the finder, the monitor and the bound all come here;
what they make of it is theirs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipgd.estimate import Estimate
from antipgd.flatness.objective import Objective
from antipgd.flatness.probes import SHARPNESS
from antipgd.flatness.samples import Samples
from antipgd.noise.laws import Law

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Draws:
    """What is drawn; one value for a whole measurement."""

    seed: int = 0
    law: str | Law = "gaussian"
    scales: Tensor | None = None  # what σ is multiplied with, element by element
    antithetic: bool = True

    def directions(self, objective: Objective, first: int, count: int) -> Tensor:
        """ξ of unit standard deviation in rows, times the scales."""
        xi = objective.probes(self.seed, str(self.law)).rows(SHARPNESS, first, count)
        return xi if self.scales is None else xi.mul_(self.scales)


def rises(
    objective: Objective,
    sigmas: Sequence[float],
    draws: Draws,
    first: int,
    count: int,
    *,
    at: float,
    quadratic: bool = False,
) -> tuple[Array, Array]:
    """Samples of L(w + σξ) − `at` (count, sigmas) by draws first …, and their ξᵀHξ (count,).

    Row k belongs to draw first + k, whatever the σ. Infinite where the loss is not finite. The
    forms, for which draws are scaled, too, are zero unless `quadratic`.
    """
    signs = (1.0, -1.0) if draws.antithetic else (1.0,)
    factors = [sign * sigma for sigma in sigmas for sign in signs]
    rows = objective.rows_at_once(matrices=4)
    found, forms = [], []
    for start in range(first, first + count, rows):
        v = draws.directions(objective, start, min(rows, first + count - start))
        values = objective.values_at(v, factors).reshape(len(v), len(sigmas), len(signs))
        found.append((values - at).mean(axis=2))
        image = objective.products(v) if quadratic else torch.zeros_like(v)
        forms.append((v.double() * image).sum(dim=1).cpu().numpy())
    return np.concatenate(found), np.concatenate(forms)


def rounding_of(objective: Objective, at: float) -> float:
    """The absolute error of a difference of losses about `at`."""
    return float(torch.finfo(objective.dtype).eps) * abs(at)


def estimated(samples: Array, pilot: int, rounding: float = 0.0) -> Estimate:
    """Their mean, with the spread of the first `pilot`; infinite if one of them is not finite."""
    if not np.isfinite(samples).all():
        return Estimate(math.inf, math.nan, len(samples))
    found = Samples(samples[:, None], pilot).estimate(np.ones(1))
    return replace(found, sem=math.hypot(found.sem, rounding))


def expected_rises(
    objective: Objective, sigmas: Sequence[float], draws: Draws, count: int, *, at: float
) -> list[Estimate]:
    """E L(w + σξ) − L(w) for each σ, from a fixed number of draws; `at` is L(w)."""
    samples, _ = rises(objective, sigmas, draws, 0, count, at=at)
    return [estimated(column, count, rounding_of(objective, at)) for column in samples.T]
