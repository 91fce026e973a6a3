"""The widening valley against simulation; printed and neighbouring versions must be rejected."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from antipgd.theory import valley
from antipgd.theory.linear import anti_bound, pgd_moment
from antipgd.theory.valley import (
    anti_exit_time,
    dimension_threshold,
    drift,
    drift_delta,
    even_delta,
    exit_probability,
    long_run_trace,
    long_run_u2,
    pgd_exit_time,
    printed_dimension_threshold,
    proof_limit,
    stationary_law,
    v_bound,
)

ALPHA = 0.25
dimensions = st.integers(1, 10_000)
alphas = st.floats(0.01, 0.99)
thetas = st.floats(-3, 3)
parts = st.floats(1e-4, 0.999)  # of the largest stable learning rate


class Paths:
    """Many paths in the valley from ‖u‖² = 1, v = 0, rademacher noise with taps (1, θ)."""

    def __init__(self, d, theta, lr, sigma, paths, seed=0):
        self.theta, self.lr, self.sigma = theta, lr, sigma
        self.rng = np.random.default_rng(seed)
        self.u, self.v = np.zeros((paths, d)), np.zeros(paths)
        self.u[:, 0] = 1.0
        self.before = np.zeros((paths, d + 1))

    def step(self):
        xi = self.sigma * (2.0 * self.rng.integers(0, 2, self.before.shape) - 1)
        eps = xi + self.theta * self.before
        u2 = self.u2
        self.u = (1 - self.lr * self.v**2)[:, None] * self.u + eps[:, :-1]
        self.v = (1 - self.lr * u2) * self.v + eps[:, -1]
        self.before = xi

    def keep(self, chosen):
        self.u, self.v, self.before = self.u[chosen], self.v[chosen], self.before[chosen]

    @property
    def u2(self):
        return (self.u**2).sum(axis=1)

    @property
    def clean_u2(self):
        """‖u‖² at z, for θ = −1."""
        return ((self.u - self.before[:, :-1]) ** 2).sum(axis=1)


def exits(d, theta, lr, sigma, paths, alpha=ALPHA, steps=100_000):
    """The step of each exit and whether it was through D/α."""
    run, found = Paths(d, theta, lr, sigma, paths), []
    for n in range(1, steps):
        run.step()
        high, low = run.u2 >= 1 / alpha, run.u2 <= alpha
        found += [(n, True)] * int(high.sum()) + [(n, False)] * int(low.sum())
        run.keep(~(high | low))
        if len(run.v) == 0:
            break
    assert len(found) == paths
    at, through_top = map(np.array, zip(*found, strict=True))
    return at, through_top


def test_v_is_bounded_by_twice_sigma_and_no_less():
    worst = 0.0
    for x, signs in product((0.1, 0.6, 1.0), product((-1, 1), repeat=10)):
        v, before = 0.0, 0.0
        for xi in signs:
            v, before = (1 - x) * v + xi - before, xi
            worst = max(worst, abs(v))
    bound = v_bound(1.0, 1.0, 1.0)
    assert worst == bound == 2
    assert worst < v_bound(1.0, 1.0, 1.0, printed=True)
    assert v_bound(1.0, 1.0, 1.0, law="uniform") == pytest.approx(2 * math.sqrt(3))
    assert abs((1 - 1.6) * (1 - -1) - 1 - 1) > bound  # past η‖u‖² = 1 it does not hold


def test_long_run_of_anti_pgd():
    d, lr, sigma = 5, 0.5, 0.2
    run, u2, trace = Paths(d, -1.0, lr, sigma, 2000), [], []
    for n in range(900):
        run.step()
        if n >= 500:
            u2.append(run.u2)
            trace.append(run.u2 + d * run.v**2)
    u2, trace = np.mean(u2, axis=0), np.mean(trace, axis=0)
    expected = long_run_u2(d, lr, sigma)
    assert u2.mean() == pytest.approx(expected, rel=0.01)
    assert u2.mean() < 0.6 * anti_bound(sigma, d=d)  # the paper's bound, twice too much
    assert trace.mean() == pytest.approx(long_run_trace(d, lr, sigma), rel=0.02)
    assert trace.mean() != pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("d", "theta", "sigma"), [(10, -0.9, 0.04), (4, -0.85, 0.06)])
def test_what_is_measured_of_the_stationary_law(d, theta, sigma):
    """E‖u‖² over time and paths is `u2`; neither `mean`/η nor one with twice the last draw."""
    lr, law = 0.5, stationary_law(d, theta)
    run, total = Paths(d, theta, lr, sigma, 2000), 0.0
    run.u *= math.sqrt(law.u2(lr, sigma))
    for n in range(4000):
        run.step()
        total = total + run.u2 if n >= 1000 else 0.0
    measured = total / 3000
    error = measured.std() / math.sqrt(len(measured))
    assert abs(measured.mean() - law.u2(lr, sigma)) < 3.5 * error + 0.01 * law.u2(lr, sigma)
    assert abs(measured.mean() - law.mean / lr) > 0.08 * measured.mean() > 5 * error
    assert abs(measured.mean() - law.mean / lr - 2 * d * sigma**2) > 0.08 * measured.mean()


@pytest.mark.parametrize("theta", [0.0, -0.5, -1.0])
@pytest.mark.parametrize("x", [0.3, 1.2])
def test_the_drift(theta, x):
    """E of the change of ‖u‖², the noise's part of mean zero taken out."""
    d, sigma, lr, paths, steps = 4, 0.01, x, 20_000, 40
    run = Paths(d, theta, lr, sigma, paths)
    for _ in range(120):  # v to its equilibrium, ‖u‖² = 1 held
        run.step()
        run.u[:] = 0.0
        run.u[:, 0] = 1.0
    pulled = np.zeros(paths)
    for _ in range(steps):
        pulled += -2 * lr * run.v**2
        run.step()
        run.u[:] = 0.0
        run.u[:, 0] = 1.0
    pull = pulled / steps
    error = pull.std(ddof=1) / math.sqrt(paths)
    # n injections of taps (1, θ) sum to about δ Σξ, so they add d δ² σ² per step to ‖u‖²
    seen = pull.mean() + d * (1 + theta) ** 2 * sigma**2
    assert abs(seen - float(drift(x, d, sigma, theta))) < 4 * error
    wrong = float(drift(x, d, sigma, theta + 0.2))
    assert abs(seen - wrong) > 4 * error


