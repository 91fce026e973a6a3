"""Problems against autodiff in float64, and compiled kernels against the NumPy forms."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from antipgd.paper.simulation.problems import PROBLEMS as REGISTERED
from antipgd.paper.simulation.problems import (
    MatrixSensing,
    OneHiddenUnit,
    Problem,
    QuadraticRegression,
    WideningValley,
    codes,
    kernels,
    make_problem,
    name_of,
    problem_class,
    products,
    settings_of,
)
from antipgd.paper.simulation.problems.problem import numerical_trace

PROBLEMS = [
    QuadraticRegression(d=7, n=5, nonzero=2, test=9),
    QuadraticRegression(d=20, n=33, nonzero=4, test=3, init=0.1),
    WideningValley(d=6, D=3.0, v=0.4),
    MatrixSensing(n=4, rank=2, measurements=9, test=5),
    MatrixSensing(n=7, rank=3, measurements=5, test=11, label_noise=0.3, scaling="raw"),
    MatrixSensing(n=1, rank=1, measurements=1, test=1, label_noise=0.0),
    OneHiddenUnit(m=3, d=6, D=2.0, v=0.5),
    OneHiddenUnit(m=2, d=11, samples=7, signal=3.0),
    OneHiddenUnit(m=1, d=1, samples=1, signal=0.0),
]
SHIFTABLE = [problem for problem in PROBLEMS if problem.examples]
ids = [type(problem).__name__ + str(i) for i, problem in enumerate(PROBLEMS)]
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=ids)


def torch_loss(problem, data, test=False):
    """The paper's formula, written once more for autodiff."""
    if isinstance(problem, WideningValley):
        return lambda w: 0.5 * w[-1] ** 2 * (w[:-1] @ w[:-1])
    if isinstance(problem, OneHiddenUnit):
        return hidden_unit_loss(problem, data, test)
    if isinstance(problem, MatrixSensing):
        return sensing_loss(problem, data, test)
    X, y = (data.X_test, data.y_test) if test else (data.X, data.y)
    X, y = torch.tensor(X), torch.tensor(y)
    return lambda w: ((X @ (w * w) - y) ** 2).sum() / (4 * len(y))


def hidden_unit_loss(problem, data, test):
    X, y = torch.tensor(data.X), torch.tensor(data.y)
    if not test and problem.samples:
        return lambda w: ((y - w[-1] * (X @ w[:-1])) ** 2).sum() / (2 * len(y))
    c = torch.zeros(problem.m + problem.d, dtype=torch.float64)
    c[: problem.m] = problem.signal / problem.m**0.5
    return lambda w: ((w[-1] * w[:-1] - c) ** 2).sum() / 2


def sensing_loss(problem, data, test):
    """With whole upper triangular matrices, which measure what the packed ones do."""
    B, y = (data.B_test, data.y_test) if test else (data.B, data.y)
    n, count = problem.n, iter(range(B.shape[1]))
    A = np.zeros((len(B), n, n))
    for a in range(n):
        for b in range(a, n):
            A[:, a, b] = B[:, next(count)]
    A, y = torch.tensor(A), torch.tensor(y)

    def loss(w):
        U = w.reshape(n, n)
        return ((y - (A * (U @ U.T)).sum(dim=(1, 2))) ** 2 / 2).mean()

    return loss


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


@each_problem
def test_test_loss_uses_the_test_data(problem, rng):
    if isinstance(problem, WideningValley):
        assert np.isnan(problem.test_loss(points(problem, rng), None)).all()
        return
    data = problem.data(rng)
    W = points(problem, rng)
    f = torch_loss(problem, data, test=True)
    expected = [float(f(torch.tensor(w))) for w in W]
    np.testing.assert_allclose(problem.test_loss(W, data), expected, rtol=1e-12)


@each_problem
def test_the_hessian_and_its_contracted_gradient_are_those_of_autodiff(problem, rng):
    data = problem.data(rng)
    w = problem.start(rng) + 0.3 * rng.standard_normal(len(problem.start(rng)))
    M = rng.standard_normal((len(w), len(w)))
    M, at, loss = M + M.T, torch.tensor(w, requires_grad=True), torch_loss(problem, data)
    H = torch.autograd.functional.hessian(loss, at, create_graph=True)
    (wanted,) = torch.autograd.grad((H * torch.tensor(M)).sum(), at, allow_unused=True)
    wanted = np.zeros_like(w) if wanted is None else wanted.numpy()
    close = 1e-10 if "hessian" in vars(type(problem)) else 1e-4  # else by differences, twice
    np.testing.assert_allclose(problem.hessian(w, data), H.detach().numpy(), atol=close)
    np.testing.assert_allclose(
        problem.curvature_gradient(w, data, M), wanted, atol=close * (1 + np.abs(wanted).max())
    )
    for function in (Problem.hessian, Problem.curvature_gradient):
        arguments = (w, data) if function is Problem.hessian else (w, data, M)
        exact = H.detach().numpy() if function is Problem.hessian else wanted
        np.testing.assert_allclose(
            function(problem, *arguments), exact, atol=1e-4 * (1 + np.abs(exact).max())
        )


