"""Formulas of one step against all its draws or 10⁵ of them, each beside a wrong version."""

from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antipgd.theory.regularisation import (
    Derivatives,
    TwoPoint,
    conditional_mean,
    conditional_variance,
    enumerated_step,
    gradient_floor,
    implicit_reg_schedule,
    regularised_gradient,
    regularised_loss,
    stationary_gradient,
    trace_gradient,
)

D = 4
SKEWED = TwoPoint(0.2)
DRAWS = 200_000


def symmetric(tensor):
    orders = list(permutations(range(tensor.ndim)))
    return sum(np.transpose(tensor, order) for order in orders) / len(orders)


@dataclass(frozen=True)
class Polynomial:
    """A polynomial of degree four around 0 with derivatives g, H, T and Q there."""

    at: Derivatives

    @classmethod
    def random(cls, seed, d=D):
        rng = np.random.default_rng(seed)
        return cls(Derivatives(*(symmetric(rng.standard_normal((d,) * k)) for k in (1, 2, 3, 4))))

    def loss(self, z):
        g, H, T, Q = vars(self.at).values()
        z1 = np.einsum("...i,i->...", z, g)
        z2 = np.einsum("...i,...j,ij->...", z, z, H) / 2
        z3 = np.einsum("...i,...j,...k,ijk->...", z, z, z, T, optimize=True) / 6
        return z1 + z2 + z3 + np.einsum("...i,...j,...k,...l,ijkl->...", z, z, z, z, Q,
                                        optimize=True) / 24  # fmt: skip

    def gradient(self, z):
        g, H, T, Q = vars(self.at).values()
        return (
            g
            + z @ H
            + np.einsum("...j,...k,ijk->...i", z, z, T, optimize=True) / 2
            + (np.einsum("...j,...k,...l,ijkl->...i", z, z, z, Q, optimize=True) / 6)
        )

    def trace(self, z):
        H, T, Q = self.at.hessian, self.at.third, self.at.fourth
        linear = np.einsum("...k,iik->...", z, T)
        return np.trace(H) + linear + np.einsum("...k,...l,iikl->...", z, z, Q) / 2

    def trace_gradient(self, z):
        return np.einsum("iik->k", self.at.third) + np.einsum("...l,iikl->...k", z, self.at.fourth)


class Tanh:
    """½ mean (tanh(x·w) − y)²: derivatives of every order, unlike a polynomial."""

    def __init__(self, seed=0, d=D, n=12):
        rng = np.random.default_rng(seed)
        self.X, self.y = rng.standard_normal((n, d)), 0.5 * np.tanh(rng.standard_normal(n))

    def gradient(self, z):
        t = np.tanh(z @ self.X.T)
        return ((t - self.y) * (1 - t * t)) @ self.X / len(self.X)

    def trace_gradient(self, z):
        t = np.tanh(z @ self.X.T)
        s = 1 - t * t
        third = -6 * t * s * s + (t - self.y) * (4 * t * t * s - 2 * s * s)
        return (third * (self.X**2).sum(axis=1)) @ self.X / len(self.X)


def descended(problem, sigma=0.0):
    """Where descent on the smoothed loss ends."""
    xi, probability = TwoPoint().all_draws(D)
    z = np.zeros(D)
    for _ in range(5000):
        z = z - 0.5 * (probability @ problem.gradient(z + sigma * xi))
    return z


def z_at(seed, d=D):
    return 0.3 * np.random.default_rng([seed, 1]).standard_normal(d)


# The regularised loss


def test_regularised_gradient_is_the_gradient_of_the_regularised_loss():
    problem, z, sigma, h = Polynomial.random(0), z_at(0), 0.4, 1e-5
    differences = [
        regularised_loss(z + e, sigma, problem.loss, problem.trace)
        - regularised_loss(z - e, sigma, problem.loss, problem.trace)
        for e in h * np.eye(D)
    ]
    numeric = np.array(differences) / (2 * h)
    ours = regularised_gradient(z, sigma, problem.gradient, problem.trace_gradient)
    np.testing.assert_allclose(ours, numeric, rtol=1e-7, atol=1e-7)
    wrong = regularised_gradient(z, np.sqrt(2) * sigma, problem.gradient, problem.trace_gradient)
    assert not np.allclose(wrong, numeric, rtol=1e-2)


