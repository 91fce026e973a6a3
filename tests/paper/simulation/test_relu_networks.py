"""The two networks of ReLU units against autodiff in float64, and their kernels against NumPy."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from antipgd.flatness import trace_at_equal_loss
from antipgd.paper.simulation.problems import (
    DigitsNetwork,
    StudentTeacher,
    kernels,
    layers,
    make_problem,
)
from antipgd.paper.simulation.problems.problem import numerical_hessian, numerical_trace
from antipgd.paper.simulation.temperature import loss_at, scaled_trace, temperature_of

STUDENTS = [
    StudentTeacher(teacher=2, hidden=5, d=3, n=11, test=9),
    StudentTeacher(teacher=1, hidden=3, d=4, n=85, test=4, init=0.5),  # more than two tiles
    StudentTeacher(teacher=7, hidden=1, d=1, n=1, test=1),
]
DIGITS = [
    DigitsNetwork(hidden=6, n=20),
    DigitsNetwork(hidden=5, n=37, loss_name="cross_entropy"),
    DigitsNetwork(hidden=1, n=3, loss_name="cross_entropy"),
]
NETWORKS = STUDENTS + DIGITS
each_network = pytest.mark.parametrize(
    "problem", NETWORKS, ids=[type(one).__name__ + str(i) for i, one in enumerate(NETWORKS)]
)
each_digits = pytest.mark.parametrize("problem", DIGITS[:2], ids=["squared", "entropy"])


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def points(problem, rng, count=3):
    return np.stack([problem.start(rng) for _ in range(count)]) * 1.3


def student_loss(problem, X, y):
    X, y, inner = torch.tensor(X), torch.tensor(y), problem.hidden * problem.d

    def loss(w):
        units = torch.relu(X @ w[:inner].reshape(problem.hidden, problem.d).T)
        return ((units @ w[inner:] - y) ** 2).mean() / 2

    return loss


def digits_loss(problem, X, y, factor=1.0):
    X, y, h = torch.tensor(X), torch.tensor(y), problem.hidden

    def loss(w):
        first, second, last = w.split([64 * h, h * h, 10 * h])
        units = torch.relu(X @ first.reshape(h, 64).T)
        units = torch.relu(units @ second.reshape(h, h).T)
        outputs = factor * (units @ last.reshape(10, h).T)
        if problem.loss_name == "cross_entropy":
            return cross_entropy(outputs, y)
        return ((outputs - torch.eye(10, dtype=torch.float64)[y]) ** 2).sum(dim=1).mean() / 2

    return loss


def torch_loss(problem, X, y):
    return (student_loss if isinstance(problem, StudentTeacher) else digits_loss)(problem, X, y)


@each_network
def test_loss_gradient_and_trace_are_those_of_autodiff(problem, rng):
    data, W = problem.data(rng), points(problem, rng)
    f, tested = torch_loss(problem, data.X, data.y), torch_loss(problem, data.X_test, data.y_test)
    found = (problem.loss(W, data), problem.test_loss(W, data), problem.gradient(W, data),
             problem.trace(W, data))  # fmt: skip
    for w, loss, test_loss, gradient, trace in zip(W, *found, strict=True):
        at = torch.tensor(w)
        assert float(f(at)) == pytest.approx(loss, rel=1e-12)
        assert float(tested(at)) == pytest.approx(test_loss, rel=1e-12)
        np.testing.assert_allclose(torch.func.grad(f)(at), gradient, rtol=1e-10, atol=1e-13)
        H = torch.autograd.functional.hessian(f, at)
        assert float(H.trace()) == pytest.approx(trace, rel=1e-10, abs=1e-13)


@each_network
def test_trace_and_gradient_are_those_of_differences(problem, rng):
    data, W = problem.data(rng), points(problem, rng, 2)
    np.testing.assert_allclose(
        numerical_trace(problem, W, data), problem.trace(W, data), rtol=1e-6, atol=1e-6
    )
    direction = rng.standard_normal(W.shape)
    ahead, behind = (problem.loss(W + s * 1e-6 * direction, data) for s in (1, -1))
    slope = (problem.gradient(W, data) * direction).sum(axis=1)
    np.testing.assert_allclose((ahead - behind) / 2e-6, slope, rtol=1e-5, atol=1e-8)


def test_the_students_hessian_is_the_numerical_one_residuals_and_all(rng):
    problem = STUDENTS[0]
    data, w = problem.data(rng), points(problem, rng)[0]
    H = problem.hessian(w, data)
    np.testing.assert_allclose(H, numerical_hessian(problem, w, data), atol=1e-7)
    f = torch_loss(problem, data.X, data.y)
    wanted = torch.autograd.functional.hessian(f, torch.tensor(w)).numpy()
    np.testing.assert_allclose(H, wanted, atol=1e-12)
    assert np.linalg.eigvalsh(H)[0] < 0  # JᵀJ alone has none below zero


@each_network
def test_rows_are_those_examples_alone(problem, rng):
    data, W = problem.data(rng), points(problem, rng)
    rows = np.array([problem.n - 1, 0, problem.n - 1])
    f = torch_loss(problem, data.X[rows], data.y[rows])
    for w, gradient in zip(W, problem.gradient(W, data, rows), strict=True):
        wanted = torch.func.grad(f)(torch.tensor(w))
        np.testing.assert_allclose(gradient, wanted, rtol=1e-10, atol=1e-12)


def in_lanes(rows):
    return np.ascontiguousarray(rows.T).reshape(-1)


def compiled_gradient(problem, data, W, shift):
    """Gradient, what is watched, and losses, by the compiled kernel."""
    compiled = problem.compiled(data)
    g, watched = np.full(W.size, np.nan), np.full(kernels.LANES, np.nan)
    work = np.full(kernels.work_size(compiled.code, compiled.matrix, W.size), np.nan)
    r, sums = np.empty(shift.size), np.zeros(kernels.LANES)
    kernels.gradient(*compiled, in_lanes(shift), in_lanes(W), work, r, watched, g)
    kernels.add_losses(compiled.code, problem.n, r, in_lanes(W), watched, sums)
    return g.reshape(-1, kernels.LANES).T, watched, sums


@each_network
def test_the_compiled_gradient_is_the_numpy_one(problem, rng):
    data, W = problem.data(rng), points(problem, rng, kernels.LANES)
    shift = np.zeros((kernels.LANES, problem.n))
    if isinstance(problem, StudentTeacher):
        shift = rng.standard_normal(shift.shape)
    g, watched, losses = compiled_gradient(problem, data, W, shift)
    labels = shift if isinstance(problem, StudentTeacher) else None
    wanted = problem.gradient(W, data, None, labels)
    np.testing.assert_allclose(g, wanted, rtol=1e-11, atol=1e-13)
    np.testing.assert_array_equal(watched, problem.watch(W))
    if labels is None:
        np.testing.assert_allclose(losses, problem.loss(W, data), rtol=1e-12)


@each_network
def test_a_lane_does_not_meet_the_others(problem, rng):
    """Bit for bit, even beside lanes that are not finite."""
    data, W = problem.data(rng), points(problem, rng, kernels.LANES)
    shift = np.zeros((kernels.LANES, problem.n))
    together = compiled_gradient(problem, data, W, shift)
    for lane in (0, 3, 7):
        alone = np.full_like(W, np.inf)
        alone[2] = W[lane]
        for one, other in zip(
            compiled_gradient(problem, data, alone, shift), together, strict=True
        ):
            np.testing.assert_array_equal(one[2], other[lane])


def test_the_exponential_needs_no_libm():
    x = -np.concatenate([[0.0, 1e-300, 0.3465735, 0.3465736], np.geomspace(1e-9, 700, 4001)])
    found = x.copy()
    layers.exp_of_negative(len(x), found)
    np.testing.assert_allclose(found, np.exp(x), rtol=4e-16 * 2)
    far = np.array([-709.0, -1e6])
    layers.exp_of_negative(2, far)
    assert (far < 1e-307).all()


# -- student and teacher -----------------------------------------------------------------------


def test_active_units_are_those_that_can_say_more_than_a_hundredth_of_the_largest():
    problem = StudentTeacher(hidden=4, d=2)
    u = np.array([[3.0, 4.0], [0.0, 1.0], [1e3, 0.0], [0.6, 0.8]])
    v = np.array([2.0, 0.11, 1e-5, -0.09])  # |v|‖u‖ = 10, 0.11, 0.01, 0.09: more than 0.1 are two
    w = np.concatenate([u.ravel(), v])
    assert problem.watch(w[None]).tolist() == [2.0]
    assert problem.watch(np.zeros((1, 12))).tolist() == [0.0]
    scaled = np.concatenate([(u * 5).ravel(), v / 5])  # the same network
    assert problem.watch(scaled[None]).tolist() == [2.0]


def test_a_student_that_is_the_teacher_has_no_loss(rng):
    problem = StudentTeacher(teacher=3, hidden=3, d=4, n=20, test=30)
    inner = np.random.default_rng(5).standard_normal((3, 4))
    data = problem.data(np.random.default_rng(5))
    inner /= np.linalg.norm(inner, axis=1, keepdims=True)
    signs = [(a, b, c) for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)]
    W = np.array([np.append(inner.ravel(), np.sqrt(2 / 3) * np.array(s)) for s in signs])
    best = int(np.argmin(problem.loss(W, data)))
    assert problem.loss(W, data)[best] < 1e-30
    assert problem.test_loss(W, data)[best] < 1e-30
    assert (np.delete(problem.loss(W, data), best) > 1e-3).all()
    assert problem.loss_of_nothing(data) == pytest.approx(problem.loss(0 * W[:1], data)[0])


def test_the_two_held_out_sets_differ_and_the_training_set_does_not():
    test, other = (
        StudentTeacher(held_out=name).data(np.random.default_rng(1))
        for name in ("test", "validation")
    )
    np.testing.assert_array_equal(test.X, other.X)
    np.testing.assert_array_equal(test.y, other.y)
    assert not np.isin(test.X_test, other.X_test).any()
    assert (StudentTeacher().start(np.random.default_rng(0)).size, test.X.shape) == (440, (60, 10))


# -- digits ------------------------------------------------------------------------------------


def images(X):
    return {row.tobytes() for row in X}


def test_test_images_are_the_same_for_every_seed_and_never_trained_on():
    data = [DigitsNetwork(n=300).data(np.random.default_rng(seed)) for seed in (0, 1)]
    np.testing.assert_array_equal(data[0].X_test, data[1].X_test)
    assert not np.array_equal(data[0].X, data[1].X)
    held = [
        DigitsNetwork(n=300, held_out="validation").data(np.random.default_rng(seed))
        for seed in (0, 1)
    ]
    assert (len(data[0].y_test), len(held[0].y_test)) == (597, 900)
    for one, other in zip(data, held, strict=True):
        np.testing.assert_array_equal(one.X, other.X)
        for part in (other.X, other.X_test):
            assert not images(one.X_test) & images(part)
        assert not images(other.X) & images(other.X_test)


def test_errors_are_shares_of_wrong_digits_and_a_draw_is_one(rng):
    problem = DIGITS[0]
    data, w = problem.data(rng), points(problem, rng, 1)
    first, second, last = (layer[0] for layer in problem.layers(w))
    units = np.maximum(np.maximum(data.X_test @ first.T, 0) @ second.T, 0)
    guesses = (units @ last.T).argmax(axis=1)
    assert problem.errors(w, data, test=True)[0] == pytest.approx((guesses != data.y_test).mean())
    assert problem.errors(0 * w, data)[0] == 1
    assert problem.loss_of_nothing(data) == pytest.approx(0.5)
    assert DIGITS[1].loss_of_nothing(DIGITS[1].data(rng)) == pytest.approx(np.log(10))


@each_digits
def test_traces_of_layers_are_those_of_the_numerical_hessians_blocks(problem, rng):
    data, w = problem.data(rng), points(problem, rng)[0]
    diagonal = np.diag(numerical_hessian(problem, w, data))
    ends = np.cumsum([64 * problem.hidden, problem.hidden**2])
    blocks = [part.sum() for part in np.split(diagonal, ends)]
    np.testing.assert_allclose(problem.layer_traces(w, data), blocks, rtol=1e-6)


def test_the_spectrum_is_that_of_the_hessian_without_its_residuals(rng):
    problem = DIGITS[0]
    data, w = problem.data(rng), points(problem, rng)[0]
    own = data._replace(y=data.y)
    J = torch.autograd.functional.jacobian(
        lambda v: torch.stack(_torch_outputs(problem, own, v)), torch.tensor(w)
    ).numpy()
    wanted = np.linalg.eigvalsh(J @ J.T / problem.n)
    found = problem.gauss_newton_spectrum(w, data)
    np.testing.assert_allclose(found, wanted, atol=1e-10 * wanted[-1])
    assert found.sum() == pytest.approx(problem.trace(w[None], data)[0], rel=1e-10)


def _torch_outputs(problem, data, w):
    h = problem.hidden
    first, second, last = w.split([64 * h, h * h, 10 * h])
    units = torch.relu(torch.tensor(data.X) @ first.reshape(h, 64).T)
    units = torch.relu(units @ second.reshape(h, h).T)
    return list((units @ last.reshape(10, h).T).reshape(-1))


class Three(torch.nn.Module):
    def __init__(self, matrices):
        super().__init__()
        self.matrices = torch.nn.ParameterList(torch.tensor(m) for m in matrices)

    def forward(self, x):
        first, second, last = self.matrices
        return torch.relu(torch.relu(x @ first.T) @ second.T) @ last.T


def trained(problem, data, w):
    for _ in range(4000):
        w = w - 0.1 * problem.gradient(w[None], data)[0]
    assert problem.errors(w[None], data)[0] == 0
    return w


def test_the_scaled_trace_at_equal_loss_is_that_of_torchs_networks(rng):
    problem = DigitsNetwork(hidden=12, n=12, loss_name="cross_entropy")
    data = problem.data(rng)
    w = trained(problem, data, problem.start(rng))
    logits = problem.outputs(w[None], data.X)[0]
    temperature = temperature_of(logits, data.y)
    assert loss_at(temperature, logits, data.y) == pytest.approx(0.01, rel=1e-9)
    model = Three([layer[0] for layer in problem.layers(w[None])])
    batch = (torch.tensor(data.X), torch.tensor(data.y))
    found = trace_at_equal_loss(model, [batch], method="exact")
    assert temperature == pytest.approx(found.temperature, rel=1e-9)
    assert scaled_trace(problem, w, data) == pytest.approx(found.mean, rel=1e-8)
    larger = w.copy()
    larger[-120:] *= 3  # logits three times as large: the same network at a lower loss
    assert scaled_trace(problem, larger, data) == pytest.approx(found.mean, rel=1e-8)


def test_no_temperature_where_an_image_is_wrong():
    logits = np.array([[2.0, 1.0], [0.0, 0.0]])
    with pytest.raises(ValueError, match="every example right; 1 of 2 are classified wrongly"):
        temperature_of(logits, np.array([0, 1]))
    with pytest.raises(ValueError, match="between 0 and ln 2; got 1"):
        temperature_of(logits[:1], np.array([0]), 1.0)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("student_teacher", {"teacher": 0}, "teacher, hidden, d, n, test >= 1; got teacher=0"),
        ("student_teacher", {"init": -1.0}, "a finite init >= 0; got init=-1.0"),
        ("student_teacher", {"held_out": "both"}, "'test' or 'validation'; got 'both'"),
        ("digits_network", {"n": 1200}, "1 <= n <= 1199; got hidden=32, n=1200"),
        ("digits_network", {"init": "inf"}, "a finite init >= 0; got init=inf"),
        ("digits_network", {"loss_name": "hinge"}, "squared or cross_entropy; got 'hinge'"),
        ("digits_network", {"held_out": "all"}, "test or validation; got 'all'"),
    ],
)
def test_bad_settings(name, settings, message):
    with pytest.raises(ValueError, match=message):
        make_problem(name, settings)


def test_labels_of_digits_cannot_be_shifted(rng):
    data = DIGITS[0].data(rng)
    with pytest.raises(ValueError, match="classes for labels, which cannot be shifted"):
        DIGITS[0].gradient(points(DIGITS[0], rng), data, None, np.zeros((3, 20)))


@each_network
def test_few_runs_have_the_bits_of_many(problem, rng):
    """Where the last four lanes stand at zero they are left out of products, and stay at zero."""
    data, W = problem.data(rng), points(problem, rng, kernels.LANES)
    shift = np.zeros((kernels.LANES, problem.n))
    many = compiled_gradient(problem, data, W, shift)[0]
    W[4:] = 0
    assert layers._are_few(in_lanes(W))
    few = compiled_gradient(problem, data, W, shift)[0]
    np.testing.assert_array_equal(few[:4], many[:4])
    np.testing.assert_array_equal(few[4:], 0)
    W[7, -1] = 1e-300
    assert not layers._are_few(in_lanes(W))
