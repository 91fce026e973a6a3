"""Ranks with intervals: bootstrap over seeds, which all methods share. Knows numbers, not bouts.

Ranks of a fight on fresh seeds leave such intervals more often than one in twenty: how often is
what `tests/paper/fight/test_rank_intervals.py` simulates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
RESAMPLED = 2000


@dataclass(frozen=True)
class Rank:
    """A rank, 1 the best, and the interval that holds 95 % of its resampled values."""

    rank: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.rank:.3g} [{self.low:.3g}, {self.high:.3g}]"


def ranks(goodness: Array) -> Array:
    """Ranks along the last axis, 1 the largest; equal ones share their mean."""
    greater = (goodness[..., None, :] > goodness[..., :, None]).sum(-1)
    equal = (goodness[..., None, :] == goodness[..., :, None]).sum(-1)
    return 1 + greater + (equal - 1) / 2


def counted(samples: Array) -> Array:
    """A bout that diverged, −∞, takes the value of the worst of its seed that did not."""
    finite = np.where(np.isfinite(samples), samples, np.inf).min(axis=0)
    return np.where(np.isfinite(samples), samples, np.where(np.isfinite(finite), finite, 0.0))


def _of_means(samples: Array, chosen: NDArray[np.int64]) -> Array:
    """Ranks by the mean over chosen seeds, shape (resamples, methods); of equal means that of more
    bouts that diverged is behind: by less than what is between two ranks."""
    means, lost = (of[:, chosen].mean(-1).T for of in (counted(samples), ~np.isfinite(samples)))
    return ranks(-(ranks(means) + lost / 2))


def resampled_ranks(samples: Array, key: int) -> tuple[Array, Array]:
    """Ranks by the mean over seeds, and resampled ones of shape (RESAMPLED, methods).

    `samples` has a row for each method and a column for each seed; seeds are drawn together for all
    methods, by a generator of that key.
    """
    draw = np.random.Generator(np.random.Philox(key=key))
    seeds = samples.shape[1]
    chosen = draw.integers(seeds, size=(RESAMPLED, seeds))
    return _of_means(samples, np.arange(seeds)[None])[0], _of_means(samples, chosen)


def _with_interval(rank: Array, resampled: Array) -> list[Rank]:
    low, high = np.quantile(resampled, [0.025, 0.975], axis=0, method="inverted_cdf")
    return [Rank(*map(float, one)) for one in zip(rank, low, high, strict=True)]


def ranked(samples: Array, key: int = 0) -> list[Rank]:
    """The rank of each row."""
    return _with_interval(*resampled_ranks(samples, key))


def ranked_over(problems: Sequence[Array]) -> list[Rank]:
    """Mean ranks over problems that have the same rows. Where they have as many seeds these are
    resampled together, for some problems share data by seed. The problems are those that they are:
    their choice is in no interval."""
    both = [resampled_ranks(samples, key=0) for samples in problems]
    rank, resampled = (np.mean(parts, axis=0) for parts in zip(*both, strict=True))
    return _with_interval(rank, resampled)