def test_trace_gradient_by_differences_also_for_many_points_at_once():
    problem = Polynomial.random(1)
    z = np.array([z_at(1), z_at(2), z_at(3)])
    ours = trace_gradient(problem.trace, z)
    np.testing.assert_allclose(ours, problem.trace_gradient(z), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(ours[1], trace_gradient(problem.trace, z[1]))


def test_sigma_nought_leaves_the_loss_alone():
    problem, z = Polynomial.random(2), z_at(2)
    assert regularised_loss(z, 0.0, problem.loss, problem.trace) == problem.loss(z)
    moments = enumerated_step(problem.gradient, z, 0.1, 0.0)
    np.testing.assert_allclose(moments.mean, z - 0.1 * problem.gradient(z))
    np.testing.assert_allclose(moments.variance, 0, atol=1e-30)


# One step: its mean


@pytest.mark.parametrize("seed", range(3))
def test_conditional_mean_is_exact_for_degree_four_and_symmetric_draws(seed):
    problem, z = Polynomial.random(seed), z_at(seed)
    exact = enumerated_step(problem.gradient, z, 0.1, 0.5).mean
    ours = conditional_mean(z, 0.1, 0.5, problem.gradient, problem.trace_gradient)
    np.testing.assert_allclose(ours, exact, rtol=1e-12)
    twice = conditional_mean(z, 0.1, 0.5, problem.gradient, lambda z: 2 * problem.trace_gradient(z))
    assert not np.allclose(twice, exact, rtol=1e-3)


def test_conditional_mean_of_gaussian_draws():
    problem, z, eta, sigma = Polynomial.random(3), z_at(3), 0.1, 0.5
    xi = np.random.default_rng(0).standard_normal((DRAWS, D))
    ends = z - eta * problem.gradient(z + sigma * xi)
    mean, sem = ends.mean(axis=0), ends.std(axis=0, ddof=1) / np.sqrt(DRAWS)
    ours = conditional_mean(z, eta, sigma, problem.gradient, problem.trace_gradient)
    assert (np.abs(ours - mean) < 4.5 * sem).all()
    unregularised = z - eta * problem.gradient(z)
    assert (np.abs(unregularised - mean) > 4.5 * sem).any()


@pytest.mark.parametrize(("law", "order"), [(TwoPoint(), 4), (SKEWED, 3)])
def test_order_of_the_remainder_of_the_mean(law, order):
    problem, z = Tanh(), z_at(0)
    errors = [
        np.linalg.norm(
            conditional_mean(z, 1.0, sigma, problem.gradient, problem.trace_gradient)
            - enumerated_step(problem.gradient, z, 1.0, sigma, law).mean
        )
        for sigma in (0.02, 0.01)
    ]
    assert np.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.15)


# One step: its variance


def variance_errors(formula, law, sigmas):
    problem = Polynomial.random(5)
    exact = [enumerated_step(problem.gradient, np.zeros(D), 1.0, s, law).variance for s in sigmas]
    ours = [formula(problem.at, s) for s in sigmas]
    return [np.abs(a - b).max() for a, b in zip(exact, ours, strict=True)]


@pytest.mark.parametrize(("law", "order"), [(TwoPoint(), 6), (SKEWED, 5)])
def test_order_of_the_remainder_of_the_variance(law, order):
    def corrected(at, sigma):
        return conditional_variance(at, 1.0, sigma, kurtosis=law.kurtosis, skewness=law.skewness)

    def without_fourth(at, sigma):
        flat = replace(at, fourth=np.zeros_like(at.fourth))
        return corrected(flat, sigma)

    def printed(at, sigma):
        return conditional_variance(
            at, 1.0, sigma, kurtosis=law.kurtosis, skewness=law.skewness, printed=True
        )

    measured = {}
    for formula in (corrected, without_fourth, printed):
        errors = variance_errors(formula, law, (0.02, 0.01))
        measured[formula] = np.log2(errors[0] / errors[1])
    assert measured[corrected] == pytest.approx(order, abs=0.2)
    assert measured[without_fourth] == pytest.approx(4, abs=0.2)
    assert measured[printed] == pytest.approx(0, abs=0.2)


def cubic(seed):
    at = Polynomial.random(seed).at
    return Polynomial(replace(at, fourth=np.zeros_like(at.fourth)))


@pytest.mark.parametrize("law", [TwoPoint(), SKEWED, TwoPoint(0.7)])
def test_variance_is_exact_for_degree_three(law):
    problem = cubic(6)
    exact = enumerated_step(problem.gradient, np.zeros(D), 0.3, 0.8, law).variance
    given_law = {"kurtosis": law.kurtosis, "skewness": law.skewness}
    ours = conditional_variance(problem.at, 0.3, 0.8, **given_law)
    np.testing.assert_allclose(ours, exact, rtol=1e-12)
    assert not np.allclose(
        conditional_variance(problem.at, 0.3, 0.8, **given_law, printed=True), exact, rtol=0.05
    )
    second = enumerated_step(problem.gradient, np.zeros(D), 0.3, 0.8, law).second_moment
    assert not np.allclose(
        conditional_variance(problem.at, 0.3, 0.8, **given_law, printed=True), second, rtol=0.05
    )


