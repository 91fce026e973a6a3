"""The finder for σ against closed forms, and its clock against runs."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from antipgd.flatness import FoundSigma, TooFewStepsWarning, find_sigma, finding
from antipgd.paper.experiments.find_sigma import found_sigma
from antipgd.paper.simulation.spec import make_run
from antipgd.theory.finder import FRACTION


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def bowl(w, h):
    return lambda: (h * w**2).sum() / 2 + 1.0


@pytest.fixture(scope="module")
def regression():
    """The quadratic regression of the page, seed 200, at the end of GD."""
    run = make_run("quadratic_regression", {}, "gd", lr=0.1, steps=1, seed=200)
    problem = run.make_problem()
    data, w = run.make_data(problem), run.make_start(problem)
    for _ in range(2000):
        w = w - 0.1 * problem.gradient(w[None], data)[0]
    X, y = torch.tensor(data.X), torch.tensor(data.y)
    weights = torch.tensor(w)
    return problem, data, weights, lambda: ((X @ weights**2 - y) ** 2).mean() / 4


def test_a_bowl_has_the_sigma_of_its_trace():
    w, h = torch.zeros(200, dtype=torch.float64), torch.linspace(0.5, 1.5, 200).double()
    grid = np.geomspace(1e-3, 1, 7)
    found = find_sigma(bowl(w, h), [w], lr=0.1, scale=2.0, grid=grid, draws=64)
    assert found.low < math.sqrt(2 * FRACTION * 2.0 / 200) < found.high
    assert found.high / found.low < 1.1
    assert (found.loss, found.scale, found.fraction) == (1.0, 2.0, FRACTION)
    assert [row[0] for row in found.rows] == list(grid)
    assert (found.clock, found.steps) == (None, None)  # nothing moves the trace of a bowl


def test_the_scale_is_the_loss_of_zero_weights_less_the_loss_here(regression):
    problem, data, weights, loss = regression
    found = find_sigma(loss, {"w": weights}, lr=0.1, probes=0)
    at_zero = problem.loss(np.zeros((1, 100)), data)[0]
    assert found.scale == pytest.approx(at_zero - found.loss, rel=1e-12)
    # The page's experiment is the same rule with other draws.
    assert found.sigma == pytest.approx(found_sigma(200), rel=0.1)
    assert found.low < found_sigma(200) < found.high


def test_relative_sigma_is_in_units_of_each_tensor():
    w = torch.full((100,), 0.5, dtype=torch.float64)
    v = torch.full((100,), 0.01, dtype=torch.float64)
    target, grid = w.clone(), np.geomspace(1e-3, 1, 7)

    def loss():
        return ((w - target) ** 2).sum() / 2 + v.sum() * 0

    found = find_sigma(loss, [w, v], lr=0.1, scale=1.0, grid=grid, relative=True, draws=64)
    assert found.relative
    assert found.low < math.sqrt(2 * FRACTION / 100) / 0.5 < found.high


def test_the_clock_of_the_widening_valley():
    """‖u‖² falls as e^(−2τ): exactly ln(1/0.9)/2 wherever one is, in any units of σ."""
    u, v = torch.full((40,), 0.3, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    options = {"lr": 0.2, "scale": 1.0, "grid": np.geomspace(1e-3, 3, 9)}
    found = find_sigma(lambda: v @ v * (u @ u) / 2, [u, v], momentum=0.5, **options)
    assert found.clock == pytest.approx(math.log(1 / 0.9) / 2, rel=1e-9)
    assert not found.at_least
    assert found.steps == math.ceil(found.clock * 0.5 / (0.2 * found.sigma**2))


def test_the_clock_tells_when_the_trace_has_moved(regression):
    """Anti-PGD from the end of GD, for the steps foretold: the trace is down by a tenth."""
    problem, data, weights, loss = regression
    found = find_sigma(loss, {"w": weights}, lr=0.1, probes=64)
    rng = np.random.default_rng(0)
    z, xi = np.tile(weights.numpy(), (16, 1)), np.zeros((16, 100))
    before = problem.trace(z, data)[0]
    for _ in range(found.steps):
        z = z - 0.1 * problem.gradient(z + xi, data)
        xi = found.sigma * rng.standard_normal(xi.shape)
    fall = 1 - problem.trace(z, data).mean() / before
    assert 0.05 < fall < 0.2


def test_without_projection_the_steps_are_the_fewest(regression, monkeypatch):
    _, _, weights, loss = regression
    about = find_sigma(loss, {"w": weights}, lr=0.1)
    monkeypatch.setattr(finding, "PROJECTED", 10)
    least = find_sigma(loss, {"w": weights}, lr=0.1)
    assert least.at_least
    assert not about.at_least
    assert least.steps < about.steps
    assert "at least" in least.table


def test_planned_steps_that_are_too_few(regression):
    _, _, weights, loss = regression
    with pytest.warns(TooFewStepsWarning, match="2 steps are too few at sigma .* about"):
        found = find_sigma(loss, {"w": weights}, lr=0.1, steps=2)
    find_sigma(loss, {"w": weights}, lr=0.1, steps=found.steps)


def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    batches = [(torch.randn(n, 6), torch.randint(3, (n,))) for n in (8, 5)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for _ in range(60):
        for x, y in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model, batches, lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1])


def test_a_network_is_left_as_it_was():
    model, batches, loss = network()
    before = [p.detach().clone() for p in model.parameters()]
    gradients = [p.grad.clone() for p in model.parameters()]
    state = torch.get_rng_state()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    found = find_sigma(loss, model, batches, optimizer=optimizer)
    for p, w, g in zip(model.parameters(), before, gradients, strict=True):
        assert torch.equal(p, w)
        assert torch.equal(p.grad, g)
    assert torch.equal(torch.get_rng_state(), state)
    assert found == find_sigma(loss, model, batches, lr=0.2, momentum=0.9)
    mean = sum(len(y) * float(loss((x, y)).detach()) for x, y in batches) / 13
    assert found.loss == pytest.approx(mean, rel=1e-6)
    assert found.steps > 0


def test_adaptive_optimizers_have_another_clock():
    model, batches, loss = network()
    found = find_sigma(loss, model, batches, optimizer=torch.optim.AdamW(model.parameters()))
    assert (found.clock, found.steps) == (None, None)
    assert found.sigma > 0


def test_the_table_and_its_picture(regression):
    _, _, weights, loss = regression
    found = find_sigma(loss, {"w": weights}, lr=0.1)
    assert isinstance(found, FoundSigma)
    lines = found.table.splitlines()
    assert len(lines) == 1 + len(found.rows) + 2
    assert lines[-2].startswith(f"0.05 of {found.scale:.3g} at sigma {found.sigma:.3g} [")
    assert lines[-1] == f"about {found.steps:,} steps to move the trace by a tenth"
    figure = found.plot()
    assert f"sigma {found.sigma:.3g}" in figure.axes[0].get_title()


def test_a_finding_in_a_line_and_for_a_log(regression):
    _, _, weights, loss = regression
    found = find_sigma(loss, {"w": weights}, lr=0.1)
    assert repr(found) == f"FoundSigma({'; '.join(found.table.splitlines()[-2:])})"
    assert len(repr(found)) < 200
    logged = found.metrics()
    assert all(type(value) is float for value in logged.values())
    assert (logged["sigma"], logged["sigma_low"]) == (found.sigma, found.low)
    assert (logged["steps"], logged["clock"]) == (found.steps, found.clock)
    unknown = find_sigma(loss, {"w": weights}, lr=0.1, probes=0).metrics()
    assert logged.keys() - unknown.keys() == {"clock", "steps"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give lr= or optimizer=, one of them"),
        ({"lr": -1.0}, "lr must be a finite number > 0; got -1.0"),
        ({"lr": 0.1, "momentum": 1.0}, "momentum must be a finite number >= 0 and < 1; got 1.0"),
        ({"lr": 0.1, "draws": 1}, "draws must be a whole number >= 2; got 1"),
        ({"lr": 0.1, "probes": 2}, "probes must be a whole number >= 3; got 2"),
        ({"lr": 0.1, "steps": 0}, "steps must be a whole number >= 1; got 0"),
        ({"lr": 0.1, "fraction": 0}, "fraction must be a finite number > 0 and <= 1; got 0"),
        ({"lr": 0.1, "scale": -2.0}, "scale must be a finite number > 0; got -2.0"),
        ({"lr": 0.1, "grid": [1.0]}, "grid must hold at least 2"),
        ({"lr": 0.1}, "with all weights at zero, 1, is no scale for the loss here, 4"),
        ({"lr": 0.1, "scale": 1.0, "grid": [1e-6, 1e-5]}, "give a grid= that reaches higher"),
    ],
)
def test_mistakes(options, message):
    w = double(1.0, 2.0)
    before = w.clone()
    with pytest.raises(ValueError, match=message):
        find_sigma(bowl(w, double(2.0, 1.0)), [w], **options)
    assert torch.equal(w, before)


def test_groups_of_different_rates_are_refused():
    w, v = double(1.0).requires_grad_(), double(2.0).requires_grad_()
    optimizer = torch.optim.SGD([{"params": [w], "lr": 0.1}, {"params": [v], "lr": 0.2}])
    with pytest.raises(ValueError, match=r"differ in \(lr, momentum\)"):
        find_sigma(lambda: (w * v).sum(), [w, v], optimizer=optimizer)


class Linear(torch.autograd.Function):
    """6x, whose derivative nobody has written: as in some kernels of torch."""

    @staticmethod
    def forward(ctx, x):
        return 6 * x

    @staticmethod
    def backward(ctx, g):
        raise RuntimeError("not implemented")


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 3 * x**2

    @staticmethod
    def backward(ctx, g):
        return Linear.apply(ctx.saved_tensors[0]) * g


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        return Square.apply(ctx.saved_tensors[0]) * g


def test_a_loss_without_third_derivative():
    w = double(1.0, 2.0)
    options = {"lr": 0.1, "scale": 10.0}
    with pytest.raises(RuntimeError, match=r"no third derivative .*not implemented.* probes=0"):
        find_sigma(lambda: Cube.apply(w).sum(), [w], **options)
    assert find_sigma(lambda: Cube.apply(w).sum(), [w], probes=0, **options).steps is None
