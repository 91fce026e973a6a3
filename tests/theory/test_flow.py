"""The flow of R against its closed solution, against real runs, and the clocks beside it."""

import math

import numpy as np
import pytest

from antipgd.paper.simulation.problems import QuadraticRegression, WideningValley
from antipgd.theory.equivalences import clock as small_rate_clock
from antipgd.theory.finite_rate import (
    Clock,
    Landscape,
    clock,
    flow,
    mean_ratio,
    ratio_by_direction,
    regulariser,
    variance_ratio,
)


def landscape(problem, data, third=True):
    return Landscape(
        lambda z: problem.gradient(z[None], data)[0],
        lambda z: problem.hessian(z, data),
        (lambda z, M: problem.curvature_gradient(z, data, M)) if third else None,
    )


VALLEY = WideningValley(d=3, D=1.2)
START = VALLEY.start(None)
REGRESSION = QuadraticRegression(d=8, n=3, nonzero=2, test=5)


@pytest.fixture(scope="module")
def regression():
    """Data, and the minimum that gradient descent finds."""
    rng = np.random.default_rng(7)
    data, w = REGRESSION.data(rng), REGRESSION.start(rng)[None]
    for _ in range(20_000):
        w = w - 0.02 * REGRESSION.gradient(w, data)
    return data, w[0]


def test_the_valley_has_a_closed_solution():
    """dh/dt = −2σ²φh with φ = 2/(2−ηh): ln h − ηh/2 falls by 2σ²t."""
    lr, sigma, times = 0.9, 0.1, [0.0, 10.0, 10.0, 60.0]
    path = flow(START, lr, sigma, landscape(VALLEY, None), times, tolerance=1e-8)
    h = VALLEY.watch(path)
    fallen = np.log(h) - lr * h / 2 - (math.log(1.2) - lr * 1.2 / 2)
    np.testing.assert_allclose(fallen, -2 * sigma**2 * np.array(times), atol=1e-6)
    np.testing.assert_allclose(path[:, -1], 0, atol=1e-12)
    np.testing.assert_array_equal(path[1], path[2])


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_real_runs_follow_the_flow(momentum, nesterov):
    """d = 3, x from .6 on, until h has halved or so; σ so small that h hardly spreads."""
    lr, lanes = 0.5, 400
    sigma, steps = (0.02, 1000) if momentum == 0 else (0.005, 2400)
    rng = np.random.default_rng(11)
    z, v, xi = np.tile(START, (lanes, 1)), 0.0, 0.0
    for _ in range(steps):
        gradient = VALLEY.gradient(z + xi, None)
        v = momentum * v + gradient
        z = z - lr * (gradient + momentum * v if nesterov else v)
        xi = sigma * rng.choice([-1.0, 1.0], z.shape)
    (end,) = flow(
        START, lr, sigma, landscape(VALLEY, None), [steps * lr / (1 - momentum)],
        momentum=momentum, nesterov=nesterov,
    )  # fmt: skip
    wanted, found = float(VALLEY.watch(end[None])[0]), VALLEY.watch(z)
    error = found.std() / math.sqrt(lanes)
    assert error < 0.01 * wanted < 0.008
    assert abs(found.mean() - wanted) < 4 * error + 0.02 * wanted
    trace_only = 1.2 * math.exp(-2 * sigma**2 * steps * lr / (1 - momentum))
    assert abs(found.mean() - trace_only) > 10 * error


@pytest.mark.parametrize("options", [{}, {"momentum": 0.5}, {"hold": 3, "momentum": 0.5}], ids=str)
def test_the_flow_descends_the_regulariser_along_the_minima(regression, options):
    """What ΣR loses a unit of time is ‖P∇ΣR‖², here by differences along the path."""
    data, start = regression
    lr, sigma, dt = 0.04, 0.3, 1e-3
    path = flow(start, lr, sigma, landscape(REGRESSION, data), [0, dt, 2 * dt], **options)
    assert np.abs(REGRESSION.gradient(path, data)).max() < 1e-12
    values = [
        regulariser(np.linalg.eigvalsh(REGRESSION.hessian(z, data)), lr, sigma, **options).sum()
        for z in path
    ]
    speed = (path[2] - path[0]) / (2 * dt)
    assert (values[2] - values[0]) / (2 * dt) == pytest.approx(-speed @ speed, rel=1e-3)
    assert speed @ speed > 1e-4


def test_differences_do_without_the_third_derivative(regression):
    data, start = regression
    ways = [
        flow(start, 0.04, 0.3, landscape(REGRESSION, data, third), [1, 8])
        for third in (True, False)
    ]
    np.testing.assert_allclose(*ways, rtol=1e-6)


