"""The network on digits against autodiff in float64, and what only it has."""

import numpy as np
import pytest
import torch

from antipgd.paper import sweep
from antipgd.paper.simulation.local import run_local
from antipgd.paper.simulation.problems import DigitsClassifier, make_problem, name_of, problem_class
from antipgd.paper.simulation.problems.digit_images import digit_images
from antipgd.paper.simulation.problems.problem import numerical_trace
from antipgd.paper.simulation.spec import make_run

PROBLEMS = [
    DigitsClassifier(hidden=3, n=20, test=15),
    DigitsClassifier(hidden=1, n=7, test=1, init=2.0),
]
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=["three", "one"])


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def torch_loss(problem, X, y):
    """Written once more, by torch's own layers."""
    X, y, inner = torch.tensor(X.T[:, :-1]), torch.tensor(y), 65 * problem.hidden

    def loss(w):
        first, second = w[:inner].reshape(-1, 65), w[inner:].reshape(10, -1)
        units = torch.tanh(torch.nn.functional.linear(X, first[:, :-1], first[:, -1]))
        logits = torch.nn.functional.linear(units, second[:, :-1], second[:, -1])
        return torch.nn.functional.cross_entropy(logits, y)

    return loss


def points(problem, rng, count=3):
    return rng.standard_normal((count, len(problem.start(rng)))) / 2


@each_problem
def test_loss_gradient_and_trace_are_those_of_autodiff(problem, rng):
    data, W = problem.data(rng), points(problem, rng)
    f = torch_loss(problem, data.X, data.y)
    for w, loss, gradient, trace in zip(
        W, problem.loss(W, data), problem.gradient(W, data), problem.trace(W, data), strict=True
    ):
        at = torch.tensor(w)
        assert float(f(at)) == pytest.approx(loss, rel=1e-12)
        np.testing.assert_allclose(torch.func.grad(f)(at), gradient, rtol=1e-10, atol=1e-12)
        assert float(torch.func.hessian(f)(at).trace()) == pytest.approx(trace, rel=1e-11)
    np.testing.assert_allclose(numerical_trace(problem, W, data), problem.trace(W, data), rtol=1e-6)


@each_problem
def test_test_loss_and_batches(problem, rng):
    data, W = problem.data(rng), points(problem, rng)
    f = torch_loss(problem, data.X_test, data.y_test)
    expected = [float(f(torch.tensor(w))) for w in W]
    np.testing.assert_allclose(problem.test_loss(W, data), expected, rtol=1e-12)
    rows = np.array([problem.n - 1, 0, problem.n - 1])
    f = torch_loss(problem, data.X[:, rows], data.y[rows])
    for w, gradient in zip(W, problem.gradient(W, data, rows), strict=True):
        expected = torch.func.grad(f)(torch.tensor(w))
        np.testing.assert_allclose(gradient, expected, rtol=1e-10, atol=1e-12)


def test_large_logits_neither_overflow_nor_lose_the_loss(rng):
    problem = PROBLEMS[0]
    data, W = problem.data(rng), 1e4 * points(problem, rng)
    assert np.isfinite(problem.loss(W, data)).all()
    assert np.isfinite(problem.gradient(W, data)).all()
    assert np.isfinite(problem.trace(W, data)).all()


def test_errors_are_shares_of_wrong_digits(rng):
    problem = PROBLEMS[0]
    data, W = problem.data(rng), points(problem, rng)
    inner, outer = W[0, :195].reshape(3, 65), W[0, 195:].reshape(10, 4)
    units = np.tanh(inner @ data.X_test)
    guesses = (outer[:, :-1] @ units + outer[:, -1:]).argmax(axis=0)
    expected = (guesses != data.y_test).mean()
    assert problem.errors(W, data, test=True)[0] == expected
    assert ((problem.errors(W, data) >= 0) & (problem.errors(W, data) <= 1)).all()


def test_the_seed_splits_real_images(rng):
    problem = DigitsClassifier()
    data, other = problem.data(rng), problem.data(rng)
    assert (data.X.shape, data.X_test.shape) == ((65, 1200), (65, 597))
    assert set(np.unique(data.y)) == set(range(10))
    assert (data.X.min(), data.X.max()) == (0.0, 1.0)
    np.testing.assert_array_equal(data.X[-1], 1.0)
    every = np.concatenate([data.X, data.X_test], axis=1)
    again = np.concatenate([other.X, other.X_test], axis=1)
    assert not np.array_equal(every, again)
    np.testing.assert_allclose(np.sort(every.sum(axis=0)), np.sort(again.sum(axis=0)))
    start = problem.start(rng)
    assert len(start) == 10 * 65 + 10 * 11
    assert np.std(start[:650].reshape(10, 65)[:, :-1]) == pytest.approx(1 / 8, rel=0.1)
    assert (start[:650].reshape(10, 65)[:, -1] == 0).all()


def test_it_runs_by_name_and_mini_batches_work():
    assert name_of(DigitsClassifier) == "digits_classifier"
    assert problem_class("digits_classifier") is DigitsClassifier
    table = sweep(
        "digits_classifier",
        set={"hidden": 4, "n": 50, "test": 40},
        method=["gd", "sgd", "anti"],
        lr={"*": 0.5, "sgd": 0.05},
        batch={"sgd": 10},
        sigma=0.02,
        steps=40,
        seeds=2,
        points=2,
        relax=False,
    )
    ends = table[(table["step"] == 40) & (table["place"] == "z")]
    assert len(ends) == 6
    starts = table[(table["step"] == 0) & (table["place"] == "z")]
    assert (ends["train_loss"].to_numpy() < starts["train_loss"].to_numpy()).all()


def test_labels_cannot_be_shifted():
    small = {"hidden": 2, "n": 10, "test": 5}
    run = make_run("digits_classifier", small, "label", lr=0.1, sigma=0.1, steps=2, seed=0)
    (failure,) = run_local([run], 1)
    assert "classes for labels, which cannot be shifted" in failure.reason


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": 0}, "hidden, n, test >= 1 and n . test <= 1797; got hidden=0"),
        ({"n": 1500}, "got hidden=10, n=1500, test=597"),
        ({"init": -1.0}, "a finite init >= 0; got init=-1.0"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        make_problem("digits_classifier", settings)


def test_without_scikit_learn_one_is_told_what_to_install(monkeypatch, rng):
    digit_images.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"needs scikit-learn.*pip install '\.\[paper\]'"):
        PROBLEMS[0].data(rng)
    digit_images.cache_clear()