@each_problem
def test_the_default_trace_by_differences(problem, rng):
    data, W = problem.data(rng), points(problem, rng)
    exact = problem.trace(W, data)
    np.testing.assert_allclose(numerical_trace(problem, W, data), exact, rtol=1e-7, atol=1e-7)


def chosen(data, rows, shift):
    """Data of some examples with shifted labels."""
    inputs = "B" if hasattr(data, "B") else "X"
    return data._replace(**{inputs: getattr(data, inputs)[rows], "y": data.y[rows] + shift})


@pytest.mark.parametrize("problem", SHIFTABLE, ids=lambda problem: type(problem).__name__)
def test_batches_and_shifted_labels(problem, rng):
    data, W = problem.data(rng), points(problem, rng, kernels.LANES)
    rows = np.array([problem.examples - 1, 0, problem.examples - 1])
    shift = rng.standard_normal((len(W), 3))
    gradients = problem.gradient(W, data, rows, shift)
    for w, gradient, s in zip(W, gradients, shift, strict=True):
        f = torch_loss(problem, chosen(data, rows, s))
        expected = torch.func.grad(f)(torch.tensor(w))
        np.testing.assert_allclose(gradient, expected, rtol=1e-10, atol=1e-12)
    compiled = problem.compiled(chosen(data, rows, 0))
    np.testing.assert_allclose(compiled_gradient(compiled, W, shift)[0], gradients, rtol=1e-11)


def test_the_data_of_the_paper(rng):
    problem = QuadraticRegression()
    data = problem.data(rng)
    assert (data.X.shape, data.X_test.shape) == ((40, 100), (100, 100))
    np.testing.assert_allclose(data.y, data.X[:, :10].sum(axis=1))
    np.testing.assert_array_equal(problem.start(rng), np.ones(100))
    start = WideningValley(d=25, D=4.0, v=0.5).start(rng)
    assert start[:-1] @ start[:-1] == pytest.approx(4.0)
    assert start[-1] == 0.5


def test_the_sensing_data_of_the_paper(rng):
    problem = MatrixSensing()
    data = problem.data(rng)
    assert (data.B.shape, data.B_test.shape) == ((100, 210), (100, 210))
    np.testing.assert_array_equal(problem.start(rng), np.eye(20).ravel())
    a, b = np.triu_indices(20)
    assert np.var(data.B[:, a == b]) == pytest.approx(1, rel=0.1)
    assert np.var(data.B[:, a != b]) == pytest.approx(2, rel=0.1)
    for scaling, norm in (("unit", 1.0), ("raw", pytest.approx(40, rel=0.5))):
        problem = MatrixSensing(scaling=scaling)
        target = problem.target(np.random.default_rng(5))
        assert np.linalg.matrix_rank(target) == 5
        assert np.linalg.norm(target, 2) == (pytest.approx(1) if norm == 1.0 else norm)
        data = problem.data(np.random.default_rng(5))
        np.testing.assert_allclose(data.y_test, data.B_test @ target[a, b], rtol=1e-12)
        noise = data.y - data.B @ target[a, b]
        assert np.std(noise) == pytest.approx(0.01, rel=0.25)


def test_the_population_of_the_hidden_unit(rng):
    problem = OneHiddenUnit(m=4, d=7, signal=2.0, D=3.0, v=0.5)
    data = problem.data(rng)
    moments = data.X.T @ np.column_stack([data.X, data.y]) / len(data.y)
    np.testing.assert_allclose(moments[:, :-1], np.eye(11), atol=1e-15)
    np.testing.assert_allclose(moments[:, -1], [1.0] * 4 + [0.0] * 7)
    start = problem.start(rng)
    assert start[problem.parts["u"]] @ start[problem.parts["u"]] == pytest.approx(3.0)
    np.testing.assert_array_equal(start[problem.parts["v"]], [0.5])
    assert problem.watch(start[None])[0] == pytest.approx(3.0 * 7 / 11)
    assert (problem.examples, OneHiddenUnit(samples=9).examples) == (0, 9)


def in_lanes(rows):
    return np.ascontiguousarray(rows.T).reshape(-1)


def compiled_gradient(compiled, W, shift):
    """Gradients and what is watched, by the compiled kernel."""
    g, watched = np.full(W.size, np.nan), np.full(kernels.LANES, np.nan)
    work = np.full(kernels.work_size(compiled.code, compiled.matrix, W.size), np.nan)
    r = np.empty(max(shift.size, 1))
    kernels.gradient(*compiled, in_lanes(shift), in_lanes(W), work, r, watched, g)
    return g.reshape(-1, kernels.LANES).T, watched


def test_every_kernel_is_that_of_its_problem_and_compared_below(rng):
    made = {name: kind() for name, kind in REGISTERED.items()}
    compiled = {name: problem.compiled(problem.data(rng)) for name, problem in made.items()}
    compiled = {name: found.code for name, found in compiled.items() if found is not None}
    assert compiled == {name: code for code, name in enumerate(codes.KERNELS)}
    networks = {"student_teacher", "digits_network"}  # in test_relu_networks.py
    assert {name_of(type(problem)) for problem in PROBLEMS} | networks == compiled.keys()


