"""φ and R against the slow, obvious versions: the summed impulse response and Monte Carlo."""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy.linalg import solve_discrete_lyapunov

from antipgd.theory.finite_rate import (
    flat_diffusion,
    regulariser,
    stability_limit,
    variance_ratio,
)
from antipgd.theory.finite_rate.ratios import Dynamics, gap, label_spread, spread
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


def exact_ratio(x, momentum, nesterov, taps=(1.0, -1.0), hold=1, antithetic=False):
    """φ in exact arithmetic at the float x."""
    kind = Dynamics(momentum, nesterov, taps, hold, antithetic)
    x, b = Fraction(x), Fraction(momentum)
    steps = [Fraction(c) for c in kind.steps]
    found = spread(x, steps, Fraction(kind.remains), b, nesterov)
    return found / kind.period / gap(x, b, nesterov)


@pytest.mark.parametrize("options", [*NOISES, {"hold": 40}], ids=str)
@pytest.mark.parametrize("momentum", [0.0, 0.9, 0.999])
@pytest.mark.parametrize("nesterov", [False, True])
def test_no_digits_are_lost_near_zero_and_near_the_limit(momentum, nesterov, options):
    edge = stability_limit(momentum, nesterov)
    for x in (1e-300, 1e-12, 1e-6, 1e-3, 0.5, edge / 2, edge * (1 - 1e-6)):
        close = 2e-12 + (1e-15 * edge / (edge - x) if nesterov or options else 0)
        found = variance_ratio(x, momentum, nesterov, **options)
        assert found == pytest.approx(
            float(exact_ratio(x, momentum, nesterov, **options)), rel=close
        )


def test_the_exact_limit_is_as_near_as_floats_go():
    x = 2 * (1 - 1e-12)
    assert variance_ratio(x) == float(2 / (2 - Fraction(x)))


@pytest.mark.parametrize(
    ("momentum", "nesterov", "options"),
    [
        (0.0, False, {}),
        (0.999, False, {}),
        (0.999, True, {}),
        (0.5, True, {"hold": 5}),
        (0.999, False, {"antithetic": True}),
        (0.999, True, {"noise": "label"}),
    ],
    ids=str,
)
def test_the_regulariser_has_all_its_digits(momentum, nesterov, options):
    edge, b = stability_limit(momentum, nesterov), mpmath.mpf(momentum)
    kind = Dynamics(momentum, nesterov, **options)

    def phi(x):
        if kind.noise == "label":
            return label_spread(x, b, nesterov) / gap(x, b, nesterov)
        return spread(x, kind.steps, 0, b, nesterov) / kind.period / gap(x, b, nesterov)

    with mpmath.workdps(30):
        for x in (1e-12, 1e-3, 0.3 * edge, edge * (1 - 1e-6)):
            ends = sorted(
                {*(10.0**-k for k in range(4)), *(edge * (1 - 10.0**-k) for k in range(6))}
            )
            wanted = float(mpmath.quad(phi, [0, *(end for end in ends if 0 < end < x), x])) / 2
            close = 1e-9 if nesterov and x > edge / 2 else 1e-12
            found = regulariser(x, 1.0, 1.0, momentum, nesterov, **options)
            assert found == pytest.approx(wanted, rel=close)


def test_the_closed_forms_of_the_regulariser():
    h, lr, sigma, b = np.array([0.3, 2.0, 9.0]), 0.2, 0.7, 0.8
    x, scale = lr * h, sigma**2 / lr
    np.testing.assert_allclose(regulariser(h, lr, sigma), -scale * np.log1p(-x / 2), rtol=1e-13)
    heavy = -b * x / (1 - b) - (1 + b) ** 2 / (1 - b) * np.log1p(-x / (2 * (1 + b)))
    np.testing.assert_allclose(regulariser(h, lr, sigma, b), scale * heavy, rtol=1e-13)
    np.testing.assert_allclose(regulariser(h, lr, sigma, hold=2), sigma**2 / 2 * h, rtol=1e-13)
    np.testing.assert_allclose(regulariser(h, lr, sigma, noise="two-point"), sigma**2 / 2 * h)


def test_the_regulariser_outside():
    assert regulariser(-3.0, 0.1, 0.2, 0.9) == pytest.approx(-0.06)
    assert regulariser(-3.0, 0.1, 0.2, taps=(1.0, -2.0, 1.0)) == pytest.approx(-0.12)
    assert regulariser([20.0, 1e9, math.inf], 0.1, 0.2).tolist() == [math.inf] * 3
    assert regulariser(0.0, 0.1, 0.2) == 0.0
    assert regulariser(np.ones((2, 3)), 0.1, 0.2).shape == (2, 3)


def test_several_draws_a_step():
    x = np.array([0.0, 0.4, 1.5])
    np.testing.assert_allclose(variance_ratio(x, draws=4), 1 + x / (4 * (2 - x)))
    np.testing.assert_allclose(variance_ratio(x, draws=4, antithetic=True), 1)
    np.testing.assert_allclose(variance_ratio(x, draws=3, antithetic=True), 1 + x / (9 * (2 - x)))
    assert variance_ratio(1.0, 0.9, noise="two-point") == 1.0
    assert variance_ratio(4.0, 0.9, noise="two-point") == math.inf


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": math.nan}, "x must be numbers; got nan"),
        ({"momentum": 1.0}, "momentum must be a finite number >= 0 and < 1; got 1.0"),
        ({"momentum": -0.1}, "momentum must be"),
        ({"nesterov": 1}, "nesterov must be True or False; got 1"),
        ({"antithetic": "yes"}, "antithetic must be True or False; got 'yes'"),
        ({"taps": ()}, "taps must be one or more finite numbers"),
        ({"hold": 0}, "hold must be a whole number >= 1; got 0"),
        ({"draws": 1.5}, "draws must be a whole number >= 1; got 1.5"),
        ({"draws": 2, "taps": (1,)}, "several draws a step .* got draws=2, taps=\\(1.0,\\)"),
        ({"noise": "labels"}, "unknown noise 'labels'; did you mean 'label'"),
        ({"noise": "label", "hold": 2}, "label noise has no hold; got hold=2"),
        ({"noise": "two-point", "antithetic": True}, "two-point noise has no antithetic"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        variance_ratio(**{"x": 0.5, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"h": [1.0, math.nan]}, "h must be numbers"),
        ({"lr": 0.0}, "lr must be a finite number > 0; got 0.0"),
        ({"sigma": -1.0}, "sigma must be a finite number >= 0; got -1.0"),
        ({"taps": (1, -0.5)}, "taps must sum to zero, else flat directions diffuse by 0.25 σ²"),
    ],
)
def test_what_the_regulariser_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        regulariser(**{"h": 1.0, "lr": 0.1, "sigma": 0.1, **arguments})


def test_the_limit_refuses_what_is_no_momentum():
    with pytest.raises(ValueError, match="momentum must be a finite number >= 0 and < 1"):
        stability_limit(1.0)
    with pytest.raises(ValueError, match="nesterov must be True or False"):
        stability_limit(0.5, nesterov=0)
