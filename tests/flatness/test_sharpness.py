"""Expected sharpness where it is known in closed form; untouched models; common draws."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from antipgd.estimate import Estimate
from antipgd.flatness import ToleranceWarning, difference, expected_sharpness, hessian_trace
from antipgd.flatness.draws import Draws, rises
from antipgd.flatness.measuring import measuring
from antipgd.flatness.probes import SHARPNESS, Probes

LAWS = ["gaussian", "rademacher", "uniform", "laplace", "student-t:9"]


def quadratic(size=12, seed=0):
    """L = ½wᵀHw + g·w at w = 0.3, with H and the loss."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, dtype=torch.float64, generator=generator)
    h, g = root @ root.T / size, torch.randn(size, dtype=torch.float64, generator=generator)
    w = torch.full((size,), 0.3, dtype=torch.float64)
    return (lambda: w @ h @ w / 2 + g @ w), [w], h


def draws_of(size, count, law="gaussian", seed=0):
    probes = Probes(seed, ["0"], [size], torch.float64, torch.device("cpu"), law)
    return probes.rows(SHARPNESS, 0, count)


def off(estimate, exact):
    """Distance in standard errors."""
    return abs(estimate.mean - exact) / estimate.sem


def network(scale=1.0, activation=torch.relu):
    generator = torch.Generator().manual_seed(1)
    first, second = (torch.randn(shape, dtype=torch.float64, generator=generator)
                     for shape in [(8, 4), (2, 8)])  # fmt: skip
    x = torch.randn(20, 4, dtype=torch.float64, generator=generator)
    y = torch.randn(20, 2, dtype=torch.float64, generator=generator)
    params = {"first": first * scale, "second": second / scale}

    def loss(batch):
        hidden = activation(batch[0] @ params["first"].T)
        return ((hidden @ params["second"].T - batch[1]) ** 2).mean()

    return loss, params, [(x[:5], y[:5]), (x[5:], y[5:])]


@pytest.mark.parametrize("law", LAWS)
def test_a_pair_of_a_quadratic_is_its_form(law):
    loss, params, h = quadratic()
    sigma, xi = 0.7, draws_of(12, 30, law)
    found = expected_sharpness(loss, params, None, sigma, law=law, draws=30, trace=True)
    forms = sigma**2 / 2 * torch.einsum("ki,ij,kj->k", xi, h, xi).numpy()
    np.testing.assert_allclose(found.samples, forms, rtol=1e-10)
    np.testing.assert_allclose(found.quadratic, forms, rtol=1e-10)
    assert found.mean == pytest.approx(Estimate.of(forms).mean)
    assert found.sem == pytest.approx(Estimate.of(forms).sem)
    assert found.remainder.mean == pytest.approx(0, abs=1e-12)
    assert (found.sigma, found.n, found.law, found.adaptive) == (sigma, 30, law, False)
    assert found.loss == pytest.approx(float(loss()))


def test_of_a_diagonal_quadratic_random_signs_are_exact():
    w = torch.full((3,), 5.0, dtype=torch.float64)
    h = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    found = expected_sharpness(
        lambda: (h * w**2).sum() / 2, [w], None, [0.1, 0.2], law="rademacher", draws=4
    )
    assert [one.mean for one in found] == pytest.approx([0.035, 0.14])
    assert all(one.sem < 1e-13 for one in found)


@pytest.mark.parametrize("antithetic", [True, False])
@pytest.mark.parametrize("adaptive", [True, False])
def test_a_quartic_has_its_known_value(antithetic, adaptive):
    w = torch.tensor([0.5, -1.0, 0.2], dtype=torch.float64)
    sigma, squares = 0.8, (w**2).numpy()
    width = sigma**2 * (squares if adaptive else np.ones(3))  # of each element, squared
    exact = (6 * squares * width + 3 * width**2).sum()  # E (w + s)⁴ − w⁴
    found = expected_sharpness(
        lambda: (w**4).sum(), [w], None, sigma, adaptive=adaptive, antithetic=antithetic,
        draws=4000, trace=True,
    )  # fmt: skip
    assert off(found, exact) < 3.5
    assert off(found, 2 / 3 * exact) > 4.5
    assert off(found, 3 / 2 * exact) > 4.5
    assert off(found.second_order, (6 * squares * width).sum()) < 3.5
    assert off(found.remainder, 3 * (width**2).sum()) < 3.5
    if antithetic:
        assert found.remainder.sem < math.hypot(found.sem, found.second_order.sem)


