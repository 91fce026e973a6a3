"""Each law is what it says, at scale 1 and no other; n and thresholds fixed beforehand."""

import math

import numpy as np
import pytest
from scipy import stats

from antipgd.noise import LAWS, Law, as_law, draws
from antipgd.noise.laws import PAIRED
from antipgd.noise.transforms import (
    COS,
    EXPM1,
    LOG,
    NUMPY,
    SIN,
    TRANSFORMS,
    exponential,
    grown,
    polynomial,
    student_constants,
)

N = 1_000_000
WRONG_SCALES = (2 / 3, 3 / 2)
# The distribution of a unit draw, and its kurtosis E ξ⁴.
EXACT = {
    "gaussian": (stats.norm(), 3.0),
    "uniform": (stats.uniform(-math.sqrt(3), 2 * math.sqrt(3)), 1.8),
    "laplace": (stats.laplace(scale=math.sqrt(0.5)), 6.0),
    "student-t:10": (stats.t(10, scale=math.sqrt(0.8)), 4.0),
    "student-t:30": (stats.t(30, scale=math.sqrt(28 / 30)), 3 + 6 / 26),
}


def test_every_law_has_a_transform_and_a_distribution_here():
    assert TRANSFORMS.keys() == LAWS.keys()
    assert LAWS.keys() >= PAIRED
    assert {as_law(law).name for law in [*EXACT, "rademacher"]} == LAWS.keys()


def sample(law, seed=1):
    return draws(seed, "w", 1, 0, N, law).astype(np.float64)


def z_score(values, expected):
    """How many standard errors the mean of `values` is from `expected`."""
    return (values.mean() - expected) / (values.std() / math.sqrt(len(values)))


@pytest.mark.parametrize("law", [*EXACT, "rademacher"])
def test_mean_and_variance(law):
    x = sample(law)
    assert abs(z_score(x, 0)) < 4
    if law == "rademacher":
        assert set(np.unique(x)) == {-1.0, 1.0}
    else:
        assert abs(z_score(x**2, 1)) < 4
    for scale in WRONG_SCALES:
        assert abs((scale * x).var() - 1) > 0.4


@pytest.mark.parametrize("law", EXACT)
def test_kurtosis(law):
    x = sample(law)
    assert abs(z_score(x**4, EXACT[law][1])) < 4
    for scale in WRONG_SCALES:
        assert abs(z_score((scale * x) ** 4, EXACT[law][1])) > 20


@pytest.mark.parametrize("law", EXACT)
def test_distribution(law):
    x, exact = sample(law)[:200_000], EXACT[law][0]
    assert stats.kstest(x, exact.cdf).pvalue > 1e-4
    for scale in WRONG_SCALES:
        assert stats.kstest(scale * x, exact.cdf).pvalue < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("law", ["gaussian", "laplace", "student-t:10"])
def test_tails_to_five_sigma(law):
    n, chunk = 100_000_000, 4_000_000
    levels = [3, 4, 4.5, 5]
    counts = dict.fromkeys(levels, 0)
    for start in range(0, n, chunk):
        x = np.abs(draws(5, "tails", 1, start, start + chunk, law))
        for level in levels:
            counts[level] += int((x > level).sum())
    for level in levels:
        expected = 2 * n * EXACT[law][0].sf(level)
        print(f"{law}: beyond {level} sigma {counts[level]}, expected {expected:.1f}")
        low, high = stats.poisson(expected).interval(1 - 1e-4)
        assert low <= counts[level] <= high
        for scale in WRONG_SCALES:
            wrong = 2 * n * EXACT[law][0].sf(level / scale)
            assert not low <= wrong <= high


def test_laws_are_uncorrelated_between_neighbours():
    for law in [*EXACT, "rademacher"]:
        x = sample(law)
        for lag in (1, 2, 3, 4, 16, 32, 64, 128):
            assert abs(z_score(x[:-lag] * x[lag:], 0)) < 4.5, (law, lag)
            if law != "rademacher":  # whose squares are all 1
                assert abs(z_score(x[:-lag] ** 2 * x[lag:] ** 2, 1)) < 4.5, (law, lag)


