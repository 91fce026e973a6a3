"""How much noise? The rule that turns a table of what noise costs into one σ.

One principle: the noise may cost a fixed share of chance in what is judged. For a classifier that
is the share of training examples that it gets wrong, and chance is what it gets wrong with all
weights at zero; elsewhere it is the loss, and what there is to lose is L(0) − L(w). Much less and
the noise moves nothing, much more and it undoes what was learned. The loss of a fitted classifier
is no such measure: its margins grow as long as one trains, and with them what a wrong answer costs.

How the share was fixed, and on what it was judged afterwards: benchmarks/finder.py.
Knows no model and no framework.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipgd.checks import number
from antipgd.estimate import Estimate

Array = NDArray[np.float64]
FRACTION = 0.05
INERT = 1e-3  # of the loss scale
FAR = 10.0  # times the second order


@dataclass(frozen=True)
class Choice:
    """The σ of the rule; `low` and `high` from the error bars of the costs alone.

    `target` is the cost that was looked for. `high` is infinite where the lower ends of the
    error bars never reach it, `low` is 0 where the upper ends exceed it from the start.
    """

    sigma: float
    low: float
    high: float
    target: float


def loss_scale(at_zero: float, here: float, judged: str = "loss") -> float:
    """What there is to lose: what is judged at zero weights less that here, if that is a scale."""
    if not (math.isfinite(at_zero) and math.isfinite(here) and at_zero > here):
        raise ValueError(
            f"the {judged} with all weights at zero, {at_zero:.4g}, is no scale for the {judged} "
            f"here, {here:.4g}: it must be finite and larger. Train the network first, or give "
            "scale= a number > 0 to compare with"
        )
    return at_zero - here


def check_grid(sigmas: Sequence[float]) -> list[float]:
    """At least two σ, ascending."""
    grid = [float(sigma) for sigma in sigmas]
    if len(grid) < 2 or not all(0 < s < math.inf for s in grid) or grid != sorted(set(grid)):
        raise ValueError(
            f"grid must hold at least 2 numbers, finite, > 0 and ascending; got {sigmas!r}"
        )
    return grid


def _crossing(sigmas: Sequence[float], values: Sequence[float], target: float) -> float:
    """The first σ at which the values reach the target: a power law between neighbours.

    0 if they are above it from the start, infinite if they never reach it. A value that is not a
    number counts as infinite: a loss beyond all bounds.
    """
    reached = [not value < target for value in values]
    if True not in reached:
        return math.inf
    i = reached.index(True)
    if i == 0:
        return sigmas[0] if values[0] == target else 0.0
    below, above = values[i - 1], values[i]
    if not above < math.inf:
        return sigmas[i - 1]
    if below <= 0:  # lost in its error: the theory's power, σ²
        return max(sigmas[i - 1], sigmas[i] * math.sqrt(target / above))
    share = math.log(target / below) / math.log(above / below)
    return sigmas[i - 1] * (sigmas[i] / sigmas[i - 1]) ** share


def choose_sigma(
    sigmas: Sequence[float],
    costs: Sequence[Estimate],
    scale: float,
    fraction: float = FRACTION,
) -> Choice:
    """The smallest σ whose cost is `fraction` of `scale`, interpolated.

    >>> costs = [Estimate(sigma**2 / 2 * 100, 0.0, 8) for sigma in (0.01, 0.03, 0.1)]
    >>> round(choose_sigma([0.01, 0.03, 0.1], costs, scale=2.5, fraction=0.05).sigma, 9)
    0.05
    """
    share = number("fraction", fraction, 0, 1, above=True, closed=True)
    grid, target = check_grid(sigmas), share * number("scale", scale, 0, above=True)
    if len(grid) != len(costs):
        raise ValueError(f"there are {len(grid)} sigmas, but {len(costs)} costs")
    means = [estimate.mean for estimate in costs]
    sigma = _crossing(grid, means, target)
    if not 0 < sigma < math.inf:
        side, at, way = ("above", 0, "lower") if sigma == 0 else ("below", -1, "higher")
        raise ValueError(
            f"the cost of the noise is {side} {target:.3g} ({fraction:g} of the scale {scale:.3g})"
            f" on the whole grid, {means[at]:.3g} at sigma {grid[at]:.3g}: give a grid= that "
            f"reaches {way}"
        )
    ends = [estimate.interval() for estimate in costs]
    low = _crossing(grid, [high for _, high in ends], target)
    high = _crossing(grid, [low if math.isfinite(low) else math.inf for low, _ in ends], target)
    return Choice(sigma, min(low, sigma), max(high, sigma), target)


def too_little(cost: Estimate, scale: float) -> str | None:
    """Why noise that adds `cost` to the loss is inert: surely below 10⁻³ of the scale."""
    if not cost.interval()[1] < INERT * scale:
        return None
    return f"it adds {cost.mean:.3g} to the loss, less than {INERT:g} of {scale:.3g}"


def too_much(
    loss: float, noisy_loss: float, cost: Estimate, second_order: Estimate | None, scale: float
) -> str | None:
    """Why noise is explosive, if it is.

    A loss is not finite; the present draw alone, L(w) − L(z), or surely its mean, `cost`, is above
    the whole scale; or the mean is surely above ten times its second order, where that is known.
    """
    if not (math.isfinite(loss) and math.isfinite(noisy_loss)):
        return f"the loss is {loss:.3g} at z and {noisy_loss:.3g} at w"
    if noisy_loss - loss > scale:
        return f"the present draw alone adds {noisy_loss - loss:.3g}, more than {scale:.3g}"
    least = cost.interval()[0]
    if not math.isfinite(cost.mean) or least > scale:
        return f"it adds {cost.mean:.3g} to the loss, more than {scale:.3g}"
    if second_order is not None and least > FAR * second_order.interval()[1] > 0:
        return f"it adds {cost.mean:.3g} to the loss, the second order is {second_order.mean:.3g}"
    return None


def antithetic_sharpness(
    loss: Callable[[Array], Array], w: ArrayLike, sigmas: Sequence[float], draws: ArrayLike
) -> list[Estimate]:
    """(L(w + σξ) + L(w − σξ))/2 − L(w) for each σ, with the same draws for all.

    Pairs ±ξ take out the first and third order. `loss` maps weights (m, d) to losses (m,); `draws`
    are m unit draws of shape (m, d).
    """
    centre, xi = np.asarray(w, np.float64), np.asarray(draws, np.float64)
    if xi.ndim != 2 or xi.shape[1:] != centre.shape or len(xi) < 2:
        raise ValueError(f"draws must have shape (m >= 2, {centre.size}); got {xi.shape}")
    here = loss(centre[None])[0]
    with np.errstate(over="ignore", invalid="ignore"):
        return [
            Estimate.of((loss(centre + sigma * xi) + loss(centre - sigma * xi)) / 2 - here)
            for sigma in check_grid(sigmas)
        ]


def first_below(costs: ArrayLike, bound: float, window: int) -> int | None:
    """After how many steps the mean of the last `window` costs is at most `bound`; None if never.

    >>> first_below([4.0, 3.0, 2.0, 1.0, 0.0], bound=1.5, window=2)
    4
    """
    values = np.asarray(costs, np.float64)
    if len(values) < window:
        return None
    with np.errstate(invalid="ignore"):
        means = np.convolve(values, np.full(window, 1 / window), "valid")
    reached = np.flatnonzero(means <= bound)
    return int(reached[0]) + window if len(reached) else None