def test_variance_of_gaussian_draws_needs_their_kurtosis():
    problem, sigma = cubic(7), 0.8
    xi = np.random.default_rng(1).standard_normal((DRAWS, D))
    steps = problem.gradient(sigma * xi)
    squares = (steps - steps.mean(axis=0)) ** 2
    mean, sem = squares.mean(axis=0), squares.std(axis=0, ddof=1) / np.sqrt(DRAWS)

    def off(**how):
        ours = conditional_variance(problem.at, 1.0, sigma, **how)
        return np.abs(ours - mean) / sem

    assert (off(kurtosis=3.0) < 4.5).all()
    assert (off(kurtosis=1.0) > 4.5).any()
    assert (off(kurtosis=3.0, printed=True) > 4.5).any()


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), sigma=st.floats(0, 2), p=st.floats(0.05, 0.95))
def test_variance_is_never_negative_or_nan_unless_refused(seed, sigma, p):
    law, problem = TwoPoint(p), Polynomial.random(seed, 3)
    exact = enumerated_step(problem.gradient, np.zeros(3), 0.1, sigma, law)
    assert np.isfinite(exact.mean).all()
    assert (exact.variance >= 0).all()
    try:
        ours = conditional_variance(
            problem.at, 0.1, sigma, kurtosis=law.kurtosis, skewness=law.skewness
        )
    except ValueError as error:
        assert "too large" in str(error)  # noqa: PT017
    else:
        assert np.isfinite(ours).all()
        assert (ours >= 0).all()


