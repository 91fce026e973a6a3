"""p-values, needed samples, Holm, Benjamini and Hochberg, beside slow and known versions."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from antipgd.estimate import Estimate
from antipgd.paper.claims import FAILS, HOLDS, LEVEL, NOT_AT_MINIMUM, UNDECIDED, Claim
from antipgd.paper.coverage import PaperClaim, judged_together, together, verdict_in_row
from antipgd.paper.significance import (
    benjamini_hochberg,
    holm,
    mean_p,
    needed_among,
    needed_for_mean,
    needed_for_share,
    share_interval,
    share_p,
)


def test_the_p_of_a_mean_is_students():
    rng = np.random.default_rng(0)
    for n in (2, 5, 40):
        samples = rng.normal(0.3, 1, n)
        wanted = stats.ttest_1samp(samples, 0.1).pvalue
        assert mean_p(Estimate.of(samples), 0.1) == pytest.approx(wanted, rel=1e-9)
        edge = Estimate.of(samples).interval()[1]
        assert mean_p(Estimate.of(samples), edge) == pytest.approx(0.05)


def test_the_p_of_a_mean_without_spread():
    assert mean_p(Estimate.of([1.0, 1.0]), 2) == 0
    assert mean_p(Estimate.of([1.0, 1.0]), 1) == 1
    assert mean_p(Estimate.of([1.0]), 2) == 1
    assert mean_p(Estimate.of([math.inf, 1.0]), 2) == 1


def slow_share_p(k, n, p0):
    chances = [math.comb(n, i) * p0**i * (1 - p0) ** (n - i) for i in range(n + 1)]
    return min(1.0, 2 * min(sum(chances[k:]), sum(chances[: k + 1])))


def test_the_p_of_a_share_is_exact_and_that_of_its_interval():
    assert share_p(6, 6, 0.5) == pytest.approx(1 / 32)
    assert share_p(0, 10, 0.5) == pytest.approx(2 / 1024)
    for n, p0 in itertools.product((1, 6, 13), (0.1, 0.5, 0.9)):
        for k in range(n + 1):
            p = share_p(k, n, p0)
            assert p == pytest.approx(slow_share_p(k, n, p0), rel=1e-9)
            low, high = share_interval(k, n)
            assert (p < 0.05) == (not low <= p0 <= high)


def test_needed_samples_reach_eighty_per_cent():
    """Cohen's tables: 34 pairs for an effect of half a deviation, 199 for a fifth."""
    for effect, n in ((0.5, 34), (0.2, 199), (1.0, 10)):
        assert needed_for_mean(Estimate(effect, 1 / math.sqrt(8), 8), 0.0) == n
    rng = np.random.default_rng(1)
    samples = rng.normal(0.5, 1, (20_000, 34))
    p = stats.ttest_1samp(samples, 0, axis=1).pvalue
    assert np.mean(p < 0.05) == pytest.approx(0.8, abs=0.02)


def test_two_bounds_need_more_than_one():
    """A mean in the middle must be told from both: as many as for 90 % beside one of them."""
    middle = Estimate(0.0, 0.1, 100)  # of deviation 1
    n = needed_for_mean(middle, -0.5, 0.5)
    rng = np.random.default_rng(2)
    samples = rng.normal(0, 1, (20_000, n))
    reach = stats.t.ppf(0.975, n - 1) * samples.std(axis=1, ddof=1) / math.sqrt(n)
    inside = np.abs(samples.mean(axis=1)) + reach < 0.5
    assert np.mean(inside) == pytest.approx(0.8, abs=0.02)
    assert n > 1.2 * needed_for_mean(middle, 0.5)


def test_many_comparisons_need_more_samples_each():
    """Alone it is the number of the mean; among ten, samples of that many fall at a tenth of 5 %
    as often as they should."""
    one = Estimate(0.5, 1 / math.sqrt(12), 12)  # of deviation 1
    p = mean_p(one, 0.0)
    assert needed_among(p, 12, 1) == needed_for_mean(one, 0.0)
    n = needed_among(p, 12, 10)
    rng = np.random.default_rng(3)
    found = stats.ttest_1samp(rng.normal(0.5, 1, (20_000, n)), 0, axis=1).pvalue
    assert np.mean(found < 0.005) == pytest.approx(0.8, abs=0.02)
    assert needed_among(1.0, 12, 10) is None
    assert needed_among(0.0, 12, 10) is None


def test_no_number_of_samples_helps():
    assert needed_for_mean(Estimate(1.0, 0.1, 5), 1.0) is None
    assert needed_for_mean(Estimate(1.0, 0.0, 5), 2.0) is None
    assert needed_for_mean(Estimate(1.0, math.nan, 1), 2.0) is None
    assert needed_for_mean(Estimate(math.inf, math.nan, 4), 2.0) is None
    assert needed_for_mean(Estimate(1e-4, 1.0, 4), 0.0) is None  # more than a million
    assert needed_for_share(5, 10, 0.5) is None