def test_the_start_need_not_be_quite_a_minimum(regression):
    data, start = regression
    (found,) = flow(start + 1e-9, 0.04, 0.3, landscape(REGRESSION, data), [0.0])
    assert np.abs(REGRESSION.gradient(found[None], data)).max() < 1e-14
    assert np.abs(found - start).max() < 1e-8


def test_the_ratio_by_direction(regression):
    """One stiff eigenvalue: φ of it; several: how much faster the trace falls than for η → 0."""
    valley = landscape(VALLEY, None)
    for options in ({}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"hold": 5}):
        wanted = variance_ratio(0.8 * 1.2, **options)
        assert ratio_by_direction(START, 0.8, valley, **options) == pytest.approx(wanted)
    data, start = regression
    place, dt = landscape(REGRESSION, data), 1e-3
    stiffest = np.linalg.eigvalsh(REGRESSION.hessian(start, data))[-1]
    falls = {}
    for lr in (1e-9, 1.2 / stiffest):
        (end,) = flow(start, lr, 1.0, place, [dt])
        falls[lr] = REGRESSION.trace(np.array([start, end]), data) @ [1, -1]
    ratio = ratio_by_direction(start, 1.2 / stiffest, place)
    assert falls[1.2 / stiffest] / falls[1e-9] == pytest.approx(ratio, rel=1e-2)
    assert ratio > 1.2
    assert ratio_by_direction(start, 1e-9, place) == pytest.approx(1)


def test_the_ratio_of_a_spectrum():
    h = np.array([3.0, 1.0, 0.0, -0.5])
    wanted = (3 * 2 / (2 - 0.6) + 2 / (2 - 0.2) - 0.5) / 3.5
    assert mean_ratio(h, 0.2) == pytest.approx(wanted)
    assert mean_ratio([3.0, 11.0], 0.2) == math.inf
    assert mean_ratio([3.0], 0.2, momentum=0.9) == pytest.approx(variance_ratio(0.6, 0.9))


def test_the_clock_and_its_range():
    found = clock(0.1, 0.05, 2000, curvatures=[4.0, 0.0], momentum=0.5)
    assert found.ratio == pytest.approx(variance_ratio(0.4, 0.5))
    assert found.tau == pytest.approx(2000 * 0.1 * 0.05**2 * found.ratio / 0.5)
    assert found.within
    small = clock(1e-9, 0.05, 2000, curvatures=[4.0], momentum=0.5)
    assert small.tau == pytest.approx(small_rate_clock(1e-9, 0.05, 2000, momentum=0.5))
    at_the_edge = clock(0.5, 0.5, 40, ratio=3.0, momentum=0.5)
    assert at_the_edge == Clock(30.0, 3.0)
    assert clock(0.1, 0.05, 39, ratio=3.0, momentum=0.5).doubts == (
        "39 steps are fewer than 20/(1−β) = 40",
    )
    assert clock(0.1, 0.05, 40, ratio=3.01).doubts == ("φ̄ = 3.01 is above 3",)
    beyond = clock(0.1, 0.05, 40, curvatures=[30.0])
    assert not beyond.within
    assert beyond.tau == beyond.ratio == math.inf
    assert clock(0.1, 0.0, 40, curvatures=[30.0]).tau == 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"z": [[1.0]]}, "z must be a vector of finite numbers"),
        ({"z": [1.0, math.nan]}, "z must be a vector of finite numbers"),
        ({"z": [1.0, 1.0]}, "Hessian of 2 weights must be square; got \\(4, 4\\)"),
        ({"lr": 0.0}, "lr must be a finite number > 0"),
        ({"sigma": -0.1}, "sigma must be a finite number >= 0"),
        ({"times": [2.0, 1.0]}, "times must be finite numbers >= 0 that do not fall"),
        ({"times": [-1.0]}, "times must be finite numbers >= 0 that do not fall"),
        ({"times": [math.nan]}, "times must be finite numbers >= 0 that do not fall"),
        ({"times": [math.inf]}, "times must be finite numbers >= 0 that do not fall"),
        ({"kernel": 1.0}, "kernel must be a finite number >= 0 and < 1"),
        ({"tolerance": 0.0}, "tolerance must be a finite number > 0 and < 1"),
        ({"steps": 0}, "steps must be a whole number >= 1"),
        ({"steps": 2, "times": [1e4]}, "the steps were used up at t = .* of 1e\\+04"),
        ({"lr": 1.7}, "lr·h = 2.04, and the step is unstable from 2 on; .* than 1.7"),
        ({"taps": (1.0, -0.5)}, "taps must sum to zero"),
        ({"momentum": 1.0}, "momentum must be"),
    ],
)
def test_what_the_flow_refuses(arguments, message):
    given = {"z": START, "lr": 0.1, "sigma": 0.1, "times": [1.0], **arguments}
    place = landscape(VALLEY, None)
    if len(given["z"]) == 2:
        place = Landscape(place.gradient, lambda z: np.eye(4), place.third)
    with pytest.raises(ValueError, match=message):
        flow(given.pop("z"), landscape=place, **given)


