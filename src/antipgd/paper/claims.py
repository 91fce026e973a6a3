"""Verdicts: holds, fails, level, undecided or not at a minimum, with value, 95 % interval and n.

A claim is judged by its interval alone. Samples are paired over seeds wherever methods are
compared, which share data, starting point and draws. A claim that fails is reported as failing.
What many comparisons in one row do to their verdicts is `coverage.py`'s affair.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from antipgd.estimate import Estimate
from antipgd.paper.significance import (
    mean_p,
    needed_for_mean,
    needed_for_share,
    share_interval,
    share_p,
)

HOLDS, FAILS, UNDECIDED = "holds", "fails", "undecided"
LEVEL = "level"  # compared, and equal up to a margin fixed beforehand
NOT_AT_MINIMUM = "not at a minimum"  # where a comparison of minima makes no sense
SHARE, TRAINING_LOSS = "share of seeds", "training loss"  # units of values
SEVERITY = (HOLDS, LEVEL, UNDECIDED, NOT_AT_MINIMUM, FAILS)
Numbers = Sequence[float] | NDArray[np.float64]


@dataclass(frozen=True)
class Claim:
    """A statement and what became of it.

    `id` is "experiment.part"; `reference` the label in the paper; `tested` says exactly what was
    tested (place, step, n); `value` lies in the interval from `low` to `high`. `p` is two-sided,
    against the bound that the verdict is about (of two the nearer one), None where nothing was
    compared. `needed` is the n that would decide an undecided claim at the mean and deviation
    observed, with 80 % power; None where that makes no sense. `unit` names the value where it is
    not what the statement is about: a share of seeds where ratios do not exist, a training loss
    where there is no minimum.
    """

    id: str
    statement: str
    reference: str
    tested: str
    verdict: str
    value: float
    low: float
    high: float
    n: int
    p: float | None = None
    needed: int | None = None
    unit: str = ""


def worst(verdicts: Iterable[str]) -> str:
    """The verdict of a whole: that of its worst part."""
    return max(verdicts, key=SEVERITY.index)


def smaller(
    id: str, statement: str, reference: str, tested: str, ours: Numbers,
    theirs: Numbers, factor: float = 1.0,
) -> Claim:  # fmt: skip
    """Claims that `ours` is smaller than factor × `theirs`, seed by seed.

    The value is the geometric mean of ours/theirs; where a run diverged or a value is zero, it is
    instead the share of seeds in which ours is larger, to be compared with one half.
    """
    a, b = _pairs(ours, theirs)
    if not _has_ratios(a, b):
        return _less_often(id, statement, reference, tested, a, factor * b)
    estimate, bound = Estimate.of(np.log(a / b)), math.log(factor)
    low, high = estimate.interval()
    verdict = HOLDS if high < bound else FAILS if low > bound else UNDECIDED
    return Claim(
        id, statement, reference, f"{tested}; ratio", verdict, *_ratio(estimate), a.size,
        mean_p(estimate, bound), _needed(verdict, estimate, bound),
    )  # fmt: skip


def compare_ratio(
    id: str, statement: str, reference: str, tested: str, ours: Numbers, theirs: Numbers,
    margin: float = 0.05,
) -> Claim:  # fmt: skip
    """Claims that `ours` is smaller than `theirs`, seed by seed, by more than nothing to speak of.

    The value is the geometric mean of ours/theirs, level if its interval lies within 1 ± margin.
    Where a run diverged or a value is zero, it is as in `smaller`, and never level.
    """
    a, b = _pairs(ours, theirs)
    if not _has_ratios(a, b):
        return _less_often(id, statement, reference, tested, a, b)
    estimate = Estimate.of(np.log(a / b))
    edges = math.log(1 - margin), math.log(1 + margin)
    verdict, p, needed = _compared(estimate, edges, (HOLDS, FAILS))
    tested = f"{tested}; ratio, level within 1 ± {margin:g}"
    return Claim(id, statement, reference, tested, verdict, *_ratio(estimate), a.size, p, needed)


def equal(
    id: str, statement: str, reference: str, tested: str, ours: Numbers, theirs: Numbers,
    margin: float = 0.05,
) -> Claim:  # fmt: skip
    """Claims that `ours` is what `theirs` is, seed by seed, up to a margin fixed beforehand.

    The value is the geometric mean of ours/theirs. Holds if its whole interval lies within
    1 ± margin, fails if it lies outside. Where a run diverged or a value is zero, it is instead the
    share of seeds in which the two are that near, to be compared with one half.
    """
    a, b = _pairs(ours, theirs)
    edges = math.log(1 - margin), math.log(1 + margin)
    tested = f"{tested}; ratio, equal within 1 ± {margin:g}"
    if not _has_ratios(a, b):
        with np.errstate(divide="ignore", invalid="ignore"):
            log = np.log(a / b)
        close = (a == b) & np.isfinite(a) | (edges[0] <= log) & (log <= edges[1])
        claim = mostly(id, statement, reference, f"{tested}; share of seeds in which it is", close)
        return replace(claim, unit=SHARE)
    estimate = Estimate.of(np.log(a / b))
    verdict = _within(estimate, edges)
    p, needed = max(mean_p(estimate, edge) for edge in edges), _needed(verdict, estimate, *edges)
    return Claim(id, statement, reference, tested, verdict, *_ratio(estimate), a.size, p, needed)


def times(claim: Claim, digits: str = ".2f") -> str:
    """A ratio in words; where there is none, in what share of seeds it is the larger."""
    if claim.unit:
        return f"larger in {claim.value:.0%} of {claim.n} seeds"
    return f"{claim.value:{digits}} ×"


def compare_difference(
    id: str, statement: str, reference: str, tested: str, differences: Numbers, margin: float = 1.0
) -> Claim:
    """Claims that paired differences are above nought by more than nothing to speak of.

    Level if the interval of their mean lies within ± margin, also where it leaves nought out.
    """
    estimate = Estimate.of(differences)
    verdict, p, needed = _compared(estimate, (-margin, margin), (FAILS, HOLDS))
    tested = f"{tested}; difference, level within ± {margin:g}"
    shown = (estimate.mean, *estimate.interval())
    return Claim(id, statement, reference, tested, verdict, *shown, estimate.n, p, needed)


def not_at_minimum(
    id: str, statement: str, reference: str, tested: str, samples: Numbers, unit: str = ""
) -> Claim:
    """Says that minima cannot be compared: these samples are of none, training losses in `unit`."""
    estimate = Estimate.of(samples)
    shown = (estimate.mean, *estimate.interval())
    return Claim(id, statement, reference, tested, NOT_AT_MINIMUM, *shown, estimate.n, unit=unit)


def below(
    id: str, statement: str, reference: str, tested: str, samples: Numbers, bound: float
) -> Claim:
    """Claims that the mean of the samples lies below a bound."""
    estimate = Estimate.of(samples)
    low, high = estimate.interval()
    verdict = HOLDS if high < bound else FAILS if low > bound else UNDECIDED
    return _of_mean(id, statement, reference, tested, verdict, estimate, bound)


def above(
    id: str, statement: str, reference: str, tested: str, samples: Numbers, bound: float
) -> Claim:
    """Claims that the mean of the samples lies above a bound."""
    estimate = Estimate.of(samples)
    low, high = estimate.interval()
    verdict = HOLDS if low > bound else FAILS if high < bound else UNDECIDED
    return _of_mean(id, statement, reference, tested, verdict, estimate, bound)


def near(
    id: str, statement: str, reference: str, tested: str, samples: Numbers, target: float,
    tolerance: float,
) -> Claim:  # fmt: skip
    """Claims that the mean of the samples is `target`, up to a tolerance fixed beforehand.

    Holds if the whole interval lies within the tolerance, fails if it lies outside.
    """
    estimate = Estimate.of(samples)
    edges = target - tolerance, target + tolerance
    verdict = _within(estimate, edges)
    return _of_mean(id, statement, reference, tested, verdict, estimate, *edges)


def mostly(
    id: str, statement: str, reference: str, tested: str, hits: Sequence[bool] | NDArray[np.bool_],
    at_least: float = 0.5,
) -> Claim:  # fmt: skip
    """Claims that something happens with a probability of more than `at_least`.

    Exact, so few samples decide little: with 5 and a bound of ½ nothing does, with 6 all must
    agree, with 9 one may differ.
    """
    happened, n = int(np.sum(hits)), len(hits)
    low, high = share_interval(happened, n)
    verdict = HOLDS if low > at_least else FAILS if high < at_least else UNDECIDED
    return _of_share(id, statement, reference, tested, verdict, happened, n, at_least)


def _pairs(ours: Numbers, theirs: Numbers) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    assert a.shape == b.shape
    assert a.size > 0
    return a, b


def _has_ratios(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    return bool(np.isfinite(a).all() and np.isfinite(b).all() and a.min() > 0 and b.min() > 0)


def _ratio(estimate: Estimate) -> tuple[float, float, float]:
    """A mean of logarithms and its interval, as ratios."""
    low, high = estimate.interval()
    return math.exp(estimate.mean), math.exp(low), math.exp(high)


def _less_often(
    id: str, statement: str, reference: str, tested: str, a: NDArray[np.float64],
    b: NDArray[np.float64],
) -> Claim:  # fmt: skip
    """The verdict where ratios do not exist: is ours the larger one in fewer than half of them?
    What is not a number has diverged."""
    a, b = (np.where(np.isnan(one), np.inf, one) for one in (a, b))
    lost, n = int((a >= b).sum()), a.size
    low, high = share_interval(lost, n)
    verdict = HOLDS if high < 0.5 else FAILS if low > 0.5 else UNDECIDED
    tested = f"{tested}; share of seeds in which it is larger"
    return replace(_of_share(id, statement, reference, tested, verdict, lost, n, 0.5), unit=SHARE)


def _compared(
    estimate: Estimate, edges: tuple[float, float], sides: tuple[str, str]
) -> tuple[str, float, int | None]:
    """Verdict, p and needed n of a mean beside nought; `sides` are the verdicts below and above."""
    low, high = estimate.interval()
    if edges[0] <= low and high <= edges[1]:
        return LEVEL, max(mean_p(estimate, edge) for edge in edges), None
    verdict = sides[0] if high < 0 else sides[1] if low > 0 else UNDECIDED
    ways = [_needed(verdict, estimate, 0.0)]
    if edges[0] < estimate.mean < edges[1]:  # more seeds may also tell that they are level
        ways.append(_needed(verdict, estimate, *edges))
    needed = min((n for n in ways if n is not None), default=None)
    return verdict, mean_p(estimate, 0.0), needed


def _within(estimate: Estimate, edges: tuple[float, float]) -> str:
    """Whether the whole interval lies between two edges, or outside."""
    low, high = estimate.interval()
    inside = edges[0] <= low and high <= edges[1]
    outside = high < edges[0] or low > edges[1]
    return HOLDS if inside else FAILS if outside else UNDECIDED


def _needed(verdict: str, estimate: Estimate, *bounds: float) -> int | None:
    return needed_for_mean(estimate, *bounds) if verdict == UNDECIDED else None


def _of_mean(
    id: str, statement: str, reference: str, tested: str, verdict: str, estimate: Estimate,
    *bounds: float,
) -> Claim:  # fmt: skip
    """A claim about a mean beside one bound or two."""
    p = max(mean_p(estimate, bound) for bound in bounds)
    shown = (estimate.mean, *estimate.interval())
    return Claim(
        id, statement, reference, tested, verdict, *shown, estimate.n, p,
        _needed(verdict, estimate, *bounds),
    )  # fmt: skip


def _of_share(
    id: str, statement: str, reference: str, tested: str, verdict: str, happened: int, n: int,
    bound: float,
) -> Claim:  # fmt: skip
    needed = needed_for_share(happened, n, bound) if verdict == UNDECIDED else None
    return Claim(
        id, statement, reference, tested, verdict, happened / n, *share_interval(happened, n), n,
        share_p(happened, n, bound), needed,
    )  # fmt: skip