@pytest.mark.parametrize(
    ("k", "n", "bound"), [(7, 10, 0.5), (3, 10, 0.5), (4, 4, 0.5), (9, 9, 0.9)]
)
def test_needed_samples_of_a_share(k, n, bound):
    needed, share = needed_for_share(k, n, bound), k / n
    assert needed > n

    def power(m):
        chances = stats.binom.pmf(np.arange(m + 1), m, share)
        decided = [(lambda i: i[0] > bound if share > bound else i[1] < bound)(share_interval(c, m))
                   for c in range(m + 1)]  # fmt: skip
        return chances[decided].sum()

    assert power(needed) >= 0.8
    assert power(needed - 1) < 0.8
    if (k, n) == (4, 4):
        assert needed == 6


def slow_holm(ps, level):
    """Rejected while each next smallest is small enough for all that are left."""
    left, fallen = list(range(len(ps))), set()
    while left:
        at = min(left, key=lambda i: ps[i])
        if ps[at] > level / len(left):
            break
        fallen.add(at)
        left.remove(at)
    return [i in fallen for i in range(len(ps))]


def test_holm_beside_the_slow_version_and_a_known_example():
    # α/4, α/3, α/2, α/1 = .0125, .0167, .025, .05
    assert holm([0.01, 0.04, 0.03, 0.005]) == [True, False, False, True]
    assert holm([0.01, 0.02, 0.022, 0.09], 0.1) == [True, True, True, True]
    assert holm([0.05]) == [True]
    assert holm([]) == []
    assert holm([math.nan, 0.001]) == [False, True]
    rng = np.random.default_rng(3)
    for _ in range(300):
        ps = list(rng.uniform(0, 1, rng.integers(1, 12)) ** 4)
        assert holm(ps) == slow_holm(ps, 0.05)


def test_holm_is_wrong_once_in_twenty_rows_and_plain_tests_far_more_often():
    ps = np.random.default_rng(4).uniform(0, 1, (4000, 31))
    assert np.mean([any(holm(row)) for row in ps]) == pytest.approx(0.05, abs=0.012)
    assert np.mean((ps < 0.05).any(axis=1)) > 0.7


def test_benjamini_hochberg_beside_scipy_and_their_example():
    theirs = [
        0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262,
        0.5719, 0.6528, 0.7590, 1.0,
    ]  # fmt: skip
    assert sum(benjamini_hochberg(theirs, 0.05)) == 4  # as in their paper; Bonferroni rejects three
    assert benjamini_hochberg([], 0.05) == []
    rng = np.random.default_rng(5)
    for _ in range(300):
        ps = rng.uniform(0, 1, rng.integers(1, 30)) ** 3
        wanted = stats.false_discovery_control(ps) <= 0.1
        assert benjamini_hochberg(list(ps), 0.1) == list(wanted)


def a_part(part, verdict, p):
    return Claim(f"row.{part}", "says", "fig", "at w", verdict, 1.0, 0.5, 1.5, 10, p)


def test_a_part_that_does_not_survive_its_row_becomes_undecided():
    parts = [
        a_part("a", HOLDS, 0.001), a_part("b", FAILS, 0.02), a_part("c", HOLDS, 0.04),
        a_part("d", UNDECIDED, 0.6), a_part("e", NOT_AT_MINIMUM, None), a_part("f", LEVEL, 1e-9),
    ]  # fmt: skip
    found = together(parts)
    assert [part.verdict for part in found] == [
        HOLDS, UNDECIDED, UNDECIDED, UNDECIDED, NOT_AT_MINIMUM, LEVEL,
    ]  # fmt: skip
    assert found[1].tested == "at w (undecided by Holm over 5)"
    assert (found[1].low, found[1].high, found[1].p) == (0.5, 1.5, 0.02)
    assert [part.tested for part in found if part.id in ("row.a", "row.d", "row.e")] == ["at w"] * 3
    assert together(parts[1:2]) == parts[1:2]  # alone it stands
    assert [verdict_in_row(part) for part in found] == [
        HOLDS, "undecided by Holm", "undecided by Holm", UNDECIDED, NOT_AT_MINIMUM, LEVEL,
    ]  # fmt: skip


def test_rows_do_not_weaken_each_other():
    rows = [PaperClaim(name, "", "", (f"{name}.*",)) for name in ("one", "two")]
    claims = [Claim(f"{row}.{i}", "", "", "t", HOLDS, 0, 0, 0, 9, 0.02)
              for i in range(2) for row in ("one", "two")]  # fmt: skip
    assert judged_together(claims, rows) == claims
    more = [*claims, Claim("one.2", "", "", "t", FAILS, 0, 0, 0, 9, 0.03)]
    verdicts = {claim.id: claim.verdict for claim in judged_together(more, rows)}
    assert verdicts == {
        "one.0": UNDECIDED, "two.0": HOLDS, "one.1": UNDECIDED, "two.1": HOLDS, "one.2": UNDECIDED,
    }  # fmt: skip
    assert [claim.id for claim in judged_together(more, rows)] == [claim.id for claim in more]
