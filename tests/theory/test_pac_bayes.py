"""The bound covers on data whose true loss is known, and does not if its condition is broken."""

import math
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from antipgd.paper.significance import share_interval
from antipgd.theory.pac_bayes import (
    expected_sharpness,
    gaussian_divergence,
    pac_bayes_bound,
    sharpness_from_trace,
)

S_GRID = (0.1, 0.3, 1.0, 3.0)
LAMBDA_GRID = (10.0, 30.0, 100.0, 300.0, 1000.0)
DELTA = 0.1
SETS = 1000


def test_divergence_is_the_mean_logarithm_of_the_ratio_of_densities():
    w, prior, s = np.array([1.0, -0.5, 0.2]), np.array([0.3, 0.0, 0.0]), 0.4
    points = w + s * np.random.default_rng(0).standard_normal((100_000, 3))
    ratio = (((points - prior) ** 2) - ((points - w) ** 2)).sum(axis=1) / (2 * s**2)
    sem = ratio.std(ddof=1) / math.sqrt(len(ratio))
    assert abs(gaussian_divergence(w, prior, s) - ratio.mean()) < 4.5 * sem
    assert abs(2 * gaussian_divergence(w, prior, s) - ratio.mean()) > 4.5 * sem


def test_expected_sharpness_of_a_quadratic_is_half_s_squared_times_the_trace():
    h, s = np.array([1.0, 4.0, 10.0]), 0.3
    xi = np.random.default_rng(1).standard_normal((50_000, 3))

    def loss(W):
        return (h * W**2).sum(axis=1) / 2

    estimate = expected_sharpness(loss, [0.0, 0.0, 0.0], s, xi)
    off = abs(estimate.mean - sharpness_from_trace(h.sum(), s)) / estimate.sem
    wrong = abs(estimate.mean - 2 * sharpness_from_trace(h.sum(), s)) / estimate.sem
    assert off < 4.5 < wrong
    assert estimate.n == 50_000


def test_common_draws_make_differences_of_sharpness_exact():
    xi = np.random.default_rng(2).standard_normal((10, 2))
    narrow, wide = (
        expected_sharpness(lambda W, h=h: h * (W**2).sum(axis=1), [0.0, 0.0], 0.1, xi)
        for h in (3.0, 1.0)
    )
    assert narrow.mean == pytest.approx(3 * wide.mean)


def bell(d, n, seed):
    """n points around μ with loss 1 − exp(−‖w − x‖²/2): all expectations in closed form."""
    rng = np.random.default_rng([seed, d, n])
    mu = np.full(d, 0.5)
    x = mu + rng.standard_normal((n, d))
    w = x.mean(axis=0)

    def empirical(s):
        square = ((x - w) ** 2).sum(axis=1)
        return float(1 - ((1 + s * s) ** (-d / 2) * np.exp(-square / (2 + 2 * s * s))).mean())

    def true(s):
        gap = ((w - mu) ** 2).sum()
        return 1 - (2 + s * s) ** (-d / 2) * math.exp(-gap / (4 + 2 * s * s))

    return w, empirical, true


def test_the_bound_covers():
    exceeded = vacuous = naive = 0
    for seed in range(SETS):
        w, empirical, true = bell(2, 100, seed)
        bound = pac_bayes_bound(
            empirical, w, np.zeros(2), S_GRID, LAMBDA_GRID, 100, DELTA, exact=True
        )
        exceeded += true(bound.s) > bound.total
        naive += true(bound.s) > bound.empirical
        vacuous += bound.vacuous
    assert share_interval(exceeded, SETS)[1] <= DELTA
    assert vacuous == 0  # a bound that says nothing would cover for nothing
    assert share_interval(naive, SETS)[0] > DELTA  # without its terms it would not


def coin(n, d, seed):
    """Labels that no input tells: the true 0-1 loss is ½ whatever w, the empirical one is not."""
    rng = np.random.default_rng([seed, n, d])
    X, y = rng.standard_normal((n, d)), rng.choice([-1.0, 1.0], n)
    w = np.linalg.lstsq(X, 5 * y, rcond=None)[0]
    margin, length = y * (X @ w), np.linalg.norm(X, axis=1)
    return w, lambda s: float(ndtr(-margin / (s * length)).mean())


def test_the_bound_covers_what_was_learnt_by_heart_but_not_with_a_prior_from_the_data():
    fair, cheating = 0, 0
    n, d = 30, 60
    for seed in range(SETS):
        w, empirical = coin(n, d, seed)
        fixed = (S_GRID, LAMBDA_GRID, n, DELTA)
        fair += pac_bayes_bound(empirical, w, np.zeros(d), *fixed, exact=True).total < 0.5
        cheating += pac_bayes_bound(empirical, w, w, *fixed, exact=True).total < 0.5
    assert share_interval(fair, SETS)[1] <= DELTA
    assert share_interval(cheating, SETS)[0] > DELTA


