"""How sure a verdict is: p-values, how many seeds would decide, and many comparisons at once.

Every p-value is two-sided and belongs to an interval of the same name: below 1 − level exactly
where that interval leaves the bound out. Knows nothing of claims.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import bdtr, bdtrc, stdtr, stdtrit
from scipy.stats import beta, binom, nct

from antipgd.estimate import Estimate

LEVEL, POWER = 0.95, 0.8
MOST = 1_000_000  # seeds; a question that needs more is not one of seeds


def share_interval(successes: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Clopper and Pearson's interval for a probability: never covers less often than it says."""
    tail = (1 - level) / 2
    low = 0.0 if successes == 0 else float(beta.ppf(tail, successes, n - successes + 1))
    high = 1.0 if successes == n else float(beta.ppf(1 - tail, successes + 1, n - successes))
    return low, high


def mean_p(estimate: Estimate, bound: float) -> float:
    """Student's p that the mean is the bound; 1 where the spread is unknown."""
    if not math.isfinite(estimate.mean) or math.isnan(estimate.sem):
        return 1.0
    distance = abs(estimate.mean - bound)
    if estimate.sem == 0:
        return 1.0 if distance == 0 else 0.0
    return min(1.0, 2 * float(stdtr(estimate.degrees, -distance / estimate.sem)))


def share_p(successes: int, n: int, bound: float) -> float:
    """Exact p that the probability is the bound: twice the smaller tail, as in the interval."""
    upper = 1.0 if successes == 0 else float(bdtrc(successes - 1, n, bound))
    return min(1.0, 2 * min(upper, float(bdtr(successes, n, bound))))


def needed_for_mean(estimate: Estimate, *bounds: float) -> int | None:
    """How many samples would tell a mean like this one from all bounds, with 80 % power.

    None where no number makes sense: the mean is a bound, the spread is nought or unknown.
    """
    if not math.isfinite(estimate.mean) or not estimate.sem > 0:
        return None
    deviation = estimate.sem * math.sqrt(estimate.n)
    effects = [abs(estimate.mean - bound) / deviation for bound in bounds]
    return _needed_for(effects, LEVEL)


def needed_among(p: float, n: int, many: int) -> int | None:
    """How many samples would give a mean whose p is this with n of them a p that falls among so
    many comparisons, whatever becomes of the others, with 80 % power. None where p tells no effect.
    """
    if not 0 < p < 1 or n < 2:
        return None
    effect = -float(stdtrit(n - 1, p / 2)) / math.sqrt(n)
    return _needed_for([effect], 1 - (1 - LEVEL) / many)


def _needed_for(effects: Sequence[float], level: float) -> int | None:
    """Samples that tell means so many deviations away from all their bounds, at a level."""

    def power(n: int) -> float:
        edge = float(stdtrit(n - 1, (1 + level) / 2))
        return 1 - sum(float(nct.cdf(edge, n - 1, effect * math.sqrt(n))) for effect in effects)

    return _first(power)


def needed_for_share(successes: int, n: int, bound: float) -> int | None:
    """How many samples would tell a share like this one from the bound, with 80 % power."""
    share = successes / n
    return None if share == bound else _first(lambda n: _share_power(n, share, bound))


def _share_power(n: int, share: float, bound: float) -> float:
    """How often the exact test of n samples decides for the right side of the bound."""
    if share < bound:
        share, bound = 1 - share, 1 - bound
    edge = int(binom.isf((1 - LEVEL) / 2, n, bound)) + 1
    return 0.0 if edge > n else float(bdtrc(edge - 1, n, share))


def _first(power: Callable[[int], float]) -> int | None:
    """The smallest n whose power is enough, taking power as rising from there on."""
    high = 2
    while not power(high) >= POWER:
        high *= 2
        if high > MOST:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle) >= POWER else (middle, high)
    return high


def holm(ps: Sequence[float], level: float = 1 - LEVEL) -> list[bool]:
    """Which hypotheses fall by Holm's step-down: any wrong one with probability `level` at most."""
    order, fallen = np.argsort(ps, kind="stable"), [False] * len(ps)
    for rank, at in enumerate(order):
        if not ps[at] <= level / (len(ps) - rank):
            break
        fallen[at] = True
    return fallen


def benjamini_hochberg(ps: Sequence[float], rate: float) -> list[bool]:
    """Which hypotheses fall by Benjamini and Hochberg's step-up: of those that fall, a share of at
    most `rate` is wrong in the mean. For maps of many cells, where no single one is the claim."""
    order = np.argsort(ps, kind="stable")
    under = [rank for rank, at in enumerate(order, 1) if ps[at] <= rate * rank / len(ps)]
    fallen = [False] * len(ps)
    for at in order[: max(under, default=0)]:
        fallen[at] = True
    return fallen