def test_the_drift_of_pgd_as_simulated_whole():
    d, sigma, lr, paths, steps = 3, 0.02, 1.0, 40_000, 60
    run = Paths(d, 0.0, lr, sigma, paths)
    for _ in range(60):
        run.step()
        run.u *= 1 / np.sqrt(run.u2)[:, None]
    begin = run.u2
    for _ in range(steps):
        run.step()
    change = (run.u2 - begin) / steps
    error = change.std(ddof=1) / math.sqrt(paths)
    assert abs(change.mean() - float(drift(1.0, d, sigma))) < 4 * error
    assert abs(change.mean() - d * sigma**2) > 4 * error  # the noise alone


def test_drift_of_pgd_and_anti_pgd_in_closed_form():
    x = np.linspace(0.01, 1.99, 50)
    np.testing.assert_allclose(drift(x, 7, 0.1), 0.01 * (7 - 2 / (2 - x)))
    np.testing.assert_allclose(drift(x, 7, 0.1, -1.0), -4 * 0.01 * x / (2 - x))


@pytest.mark.parametrize(("d", "theta", "sigma"), [(3, 0.0, 0.05), (5, -0.5, 0.1)])
def test_the_stationary_law(d, theta, sigma):
    lr, paths = 0.5, 1500
    run = Paths(d, theta, lr, sigma, paths)
    with np.errstate(all="ignore"):
        for _ in range(4000):
            run.step()
    half_x = np.clip(np.nan_to_num(lr * run.u2 / 2, nan=1.0), 0, 1)
    assert (half_x >= 1).mean() < 0.03

    def distance(law):
        ranks = np.sort(law.cdf(half_x))
        return np.abs(ranks - (np.arange(paths) + 0.5) / paths).max()

    allowed = 1.95 / math.sqrt(paths) + 0.02  # Kolmogorov's 0.1 % point, and finite noise
    assert distance(stationary_law(d, theta)) < allowed
    assert distance(stationary_law(d + 1, theta)) > allowed
    assert distance(stationary_law(d, theta - 0.3)) > allowed


