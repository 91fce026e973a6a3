"""The paper's algorithms, by their identities and by their statistics."""

import math

import numpy as np
import pytest

from antipgd.noise import ANTI, WHITE, draws
from antipgd.noise.injection import (
    carried_coefficients,
    check_sigma,
    combine,
    injection_coefficients,
)
from antipgd.noise.reference import (
    anti_pgd,
    anti_pgd_clean,
    clean,
    gd,
    gradient_step,
    perturbed,
    pgd,
)

SIZE = 20_000


def draw(k, size=SIZE):
    return draws(0, "w", k, 0, size)


def identity(w):
    return w


def last(trajectory):
    *_, w = trajectory
    return w


def test_gradient_descent_on_a_quadratic():
    step = gradient_step(lambda w: 3 * w, eta=0.1)
    *_, w = gd(step, np.array([1.0, -2.0]), 5)
    assert w == pytest.approx(0.7**5 * np.array([1, -2]))


def test_injections_of_anti_pgd_have_correlation_minus_one_half():
    path = list(anti_pgd(identity, np.zeros(SIZE), 60, draw=draw, sigma=0.3))
    eps = np.diff(np.array(path), axis=0)[1:]  # from step 2 on: stationary
    variance = (eps**2).mean()
    assert variance == pytest.approx(2 * 0.3**2, rel=0.01)
    samples = eps.size
    for lag in range(1, 6):
        correlation = (eps[:-lag] * eps[lag:]).mean() / variance
        expected = -0.5 if lag == 1 else 0.0
        assert abs(correlation - expected) < 5 / math.sqrt(samples), lag
    assert abs((eps[:, :-1] * eps[:, 1:]).mean() / variance) < 5 / math.sqrt(samples)


@pytest.mark.parametrize("steps", [1, 10_000])
def test_variance_of_anti_pgd_stays_and_that_of_pgd_grows(steps):
    size, sigma = 400, 0.5
    for method, expected in ((anti_pgd, sigma**2), (pgd, steps * sigma**2)):
        w = last(method(identity, np.zeros(size), steps, draw=lambda k: draw(k, size), sigma=sigma))
        tolerance = 5 * math.sqrt(2 / size)
        assert w.var() / expected == pytest.approx(1, abs=tolerance)
        for wrong in (2 / 3, 3 / 2):
            assert abs((wrong * w).var() / expected - 1) > tolerance


def test_w_form_and_z_form_are_one_trajectory():
    matrix = np.random.default_rng(0).normal(size=(30, 30)) / 6
    step = gradient_step(lambda w: matrix.T @ np.tanh(matrix @ w), eta=0.2)
    w0 = np.ones(30)
    keep = {"draw": lambda k: draw(k, 30), "sigma": lambda k: 0.1 / k**0.3}
    in_w = list(anti_pgd(step, w0, 300, **keep))
    in_z = list(anti_pgd_clean(step, w0, 300, **keep))
    for n, (w, z) in enumerate(zip(in_w, in_z, strict=True)):
        assert np.abs(clean(w, n, **keep) - z).max() < 1e-12
    assert np.abs(in_w[-1] - in_z[-1]).max() > 1e-3  # the forms differ by the last draw


def test_first_injection_is_the_first_draw():
    _, w1, w2 = anti_pgd(identity, np.zeros(8), 2, draw=lambda k: draw(k, 8), sigma=2.0)
    assert (w1 == 2 * draw(1, 8).astype(float)).all()
    assert w2 == pytest.approx(2 * draw(2, 8).astype(float), abs=1e-12)


@pytest.mark.parametrize("taps", [ANTI, (1.0, -0.5, -0.5), (2.0, -3.0, 1.0), (1.0, 0.0, -1.0)])
def test_telescoping_under_a_sigma_that_changes_every_step(taps):
    def sigma(k):
        return 0.1 + 0.05 * math.sin(k) + 0.001 * k

    for n, w in enumerate(
        perturbed(identity, np.ones(50), 40, draw=lambda k: draw(k, 50), sigma=sigma, taps=taps)
    ):
        z = clean(w, n, draw=lambda k: draw(k, 50), sigma=sigma, taps=taps)
        assert np.abs(z - 1).max() < 1e-13


def test_general_taps_are_a_convolution():
    taps, sigma = (1.0, -0.7, 0.2), 0.4
    path = list(
        perturbed(identity, np.zeros(5), 6, draw=lambda k: draw(k, 5), sigma=sigma, taps=taps)
    )
    xi = np.array([np.zeros(5), *(draw(k, 5).astype(float) for k in range(1, 7))]) * sigma
    for n in range(6):
        expected = sum(tap * xi[n + 1 - j] for j, tap in enumerate(taps) if n + 1 - j >= 0)
        assert path[n + 1] - path[n] == pytest.approx(expected, abs=1e-12)


def test_float32_weights_stay_float32():
    w = last(anti_pgd(identity, np.zeros(4, np.float32), 3, draw=lambda k: draw(k, 4), sigma=0.1))
    assert w.dtype == np.float32


def test_integer_weights_are_refused():
    for call in (anti_pgd, anti_pgd_clean):
        with pytest.raises(TypeError, match="float32 or float64 array; got int64"):
            last(call(identity, np.zeros(3, int), 1, draw=lambda k: draw(k, 3), sigma=0.1))
    with pytest.raises(ValueError, match="must not be negative; got -3"):
        clean(np.zeros(3), -3, draw=lambda k: draw(k, 3), sigma=0.1)


def test_clean_weights_need_taps_that_sum_to_zero():
    with pytest.raises(ValueError, match=r"taps that sum to zero; got \(1.0,\)"):
        clean(np.zeros(3), 1, draw=lambda k: draw(k, 3), sigma=0.1, taps=WHITE)


def test_coefficients():
    assert injection_coefficients((1.0, -1.0), (0.2, 0.1)) == [0.2, -0.1]
    assert carried_coefficients((1.0, -0.4, -0.6), (3.0, 2.0)) == pytest.approx([3.0, 1.2])
    assert combine([0.0, 0.5], 1, lambda k: draw(k, 3), np.dtype(np.float32)) is None


@pytest.mark.parametrize(
    "bad", [-1, -1e-9, float("nan"), float("inf"), "0.1", "big", None, [0.1, 0.2], True, 10**400]
)
def test_bad_sigma(bad):
    with pytest.raises(ValueError, match=r"sigma must be a finite number >= 0 .*got"):
        check_sigma(bad)
    with pytest.raises(ValueError, match=r"got"):
        last(anti_pgd(identity, np.zeros(3), 1, draw=lambda k: draw(k, 3), sigma=bad))


def test_good_sigma():
    assert check_sigma(np.float32(0.5)) == 0.5
    assert check_sigma(0) == 0
