"""The estimators against slow versions that hold the whole Hessian, term by term."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import t as student

from antipgd.flatness import hessian_trace
from antipgd.flatness.estimators import Operator, hutchinson, orthonormal
from antipgd.flatness.planning import MIN_PRODUCTS, Plan
from antipgd.flatness.probes import RESIDUAL, SKETCH, Probes

METHODS = ["hutchinson", "hutch++"]


def probes_of(case, use, count, seed=0):
    made = Probes(seed, case.names, case.sizes, torch.float64, torch.device("cpu"))
    return made.rows(use, 0, count).numpy()


def by_parameter(elements, case):
    """Sums over each parameter of the plain elements, then of those times w²."""
    ends = np.cumsum(case.sizes)[:-1]
    parts = [*np.split(elements, ends), *np.split(elements * case.flat**2, ends)]
    return np.array([part.sum() for part in parts])


def projector(sketch):
    """On the span of rows; what is tiny in it is rounding."""
    _, lengths, directions = np.linalg.svd(sketch, full_matrices=False)
    basis = directions[lengths > 1e-11 * max(lengths.max(), 1e-300)]
    return basis.T @ basis


def inside(H, P):
    """diag of ΠH + (1−Π)HΠ."""
    return np.diag(P @ H + (np.eye(len(H)) - P) @ H @ P)


def outside(H, P, g):
    """g ⊙ (1−Π)H(1−Π)g."""
    rest = np.eye(len(H)) - P
    return g * (rest @ H @ rest @ g)


def naive_hutchinson(H, case, count):
    return np.array([by_parameter(v * (H @ v), case) for v in probes_of(case, SKETCH, count)])


def naive_hutch(H, case, rank, count):
    P = projector(probes_of(case, SKETCH, rank) @ H)
    return np.array([by_parameter(inside(H, P) + outside(H, P, g), case)
                     for g in probes_of(case, RESIDUAL, count)])  # fmt: skip


def close(found, expected, H):
    scale = max(np.abs(expected).max(), np.abs(H).max())
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * scale)


@pytest.fixture
def hessian(case):
    return case.hessian()


def test_hutchinson_is_the_naive_one(case, hessian):
    H = hessian
    trace = hessian_trace(*case.arguments, method="hutchinson", max_probes=40, **case.options)
    assert (trace.method, trace.n, trace.products) == ("hutchinson", 40, 40)
    expected = naive_hutchinson(H, case, 40)
    close(trace.samples.values, expected, H)
    assert trace.mean == pytest.approx(expected[:, : len(case.sizes)].sum(1).mean(), rel=1e-9)


def test_hutch_is_the_naive_one(case, hessian):
    H = hessian
    trace = hessian_trace(*case.arguments, method="hutch++", max_probes=60, **case.options)
    rank = 60 - 20 - trace.n
    assert trace.method == "hutch++"
    assert trace.products <= 60
    assert rank >= 1
    close(trace.samples.values, naive_hutch(H, case, rank, trace.n), H)


def test_error_bars_of_independent_samples_are_twice_the_spread_of_the_elements(case, hessian):
    H = hessian
    trace = hessian_trace(*case.arguments, method="hutchinson", max_probes=40, **case.options)
    elements = np.array([v * (H @ v) for v in probes_of(case, SKETCH, 40)])
    spread = 2 * elements.var(axis=0, ddof=1)
    ends = np.cumsum(case.sizes)[:-1]
    assert trace.sem == pytest.approx(math.sqrt(spread.sum() / 40), rel=1e-7)
    for name, part in zip(case.names, np.split(spread, ends), strict=True):
        assert trace.parameters[name].sem == pytest.approx(math.sqrt(part.sum() / 40), rel=1e-7)
    adaptive = (spread * case.flat**4).sum()
    assert trace.adaptive.sem == pytest.approx(math.sqrt(adaptive / 40), rel=1e-7)
    low, high = trace.interval()
    assert high - low == pytest.approx(2 * student.ppf(0.975, 39) * trace.sem, rel=1e-7)


def test_the_variance_of_a_form_is_twice_that_of_its_elements():
    """Over all sign vectors, so that nothing is estimated; of parts it is an upper bound."""
    rng = np.random.default_rng(0)
    root = rng.standard_normal((8, 8))
    H = root + root.T
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=8)))
    elements = signs * (signs @ H)
    assert elements.sum(1).var() == pytest.approx(2 * elements.var(axis=0).sum())
    part = elements[:, :3]
    assert part.sum(1).var() <= 2 * part.var(axis=0).sum() <= 2 * part.sum(1).var()


# Matrices that are hard for a sketch


def operator_of(H, sizes=None, seed=0, rows=64):
    matrix = torch.from_numpy(np.asarray(H))
    sizes = sizes or [len(matrix)]
    names = [str(k) for k in range(len(sizes))]
    probes = Probes(seed, names, sizes, matrix.dtype, torch.device("cpu"))
    return Operator(lambda v: v @ matrix, probes, torch.ones(len(matrix), dtype=matrix.dtype), rows)


def low_rank(rank, size=120, seed=0):
    rng = np.random.default_rng(seed)
    q = np.linalg.qr(rng.standard_normal((size, rank)))[0] if rank else np.zeros((size, 0))
    return (q * np.linspace(1, 3, rank)) @ q.T


def few_on_the_diagonal(size=120):
    """Its products are whole numbers, so that dependent vectors are so exactly."""
    return np.diag([4.0, 2.0, -1.0] + [0.0] * (size - 3))


SINGULAR = {f"rank {rank}": low_rank(rank) for rank in (0, 1, 3, 15, 16, 17, 20, 31)} | {
    "few on the diagonal": few_on_the_diagonal(),
    "identity": np.eye(120),
    "a block of ones": np.pad(np.ones((5, 5)), (0, 115)),
}


@pytest.mark.parametrize("method", [*METHODS, "auto"])
@pytest.mark.parametrize("tolerance", [None, 0.05])
@pytest.mark.parametrize("name", SINGULAR)
def test_singular_matrices(name, method, tolerance):
    H = SINGULAR[name]
    plan = Plan(operator_of(H), 2000 if tolerance else 96, tolerance, 60)
    used, samples = plan.carry_out(method)
    found = samples.estimate(np.array([1.0, 0.0]))
    assert np.isfinite([found.mean, found.sem]).all()
    assert abs(found.mean - np.trace(H)) <= 5 * found.sem + 1e-9
    rank = np.linalg.matrix_rank(H)
    if used == "hutch++" and rank < 12:
        assert found.mean == pytest.approx(np.trace(H), abs=1e-9)
    assert plan.spent <= plan.budget


def test_an_orthonormal_basis_leaves_out_what_is_rounding():
    rows = torch.from_numpy(low_rank(5)[:30])
    basis = orthonormal(rows, 1e-10).numpy()
    assert basis.shape == (5, 120)
    np.testing.assert_allclose(basis @ basis.T, np.eye(5), atol=1e-12)
    np.testing.assert_allclose((rows.numpy() @ basis.T) @ basis, rows, atol=1e-12)
    assert orthonormal(torch.zeros(4, 9), 0.0).shape == (0, 9)


@pytest.mark.parametrize("method", METHODS)
def test_the_rows_multiplied_at_once_do_not_matter(method):
    H = low_rank(60) + np.eye(120)
    found = [Plan(operator_of(H, rows=rows), 96, None, 60).carry_out(method)[1].values
             for rows in (1, 7, 64)]  # fmt: skip
    np.testing.assert_allclose(found[1], found[0], rtol=1e-12)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-12)


def test_a_diagonal_matrix_has_no_spread():
    forms = hutchinson(operator_of(np.diag(np.arange(1.0, 61))))
    forms.draw(32)
    found = forms.samples().estimate(np.array([1.0, 0.0]))
    assert found.mean == 60 * 61 / 2
    assert found.sem == pytest.approx(found.mean * np.finfo(float).eps)


# Plans


@pytest.mark.parametrize("method", [*METHODS, "auto"])
@pytest.mark.parametrize("budget", [48, 49, 50, 97, 131])
def test_a_budget_is_spent_and_never_exceeded(method, budget):
    rng = np.random.default_rng(0)
    root = rng.standard_normal((300, 300))
    H = root @ root.T
    for tolerance in (None, 0.001):
        plan = Plan(operator_of(H), budget, tolerance, 150)
        plan.carry_out(method)
        assert plan.spent == budget
        assert budget >= MIN_PRODUCTS[method]


def test_a_falling_spectrum_is_deflated_and_a_flat_one_is_not():
    rng = np.random.default_rng(0)
    q = np.linalg.qr(rng.standard_normal((200, 200)))[0]
    falling, flat = (q * 0.8 ** np.arange(200)) @ q.T, np.eye(200) + 0.01 * (q + q.T)
    for tolerance, budget in ((None, 96), (0.01, 5000)):
        assert Plan(operator_of(falling), budget, tolerance, 100).carry_out("auto")[0] == "hutch++"
        assert Plan(operator_of(flat), budget, tolerance, 100).carry_out("auto")[0] == "hutchinson"


def test_what_would_cost_more_than_the_whole_is_exact():
    rng = np.random.default_rng(0)
    root = rng.standard_normal((200, 200))
    H = root + root.T  # its trace is small against its spread
    plan = Plan(operator_of(H), 10_000, 0.001, 100)
    used, samples = plan.carry_out("auto")
    assert used == "exact"
    assert samples.values[0, 0] == pytest.approx(np.trace(H), rel=1e-12)
    assert plan.spent <= 500


def test_auto_that_ends_with_hutchinson_has_its_samples():
    H = np.eye(200) + 0.001
    auto = Plan(operator_of(H), 96, None, 100).carry_out("auto")[1]
    plain = Plan(operator_of(H), 96, None, 100).carry_out("hutchinson")[1]
    np.testing.assert_allclose(auto.values, plain.values, rtol=1e-13)


@pytest.mark.parametrize("tolerance", [None, 0.1])
def test_the_products_to_come_are_announced_before_they_are_taken(tolerance):
    told = []
    plan = Plan(operator_of(low_rank(60) + np.eye(120)), 200, tolerance, 60, told.append)
    plan.carry_out("hutchinson")
    assert told[-1] == plan.spent
