"""Arms that were tuned on other seeds, compared where each of them is at a minimum.

An arm is a method and the grid of the one value that is tuned: σ, or the learning rate where there
is no noise. Which value is used is chosen on tuning seeds alone, on examples that are neither
trained on nor tested on. A comparison in which a seed of either arm has missed the minimum is
neither won nor lost, and no seed is left out.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipgd.paper import figures
from antipgd.paper.claims import Claim, compare_ratio, not_at_minimum
from antipgd.paper.record import Record
from antipgd.paper.results import Results, Values
from antipgd.theory.finite_rate import regulariser

HELD_OUT = {True: "validation", False: "test"}  # while tuning, and when it is judged
SHARE = 2e-3  # of the loss of a network that says zero: what counts as a minimum of squared loss


class Arm(NamedTuple):
    """A method with the name of what is tuned, and its grid."""

    method: str
    tuned: str
    grid: tuple[float, ...]

    def settings(self, value: float, lr: float) -> tuple[float, float]:
        """The learning rate and σ with a value of the grid; `lr` where it is not what is tuned."""
        return (value, 0.0) if self.tuned == "lr" else (lr, value)

    def said(self, value: float) -> str:
        """In words, for what was tested."""
        return f"{'η' if self.tuned == 'lr' else 'σ'} = {value:g} for {figures.NAMES[self.method]}"

    def at_the_end(self, value: float) -> bool:
        """Whether the grid goes no further there, so that the best may lie outside."""
        return value in (self.grid[0], self.grid[-1])


def held_out_loss(record: Record) -> float:
    """At the end, on the examples that the record's problem holds out; infinite if diverged."""
    if record.status == "diverged":
        return np.inf
    return float(record.column("test_loss", "w")[1][-1])


def scores(
    results: Results, arm: Arm, score: Callable[[Record], float], **cell: Any
) -> dict[float, float]:
    """The mean over the tuning seeds of what is to be small, by the values of an arm's grid."""
    records = results.select(method=arm.method, held_out=HELD_OUT[True], **cell)
    return {
        value: float(np.mean([score(r) for r in records if getattr(r.run, arm.tuned) == value]))
        for value in arm.grid
    }


def best(results: Results, arm: Arm, score: Callable[[Record], float], **cell: Any) -> float:
    """The value with the lowest mean score on the tuning seeds; of those that are equal, or all
    infinite, the one with the lowest held-out loss."""
    first, second = (scores(results, arm, one, **cell) for one in (score, held_out_loss))
    return min(arm.grid, key=lambda value: (first[value], second[value]))


def effective_sharpness(curvatures: Values, lr: float, momentum: float = 0.0) -> float:
    """Σ s(h) with s′ = φ(ηh), s(0) = 0: what Anti-PGD lowers at this learning rate, in units of
    the trace, which it is for η → 0; infinite past the limit of stability."""
    return 2 * float(np.sum(regulariser(curvatures, lr, 1.0, momentum)))


def geometric_means(*arms: tuple[str, Values]) -> str:
    """In words, for what was tested."""
    with np.errstate(all="ignore"):
        listed = [f"{np.exp(np.log(x).mean()):.3g} for {figures.NAMES[name]}" for name, x in arms]
    return f"geometric means {', '.join(listed)}"


def ratios(ours: Values, theirs: Values) -> Values:
    """ours/theirs by seed, one where both are infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(ours == theirs, 1.0, ours / theirs)


def judge_ratio(
    named: tuple[str, str, str], tested: str, ours: Values, theirs: Values,
    there: tuple[NDArray[np.bool_], NDArray[np.bool_]],
) -> Claim:  # fmt: skip
    """That ours is smaller, seed by seed, if both arms are at a minimum in every seed."""
    missed = [int((~reached).sum()) for reached in there]
    if any(missed):
        how = f"{tested}; {missed[0]} and {missed[1]} of {len(ours)} seeds are not at a minimum"
        return not_at_minimum(*named, f"{how}; mean ratio", ratios(ours, theirs))
    return compare_ratio(*named, tested, ours, theirs)


def untuned(chosen: Mapping[str, float], used: Mapping[str, float]) -> str:
    """What is said of arms whose value is not the one that the tuning seeds choose."""
    other = [method for method in used if chosen[method] != used[method]]
    return f"; not the best of the grid on the tuning seeds: {', '.join(other)}" if other else ""
