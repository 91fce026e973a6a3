"""Second moments against Monte Carlo and enumeration; the printed forms must be rejected."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antipgd.noise import ANTI, WHITE, draws
from antipgd.theory.linear import (
    anti_bound,
    anti_moment,
    anti_variation,
    ema_noise,
    momentum_variance,
    pgd_moment,
    random_rho_limit,
    second_moment,
    stationary_variance,
    vanishing_rho,
    variation,
)

PATHS = 40_000
THREE = (1.0, -0.7, 0.4)
number = st.floats(-3, 3, allow_nan=False)
any_taps = st.lists(number, min_size=1, max_size=4).filter(any).map(tuple)


def unit_draws(count: int, paths: int = PATHS, law: str = "gaussian") -> list[np.ndarray]:
    """ξ_0, ξ_1, … with ξ_0 a draw like the others."""
    return [
        draws(11, "theory", step, 0, paths, law).astype(np.float64) for step in range(1, count + 2)
    ]


def paths_of(rho, taps, start_w=0.0, start="zero", sigma=1.0, paths=PATHS):
    """w_0, w_1, … of one coordinate, straight from the definition; ρ numbers or arrays."""
    past = len(taps) - 1
    xi = [sigma * one for one in unit_draws(len(rho) + past, paths)]
    if start == "zero":
        xi[:past] = [0.0 * one for one in xi[:past]]
    found = [np.full(paths, start_w)]
    for k, one in enumerate(rho):
        eps = sum(tap * xi[past + k - j] for j, tap in enumerate(taps))
        found.append(one * found[-1] + eps)
    return found


def agrees(samples: np.ndarray, expected: float) -> bool:
    """Whether the mean lies within four standard errors."""
    error = samples.std(ddof=1) / math.sqrt(len(samples))
    return abs(samples.mean() - expected) <= 4 * error + 1e-12


@pytest.mark.parametrize("start", ["zero", "drawn"])
@pytest.mark.parametrize("taps", [WHITE, ANTI, THREE])
def test_second_moments_for_changing_factors(taps, start):
    rho = [0.9, 0.2, 1.1, -0.4, 0.7]
    predicted = second_moment(rho, 0.5, taps, start_norm2=4.0, start=start)
    wrong = second_moment(rho, 0.75, taps, start_norm2=4.0, start=start)
    simulated = paths_of(rho, taps, 2.0, start, sigma=0.5)
    for k in range(1, len(rho) + 1):
        assert agrees(simulated[k] ** 2, predicted[k])
    assert not agrees(simulated[-1] ** 2, wrong[-1])


def test_the_starts_differ_where_a_draw_precedes():
    zero, drawn = (second_moment([0.9] * 3, 1.0, ANTI, start=s) for s in ("zero", "drawn"))
    assert not agrees(paths_of([0.9] * 3, ANTI)[1] ** 2, drawn[1])
    assert not agrees(paths_of([0.9] * 3, ANTI, start="drawn")[1] ** 2, zero[1])
    np.testing.assert_array_equal(
        *(second_moment([0.9] * 3, 1.0, WHITE, start=s) for s in ("zero", "drawn"))
    )


def test_second_moments_by_enumeration_of_all_signs():
    rho = [0.3, 0.8, 0.5, 0.9]
    for taps in (WHITE, ANTI, THREE):
        squares = []
        for signs in product((-1, 1), repeat=4):
            w = 1.5
            for k, one in enumerate(rho):
                w = one * w + sum(t * signs[k - j] for j, t in enumerate(taps) if k >= j)
            squares.append(w * w)
        predicted = second_moment(rho, 1.0, taps, start_norm2=1.5**2)[-1]
        assert np.mean(squares) == pytest.approx(predicted, rel=1e-12)


def test_constant_factors_and_the_printed_exponent():
    rho = 0.4
    anti, pgd = paths_of([rho] * 4, ANTI, 1.0), paths_of([rho] * 4, WHITE, 1.0)
    for k in range(4):
        assert agrees(pgd[k + 1] ** 2, pgd_moment(k, rho, 1.0, start_norm2=1.0))
        assert agrees(anti[k + 1] ** 2, anti_moment(k, rho, 1.0, start_norm2=1.0))
    for k in (0, 1):
        assert not agrees(anti[k + 1] ** 2, anti_moment(k, rho, 1.0, start_norm2=1.0, printed=True))
    late = paths_of([rho] * 2, ANTI, 1.0, "drawn")[2]
    assert agrees(late**2, anti_moment(1, rho, 1.0, start_norm2=1.0, start="drawn"))


@given(st.integers(0, 30), st.floats(-1, 1), st.integers(1, 50), st.sampled_from(["zero", "drawn"]))
def test_closed_forms_are_the_recursion(k, rho, d, start):
    for taps, value in (
        (WHITE, pgd_moment(k, rho, 0.3, d=d, start_norm2=2.0)),
        (ANTI, anti_moment(k, rho, 0.3, d=d, start_norm2=2.0, start=start)),
    ):
        exact = second_moment([rho] * (k + 1), 0.3, taps, d=d, start_norm2=2.0, start=start)[-1]
        assert value == pytest.approx(exact, rel=1e-9)


@settings(max_examples=40)
@given(st.floats(-0.98, 0.98), any_taps)
def test_stationary_variance_is_the_double_sum_and_the_limit(rho, taps):
    double = sum(
        a * b * rho ** abs(i - j) for i, a in enumerate(taps) for j, b in enumerate(taps)
    ) / (1 - rho * rho)
    value = stationary_variance(rho, 1.0, taps)
    assert value >= 0
    assert value == pytest.approx(double, rel=1e-9, abs=1e-9)
    assert second_moment([rho] * 800, 1.0, taps)[-1] == pytest.approx(value, rel=1e-6, abs=1e-9)
    assert random_rho_limit(rho, rho**2, 1.0, taps) == pytest.approx(value, rel=1e-6, abs=1e-9)


def test_limits_of_rho():
    assert stationary_variance(0.0, 1.0, THREE) == pytest.approx(sum(a * a for a in THREE))
    assert stationary_variance(1 - 1e-9, 1.0, ANTI) == pytest.approx(1.0)
    assert stationary_variance(1.0, 1.0, ANTI) == 1.0
    assert stationary_variance(1 - 1e-9, 1.0, (1.0, 1.0, -2.0)) == pytest.approx(
        stationary_variance(1.0, 1.0, (1.0, 1.0, -2.0))
    )
    assert stationary_variance(1 - 1e-9, 1.0, WHITE) > 1e8
    assert pgd_moment(6, 1.0, 1.0) == pytest.approx(pgd_moment(6, 1 - 1e-9, 1.0)) == 7
    near_anti = stationary_variance(0.7, 1.0, (1.0, -1 + 1e-9))
    assert near_anti == pytest.approx(stationary_variance(0.7, 1.0, ANTI))


def test_random_factors():
    rng = np.random.default_rng(5)
    steps, low, high = 30, 0.3, 1.0
    rho = [rng.uniform(low, high, PATHS) for _ in range(steps)]
    mean, square = (low + high) / 2, (low + high) ** 2 / 4 + (high - low) ** 2 / 12
    for taps in (WHITE, ANTI, THREE):
        last = paths_of(rho, taps)[-1] ** 2
        limit = random_rho_limit(mean, square, 1.0, taps)
        finite = second_moment([mean] * steps, 1.0, taps, rho_squared=[square] * steps)[-1]
        assert agrees(last, limit)
        assert agrees(last, finite)
    as_if_constant = stationary_variance(mean, 1.0, ANTI)
    assert not agrees(paths_of(rho, ANTI)[-1] ** 2, as_if_constant)
    printed = 1 + ((1 - mean) ** 2 + (high - low) ** 2 / 12) / (1 - square)
    assert random_rho_limit(mean, square, 1.0) == pytest.approx(printed)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_the_bound_for_factors_in_the_unit_interval(rho):
    assert second_moment(rho, 1.0, ANTI, d=3)[-1] <= anti_bound(1.0, d=3) * (1 + 1e-12)


def test_the_bound_needs_more_than_factors_below_one():
    rho = vanishing_rho(3000)
    assert (rho < 1).all()
    last = second_moment(rho, 1.0, ANTI, start_norm2=5.0)[-1]
    assert last > anti_bound(1.0)
    simulated = paths_of(rho[:300], ANTI, math.sqrt(40), paths=2000)[-1] ** 2
    assert simulated.mean() - 4 * simulated.std() / math.sqrt(2000) > anti_bound(1.0)


def test_the_bound_needs_factors_that_do_not_choose_by_unbounded_draws():
    xi = unit_draws(200, 2000)
    z = np.zeros(2000)
    for one in xi:  # ρ = 0 where that makes z larger, else 1: z is the largest −ξ so far
        z = np.maximum(z, -one)
    assert ((z + unit_draws(201, 2000)[-1]) ** 2).mean() > 1.5 * anti_bound(1.0)


def test_variation_of_constants_and_the_printed_order():
    rng = np.random.default_rng(3)
    matrices, xi = rng.normal(size=(5, 3, 3)), rng.normal(size=(5, 3))
    start = rng.normal(size=3)
    eps = [xi[0], *np.diff(xi, axis=0)]
    w = start
    for matrix, one in zip(matrices, eps, strict=True):
        w = matrix @ w + one
    np.testing.assert_allclose(variation(matrices, start, eps), w)
    np.testing.assert_allclose(anti_variation(matrices, start, xi), w)
    assert not np.allclose(anti_variation(matrices, start, xi, printed=True), w, rtol=1e-3)
    diagonal = [np.diag(row) for row in rng.normal(size=(5, 3))]
    np.testing.assert_allclose(
        anti_variation(diagonal, start, xi, printed=True), anti_variation(diagonal, start, xi)
    )
    with pytest.raises(ValueError, match="3×3 matrices"):
        variation([np.eye(2)], start, [xi[0]])
    with pytest.raises(ValueError, match="one vector per matrix"):
        variation(matrices, start, eps[:2])


@pytest.mark.parametrize(("step", "momentum"), [(0.5, 0.0), (0.3, 0.8), (1.5, 0.5), (1.0, -0.3)])
def test_variance_with_momentum(step, momentum):
    w, m, before = np.zeros(PATHS), np.zeros(PATHS), 0.0
    for xi in unit_draws(150):
        m = momentum * m + w
        w, before = w - step * m + xi - before, xi
    assert agrees(w**2, momentum_variance(1.0, step, momentum, 1.0))
    if momentum:
        assert not agrees(w**2, momentum_variance(1.0, step, momentum / 2, 1.0))
    else:
        assert agrees(w**2, stationary_variance(1 - step, 1.0))


def test_noise_of_an_average():
    average = np.zeros(PATHS)
    for xi in unit_draws(60):
        average = 0.8 * average + 0.2 * xi
    assert agrees(average**2, ema_noise(1.0, 0.8) ** 2)
    assert not agrees(average**2, 1 - 0.8)
    assert ema_noise(2.0, 0.0) == 2.0


@given(
    st.lists(number, min_size=1, max_size=20), any_taps, st.floats(0, 10), st.integers(1, 1000),
    st.sampled_from(["zero", "drawn"]),
)  # fmt: skip
def test_second_moments_are_never_negative(rho, taps, sigma, d, start):
    moments = second_moment(rho, sigma, taps, d=d, start_norm2=1.0, start=start)
    assert np.isfinite(moments).all()
    assert (moments >= 0).all()


@given(st.floats(-0.999, 0.999), st.floats(1e-6, 1), st.floats(0, 10))
def test_variances_with_momentum_are_at_least_the_noise(momentum, part, sigma):
    step = 1.999 * (1 + momentum) * part
    assert sigma**2 <= momentum_variance(1.0, step, momentum, sigma) < math.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stationary_variance(1.0, 1.0, WHITE), "unless taps sum to zero"),
        (lambda: stationary_variance(-1.2, 1.0), "-1 < rho < 1; got rho=-1.2"),
        (lambda: pgd_moment(-1, 0.5, 1.0), "k >= 0; got k=-1"),
        (lambda: anti_moment(1, 2.0, 1.0), "-1 <= rho <= 1; got rho=2.0"),
        (lambda: anti_moment(1, 0.5, 1.0, start="no"), "start 'zero' or 'drawn'; got start='no'"),
        (lambda: second_moment([0.5], -1.0), "sigma >= 0; got sigma=-1.0"),
        (lambda: second_moment([math.nan], 1.0), "finite factors"),
        (lambda: second_moment([0.5], 1.0, rho_squared=[0.1]), r"E ρ² >= \(E ρ\)²"),
        (lambda: random_rho_limit(0.5, 1.0, 1.0), "E ρ² < 1"),
        (lambda: momentum_variance(1.0, 5.0, 0.9, 1.0), "lr·curvature < 2"),
        (lambda: momentum_variance(1.0, 0.5, 1.0, 1.0), "-1 < momentum < 1; got momentum=1.0"),
        (lambda: ema_noise(1.0, 1.0), "0 <= decay < 1; got decay=1.0"),
        (lambda: vanishing_rho(-1), "steps >= 0; got steps=-1"),
    ],
)
def test_refuses_what_lies_outside_a_condition(call, message):
    with pytest.raises(ValueError, match=message):
        call()