def test_no_gradient_comes_from_a_kernel_that_does_not_exist(rng):
    data = PROBLEMS[0].data(rng)
    unknown = PROBLEMS[0].compiled(data)._replace(code=len(codes.KERNELS))
    W = points(PROBLEMS[0], rng, kernels.LANES)
    with pytest.raises(NotImplementedError, match="not compiled"):
        compiled_gradient(unknown, W, np.zeros((kernels.LANES, len(data.y))))


@each_problem
def test_the_compiled_gradient_is_the_numpy_one(problem, rng):
    data, W = problem.data(rng), points(problem, rng, kernels.LANES)
    compiled = problem.compiled(data)
    shift = rng.standard_normal((kernels.LANES, len(compiled.vector)))
    g, watched = compiled_gradient(compiled, W, shift)
    expected = problem.gradient(W, data, None, shift if len(compiled.vector) else None)
    np.testing.assert_allclose(g, expected, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(watched, problem.watch(W), rtol=1e-13)


@each_problem
def test_a_lane_does_not_meet_the_others(problem, rng):
    """Bit for bit, even beside lanes that are not finite."""
    data, W = problem.data(rng), points(problem, rng, kernels.LANES)
    compiled = problem.compiled(data)
    shift = np.zeros((kernels.LANES, len(compiled.vector)))
    together, watched = compiled_gradient(compiled, W, shift)
    for lane in (0, 3, 7):
        alone = np.full_like(W, np.inf)
        alone[2] = W[lane]
        g, seen = compiled_gradient(compiled, alone, shift)
        np.testing.assert_array_equal(g[2], together[lane])
        np.testing.assert_array_equal(seen[2], watched[lane])


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 10, 17, 23])
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


@pytest.mark.parametrize("rows", [1, 6, 10, 23])
def test_sums_go_on_from_what_is_there_as_if_they_had_never_stopped(rows, rng):
    a, b = rng.standard_normal((rows, 11)), rng.standard_normal((11, kernels.LANES))
    lanes = rng.standard_normal((rows, 11, kernels.LANES))
    for whole, onto, left in (
        (products.multiply, products.add_multiplied, a),
        (products.multiply_lanes, products.add_multiplied_lanes, lanes),
    ):
        at_once, in_parts = (np.empty(rows * kernels.LANES) for _ in range(2))
        whole(left.reshape(-1), 11, 1, rows, 11, b.reshape(-1), at_once)
        head, tail = (np.ascontiguousarray(part).reshape(-1) for part in (left[:, :4], left[:, 4:]))
        whole(head, 4, 1, rows, 4, b[:4].reshape(-1), in_parts)
        onto(tail, 7, 1, rows, 7, b[4:].reshape(-1), in_parts)
        assert (at_once == in_parts).all()


@pytest.mark.parametrize("rows", [1, 7, 8, 23])
def test_products_in_lanes_sum_in_textbook_order(rows, rng):
    a, b = (rng.standard_normal((*shape, kernels.LANES)) for shape in ((rows, 11), (11,)))
    out = np.empty(rows * kernels.LANES)
    total = np.zeros((rows, kernels.LANES))
    for k in range(11):
        total = total + a[:, k] * b[k]
    kernels.multiply_lanes(a.reshape(-1), 11, 1, rows, 11, b.reshape(-1), out)
    assert (out.reshape(rows, kernels.LANES) == total).all()
    transposed = np.ascontiguousarray(a.transpose(1, 0, 2)).reshape(-1)
    kernels.multiply_lanes(transposed, 1, rows, rows, 11, b.reshape(-1), out)
    assert (out.reshape(rows, kernels.LANES) == total).all()


@dataclass(frozen=True)
class Own(Problem):
    width: float = 2  # its type is what it says, not that of the default
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
    assert make_problem(name, {"width": "3.5", "sharp": "true"}) == Own(3.5, True)
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
        ("matrix_sensing", {"rank": 21}, "1 <= rank <= n; got measurements=100, test=100, rank=21"),
        ("matrix_sensing", {"label_noise": -1}, "label_noise must be finite and >= 0; got -1.0"),
        ("matrix_sensing", {"scaling": "Unit"}, "scaling must be 'unit' or 'raw'; got 'Unit'"),
        ("one_hidden_unit", {"samples": -1}, "m, d >= 1 and samples >= 0; got m=5, d=20, sam"),
        ("one_hidden_unit", {"D": "inf"}, "a finite D >= 0, a finite signal and a finite v; got"),
        ("nowhere:Problem", {}, "cannot find problem 'nowhere:Problem': No module named 'nowhere'"),
        ("math:pi", {}, "is not a subclass"),
    ],
)
def test_bad_problems(name, settings, message):
    with pytest.raises(ValueError, match=message):
        make_problem(name, settings)
