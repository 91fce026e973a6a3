"""A verdict follows from its interval alone, and the other verdict is always possible."""

import numpy as np
import pytest
from scipy import stats

from antipgd.paper.claims import (
    FAILS,
    HOLDS,
    LEVEL,
    NOT_AT_MINIMUM,
    SEVERITY,
    UNDECIDED,
    above,
    below,
    compare_difference,
    compare_ratio,
    equal,
    mostly,
    near,
    not_at_minimum,
    smaller,
    times,
    worst,
)
from antipgd.paper.significance import share_interval

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


def test_what_is_not_a_number_has_diverged():
    ones, none = np.ones(10), np.full(10, np.nan)
    assert smaller(*TEXT, none, ones).verdict == FAILS
    assert smaller(*TEXT, ones, none).verdict == HOLDS
    assert smaller(*TEXT, none, none).verdict == FAILS


def test_a_share_is_no_ratio_and_says_so():
    ones = np.ones(10)
    ratio, share = smaller(*TEXT, 0.5 * ones, ones), smaller(*TEXT, ones, np.r_[ones[1:], np.inf])
    assert (times(ratio), times(ratio, ".3g")) == ("0.50 ×", "0.5 ×")
    assert (share.unit, times(share)) == ("share of seeds", "larger in 90% of 10 seeds")


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
    assert SEVERITY == (HOLDS, LEVEL, UNDECIDED, NOT_AT_MINIMUM, FAILS)
    assert worst([LEVEL, HOLDS]) == LEVEL
    assert worst([NOT_AT_MINIMUM, UNDECIDED, LEVEL]) == NOT_AT_MINIMUM
    assert worst([NOT_AT_MINIMUM, FAILS]) == FAILS


SPREAD = np.array([-1.0, -0.5, 0.0, 0.5, 1.0] * 4)  # half an interval: 0.3395


@pytest.mark.parametrize(
    ("mean", "verdict"),
    [
        (0.0, LEVEL), (0.6, LEVEL), (-0.6, LEVEL),  # 0.6 is above nought, too: level goes first
        (0.7, HOLDS), (3.0, HOLDS), (-0.7, FAILS), (-3.0, FAILS),
    ],
)  # fmt: skip
def test_differences_are_level_within_the_margin(mean, verdict):
    claim = compare_difference(*TEXT, SPREAD + mean)
    assert claim.verdict == verdict
    assert (claim.value, claim.n) == (pytest.approx(mean), 20)
    assert claim.high - claim.low == pytest.approx(2 * 0.3395, abs=0.001)
    assert "level within ± 1" in claim.tested
    assert claim.p < 0.05


def test_a_difference_that_is_neither_is_undecided():
    claim = compare_difference(*TEXT, SPREAD + 0.3, margin=0.5)
    assert claim.verdict == UNDECIDED
    assert claim.p > 0.05
    assert 20 < claim.needed < 100
    for mean, verdict in ((0.4, HOLDS), (-0.4, FAILS)):
        assert compare_difference(*TEXT, SPREAD + mean, margin=0.5).verdict == verdict


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (1.0, LEVEL), (0.97, LEVEL), (1.04, LEVEL), (0.9, HOLDS), (0.955, HOLDS), (1.046, FAILS),
        (1.1, FAILS),
    ],
)  # fmt: skip
def test_ratios_are_level_within_the_margin(ratio, verdict):
    theirs = np.exp(np.random.default_rng(0).normal(0, 3, 20))
    claim = compare_ratio(*TEXT, ratio * theirs * np.exp(0.02 * SPREAD), theirs)
    assert claim.verdict == verdict
    assert claim.value == pytest.approx(ratio)
    assert claim.low < claim.value < claim.high
    assert compare_ratio(*TEXT, ratio * theirs * np.exp(0.02 * SPREAD), theirs, 0.3).verdict == (
        LEVEL
    )