def test_adaptive_sharpness_does_not_change_under_rescaling():
    plain, scaled = network(), network(scale=3.0)
    for trace in (True, False):
        one, other = (
            expected_sharpness(*made, 0.1, adaptive=True, trace=trace) for made in (plain, scaled)
        )
        np.testing.assert_allclose(other.samples, one.samples, rtol=1e-9)
    raw, raw_scaled = (expected_sharpness(*made, 0.1) for made in (plain, scaled))
    assert abs(raw.mean - raw_scaled.mean) > 5 * math.hypot(raw.sem, raw_scaled.sem)


def test_second_order_from_a_trace():
    made, sigma = network(activation=torch.tanh), 0.05
    trace = hessian_trace(*made, method="exact")
    for adaptive, exact in [(False, trace), (True, trace.adaptive)]:
        found = expected_sharpness(*made, sigma, adaptive=adaptive, trace=trace)
        assert found.second_order.mean == sigma**2 / 2 * exact.mean
        assert found.second_order.sem == sigma**2 / 2 * exact.sem
        rest = found.remainder
        assert rest.mean == found.mean - found.second_order.mean
        assert rest.sem == math.hypot(found.sem, found.second_order.sem)
        paired = expected_sharpness(*made, sigma, adaptive=adaptive, trace=True)
        assert off(paired.second_order, sigma**2 / 2 * exact.mean) < 3.5
        assert paired.remainder.sem < rest.sem / 2
        plain = Estimate(exact.mean, exact.sem, exact.n)
        again = expected_sharpness(*made, sigma, adaptive=adaptive, trace=plain)
        assert again.second_order.mean == found.second_order.mean


def test_several_sigmas_share_their_draws():
    made = network()
    together = expected_sharpness(*made, [0.1, 0.2, 0.4], draws=10)
    for found in together:
        alone = expected_sharpness(*made, found.sigma, draws=10)
        np.testing.assert_array_equal(found.samples, alone.samples)
    assert isinstance(together, list)
    more = expected_sharpness(*made, 0.1, draws=20)
    np.testing.assert_array_equal(more.samples[:10], together[0].samples)
    other = expected_sharpness(*made, 0.1, draws=10, seed=1)
    assert not np.isin(other.samples, together[0].samples).any()
    array = expected_sharpness(*made, np.array([0.1]), draws=10)
    np.testing.assert_array_equal(array[0].samples, together[0].samples)


def test_parts_and_memory_make_no_difference():
    made = network()
    with measuring(*made) as objective:
        at, draws = objective.value(), Draws(scales=objective.flat().abs())
        whole, forms = rises(objective, [0.1, 1.0], draws, 0, 9, at=at, quadratic=True)
        part, form = rises(objective, [1.0], draws, 4, 5, at=at, quadratic=True)
    np.testing.assert_array_equal(whole[4:, 1:], part)
    np.testing.assert_allclose(forms[4:], form, rtol=1e-12)
    assert whole.shape == (9, 2)
    small = expected_sharpness(*made, 0.1, draws=9, memory=1000)
    np.testing.assert_array_equal(small.samples, expected_sharpness(*made, 0.1, draws=9).samples)


def test_a_tolerance_is_kept():
    loss, params, h = quadratic(40)
    exact, covered, spent = 0.5**2 / 2 * float(h.trace()), 0, []
    for seed in range(60):
        found = expected_sharpness(loss, params, None, 0.5, tolerance=0.08, seed=seed)
        low, high = found.interval()
        assert found.converged
        assert (high - low) / 2 <= 0.08 * found.mean
        covered += low <= exact <= high
        spent.append(found.n)
    assert 51 <= covered <= 60
    assert min(spent) >= 48
    assert 48 < np.mean(spent) < 500


def test_a_tolerance_that_is_not_met_is_told():
    loss, params, _ = quadratic()
    with pytest.warns(ToleranceWarning, match=r"tolerance 0.001 not met after 60 draws .* = 0.5"):
        found = expected_sharpness(loss, params, None, 0.5, tolerance=1e-3, draws=60)
    assert found.converged is False
    assert found.n == 60
    w = torch.ones(5)
    with pytest.warns(ToleranceWarning, match="not met after 48 draws"):  # rounding forbids it
        found = expected_sharpness(lambda: 1e3 + (w**2).sum(), [w], None, 1e-3, tolerance=0.1)
    assert found.sem > 1e-4


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_explosive_noise_is_infinite(bad):
    w = torch.zeros(4, dtype=torch.float64)

    def loss():
        return torch.where(w.norm() > 1, bad, (w**2).sum())

    calm, wild = expected_sharpness(loss, [w], None, [0.01, 5.0], tolerance=0.2)
    assert math.isfinite(calm.mean)
    assert wild.mean == math.inf
    assert math.isnan(wild.sem)
    assert "inf" in str(wild)
    wild = expected_sharpness(loss, [w], None, 5.0, trace=True)
    assert wild.remainder.mean == math.inf
    assert torch.equal(w, torch.zeros(4, dtype=torch.float64))
    w.fill_(1.0)
    with pytest.raises(ValueError, match=f"loss is {bad}"):
        expected_sharpness(loss, [w], None, 0.01)


