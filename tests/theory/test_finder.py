"""The rule that picks σ: exact where the theory is, careful where the table is not."""

import math

import numpy as np
import pytest

from antipgd.estimate import Estimate
from antipgd.theory.finder import (
    FRACTION,
    antithetic_sharpness,
    check_grid,
    choose_sigma,
    first_below,
    loss_scale,
    too_little,
    too_much,
)

GRID = [0.01, 0.03, 0.1, 0.3]


def sure(values):
    return [Estimate(float(value), 0.0, 16) for value in values]


@pytest.mark.parametrize("power", [2, 3, 4])
@pytest.mark.parametrize("sigma", [0.011, 0.03, 0.05, 0.29])
def test_a_power_law_is_inverted_exactly(power, sigma):
    sharpness = sure(7 * np.array(GRID) ** power)
    choice = choose_sigma(GRID, sharpness, scale=7 * sigma**power / FRACTION)
    assert choice.sigma == pytest.approx(sigma, rel=1e-12)
    assert choice.low == choice.high == choice.sigma
    assert choice.target == pytest.approx(7 * sigma**power)


def test_the_interval_comes_from_the_error_bars():
    """σ ∝ √sharpness, so a relative error of e becomes one of e/2."""
    means = 50 * np.array(GRID) ** 2
    sharpness = [Estimate(mean, 0.02 * mean, 1000) for mean in means]
    choice = choose_sigma(GRID, sharpness, scale=1.0, fraction=0.1)
    reach = 1.962 * 0.02
    assert choice.low == pytest.approx(choice.sigma / math.sqrt(1 + reach), rel=1e-3)
    assert choice.high == pytest.approx(choice.sigma / math.sqrt(1 - reach), rel=1e-3)


def test_the_first_crossing_counts():
    choice = choose_sigma(GRID, sure([0.01, 1.0, 0.01, 1.0]), scale=1.0, fraction=0.1)
    assert 0.01 < choice.sigma < 0.03


@pytest.mark.parametrize("explosion", [math.inf, math.nan])
def test_beyond_all_bounds_is_above_the_target(explosion):
    sharpness = [*sure([1e-6, 1e-5]), Estimate(explosion, math.nan, 4), *sure([1.0])]
    choice = choose_sigma(GRID, sharpness, scale=1.0)
    assert (choice.sigma, choice.low, choice.high) == (0.03, 0.03, 0.03)


def test_what_is_lost_in_its_error_follows_the_square():
    sharpness = [Estimate(-1e-9, 1e-9, 8), *sure([0.09, 1.0, 9.0])]
    assert choose_sigma(GRID, sharpness, 1.0, 0.04).sigma == pytest.approx(0.02)
    assert choose_sigma(GRID, sharpness, 1.0, 0.001).sigma == 0.01  # not below what is known


def test_error_bars_that_never_reach_the_target():
    sharpness = [Estimate(mean, 0.5 * mean, 3) for mean in (0.01, 0.1, 1.0, 2.0)]
    choice = choose_sigma(GRID, sharpness, scale=1.0, fraction=0.5)
    assert choice.low < choice.sigma < choice.high == math.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: choose_sigma(GRID, sure([1, 2, 3, 4]), 1.0), "above 0.05 .* 1 at sigma 0.01.*low"),
        (lambda: choose_sigma(GRID, sure([0, 0, 0, 1e-3]), 1.0), "below 0.05 .* 0.001 .* higher"),
        (lambda: choose_sigma(GRID, sure([1, 2]), 1.0), "4 sigmas, but 2"),
        (lambda: choose_sigma(GRID, sure([1, 2, 3, 4]), 0.0), "scale must be .* got 0.0"),
        (lambda: choose_sigma(GRID, sure([1, 2, 3, 4]), 1.0, 1.5), "fraction must be .* got 1.5"),
        (lambda: check_grid([0.1]), r"at least 2 .* got \[0.1\]"),
        (lambda: check_grid([0.2, 0.1]), "ascending"),
        (lambda: check_grid([0.1, math.nan, 0.3]), "finite"),
        (lambda: loss_scale(1.0, 2.0), "at zero, 1, is no scale for the loss here, 2"),
        (lambda: loss_scale(math.inf, 2.0), "is no scale"),
        (lambda: loss_scale(0.5, 0.6, "share"), "the share with all weights at zero, 0.5, is no"),
        (lambda: antithetic_sharpness(np.sum, [1.0], GRID, np.ones((1, 1))), r"got \(1, 1\)"),
    ],
)
def test_mistakes(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_pairs_take_out_odd_orders():
    rng = np.random.default_rng(0)
    xi = rng.standard_normal((5, 4))
    h = np.array([1.0, 2.0, 3.0, 4.0])

    def loss(W):
        return (h * W**2).sum(axis=1) / 2 + 10 * (W**3).sum(axis=1) + W.sum(axis=1)

    found = antithetic_sharpness(loss, np.zeros(4), [0.1, 0.5], xi)
    for sigma, one in zip((0.1, 0.5), found, strict=True):
        expected = Estimate.of(sigma**2 / 2 * (h * xi**2).sum(axis=1))
        assert one.mean == pytest.approx(expected.mean, rel=1e-10)
        assert one.sem == pytest.approx(expected.sem, rel=1e-10)


def test_the_first_mean_below_a_bound():
    costs = [5.0, 1.0, 5.0, 2.0, 2.0, 2.0, 9.0, 0.0]
    assert first_below(costs, 2.0, 1) == 2
    assert first_below(costs, 2.0, 3) == 6  # steps 4, 5, 6
    assert first_below(costs, 3.0, 2) == 2  # its bound itself counts
    assert first_below(costs, 0.1, 2) is None
    assert first_below(costs, 9.0, 9) is None  # fewer costs than a mean takes
    assert first_below([math.inf, math.nan, 1.0], 2.0, 2) is None


def near(mean, spread=0.01):
    return Estimate(mean, spread * abs(mean), 100)


def test_too_little_and_too_much():
    assert "less than 0.001 of 2" in too_little(near(1e-3), 2.0)
    assert too_little(near(3e-3), 2.0) is None
    assert too_little(Estimate(1e-3, 1e-3, 3), 2.0) is None  # not surely
    assert too_much(0.1, 0.2, near(0.1), None, 2.0) is None
    assert "nan at z" in too_much(math.nan, math.nan, near(0.1), None, 2.0)
    assert "inf at w" in too_much(0.1, math.inf, near(0.1), None, 2.0)
    assert "present draw alone adds 2.9" in too_much(0.1, 3.0, near(0.1), None, 2.0)
    assert "adds 3 to the loss, more than 2" in too_much(0.1, 0.2, near(3.0), None, 2.0)
    assert too_much(0.1, 0.2, near(3.0, 0.5), None, 2.0) is None
    assert "the second order is 0.01" in too_much(0.1, 0.2, near(0.5), near(0.01), 2.0)
    assert too_much(0.1, 0.2, near(0.5), near(0.1), 2.0) is None
