"""Verdicts: holds, fails or undecided, always with a value, a 95 % interval and n.

A claim is judged by its interval alone. Samples are paired over seeds wherever methods are
compared, which share data, starting point and draws. A claim that fails is reported as failing.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from antipgd.estimate import Estimate

HOLDS, FAILS, UNDECIDED = "holds", "fails", "undecided"
LEVEL, NOT_AT_MINIMUM = "level", "not at a minimum"
Numbers = Sequence[float] | NDArray[np.float64]
SEVERITY = (HOLDS, LEVEL, NOT_AT_MINIMUM, UNDECIDED, FAILS)


@dataclass(frozen=True)
class Claim:
    """A statement of the paper and what became of it.

    `id` is "experiment.part"; `reference` the label in the paper; `tested` says exactly what was
    tested (place, step, n); `value` lies in the interval from `low` to `high`.
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


def worst(verdicts: Iterable[str]) -> str:
    """The verdict of a whole: that of its worst part."""
    return max(verdicts, key=SEVERITY.index)


def share_interval(successes: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's interval for a probability: never covers less often than it says."""
    tail = (1 - level) / 2
    low = 0.0 if successes == 0 else float(beta.ppf(tail, successes, n - successes + 1))
    high = 1.0 if successes == n else float(beta.ppf(1 - tail, successes + 1, n - successes))
    return low, high


def smaller(
    id: str, statement: str, reference: str, tested: str, ours: Numbers,
    theirs: Numbers, factor: float = 1.0,
) -> Claim:  # fmt: skip
    """Claims that `ours` is smaller than factor × `theirs`, seed by seed.

    The value is the geometric mean of ours/theirs; where a run diverged or a value is zero, it is
    instead the share of seeds in which ours is larger, to be compared with one half.
    """
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    assert a.shape == b.shape
    assert a.size > 0
    if np.isfinite(a).all() and np.isfinite(b).all() and a.min() > 0 and b.min() > 0:
        estimate = Estimate.of(np.log(a / b))
        low, high = map(math.exp, estimate.interval())
        value, bound, unit = math.exp(estimate.mean), factor, "ratio"
    else:
        lost = int((a >= factor * b).sum())
        low, high = share_interval(lost, a.size)
        value, bound, unit = lost / a.size, 0.5, "share of seeds in which it is larger"
    verdict = HOLDS if high < bound else FAILS if low > bound else UNDECIDED
    return Claim(id, statement, reference, f"{tested}; {unit}", verdict, value, low, high, a.size)


def below(
    id: str, statement: str, reference: str, tested: str, samples: Numbers, bound: float
) -> Claim:
    """Claims that the mean of the samples lies below a bound."""
    estimate = Estimate.of(samples)
    low, high = estimate.interval()
    verdict = HOLDS if high < bound else FAILS if low > bound else UNDECIDED
    return Claim(id, statement, reference, tested, verdict, estimate.mean, low, high, estimate.n)


def above(
    id: str, statement: str, reference: str, tested: str, samples: Numbers, bound: float
) -> Claim:
    """Claims that the mean of the samples lies above a bound."""
    estimate = Estimate.of(samples)
    low, high = estimate.interval()
    verdict = HOLDS if low > bound else FAILS if high < bound else UNDECIDED
    return Claim(id, statement, reference, tested, verdict, estimate.mean, low, high, estimate.n)


def near(
    id: str, statement: str, reference: str, tested: str, samples: Numbers, target: float,
    tolerance: float,
) -> Claim:  # fmt: skip
    """Claims that the mean of the samples is `target`, up to a tolerance fixed beforehand.

    Holds if the whole interval lies within the tolerance, fails if it lies outside.
    """
    estimate = Estimate.of(samples)
    low, high = estimate.interval()
    inside = target - tolerance <= low and high <= target + tolerance
    outside = high < target - tolerance or low > target + tolerance
    verdict = HOLDS if inside else FAILS if outside else UNDECIDED
    return Claim(id, statement, reference, tested, verdict, estimate.mean, low, high, estimate.n)


def mostly(
    id: str, statement: str, reference: str, tested: str, hits: Sequence[bool] | NDArray[np.bool_],
    at_least: float = 0.5,
) -> Claim:  # fmt: skip
    """Claims that something happens with a probability of more than `at_least`."""
    happened, n = int(np.sum(hits)), len(hits)
    low, high = share_interval(happened, n)
    verdict = HOLDS if low > at_least else FAILS if high < at_least else UNDECIDED
    return Claim(id, statement, reference, tested, verdict, happened / n, low, high, n)


def _by_interval(low: float, high: float, bound: float, margin: float, larger: bool) -> str:
    """LEVEL inside bound ± margin, which goes first; else by which side the interval lies on."""
    if bound - margin < low and high < bound + margin:
        return LEVEL
    above, below = low > bound, high < bound
    if not above and not below:
        return UNDECIDED
    return HOLDS if above == larger else FAILS


def compare_difference(
    id: str, statement: str, reference: str, tested: str, differences: Numbers, margin: float = 1.0
) -> Claim:
    """Claims that the mean of paired differences is above zero; level within a margin."""
    estimate = Estimate.of(differences)
    low, high = estimate.interval()
    verdict = _by_interval(low, high, 0.0, margin, larger=True)
    return Claim(id, statement, reference, tested, verdict, estimate.mean, low, high, estimate.n)


def compare_ratio(
    id: str, statement: str, reference: str, tested: str, ours: Numbers, theirs: Numbers,
    margin: float = 0.05,
) -> Claim:  # fmt: skip
    """Claims that ours/theirs, the geometric mean over pairs, is below one; level if it lies within
    a margin of one."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.asarray(ours, np.float64) / np.asarray(theirs, np.float64))
    estimate = Estimate.of(logs)
    low, high = map(math.exp, estimate.interval())
    verdict = _by_interval(low, high, 1.0, margin, larger=False)
    value = math.exp(estimate.mean)
    return Claim(id, statement, reference, f"{tested}; ratio", verdict, value, low, high, len(logs))


def not_at_minimum(id: str, statement: str, reference: str, tested: str, samples: Numbers) -> Claim:
    """A comparison that is neither won nor lost: not every run of both arms reached a minimum."""
    estimate = Estimate.of(samples)
    low, high = estimate.interval()
    return Claim(id, statement, reference, tested, NOT_AT_MINIMUM, estimate.mean, low, high,
                 estimate.n)  # fmt: skip