def test_ratios_of_runs_that_diverged_are_counted():
    ones, lost = np.ones(10), np.full(10, np.inf)
    assert compare_ratio(*TEXT, ones, lost).verdict == HOLDS
    assert compare_ratio(*TEXT, lost, ones).verdict == FAILS
    assert compare_ratio(*TEXT, ones, lost) == smaller(*TEXT, ones, lost)


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (1.0, HOLDS), (0.97, HOLDS), (1.03, HOLDS), (0.955, UNDECIDED), (1.045, UNDECIDED),
        (0.9, FAILS), (1.1, FAILS),
    ],
)  # fmt: skip
def test_what_is_claimed_to_be_equal_fails_on_either_side(ratio, verdict):
    theirs = np.exp(np.random.default_rng(0).normal(0, 3, 20))
    claim = equal(*TEXT, ratio * theirs * np.exp(0.02 * SPREAD), theirs)
    assert (claim.verdict, claim.value) == (verdict, pytest.approx(ratio))
    assert claim.low < claim.value < claim.high
    assert equal(*TEXT, ratio * theirs * np.exp(0.02 * SPREAD), theirs, 0.3).verdict == HOLDS


def test_what_diverged_is_equal_to_nothing():
    ones, lost = np.ones(10), np.full(10, np.inf)
    assert equal(*TEXT, ones, lost).verdict == FAILS
    assert equal(*TEXT, lost, lost).verdict == FAILS
    claim = equal(*TEXT, 1.04 * ones, np.r_[ones[1:], np.inf])
    assert (claim.verdict, claim.value, claim.unit) == (HOLDS, 0.9, "share of seeds")
    assert equal(*TEXT, 1.06 * ones, np.r_[ones[1:], np.inf]).value == 0
    assert equal(*TEXT, 0 * ones, 0 * ones).value == 1


def test_not_at_a_minimum_has_a_value_and_no_comparison():
    claim = not_at_minimum(*TEXT, [0.6, 0.7, 0.8])
    assert (claim.verdict, claim.value, claim.n) == (NOT_AT_MINIMUM, pytest.approx(0.7), 3)
    assert claim.low < 0.7 < claim.high
    assert (claim.p, claim.needed) == (None, None)


def test_six_of_six_is_the_least_that_decides_a_share():
    assert mostly(*TEXT, [True] * 5).verdict == UNDECIDED
    assert mostly(*TEXT, [True] * 6).verdict == HOLDS
    assert mostly(*TEXT, [True] * 7 + [False]).verdict == UNDECIDED
    assert mostly(*TEXT, [True] * 8 + [False]).verdict == HOLDS


def every_verb(samples):
    """Every verb that compares, on samples around nought."""
    a, b = np.exp(samples), np.ones_like(samples)
    yield smaller(*TEXT, a, b)
    yield compare_ratio(*TEXT, a, b, 0.1)
    yield compare_difference(*TEXT, samples, 0.1)
    yield below(*TEXT, samples, 0.0)
    yield above(*TEXT, samples, 0.0)
    yield near(*TEXT, samples, 0.0, 0.3)
    yield equal(*TEXT, a, b, 0.3)
    yield mostly(*TEXT, samples > 0)
    a[0] = np.inf
    yield smaller(*TEXT, a, b)


def test_p_is_small_exactly_where_the_interval_decides():
    rng, seen = np.random.default_rng(2), set()
    for _ in range(300):
        samples = rng.normal(rng.normal(0, 0.4), rng.uniform(0.01, 1), rng.integers(2, 20))
        for claim in every_verb(samples):
            assert (claim.verdict == UNDECIDED) == (claim.p > 0.05), claim
            assert claim.needed is None or claim.verdict == UNDECIDED
            seen.add(claim.verdict)
    assert seen == {HOLDS, LEVEL, UNDECIDED, FAILS}


def test_p_is_against_the_bound_that_the_verdict_is_about():
    level = compare_difference(*TEXT, SPREAD + 0.4)
    assert level.p == pytest.approx(stats.ttest_1samp(SPREAD + 0.4, 1.0).pvalue)  # the nearer one
    holds = compare_difference(*TEXT, SPREAD + 2)
    assert holds.p == pytest.approx(stats.ttest_1samp(SPREAD + 2, 0.0).pvalue)
    assert near(*TEXT, SPREAD, 0.1, 0.5).p == pytest.approx(stats.ttest_1samp(SPREAD, -0.4).pvalue)
    assert near(*TEXT, SPREAD, 2.0, 0.5).p == pytest.approx(stats.ttest_1samp(SPREAD, 1.5).pvalue)
    doubled = smaller(*TEXT, np.exp(SPREAD), np.ones(20), factor=2)
    assert doubled.p == pytest.approx(stats.ttest_1samp(SPREAD, np.log(2)).pvalue)
    assert mostly(*TEXT, [True] * 40, at_least=0.9).p == pytest.approx(2 * 0.9**40)