def test_allowance_for_draws_covers():
    below = 0
    for seed in range(SETS):
        losses = np.random.default_rng([seed, 9]).binomial(1, 0.5, 50)
        bound = pac_bayes_bound(lambda s, x=losses: x, [0.0], [0.0], [1.0], [1.0], 50, DELTA)
        below += bound.empirical + bound.sampling < 0.5
    assert share_interval(below, SETS)[1] <= 2 * DELTA / 10
    assert (
        pac_bayes_bound(lambda s: 0.5, [0.0], [0.0], [1.0], [1.0], 9, 0.1, exact=True).sampling == 0
    )


def test_terms_of_the_bound():
    bound = pac_bayes_bound(lambda s: [0.1, 0.3], [3.0, 4.0], [0.0, 0.0], [5.0], [20.0], 40, 0.05)
    assert bound.kl == 0.5
    assert bound.empirical == pytest.approx(0.2)
    assert bound.sampling == pytest.approx(math.sqrt(math.log(200) / 4))
    assert bound.lambda_term == 20 / 320
    assert bound.divergence == 0.025
    assert bound.confidence == pytest.approx(math.log(1 / 0.045) / 20)
    assert bound.union == 0
    assert bound.total == pytest.approx(sum(astuple(bound)[3:]))
    assert bound.vacuous
    printed = pac_bayes_bound(
        lambda s: [0.1, 0.3], [3.0, 4.0], [0.0, 0.0], [5.0], [20.0], 40, 0.05, printed=True
    )
    assert printed.lambda_term == 4 * bound.lambda_term


def test_larger_grids_cost_their_logarithm():
    small = pac_bayes_bound(lambda s: 0.1, [1.0], [0.0], [1.0], [20.0], 40, 0.05, exact=True)
    large = pac_bayes_bound(
        lambda s: 0.1, [1.0], [0.0], [1.0, 1e-9], [20.0, 1e-9, 1e9], 40, 0.05, exact=True
    )
    assert (large.s, large.lam) == (small.s, small.lam)
    assert large.total - small.total == pytest.approx(math.log(6) / 20)


@given(
    w=st.lists(st.floats(-100, 100), min_size=1, max_size=4),
    loss=st.floats(0, 1),
    s=st.lists(st.floats(1e-3, 10), min_size=1, max_size=4),
    lam=st.lists(st.floats(1e-2, 1e4), min_size=1, max_size=4),
    n=st.integers(1, 10_000),
    delta=st.floats(1e-6, 0.999),
)
def test_a_bound_is_finite_and_never_below_the_empirical_loss(w, loss, s, lam, n, delta):
    bound = pac_bayes_bound(lambda s: loss, w, [0.0] * len(w), s, lam, n, delta, exact=True)
    assert math.isfinite(bound.total)
    assert bound.total >= loss
    assert min(astuple(bound)) >= 0
    assert bound.vacuous == (bound.total >= 1)


def bounded(loss=0.5, s=(1.0,), lam=(1.0,), n=10, delta=0.1):
    return pac_bayes_bound(lambda width: loss, [0.0], [0.0], s, lam, n, delta)


REFUSED = [
    (lambda: bounded(lam=(1.0, 0.0)), r"lambda_grid\[1\] must be .* > 0; got 0.0"),
    (lambda: bounded(lam=()), "lambda_grid must hold at least one"),
    (lambda: bounded(s=()), "s_grid must hold at least one"),
    (lambda: bounded(s=(-1.0,)), r"s_grid\[0\] must be a finite number > 0; got -1.0"),
    (lambda: bounded(delta=0.0), "delta must be a finite number > 0 and < 1; got 0.0"),
    (lambda: bounded(delta=1.0), "delta must be a finite number > 0 and < 1; got 1.0"),
    (lambda: bounded(loss=1.5), r"clipped to \[0, 1\]; got 1 from 1.5 to 1.5"),
    (lambda: bounded(loss=[0.5, -0.1]), r"clipped to \[0, 1\]; got 2 from -0.1"),
    (lambda: bounded(loss=math.nan), r"clipped to \[0, 1\]"),
    (lambda: bounded(loss=[]), r"clipped to \[0, 1\]; got 0"),
    (lambda: bounded(n=0), "n must be a whole number >= 1; got 0"),
    (lambda: sharpness_from_trace(1.0, 0.0), "s must be a finite number > 0; got 0.0"),
    (lambda: gaussian_divergence([0.0], [0.0], -1.0), "s must be"),
    (lambda: expected_sharpness(np.sum, [0.0], 1.0, np.ones((5, 2))), r"got \(5, 2\)"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_refusals_name_value_and_condition(call, message):
    with pytest.raises(ValueError, match=message):
        call()
