"""Problems against autodiff in float64, and compiled kernels against the NumPy forms."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from antipgd.paper.problems import (
    Problem,
    QuadraticRegression,
    WideningValley,
    kernels,
    make_problem,
    name_of,
    problem_class,
    settings_of,
)
from antipgd.paper.problems.problem import numerical_trace

PROBLEMS = [
    QuadraticRegression(d=7, n=5, nonzero=2, test=9),
    QuadraticRegression(d=20, n=33, nonzero=4, test=3, init=0.1),
    WideningValley(d=6, D=3.0, v=0.4),
]
ids = [type(problem).__name__ + str(i) for i, problem in enumerate(PROBLEMS)]
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=ids)


def torch_loss(problem, data, test=False):
    """The paper's formula, written once more for autodiff."""
    if isinstance(problem, WideningValley):
        return lambda w: 0.5 * w[-1] ** 2 * (w[:-1] @ w[:-1])
    X, y = (data.X_test, data.y_test) if test else (data.X, data.y)
    X, y = torch.tensor(X), torch.tensor(y)
    return lambda w: ((X @ (w * w) - y) ** 2).sum() / (4 * len(y))


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def points(problem, rng, count=4):
    d = len(problem.start(rng))
    return rng.standard_normal((count, d))


@each_problem
def test_loss_gradient_and_trace_are_those_of_autodiff(problem, rng):
    data = problem.data(rng)
    W = points(problem, rng)
    f = torch_loss(problem, data)
    for w, loss, gradient, trace in zip(
        W, problem.loss(W, data), problem.gradient(W, data), problem.trace(W, data), strict=True
    ):
        at = torch.tensor(w)
        assert float(f(at)) == pytest.approx(loss, rel=1e-12)
        np.testing.assert_allclose(torch.func.grad(f)(at), gradient, rtol=1e-10, atol=1e-12)
        assert float(torch.func.hessian(f)(at).trace()) == pytest.approx(trace, rel=1e-11)


def test_test_loss_uses_the_test_data(rng):
    problem = PROBLEMS[0]
    data = problem.data(rng)
    W = points(problem, rng)
    f = torch_loss(problem, data, test=True)
    expected = [float(f(torch.tensor(w))) for w in W]
    np.testing.assert_allclose(problem.test_loss(W, data), expected, rtol=1e-12)
    assert np.isnan(WideningValley().test_loss(points(WideningValley(), rng), None)).all()


@each_problem
def test_the_default_trace_by_differences(problem, rng):
    data, W = problem.data(rng), points(problem, rng)
    exact = problem.trace(W, data)
    np.testing.assert_allclose(numerical_trace(problem, W, data), exact, rtol=1e-7, atol=1e-7)


def test_batches_and_shifted_labels(rng):
    problem = PROBLEMS[0]
    data, W = problem.data(rng), points(problem, rng)
    rows = np.array([4, 0, 4])
    shift = rng.standard_normal((len(W), 3))
    gradients = problem.gradient(W, data, rows, shift)
    for w, gradient, s in zip(W, gradients, shift, strict=True):
        chosen = data._replace(X=data.X[rows], y=data.y[rows] + s)
        expected = torch.func.grad(torch_loss(problem, chosen))(torch.tensor(w))
        np.testing.assert_allclose(gradient, expected, rtol=1e-10, atol=1e-12)


def test_the_data_of_the_paper(rng):
    problem = QuadraticRegression()
    data = problem.data(rng)
    assert (data.X.shape, data.X_test.shape) == ((40, 100), (100, 100))
    np.testing.assert_allclose(data.y, data.X[:, :10].sum(axis=1))
    np.testing.assert_array_equal(problem.start(rng), np.ones(100))
    start = WideningValley(d=25, D=4.0, v=0.5).start(rng)
    assert start[:-1] @ start[:-1] == pytest.approx(4.0)
    assert start[-1] == 0.5


def in_lanes(rows):
    return np.ascontiguousarray(rows.T).reshape(-1)


@each_problem
def test_the_compiled_gradient_is_the_numpy_one(problem, rng):
    data, W = problem.data(rng), points(problem, rng, kernels.LANES)
    code, matrix, vector = problem.compiled(data)
    shift = rng.standard_normal((kernels.LANES, len(vector)))
    w, g, watched = in_lanes(W), np.empty(W.size), np.zeros(kernels.LANES)
    work = np.empty(W.size), np.empty(max(shift.size, 1))
    kernels.gradient(code, matrix, vector, in_lanes(shift), w, *work, watched, g)
    expected = problem.gradient(W, data, None, shift if len(vector) else None)
    np.testing.assert_allclose(g.reshape(-1, kernels.LANES).T, expected, rtol=1e-11, atol=1e-12)
    if isinstance(problem, WideningValley):
        np.testing.assert_allclose(watched, problem.watch(W), rtol=1e-13)


@pytest.mark.parametrize("rows", [1, 7, 8, 17])
def test_products_sum_in_textbook_order(rows, rng):
    """Bit for bit: no fused multiply-add, no other order, on any CPU."""
    a, b = rng.standard_normal((rows, 11)), rng.standard_normal((11, kernels.LANES))
    out = np.empty(rows * kernels.LANES)
    kernels.multiply(a.reshape(-1), 11, 1, rows, 11, b.reshape(-1), out)
    total = np.zeros((rows, kernels.LANES))
    for k in range(11):
        total = total + a[:, k : k + 1] * b[k]
    assert (out.reshape(rows, kernels.LANES) == total).all()
    transposed = np.ascontiguousarray(a.T).reshape(-1)
    kernels.multiply(transposed, 1, rows, rows, 11, b.reshape(-1), out)
    assert (out.reshape(rows, kernels.LANES) == total).all()


@dataclass(frozen=True)
class Own(Problem):
    width: float = 2.0
    sharp: bool = False

    def start(self, rng):
        return np.ones(2)

    def loss(self, W, data):
        return (W**2).sum(axis=1) / self.width

    def gradient(self, W, data, rows=None, label_shift=None):
        return 2 * W / self.width


def test_names_of_problems():
    assert name_of("widening_valley") == name_of(WideningValley) == "widening_valley"
    name = name_of(Own)
    assert problem_class(name) is Own
    assert make_problem(name, {"width": "3", "sharp": "true"}) == Own(3.0, True)
    assert settings_of(Own()) == {"width": 2.0, "sharp": False}
    assert np.isnan(Own().watch(np.ones((1, 2)))).all()


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("widening_valey", {}, "unknown problem 'widening_valey'; did you mean 'widening_valley'"),
        ("widening_valley", {"dd": 3}, "unknown setting 'dd' of widening_valley; did you mean 'd'"),
        ("widening_valley", {"d": 2.5}, "setting d must be of type int; got 2.5"),
        ("widening_valley", {"d": "two"}, "setting d must be of type int; got 'two'"),
        ("widening_valley", {"d": 0}, "needs d >= 1"),
        ("quadratic_regression", {"nonzero": 101}, "0 <= nonzero <= d"),
        ("nowhere:Problem", {}, "cannot find problem 'nowhere:Problem': No module named 'nowhere'"),
        ("math:pi", {}, "is not a subclass"),
    ],
)
def test_bad_problems(name, settings, message):
    with pytest.raises(ValueError, match=message):
        make_problem(name, settings)