@pytest.mark.parametrize("power", [0.5, 0.01])
def test_a_start_from_which_no_minimum_is_found_is_refused(power):
    """For a gradient like zᵖ Newton's step is z/p: it comes back for ever, or runs away."""
    wild = Landscape(
        lambda z: np.sign(z) * np.abs(z) ** power,
        lambda z: np.diag(power * np.abs(z) ** (power - 1)),
    )
    with pytest.raises(ValueError, match="no minimum is near: Newton's steps to it do not end"):
        flow([3.0], 0.1, 0.1, wild, [1.0])


# Two eigenvalues along u, of which one rises as the other falls: u and exp(3 − 3u).
TRADE = Landscape(
    lambda z: np.array([0.0, z[1] * z[0], z[2] * np.exp(3 - 3 * z[0])]),
    lambda z: np.diag([0.0, z[0], np.exp(3 - 3 * z[0])]),
    lambda z, M: np.array([M[1, 1] - 3 * np.exp(3 - 3 * z[0]) * M[2, 2], 0.0, 0.0]),
)


def test_the_barrier_holds_a_path_that_the_trace_would_lead_past_the_limit():
    """It comes to rest where ΣR is least, though the solver's first try is past the limit."""
    tried = []

    def hessian(z):
        tried.append(float(z[0]))
        return TRADE.hessian(z)

    place = Landscape(TRADE.gradient, hessian, TRADE.third)
    _, end = flow([1.0, 0.0, 0.0], 1.85, 1.0, place, [0.5, 2.0], tolerance=0.01)
    u = np.linspace(1.0, 2 / 1.85, 10_001)[:-1]
    total = regulariser(u, 1.85, 1.0) + regulariser(np.exp(3 - 3 * u), 1.85, 1.0)
    assert end[0] == pytest.approx(u[np.argmin(total)], abs=8e-3)
    assert 1.85 * max(tried) > 2


def test_a_path_that_ends_where_the_minima_do_is_refused():
    """h = 1 − u² reaches 0 at u = 1: from there on there is no valley."""
    place = Landscape(
        lambda z: np.array([-z[0] * z[1] ** 2, (1 - z[0] ** 2) * z[1]]),
        lambda z: np.array([[-(z[1] ** 2), -2 * z.prod()], [-2 * z.prod(), 1 - z[0] ** 2]]),
    )
    with pytest.raises(ValueError, match="no minimum is near: across it the curvature is -"):
        flow([0.5, 0.0], 0.1, 0.1, place, [1e4])


def test_without_a_barrier_that_path_is_refused():
    with pytest.raises(ValueError, match="nothing is stationary here"):
        flow([1.0, 0.0, 0.0], 1.85, 0.1, TRADE, [1e3], hold=2)


def test_what_the_clocks_refuse():
    with pytest.raises(ValueError, match="give curvatures or ratio; got None and None"):
        clock(0.1, 0.1, 10)
    with pytest.raises(ValueError, match="give curvatures or ratio"):
        clock(0.1, 0.1, 10, ratio=1.0, curvatures=[1.0])
    with pytest.raises(ValueError, match="steps must be a whole number >= 0; got -1"):
        clock(0.1, 0.1, -1, ratio=1.0)
    with pytest.raises(ValueError, match="curvatures must have a sum > 0; got -1"):
        mean_ratio([-1.0], 0.1)
    with pytest.raises(ValueError, match="curvatures must be numbers"):
        mean_ratio([math.nan], 0.1)
    for call in (
        lambda: mean_ratio([1.0], 0.1, taps=(1.0, -0.5)),
        lambda: clock(0.1, 0.1, 10, ratio=1.0, taps=(1.0,)),
        lambda: ratio_by_direction(START, 0.1, landscape(VALLEY, None), taps=(1.0,)),
    ):
        with pytest.raises(ValueError, match="taps must sum to zero, else flat directions diffuse"):
            call()
    flat = Landscape(lambda z: z * [1, 0], lambda z: np.diag([1.0, 0.0]), lambda z, M: 0 * z)
    with pytest.raises(ValueError, match="the trace does not change along the minima"):
        ratio_by_direction([0.0, 0.0], 0.1, flat)
