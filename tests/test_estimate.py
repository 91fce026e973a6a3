import math

import numpy as np
import pytest

from antipgd.estimate import Estimate


def test_mean_and_standard_error():
    estimate = Estimate.of([1.0, 2.0, 4.0])
    assert estimate.mean == pytest.approx(7 / 3)
    assert estimate.sem == pytest.approx(np.std([1, 2, 4], ddof=1) / math.sqrt(3))
    assert estimate.n == 3


def test_intervals_cover_as_often_as_they_say():
    """Student's, not the normal one: with n = 4 that would cover 85 % only."""
    rng = np.random.default_rng(0)
    samples = rng.standard_normal((4000, 4))
    hits = 0
    for row in samples:
        low, high = Estimate.of(row).interval()
        hits += low < 0 < high
    assert 0.94 < hits / 4000 < 0.96


def test_what_is_not_finite_is_not_hidden():
    assert Estimate.of([1.0, math.inf]).mean == math.inf
    assert math.isnan(Estimate.of([1.0, math.nan]).mean)
    assert math.isnan(Estimate.of([1.0]).interval()[0])
    assert str(Estimate.of([2.0])) == "2, n=1"


def test_numbers_of_any_size():
    for scale in (1e-300, 1e200, 1e308):
        estimate = Estimate.of([0.5 * scale, scale])
        assert estimate.mean == pytest.approx(0.75 * scale)
        assert estimate.sem == pytest.approx(0.25 * scale)
    assert math.isnan(Estimate.of([math.inf, -math.inf]).mean)
    assert Estimate.of([-math.inf, 1.0]).mean == -math.inf
    assert Estimate.of([0.0, 0.0]) == Estimate(0.0, 0.0, 2)


def test_bad_input():
    with pytest.raises(ValueError, match="at least one sample; got none"):
        Estimate.of([])
    with pytest.raises(ValueError, match="between 0 and 1; got 95"):
        Estimate.of([1.0, 2.0]).interval(95)