def test_variance_of_student_t_is_one_up_to_the_cut_of_the_tail():
    """The exact sum over the 2³⁰ values of u, the near ones one by one, the rest as an integral."""
    for df in (2.01, 2.1, 2.5, 3, 5, 50, 1e6):
        a, h, near = 2 / df, 2.0**-30, 1_000_000
        first = math.fsum(((np.arange(near) + 0.5) * h) ** -a) * h
        rest = (1 - (near * h) ** (1 - a)) / (1 - a)
        scale = student_constants(df).scale
        assert scale * (first + rest - 1) / 2 == pytest.approx(1, abs=1e-6), df
    assert student_constants(50).scale == pytest.approx(48, rel=1e-6)


def test_transforms_are_accurate():
    """Against float64: the relative errors the format states."""
    words = np.random.default_rng(0).integers(-(2**31), 2**31, 1_000_000).astype(np.int32)
    words[:4] = (0, -1, 2**31 - 1, -(2**31))
    u = ((words & 0x7FFFFFFF) | 1).astype(np.float32).astype(np.float64) * 2.0**-31
    got = exponential(words, NUMPY).astype(np.float64)
    assert np.abs(got + np.log(u)).max() < 4e-6
    positive = u < 1
    assert np.abs(got[positive] / -np.log(u[positive]) - 1).max() < 4e-7
    for df in (2.01, 5, 100):
        wanted = np.expm1(-np.log(u[positive]) * 2 / df)
        got = grown(words[positive], student_constants(df), NUMPY).astype(np.float64)
        assert np.abs(got / wanted - 1).max() < 8e-7, df


def test_polynomials_are_those_of_their_functions():
    x = np.linspace(math.sqrt(0.5) - 1, math.sqrt(2) - 1, 10_001)
    assert np.abs((x + x * x * polynomial(LOG, x)) - np.log1p(x)).max() < 1e-7
    t = np.linspace(-1, 1, 10_001)
    assert np.abs(t * polynomial(SIN, t * t) - np.sin(np.pi * t / 4)).max() < 1e-7
    assert np.abs(1 + t * t * polynomial(COS, t * t) - np.cos(np.pi * t / 4)).max() < 1e-7
    r = np.linspace(-0.7, 0.7, 10_001)
    assert np.abs(r + r * r * polynomial(EXPM1, r) - np.expm1(r)).max() < 1e-7


def test_string_forms():
    assert as_law("student-t:5") == Law("student-t", 5.0)
    assert str(as_law("student-t:2.5")) == "student-t:2.5"
    assert str(Law("student-t", 5)) == "student-t:5"
    assert as_law(str(Law("student-t", 2.123456789))).df == 2.123456789
    for name in LAWS:
        law = Law(name, 5.0 if name == "student-t" else None)
        assert as_law(str(law)) == law == as_law(law)


@pytest.mark.parametrize("bad", ["normal", "Gaussian", "", "cauchy:1", 3, None])
def test_unknown_law(bad):
    with pytest.raises(ValueError, match=r"unknown law .* accepted: gaussian, rademacher"):
        as_law(bad)


def test_df_is_a_plain_float():
    assert Law("student-t", np.float32(5)) == Law("student-t", 5)
    assert type(Law("student-t", np.float32(5)).df) is float


@pytest.mark.parametrize(
    "df", [2, 2.0005, 1, 0, -3, float("nan"), float("inf"), 1e7, None, "5", [5]]
)
def test_student_t_needs_df_above_two(df):
    with pytest.raises(ValueError, match=r"df > 2 .*got df="):
        Law("student-t", df)


def test_df_must_be_a_number_and_belongs_to_student_t():
    with pytest.raises(ValueError, match="must be a number > 2; got 'five'"):
        as_law("student-t:five")
    with pytest.raises(ValueError, match="student-t only"):
        as_law("gaussian:5")