def test_the_law_is_where_the_drift_and_spread_balance():
    """Flux zero: drift·p = d/dy (spread·p/2) with spread 4‖u‖²δ²σ²."""
    for d, theta in ((3, 0.0), (6, -0.6), (4, 0.5), (5, -1.7)):
        law, x, h = stationary_law(d, theta), np.linspace(0.2, 1.8, 9), 1e-5
        delta2 = (1 + theta) ** 2

        def current(at, law=law, delta2=delta2):
            return 4 * at * delta2 * law.pdf(at / 2) / 2

        slope = (current(x + h) - current(x - h)) / (2 * h)
        np.testing.assert_allclose(
            slope, drift(x, d, 1.0, theta) * law.pdf(x / 2), rtol=1e-5, atol=1e-8
        )
        assert law.mean == pytest.approx(2 * (d - 1) * delta2 / ((d + 2) * delta2 - 4 * theta))


@pytest.mark.parametrize(("d", "theta"), [(2, 0.0), (4, 0.0), (4, -0.5)])
def test_the_exit_probability(d, theta):
    paths, lr = 3000, ALPHA / 2
    _, top = exits(d, theta, lr, 0.03, paths)
    expected = exit_probability(d, 1.0, ALPHA, lr, theta)
    allowed = 4 * math.sqrt(expected * (1 - expected) / paths) + 0.015  # and finite noise
    assert abs(top.mean() - expected) < allowed
    assert abs(top.mean() - exit_probability(d + 1, 1.0, ALPHA, lr, theta)) > allowed
    if theta:
        assert abs(top.mean() - exit_probability(d, 1.0, ALPHA, lr)) > allowed


def test_anti_pgd_always_leaves_through_the_flat_side():
    _, top = exits(4, -1.0, ALPHA / 2, 0.05, 300)
    assert not top.any()
    assert exit_probability(4, 1.0, ALPHA, ALPHA / 2, -1.0) == 0


@pytest.mark.parametrize(("d", "theta"), [(2, 0.0), (7, -0.4), (3, -0.85), (12, 0.7), (5, -1.3)])
def test_the_integrals_are_those_of_scipy(d, theta):
    lr, c = 0.2, theta / (1 + theta) ** 2

    def f(y):
        return y ** (-(d - 1) / 2) * (2 - lr * y) ** (-0.5 + 2 * c)

    A, B = quad(f, ALPHA, 1)[0], quad(f, 1, 1 / ALPHA)[0]
    assert exit_probability(d, 1.0, ALPHA, lr, theta) == pytest.approx(A / (A + B), rel=1e-7)


def test_exit_times():
    d, sigma, lr = 60, 0.02, ALPHA
    at, top = exits(d, 0.0, lr, sigma, 1500)
    assert top.all()
    error = at.std(ddof=1) / math.sqrt(len(at))
    expected = pgd_exit_time(d, 1.0, ALPHA, sigma, lr)
    assert abs(at.mean() - expected) < 4 * error + 0.015 * expected
    assert abs(at.mean() - 2 * expected) > 4 * error
    leading = pgd_exit_time(d, 1.0, ALPHA, sigma)
    assert leading == pytest.approx(expected, rel=0.04)


def test_anti_pgd_falls_in_time_and_the_factor_matters():
    sigma, lr, d = 0.03, ALPHA, 3
    run = Paths(d, -1.0, lr, sigma, 100)
    right = anti_exit_time(1.0, ALPHA, sigma, lr)
    leading = anti_exit_time(1.0, ALPHA, sigma, lr, leading=True)
    reached = None
    for n in range(1, round(1.2 * leading)):
        run.step()
        if reached is None and np.log(run.clean_u2).mean() <= math.log(ALPHA):
            reached = n
    assert reached == pytest.approx(right, rel=0.02)
    assert reached != pytest.approx(leading, rel=0.04)