def model_with_norm():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    x, y = torch.randn(12, 4), torch.randn(12, 2)

    def loss(batch):
        return ((model(batch[0]) - batch[1]) ** 2).mean()

    loss((x, y)).backward()
    return loss, model, [(x, y)]


def state_of(model):
    tensors = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters())]
    return [t.detach().clone() for t in tensors], torch.get_rng_state(), model.training


def assert_same(one, other):
    assert all(map(torch.equal, one[0], other[0]))
    assert torch.equal(one[1], other[1])
    assert one[2] == other[2]


@pytest.mark.parametrize("mode", [None, "train", "eval", "estimated"])
@pytest.mark.parametrize("float64", [False, True])
def test_the_model_is_left_as_it_was(mode, float64):
    loss, model, batches = model_with_norm()
    before = state_of(model)
    found = expected_sharpness(loss, model, batches, 0.1, batch_norm=mode, float64=float64,
                               draws=4, trace=True)  # fmt: skip
    assert found.batch_norm == (mode or "train")
    assert_same(before, state_of(model))
    calls = 0

    def failing(batch):
        nonlocal calls
        calls += 1
        torch.rand(1)
        if calls == 9:
            raise RuntimeError("in the loss")
        return loss(batch)

    with pytest.raises(RuntimeError, match="in the loss"):
        expected_sharpness(failing, model, batches, 0.1, batch_norm=mode, float64=float64)
    assert_same(before, state_of(model))


@pytest.mark.parametrize(
    ("sigma", "options", "message"),
    [
        (0.0, {}, r"sigma must be a finite number > 0; got 0.0"),
        ([], {}, r"sigma must be a number > 0, or several; got \[\]"),
        (-1.0, {}, r"sigma must be a finite number >= 0 .*; got -1.0"),
        ("big", {}, r"sigma must be a finite number >= 0 .*; got 'big'"),
        ([0.1, math.inf], {}, r"sigma must be a finite number >= 0 .*; got inf"),
        (0.1, {"draws": 1}, "draws must be a whole number >= 2; got 1"),
        (0.1, {"draws": 2.5}, "draws must be a whole number >= 2; got 2.5"),
        (0.1, {"tolerance": 1.0}, "tolerance must be a finite number > 0 and < 1; got 1.0"),
        (0.1, {"trace": 3.0}, "trace must be True, False or an Estimate; got float"),
        (0.1, {"law": "cauchy"}, "unknown law 'cauchy'; accepted: gaussian"),
        (0.1, {"seed": -3}, "seed must be an integer from 0"),
    ],
)
def test_messages(sigma, options, message):
    loss, params, _ = quadratic()
    before = params[0].clone()
    with pytest.raises((ValueError, TypeError), match=message):
        expected_sharpness(loss, params, None, sigma, **options)
    assert torch.equal(before, params[0])


def test_without_a_second_order_there_is_no_remainder():
    loss, params, _ = quadratic()
    with pytest.raises(ValueError, match="pass trace=True"):
        _ = expected_sharpness(loss, params, None, 0.1).remainder


def test_a_loss_of_other_parameters_is_refused():
    loss, params, batches = network()
    others = {name: tensor.clone() for name, tensor in params.items()}
    for given in (loss, lambda batch: loss(batch).detach()):
        with pytest.raises(ValueError, match="loss does not depend on any of params"):
            expected_sharpness(given, others, batches, [0.1, 0.2])


def test_a_loss_that_no_draw_changes_is_measured():
    loss, params, batches = network()
    found = expected_sharpness(lambda b: (loss(b) > 3).double(), params, batches, 1e-6)
    assert found.mean == 0


def test_differences_are_of_what_was_measured_alike():
    loss, params, batches = network()
    one = expected_sharpness(loss, params, batches, 0.1)
    again = expected_sharpness(loss, params, batches, 0.1, seed=1)
    assert difference(one, again).mean == one.mean - again.mean
    for sigma, options, message in (
        (0.2, {}, "differ in sigma, 0.1 and 0.2: measure both alike"),
        (0.1, {"adaptive": True}, "differ in adaptive, False and True"),
        (0.1, {"law": "uniform"}, "differ in law, gaussian and uniform"),
    ):
        other = expected_sharpness(loss, params, batches, sigma, **options)
        with pytest.raises(ValueError, match=message):
            difference(one, other)
