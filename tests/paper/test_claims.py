"""A verdict follows from its interval alone, and the other verdict is always possible."""

import numpy as np
import pytest

from antipgd.paper.claims import (
    FAILS,
    HOLDS,
    UNDECIDED,
    above,
    below,
    mostly,
    near,
    share_interval,
    smaller,
    worst,
)

TEXT = ("experiment.part", "statement", "label", "tested")


def test_smaller_compares_seed_by_seed():
    rng = np.random.default_rng(0)
    data = np.exp(rng.normal(0, 3, 10))  # seeds differ by orders of magnitude
    claim = smaller(*TEXT, 0.9 * data * np.exp(rng.normal(0, 0.01, 10)), data)
    assert claim.verdict == HOLDS
    assert claim.value == pytest.approx(0.9, rel=0.02)
    assert claim.low < claim.value < claim.high < 1
    assert claim.n == 10
    assert smaller(*TEXT, data, 0.9 * data).verdict == FAILS
    noisy = data * np.exp(rng.normal(0, 1, 10))
    assert smaller(*TEXT, noisy, data).verdict == UNDECIDED
    assert smaller(*TEXT, 1.5 * data, data, factor=2).verdict == HOLDS


def test_smaller_counts_seeds_where_runs_diverged():
    ones = np.ones(10)
    claim = smaller(*TEXT, ones, np.full(10, np.inf))
    assert (claim.verdict, claim.value, claim.low) == (HOLDS, 0, 0)
    assert claim.high == pytest.approx(0.3085, abs=1e-3)
    assert smaller(*TEXT, np.full(10, np.inf), ones).verdict == FAILS
    assert smaller(*TEXT, np.full(10, np.inf), np.full(10, np.inf)).verdict == FAILS
    assert smaller(*TEXT, ones[:3], np.full(3, np.inf)).verdict == UNDECIDED  # too few to say


def test_bounds():
    samples = [1.0, 1.1, 0.9, 1.05]
    assert below(*TEXT, samples, 2).verdict == HOLDS
    assert below(*TEXT, samples, 0.5).verdict == FAILS
    assert below(*TEXT, samples, 1.01).verdict == UNDECIDED
    assert above(*TEXT, samples, 0.5).verdict == HOLDS
    assert above(*TEXT, samples, 2).verdict == FAILS
    assert above(*TEXT, samples, 1.01).verdict == UNDECIDED


def test_near_needs_the_whole_interval():
    samples = [1.0, 1.1, 0.9, 1.05]
    assert near(*TEXT, samples, 1, 0.5).verdict == HOLDS
    assert near(*TEXT, samples, 1, 0.05).verdict == UNDECIDED
    assert near(*TEXT, samples, 2, 0.5).verdict == FAILS
    assert near(*TEXT, samples, 0, 0.5).verdict == FAILS


def test_shares():
    assert mostly(*TEXT, [True] * 10).verdict == HOLDS
    assert mostly(*TEXT, [False] * 10).verdict == FAILS
    assert mostly(*TEXT, [True, False] * 5).verdict == UNDECIDED
    assert mostly(*TEXT, [True] * 10, at_least=0.9).verdict == UNDECIDED
    assert share_interval(0, 10) == (0, pytest.approx(0.3085, abs=1e-4))
    assert share_interval(10, 10) == (pytest.approx(0.6915, abs=1e-4), 1)
    low, high = share_interval(5, 10)
    assert (low, high) == (pytest.approx(0.1871, abs=1e-4), pytest.approx(0.8129, abs=1e-4))


def test_intervals_of_shares_cover():
    rng = np.random.default_rng(1)
    for p in (0.05, 0.5, 0.9):
        hits = [share_interval(int(k), 20) for k in rng.binomial(20, p, 2000)]
        assert np.mean([low <= p <= high for low, high in hits]) >= 0.95


def test_a_whole_is_as_good_as_its_worst_part():
    assert worst([HOLDS, HOLDS]) == HOLDS
    assert worst([HOLDS, UNDECIDED]) == UNDECIDED
    assert worst([FAILS, UNDECIDED, HOLDS]) == FAILS
