"""Clock, label noise and saddle against simulation; wrong powers and forms must be rejected."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antipgd.noise import ANTI, WHITE
from antipgd.theory.equivalences import (
    clock,
    label_noise_of_sigma,
    saddle_delay,
    sigma_of_label_noise,
    steps_for,
)
from antipgd.theory.linear import second_moment

positive = st.floats(1e-3, 10)


def fall(lr: float, sigma: float, steps: int, momentum: float = 0.0, d: int = 5) -> float:
    """ln ‖u_0‖²/‖u‖² at z of Anti-PGD with momentum in the widening valley, mean of 50 paths."""
    rng = np.random.default_rng(2)
    w = np.zeros((50, d + 1))
    w[:, 0] = 1.0
    m, before = np.zeros_like(w), np.zeros_like(w)
    for _ in range(steps):
        u, v = w[:, :-1], w[:, -1:]
        gradient = np.hstack([v * v * u, v * (u * u).sum(axis=1, keepdims=True)])
        m = momentum * m + gradient
        xi = sigma * rng.choice([-1.0, 1.0], w.shape)
        w, before = w - lr * m + xi - before, xi
    z = (w - before)[:, :-1]
    return float(-np.log((z * z).sum(axis=1)).mean())


def test_the_clock_of_momentum_sgd():
    tau = 0.2
    cases = [(0.05, 0.04, 0.0), (0.05, 0.08, 0.0), (0.1, 0.04, 0.0), (0.01, 0.04, 0.8)]
    falls = [fall(lr, s, steps_for(tau, lr, s, momentum=b), b) for lr, s, b in cases]
    np.testing.assert_allclose(falls, 2 * tau, rtol=0.08)  # ‖u‖² ∝ exp(−2τ)
    without_momentum = fall(0.01, 0.04, steps_for(tau, 0.05, 0.04), 0.0)
    assert without_momentum < 0.3 * 2 * tau
    assert fall(0.05, 0.08, steps_for(tau, 0.05, 0.04)) > 3 * 2 * tau  # σ² counts, not σ


def adam_fall(lr: float, sigma: float, steps: int, d: int = 4) -> float:
    """ln ‖u_0‖²/‖u‖² at z of Anti-Adam in a rotated valley, so that noise is in every gradient."""
    rng = np.random.default_rng(4)
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(d + 1, d + 1)))[0]
    start = np.zeros(d + 1)
    start[0] = 1.0
    w = np.tile(start @ turn, (40, 1))
    m, q, before = np.zeros_like(w), np.zeros_like(w), np.zeros_like(w)
    for n in range(1, steps + 1):
        x = w @ turn.T
        u, v = x[:, :-1], x[:, -1:]
        gradient = np.hstack([v * v * u, v * (u * u).sum(axis=1, keepdims=True)]) @ turn
        m = 0.9 * m + 0.1 * gradient
        q = 0.999 * q + 0.001 * gradient**2
        step = m / (1 - 0.9**n) / (np.sqrt(q / (1 - 0.999**n)) + 1e-12)
        xi = sigma * rng.choice([-1.0, 1.0], w.shape)
        w, before = w - lr * step + xi - before, xi
    z = ((w - before) @ turn.T)[:, :-1]
    return float(-np.log((z * z).sum(axis=1)).mean())


def test_the_clock_of_adam():
    tau, (lr, sigma) = 0.15, (2e-3, 0.05)
    base = adam_fall(lr, sigma, steps_for(tau, lr, sigma, optimizer="adam"))
    assert base > 0.1
    for other in ((1e-3, 0.05), (2e-3, 0.025)):
        n = steps_for(tau, *other, optimizer="adam")
        assert adam_fall(*other, n) == pytest.approx(base, rel=0.2)
    as_if_sgd = round(steps_for(tau, lr, sigma, optimizer="adam") * 4)  # equal ησ²n at σ/2
    assert adam_fall(2e-3, 0.025, as_if_sgd) > 1.5 * base


def test_the_clock_of_muon_is_linear_in_sigma():
    assert clock(0.1, 0.02, 50, optimizer="muon") == pytest.approx(0.1, rel=1e-12)
    assert steps_for(0.1, 0.1, 0.01, optimizer="muon") == 100


@pytest.mark.parametrize(("form", "scale"), [("quarter", 0.5), ("half", 1.0)])
def test_label_noise_spreads_the_weights_as_much_as_sigma(form, scale):
    rng = np.random.default_rng(0)
    n, d, lr, s, steps = 12, 3, 0.03, 1.5, 30_000
    X = rng.normal(size=(n, d))
    H = scale * X.T @ X / n  # the loss is scale/2 · mean (x·w − y)²
    w, late = np.zeros((40, d)), []
    for k in range(steps // 40):
        noise = rng.normal(size=(40, n)) * s
        w = w - lr * (w @ H - scale * noise @ X / n)
        if k >= 300 and k % 30 == 0:
            late.append((w * w).mean(axis=1))
    by_path = np.mean(late, axis=0)
    error = by_path.std(ddof=1) / math.sqrt(len(by_path))
    sigma2 = sigma_of_label_noise(s, lr, n, form) ** 2
    other = sigma_of_label_noise(s, lr, n, "half" if form == "quarter" else "quarter") ** 2
    high = sigma2 * 2 / (2 - lr * np.linalg.eigvalsh(H)[-1])
    assert sigma2 - 4 * error <= by_path.mean() <= high + 4 * error
    assert abs(by_path.mean() - other) > 4 * error + (high - sigma2)


@given(positive, positive, st.integers(1, 10_000), st.sampled_from(["quarter", "half"]))
def test_label_noise_both_ways(sd, lr, examples, form):
    sigma = sigma_of_label_noise(sd, lr, examples, form)
    assert label_noise_of_sigma(sigma, lr, examples, form) == pytest.approx(sd)
    assert sigma_of_label_noise(sd, lr, examples, "half") >= sigma


@pytest.mark.parametrize("a", [0.02, 0.1, 0.5, 2.0])
def test_the_delay_at_a_saddle(a):
    steps = round(60 / math.log1p(a))
    pgd, anti = (second_moment([1 + a] * steps, 1.0, taps) for taps in (WHITE, ANTI))
    seen = math.log(pgd[-1] / anti[-1]) / (2 * math.log1p(a))
    assert saddle_delay(1.0, -a) == pytest.approx(seen, rel=1e-6)
    assert saddle_delay(1.0, -a, leading=True) != pytest.approx(seen, rel=1e-3)
    drawn = second_moment([1 + a] * steps, 1.0, ANTI, start="drawn")
    if a < 0.2:
        assert drawn[-1] > pgd[-1] * a


def test_the_delay_as_steps_of_simulated_paths():
    a, paths = 0.05, 4000
    rng = np.random.default_rng(8)
    at = {}
    for taps in (WHITE, ANTI):
        w, before, left = np.zeros(paths), np.zeros(paths), np.zeros(paths)
        for k in range(1, 400):
            xi = rng.choice([-1.0, 1.0], paths)
            w, before = (1 + a) * w + xi - (before if taps == ANTI else 0), xi
            left[(left == 0) & (np.abs(w) > 1e4)] = k
        at[taps] = left[left > 0]
    error = math.hypot(*(one.std() / math.sqrt(len(one)) for one in at.values()))
    seen = at[ANTI].mean() - at[WHITE].mean()
    assert abs(seen - saddle_delay(1.0, -a)) < 4 * error + 0.5
    assert abs(seen - 1 / a) > 4 * error + 0.5


@given(positive, positive, st.floats(0, 0.99), st.floats(1e-6, 5))
def test_the_clock_is_finite_and_reached(lr, sigma, momentum, tau):
    for arguments in ({"momentum": momentum}, {"optimizer": "adam"}):
        n = steps_for(tau, lr, sigma, **arguments)
        assert clock(lr, sigma, n, **arguments) >= tau * (1 - 1e-9)
        assert n == 0 or clock(lr, sigma, n - 1, **arguments) <= tau * (1 + 1e-9)


@given(st.floats(1e-6, 100))
def test_a_delay_is_positive_and_grows_as_the_saddle_flattens(a):
    delay = saddle_delay(1.0, -a)
    assert 0 < delay < math.inf
    assert saddle_delay(1.0, -a / 2) > delay


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: clock(-0.1, 1.0, 5), "lr > 0; got lr=-0.1"),
        (lambda: clock(0.1, 1.0, -5), "steps >= 0; got steps=-5"),
        (lambda: clock(0.1, 1.0, 5, momentum=1.0), "momentum < 1; got momentum=1.0"),
        (lambda: clock(0.1, 1.0, 5, momentum=0.9, optimizer="adam"), "adam's own"),
        (lambda: clock(0.1, 1.0, 5, momentum=0.9, optimizer="muon"), "muon's own"),
        (
            lambda: clock(0.1, 1.0, 5, optimizer="lion"),
            "'sgd', 'adam', 'muon'.; got optimizer='lion'",
        ),
        (lambda: steps_for(1.0, 0.1, 0.0), "the clock stands; got sigma=0.0"),
        (lambda: sigma_of_label_noise(1.0, 0.1, 0), "examples >= 1; got examples=0"),
        (lambda: label_noise_of_sigma(1.0, 0.1, 5, "third"), "got form='third'"),
        (lambda: saddle_delay(0.1, 1.0), "a negative curvature.*got curvature=1.0"),
    ],
)
def test_refuses_what_lies_outside_a_condition(call, message):
    with pytest.raises(ValueError, match=message):
        call()