def test_thresholds_in_delta():
    for d, lr, scale in ((20, ALPHA / 2, 1), (20, ALPHA, math.sqrt(2))):
        leading = drift_delta(d, 1.0, ALPHA, lr, leading=True)
        assert leading == pytest.approx(scale * ALPHA / math.sqrt(d - 1))
        exact = drift_delta(d, 1.0, ALPHA, lr)
        assert exact == pytest.approx(leading, rel=0.1)
        assert stationary_law(d, exact - 1).mean == pytest.approx(lr * ALPHA)
        even = even_delta(d, 1.0, ALPHA, lr)
        assert even > exact
        assert exit_probability(d, 1.0, ALPHA, lr, even - 1) == pytest.approx(0.5, abs=1e-6)
    _, top = exits(10, even_delta(10, 1.0, ALPHA, ALPHA / 2) / 2 - 1, ALPHA / 2, 0.08, 100)
    assert top.mean() < 0.05


def test_thresholds_in_the_dimension():
    theorem, caption = ALPHA / 2, ALPHA
    assert dimension_threshold(1.0, ALPHA, theorem) == 2
    assert dimension_threshold(1.0, ALPHA, caption) == 4
    assert stationary_law(2).mean >= theorem / ALPHA > drift_limit(1)
    assert stationary_law(4).mean >= caption / ALPHA > stationary_law(3).mean
    assert dimension_threshold(1.0, ALPHA, theorem, "drift") == 2
    assert (drift(np.linspace(theorem * ALPHA, theorem / ALPHA, 50), 2, 1.0) > 0).all()
    assert (drift(np.linspace(theorem * ALPHA, theorem / ALPHA, 50), 1, 1.0) < 0).all()
    assert dimension_threshold(1.0, ALPHA, theorem, "exit") == 4
    assert printed_dimension_threshold(ALPHA) == 32
    assert printed_dimension_threshold(ALPHA, "proof") == 512
    assert printed_dimension_threshold(ALPHA, "corrected") == 1024


def drift_limit(d):
    """Where PGD ends in one dimension: its drift is negative for all x."""
    assert d == 1
    assert (drift(np.linspace(0.01, 1.9, 50), 1, 1.0) < 0).all()
    return 0.0


def test_the_limit_in_the_proof():
    d, D, sigma = 100, 2.0, 0.05
    rho = 1 - 2 * sigma**2 / (ALPHA**3 * D)
    right = proof_limit(d, D, ALPHA, sigma)
    assert right == pytest.approx(pgd_moment(10_000, rho, sigma, d=d))
    assert proof_limit(d, D, ALPHA, sigma, printed=True) == pytest.approx(2 * right)
    tiny = proof_limit(printed_dimension_threshold(ALPHA, "corrected"), D, ALPHA, 1e-9)
    assert tiny == pytest.approx(D / ALPHA)


@given(dimensions, alphas, parts, thetas, st.floats(1e-3, 1e3))
def test_probabilities_stay_between_zero_and_one(d, alpha, part, theta, D):
    lr = 2 * alpha / D * part
    p = exit_probability(d, D, alpha, lr, theta)
    assert 0 <= p <= 1
    assert p <= exit_probability(d + 1, D, alpha, lr, theta) + 1e-9
    assert p == pytest.approx(exit_probability(d, 1.0, alpha, lr * D, theta), abs=1e-9)


@given(st.integers(2, 10_000), thetas.filter(lambda theta: abs(1 + theta) > 1e-4))
def test_laws_have_finite_positive_parameters(d, theta):
    law = stationary_law(d, theta)
    assert 0 < law.a < math.inf
    assert 1 <= law.b < math.inf
    assert 0 < law.mean < 2
    grid = law.cdf([0.0, 0.1, 0.5, 0.9, 1.0])
    assert (np.diff(grid) >= 0).all()
    assert grid[0] == 0
    assert grid[-1] == 1


