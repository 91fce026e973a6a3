"""Layers that take turns, noise in units of filters, and the deep linear network."""

import numpy as np
import pytest

from antipgd.noise import draws, reference
from antipgd.paper.simulation.local import run_local
from antipgd.paper.simulation.problems import DeepLinear, StudentTeacher, make_problem
from antipgd.paper.simulation.problems.problem import numerical_hessian, numerical_trace
from antipgd.paper.simulation.spec import make_run

SETTINGS = {
    "deep_linear": {"n": 3, "width": 4, "depth": 3, "measurements": 5, "test": 3},
    "student_teacher": {"hidden": 5, "d": 3, "n": 7, "test": 3},
}
SIGMA, ETA, SEED, STEPS = 0.1, 0.05, 4, 7


def made(**settings):
    problem = DeepLinear(**settings)
    rng = np.random.default_rng(1)
    return problem, problem.data(rng), problem.start(rng)


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_gradient_and_trace_are_those_of_the_loss(depth):
    problem, data, w = made(n=3, width=4, depth=depth, measurements=5, test=3)
    W = np.stack([w, -0.5 * w])
    step = 1e-6 * np.eye(len(w))
    slopes = [(problem.loss(w + step, data) - problem.loss(w - step, data)) / 2e-6 for w in W]
    assert np.allclose(problem.gradient(W, data), slopes, atol=1e-7)
    assert np.allclose(problem.trace(W, data), numerical_trace(problem, W, data), rtol=1e-6)
    assert problem.trace(W, data)[0] == pytest.approx(np.trace(numerical_hessian(problem, w, data)))
    rows = np.array([1, 3])
    some = problem.gradient(W, data._replace(A=data.A[rows], y=data.y[rows]))
    assert np.allclose(problem.gradient(W, data, rows), some)


def test_noise_on_one_layer_has_no_term_that_grows_with_the_width():
    """E L(z + ξ) − L(z) is σ²/2 tr ∇²L for one layer; for both of two, and n²σ⁴·width/2."""
    sigma, rng = 0.3, np.random.default_rng(2)
    for width in (4, 64):
        problem, data, w = made(width=width, measurements=400)
        xi = sigma * rng.standard_normal((40_000, len(w)))
        first = problem.parts["W1"]
        alone = np.zeros_like(xi)
        alone[:, first] = xi[:, first]
        half = sigma**2 / 2
        layers = [(problem._around(problem._matrices(w[None])))[i] for i in range(2)]
        A = data.A.reshape(-1, 6, 6)
        traces = [((left.mT[:, None] @ A @ right.mT[:, None]) ** 2).sum() / 400
                  for left, right in layers]  # fmt: skip
        rise = (problem.loss(w + alone, data) - problem.loss(w[None], data)).mean()
        assert rise == pytest.approx(half * traces[0], rel=0.03)
        rise = (problem.loss(w + xi, data) - problem.loss(w[None], data)).mean()
        more = half * sum(traces) + sigma**4 * width * (data.A**2).sum() / 400 / 2
        assert rise == pytest.approx(more, rel=0.03)
        assert rise != pytest.approx(half * sum(traces), rel=0.1)


def walked(problem, shape):
    """The last weights by `noise.reference`, part by part: they step together."""
    run = make_run(problem, SETTINGS[problem], "anti", lr=ETA, sigma=SIGMA, seed=SEED, steps=STEPS,
                   measure=(0,), relax=False, **shape)  # fmt: skip
    own = make_problem(problem, SETTINGS[problem])
    data, w = run.make_data(own), run.make_start(own)
    parts = list(own.parts.values())
    mask = np.ones_like(w)
    if "relative" in shape:
        for number in set(own.filters):
            of = own.filters == number
            mask[of] = np.sqrt((w[of] ** 2).mean())
    after = {}
    paths = [
        reference.perturbed(
            lambda _, i=i: after[i], w[part], STEPS,
            draw=lambda k, part=part: draws(SEED, "w", k, 0, len(w))[part].astype(float),
            sigma=reference.in_turn(SIGMA, i, len(parts)) if "layers" in shape else SIGMA,
            shares=mask[part],
        )
        for i, part in enumerate(parts)
    ]  # fmt: skip
    for path in paths:
        next(path)
    for _ in range(STEPS):
        moved = w - ETA * own.gradient(w[None], data)[0]
        after.update({i: moved[part] for i, part in enumerate(parts)})
        w = np.concatenate([next(path) for path in paths])
    (record,) = run_local([run], 1)
    return w, np.array(record.weights["w"])


@pytest.mark.parametrize("problem", SETTINGS)
@pytest.mark.parametrize(
    "shape", [{"layers": "one"}, {"relative": "filter"}, {"layers": "one", "relative": "filter"}]
)
def test_the_simulator_walks_the_reference(problem, shape):
    expected, found = walked(problem, shape)
    assert np.allclose(found, expected, rtol=0, atol=1e-13)
    wrong, _ = walked(problem, {} if "layers" in shape else {"layers": "one"})
    assert not np.allclose(found, wrong, rtol=0, atol=1e-3)


def test_runs_of_another_shape_have_another_name_and_the_old_ones_keep_theirs():
    make = lambda **more: make_run("student_teacher", {}, "anti", lr=0.1, sigma=0.1, steps=3, seed=0,  # noqa: E731, E501
                                   **more)  # fmt: skip
    names = {make(**more).name for more in ({}, {"layers": "one"}, {"relative": "filter"})}
    assert len(names) == 3
    assert "layers" not in make().canonical()
    plain = make_run("student_teacher", {}, "gd", lr=0.1, steps=3, seed=0, layers="one")
    assert plain.layers == "all"


def test_what_has_no_layers_or_filters_is_refused():
    for more, message in (
        ({"layers": "one"}, "needs two parts or more of quadratic_regression"),
        ({"relative": "filter"}, "quadratic_regression has no filters"),
        ({"layers": "two"}, "unknown layers 'two'"),
    ):
        with pytest.raises(ValueError, match=message):
            make_run("quadratic_regression", {}, "anti", lr=0.1, sigma=0.1, steps=3, seed=0, **more)
    for settings in ({"depth": 1}, {"width": 0}, {"rank": 7}, {"init": -1.0}):
        with pytest.raises(ValueError, match="deep_linear needs"):
            DeepLinear(**settings)


def test_filters_are_rows():
    assert StudentTeacher(hidden=2, d=3).filters.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert DeepLinear(n=2, width=3).filters.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 3, 4, 4, 4]