@given(p=st.floats(0.01, 0.99), d=st.integers(1, 5))
def test_all_draws_have_the_moments_of_their_law(p, d):
    law = TwoPoint(p)
    xi, probability = law.all_draws(d)
    assert probability.sum() == pytest.approx(1)
    np.testing.assert_allclose(probability @ xi, 0, atol=1e-12)
    np.testing.assert_allclose((xi.T * probability) @ xi, np.eye(d), atol=1e-10)
    np.testing.assert_allclose(probability @ xi**3, law.skewness, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(probability @ xi**4, law.kurtosis, rtol=1e-8)


# Many steps


def chains(h, eta, sigma, seed=0, count=20_000):
    """‖∇L̃‖² of many chains on L = ½Σh z² in their stationary state, rademacher draws."""
    rng, h = np.random.default_rng(seed), np.asarray(h)
    z = np.zeros((count, len(h)))
    for _ in range(400):
        z = z - eta * h * (z + sigma * rng.choice([-1.0, 1.0], z.shape))
    return ((h * z) ** 2).sum(axis=1)


def test_stationary_gradient_of_a_quadratic():
    h, eta, sigma = [0.5, 1.0, 3.0], 0.4, 0.2
    samples = chains(h, eta, sigma)
    mean, sem = samples.mean(), samples.std(ddof=1) / np.sqrt(len(samples))
    turn = np.linalg.qr(np.random.default_rng(2).standard_normal((3, 3)))[0]
    exact = stationary_gradient(turn @ np.diag(h) @ turn.T, eta, sigma)
    assert abs(exact - mean) < 4.5 * sem
    assert abs(stationary_gradient(np.diag(h), eta, sigma, leading=True) - mean) > 4.5 * sem


def test_stationary_gradient_becomes_its_leading_term():
    h = np.diag([1.0, 2.0])
    assert stationary_gradient(h, 1e-6, 0.1) == pytest.approx(
        stationary_gradient(h, 1e-6, 0.1, leading=True), rel=1e-5
    )
    assert stationary_gradient(h, 1e-6, 0.1, leading=True) == pytest.approx(1e-6 * 0.01 * 9 / 2)


@given(
    h=st.lists(st.floats(0, 10), min_size=1, max_size=5),
    share=st.floats(1e-6, 0.999),
    sigma=st.floats(0, 10),
)
def test_stationary_gradient_is_never_negative_nor_below_its_leading_term(h, share, sigma):
    eta = share * 2 / max(*h, 1e-3)
    value = stationary_gradient(np.diag(h), eta, sigma)
    assert np.isfinite(value)
    assert value >= stationary_gradient(np.diag(h), eta, sigma, leading=True) * (1 - 1e-9) >= 0


def test_schedule_refuses_the_example_that_diverges():
    def end(eta):
        z, rng = 0.0, np.random.default_rng(0)
        for _ in range(100):
            z = z - eta * 10 * (z + 0.5 * rng.choice([-1.0, 1.0]))
        return abs(z)

    stable = implicit_reg_schedule(1 / 32, 0.5, curvature=10)
    assert stable.eta == 1 / 8
    assert stable.steps == 256
    assert end(stable.eta) < 10
    assert end(1.0) > 1e80
    with pytest.raises(ValueError, match=r"must be < 2.*got eta=1, curvature 10"):
        implicit_reg_schedule(1 / 4, 0.5, curvature=10)


def test_schedule_constants():
    once = implicit_reg_schedule(1 / 32, 0.5, curvature=1)
    other = implicit_reg_schedule(1 / 32, 0.5, curvature=1, rate=2, length=3)
    assert (other.eta, other.steps) == (2 * once.eta, 3 * once.steps)


@pytest.mark.parametrize(("law", "order"), [(TwoPoint(), 8), (SKEWED, 6)])
def test_floor_for_small_steps(law, order):
    problem = Tanh(3)
    start = descended(problem)
    values = [
        gradient_floor(start, s, problem.gradient, problem.trace_gradient, law).value
        for s in (0.04, 0.02)
    ]
    assert np.log2(values[0] / values[1]) == pytest.approx(order, abs=0.3)


def test_floor_is_where_many_small_steps_end():
    problem, sigma = Tanh(3), 0.2
    z = descended(problem, sigma)
    floor = gradient_floor(descended(problem), sigma, problem.gradient, problem.trace_gradient)
    np.testing.assert_allclose(z, floor.z, atol=1e-9)
    rest = regularised_gradient(z, sigma, problem.gradient, problem.trace_gradient)
    assert rest @ rest == pytest.approx(floor.value, rel=1e-6)


# What is refused

BOWL = Polynomial.random(0)
REFUSED = [
    (lambda: regularised_loss(np.zeros(2), -1, np.sum, np.sum), "sigma must be .*; got -1"),
    (lambda: conditional_mean(np.zeros(2), 0, 1, np.copy, np.copy), "eta must be .*; got 0"),
    (lambda: enumerated_step(np.copy, np.zeros(17), 1, 1), "d <= 16; got d=17"),
    (lambda: enumerated_step(np.copy, np.zeros((2, 2)), 1, 1), "got shape \\(2, 2\\)"),
    (lambda: TwoPoint(1.0), "probability must be a finite number > 0 and < 1; got 1.0"),
    (lambda: replace(BOWL.at, third=np.zeros((2, 2, 2))), "order 3 must be finite and of shape"),
    (lambda: replace(BOWL.at, hessian=np.triu(np.ones((D, D)))), "order 2 must not depend"),
    (lambda: conditional_variance(BOWL.at, 1, 1, kurtosis=0.5), "at least 1 .*; got 0.5"),
    (lambda: conditional_variance(BOWL.at, 1, 1, kurtosis=2, skewness=2), "skewness 2"),
    (lambda: implicit_reg_schedule(0, 1, 1), "epsilon must be .*; got 0"),
    (lambda: implicit_reg_schedule(1, np.inf, 1), "sigma must be .*; got inf"),
    (lambda: stationary_gradient(np.diag([1.0, 20.0]), 0.1, 1), "must be < 2"),
    (lambda: stationary_gradient(np.diag([1.0, -1.0]), 0.1, 1), "smallest eigenvalue of -1"),
    (lambda: stationary_gradient([[1.0, 2.0], [0.0, 1.0]], 0.1, 1), "symmetric"),
    (lambda: gradient_floor(np.zeros(2), 1, np.ones_like, np.copy), "no zero"),
    (lambda: gradient_floor(np.ones(2), 1, np.negative, np.copy), "smallest curvature -1"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_refusals_name_value_and_condition(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_sigma_beyond_the_expansion_is_refused():
    one = np.ones((1, 1))
    at = Derivatives(np.ones(1), one, np.zeros((1, 1, 1)), -one.reshape(1, 1, 1, 1))
    assert conditional_variance(at, 1, 0.5, kurtosis=3) == pytest.approx(0.25 - 0.0625)
    with pytest.raises(ValueError, match=r"sigma=2\.0 is too large"):
        conditional_variance(at, 1, 2.0, kurtosis=3)