@given(dimensions, alphas, parts, st.floats(1e-4, 0.5))
def test_times_and_floors_are_positive_and_finite(d, alpha, part, sigma):
    lr = 2 * alpha * part
    assert 0 < anti_exit_time(1.0, alpha, sigma, lr) < math.inf
    assert 0 < pgd_exit_time(d, 1.0, alpha, sigma) < math.inf
    if d > 2 / (2 - lr / alpha):
        assert 0 < pgd_exit_time(d, 1.0, alpha, sigma, lr) < math.inf
    if d * lr * sigma**2 < 1:
        floor = long_run_u2(d, lr, sigma)
        assert d * sigma**2 <= floor <= anti_bound(sigma, d=d)
        assert floor < long_run_trace(d, lr, sigma) < math.inf


def test_limits():
    near = exit_probability(30, 1.0, ALPHA, ALPHA / 2, -1 + 1e-6)
    assert near == exit_probability(30, 1.0, ALPHA, ALPHA / 2, -1.0) == 0
    assert exit_probability(10**6, 1.0, ALPHA, ALPHA / 2) == 1
    assert stationary_law(5, -1 + 1e-5).mean == pytest.approx(0, abs=1e-8)
    assert stationary_law(10**9).mean == pytest.approx(2)
    # Small η: u is a free random walk, whose exits are the classical ones
    assert exit_probability(1, 1.0, 0.25, 1e-12) == pytest.approx((1 - 0.25) / (4 - 0.25))
    assert exit_probability(3, 1.0, 0.25, 1e-12) == pytest.approx(0.5)
    assert exit_probability(1, 1.0, 1 - 1e-6, 0.1) == pytest.approx(0.5, abs=1e-5)
    assert pgd_exit_time(10**6, 1.0, 0.25, 0.01, 0.1) == pytest.approx(
        pgd_exit_time(10**6, 1.0, 0.25, 0.01), rel=1e-5
    )
    assert anti_exit_time(1.0, 0.25, 0.01, 1e-9) == pytest.approx(
        anti_exit_time(1.0, 0.25, 0.01, 1e-9, leading=True)
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: v_bound(1.0, 0.5, 3.0), "lr·‖u‖² <= 1; got lr=0.5, largest_u2=3.0"),
        (lambda: v_bound(1.0, 0.5, 1.0, law="gaussian"), "a bounded law.*got law='gaussian'"),
        (lambda: long_run_u2(100, 1.0, 0.5), "d·lr·sigma² < 1"),
        (lambda: stationary_law(1), "d >= 2; got d=1"),
        (lambda: stationary_law(5, -1.0), "theta != -1.*got theta=-1.0"),
        (lambda: exit_probability(5, 1.0, 0.25, 0.5), "lr·D/alpha < 2"),
        (lambda: exit_probability(5, 1.0, 1.5, 0.5), "0 < alpha < 1; got alpha=1.5"),
        (lambda: exit_probability(5, 1.0, 0.25, 0.1, math.nan), "a finite theta; got theta=nan"),
        (lambda: drift(2.0, 5, 1.0), "0 < x < 2; got x=2.0"),
        (lambda: pgd_exit_time(1, 1.0, 0.25, 0.1, 0.1), "a positive drift; got d=1"),
        (lambda: anti_exit_time(1.0, 0.25, 0.0, 0.1), "sigma > 0; got sigma=0.0"),
        (lambda: proof_limit(5, 1.0, 0.25, 0.5), "sigma² <= alpha³D/2"),
        (lambda: even_delta(2, 1.0, 0.25, 0.1), ">= 1/2; got probability"),
        (lambda: drift_delta(1, 1.0, 0.25, 0.1), "d >= 2; got d=1"),
        (lambda: dimension_threshold(1.0, 0.25, 0.1, "none"), "got sense='none'"),
        (lambda: printed_dimension_threshold(0.25, "talk"), "got where='talk'"),
    ],
)
def test_refuses_what_lies_outside_a_condition(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_names_the_extra_that_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "scipy.stats", None)
    with pytest.raises(ImportError, match=r"needs scipy: pip install scipy$"):
        valley.stationary_law(5).cdf(0.5)
