"""φ and R against the slow, obvious versions: the summed impulse response and Monte Carlo."""

import itertools
import math

import numpy as np
import pytest
from scipy.linalg import solve_discrete_lyapunov

from antipgd.theory.finite_rate import (
    flat_diffusion,
    regulariser,
    stability_limit,
    variance_ratio,
)
from antipgd.theory.linear import momentum_variance, stationary_variance

STEPS = [(0.0, False), (0.5, False), (0.9, False), (0.5, True), (0.9, True)]
NOISES = [
    {},
    {"taps": (1.0,)},
    {"taps": (1.0, -0.6)},
    {"taps": (1.0, -2.0, 1.0)},
    {"taps": (0.7, 0.2, -1.4, 0.5)},
    {"hold": 2},
    {"hold": 5},
    {"antithetic": True},
    {"antithetic": True, "taps": (1.0, 0.5)},
    {"hold": 3, "antithetic": True},
    {"hold": 3, "taps": (1.0, -2.0, 1.0)},
]
STILL = [one for one in NOISES if not flat_diffusion(**one)]
SHARES = [0.02, 0.3, 0.7, 0.95]


def next_weights(w, v, x, momentum, nesterov):
    """torch's step on hw²/2 with η = 1 and h = x."""
    v = momentum * v + x * w
    return w - (x * w + momentum * v if nesterov else v), v


def impulse_sum(x, momentum, nesterov, taps=(1.0, -1.0), hold=1, antithetic=False, steps=60_000):
    """Σ (what one draw does to w)² / (steps a draw), step by step as the package injects."""
    period = hold * (2 if antithetic else 1)
    w = v = total = 0.0
    for n in range(steps):
        w, v = next_weights(w, v, x, momentum, nesterov)
        draw, late = divmod(n, hold)  # the draws since this one, itself included as 0
        if late == 0:
            w += taps[draw] if draw < len(taps) else 0.0
            if antithetic and 1 <= draw <= len(taps):
                w -= taps[draw - 1]
        total += w * w
        if n > 10 * period and w * w + v * v < 1e-40:
            break
    return total / period


@pytest.mark.parametrize("options", NOISES, ids=str)
@pytest.mark.parametrize(("momentum", "nesterov"), STEPS)
def test_the_ratio_is_the_sum_over_one_draws_response(momentum, nesterov, options):
    xs = stability_limit(momentum, nesterov) * np.array(SHARES)
    found = variance_ratio(xs, momentum, nesterov, **options)
    slow = [impulse_sum(x, momentum, nesterov, **options) for x in xs]
    np.testing.assert_allclose(found, slow, rtol=1e-11)


@pytest.mark.parametrize("taps", [(1.0, -1.0), (1.0,), (1.0, 0.3, -1.3)])
@pytest.mark.parametrize(("momentum", "nesterov"), STEPS)
def test_the_ratio_solves_lyapunovs_equation(momentum, nesterov, taps):
    x, lags = 0.6 * stability_limit(momentum, nesterov), len(taps)
    A, into = np.zeros((2 + lags, 2 + lags)), np.zeros(2 + lags)
    A[0, :2] = next_weights(1.0, 0.0, x, momentum, nesterov)[0], next_weights(
        0.0, 1.0, x, momentum, nesterov)[0]  # fmt: skip
    A[1, :2] = x, momentum
    for j in range(1, lags):  # the state keeps the last draws; ε = Σ_j taps[j] ξ_{n+1−j}
        A[0, 1 + j] = taps[j]
        A[2 + j, 1 + j] = 1.0
    into[0], into[2] = taps[0], 1.0
    covariance = solve_discrete_lyapunov(A, np.outer(into, into))
    found = variance_ratio(x, momentum, nesterov, taps)
    assert found == pytest.approx(covariance[0, 0], rel=1e-10)


def test_it_is_what_linear_has_for_plain_steps():
    for x, taps in itertools.product([0.1, 1.0, 1.9], [(1.0, -1.0), (1.0,), (1.0, -0.5, 2.0)]):
        assert variance_ratio(x, taps=taps) == pytest.approx(stationary_variance(1 - x, 1.0, taps))
        assert variance_ratio(x, 0.7) == pytest.approx(momentum_variance(x, 1.0, 0.7, 1.0))


def test_limits_and_outside():
    assert variance_ratio([-1.0, 0.0, 2.0, 5.0, math.inf]).tolist() == [
        math.inf,
        1,
        *[math.inf] * 3,
    ]
    assert variance_ratio(0.0, 0.9, True, (1.0, -2.0, 1.0)) == 2.0
    assert variance_ratio(0.0, hold=3, antithetic=True) == 1.0
    assert variance_ratio(0.0, taps=(1.0, -0.9)) == math.inf
    assert variance_ratio(0.0, 0.9, noise="label") == pytest.approx(10.0)
    for momentum, nesterov in STEPS:
        edge = stability_limit(momentum, nesterov)
        assert variance_ratio(edge, momentum, nesterov) == math.inf
        assert variance_ratio(np.nextafter(edge, 0), momentum, nesterov) > 1e14
    assert isinstance(variance_ratio(0.5), float)
    assert variance_ratio(np.ones((2, 3))).shape == (2, 3)


def test_flat_directions_diffuse_by_the_square_of_the_sum():
    assert flat_diffusion((1.0, -0.9)) == pytest.approx(0.01)
    assert flat_diffusion((1.0, 1.0), hold=4) == 1.0
    assert flat_diffusion((1.0, 1.0), antithetic=True) == 0.0
    x = 1e-9  # where E w² rises as long as 1/(2x) steps
    assert 2 * x * variance_ratio(x, taps=(1.0, -0.9)) == pytest.approx(0.01, rel=1e-6)
    assert 2 * x * variance_ratio(x, taps=(1.0, 1.0), hold=4) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("options", [*STILL, {"draws": 3}, {"noise": "label"}], ids=str)
@pytest.mark.parametrize(("momentum", "nesterov"), STEPS)
def test_the_slope_of_the_regulariser(momentum, nesterov, options):
    lr, sigma = 0.2, 0.3
    h = stability_limit(momentum, nesterov) / lr * np.array([0.01, 0.3, 0.7, 0.95])
    ends = h[:, None] * (1 + 1e-5 * np.array([-1, 1]))
    low, high = regulariser(ends, lr, sigma, momentum, nesterov, **options).T
    slope = sigma**2 / 2 * variance_ratio(lr * h, momentum, nesterov, **options)
    np.testing.assert_allclose((high - low) / (ends[:, 1] - ends[:, 0]), slope, rtol=1e-6)
