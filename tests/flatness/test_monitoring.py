"""The monitor: right numbers at z, and a training that does not know of it."""

import math
import warnings

import pytest
import torch
from torch import nn

from antipgd.flatness import (
    ExplosiveNoiseWarning,
    InertNoiseWarning,
    Reading,
    hessian_trace,
    measuring,
    monitor,
)
from antipgd.noise import Linear
from antipgd.torch import attach, perturb


def double(*values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def bowl(seed=0, sigma=0.05, momentum=0.0, lr=0.01, **options):
    """L = Σ h w²/2 + L_0 at parameters a and b, with noise."""
    a, b = double(1.0, 2.0, 3.0), double(0.5, 0.25)
    curvatures = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), 10.0

    def loss():
        return (curvatures[0] * a**2).sum() / 2 + curvatures[1] * (b**2).sum() / 2 + 1.0

    named = [("a", a), ("b", b)]
    optimizer = torch.optim.SGD(named, lr=lr, momentum=momentum)
    return dict(named), loss, optimizer, attach(optimizer, sigma, seed=seed, **options)


def train(optimizer, loss, steps=1):
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


@pytest.mark.parametrize("quantity", ["regulariser", "sharpness"])
def test_what_is_read_is_what_is_there_at_z(quantity):
    params, loss, optimizer, noise = bowl()
    readings = []
    found = monitor(noise, loss, params, every=2, callback=readings.append, quantity=quantity,
                    scale=5.0, draws=200)  # fmt: skip
    for step in range(1, 7):
        train(optimizer, loss)
        assert len(readings) == step // 2
        if step % 2 == 0:
            reading = readings[-1]
            assert isinstance(reading, Reading)
            assert found.last is reading
            assert (reading.step, reading.clock) == (step, noise.clock)
            assert reading.sigma == pytest.approx(0.05)
            with noise.clean():
                assert reading.loss == pytest.approx(float(loss().detach()), rel=1e-14)
            assert reading.noisy_loss == pytest.approx(float(loss().detach()), rel=1e-14)
            truth = 0.05**2 / 2 * (6 + 20)
            if quantity == "regulariser":
                assert reading.regulariser.mean == pytest.approx(truth, rel=1e-12)
                assert reading.trace.mean == pytest.approx(26)
                assert reading.sharpness is None
            else:
                low, high = reading.sharpness.interval()
                assert low < truth < high
                # A bowl has no other order.
                assert reading.regulariser.mean == pytest.approx(reading.sharpness.mean, rel=1e-9)
                assert reading.trace is None
            assert reading.cost.mean == pytest.approx(truth, rel=0.2)


@pytest.mark.parametrize("quantity", ["regulariser", "sharpness"])
def test_a_reading_in_a_line_and_for_a_log(quantity):
    params, loss, optimizer, noise = bowl()
    watching = monitor(noise, loss, params, every=1, callback=lambda reading: None, scale=5.0,
                       quantity=quantity, draws=4)  # fmt: skip
    assert repr(watching) == f"Monitor({quantity}, every 1 steps, last None)"
    train(optimizer, loss)
    reading = watching.last
    shown = repr(reading)
    assert shown.startswith(f"Reading(step 1, sigma 0.05, loss {reading.loss:.4g} at z and ")
    assert f"{quantity} {reading.cost}" in shown
    assert len(shown) < 200
    found = reading.metrics()
    assert all(type(value) is float for value in found.values())
    assert found["step"] == 1
    assert (found["loss"], found["clock"]) == (reading.loss, reading.clock)
    assert (found[quantity], found[f"{quantity}_sem"]) == (reading.cost.mean, reading.cost.sem)
    other = {"regulariser": "trace", "sharpness": "regulariser"}[quantity]
    assert found[other] == getattr(reading, other).mean
    assert len(found) == 9


def test_a_reading_sets_up_once(monkeypatch):
    params, loss, optimizer, noise = bowl()
    monitor(noise, loss, params, every=1, callback=lambda reading: None, scale=5.0)
    checks, plain = [], measuring.check_deterministic
    monkeypatch.setattr(measuring, "check_deterministic", lambda o: checks.append(plain(o)))
    train(optimizer, loss, 3)
    assert len(checks) == 3


def test_every_tensor_counts_with_its_own_sigma():
    params, loss, optimizer, noise = bowl(sigma=0.1, relative=True)
    rms = {name: float(p.detach().square().mean().sqrt()) for name, p in params.items()}
    readings = []
    monitor(noise, loss, params, every=1, callback=readings.append, scale=5.0)
    train(optimizer, loss)
    truth = 0.01 / 2 * (rms["a"] ** 2 * 6 + rms["b"] ** 2 * 20)
    assert readings[0].regulariser.mean == pytest.approx(truth, rel=1e-3)
    mean = 0.01 * (3 * rms["a"] ** 2 + 2 * rms["b"] ** 2) / 5
    assert readings[0].sigma == pytest.approx(math.sqrt(mean), rel=1e-3)


def test_a_parameter_without_noise_counts_nothing():
    params, loss, optimizer, noise = bowl(exclude="b")
    readings = []
    monitor(noise, loss, params, every=1, callback=readings.append, scale=5.0)
    train(optimizer, loss)
    assert readings[0].regulariser.mean == pytest.approx(0.05**2 / 2 * 6, rel=1e-12)
    assert readings[0].sigma == pytest.approx(0.05)
    assert readings[0].trace.mean == pytest.approx(26)


def test_other_colours_carry_more():
    """Taps (1, −½, −½): w − z = σ(ξ_n + ξ_{n−1}/2), of variance 1.25σ²."""
    params, loss, optimizer, noise = bowl(taps=(1, -0.5, -0.5))
    readings = []
    monitor(noise, loss, params, every=1, callback=readings.append, scale=5.0)
    train(optimizer, loss, 2)
    assert readings[1].sigma == pytest.approx(0.05 * math.sqrt(1.25))


class Small(nn.Module):
    """With all that a measurement could disturb: dropout, batch norm, both random."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3)
        )

    def forward(self, x):
        return self.layers(x)


def trained(kind, watch):
    """Everything a training leaves behind, with or without a monitor."""
    torch.manual_seed(3)
    model = Small()
    X, y = torch.randn(20, 6), torch.randint(3, (20,))

    def loss(batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    if kind == "sgd":
        optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.named_parameters(), lr=0.01)
    noise = attach(optimizer, 0.02, seed=0)
    readings = []
    if watch:
        monitor(noise, loss, model, [(X, y)], every=2, callback=readings.append, draws=4,
                quantity=watch, max_probes=48, batch_norm="estimated", scale=1.0)  # fmt: skip
    for step in range(6):
        optimizer.zero_grad()
        part = slice(0, 10) if step % 2 else slice(10, 20)
        loss((X[part], y[part])).backward()
        optimizer.step()
    left = [*model.state_dict().values(), *(p.grad for p in model.parameters())]
    left += [t for state in optimizer.state.values() for t in state.values()]
    return [*left, torch.get_rng_state()], readings, [m.training for m in model.modules()]


@pytest.mark.filterwarnings("ignore::antipgd.flatness.InertNoiseWarning")
@pytest.mark.parametrize("quantity", ["regulariser", "sharpness"])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_training_is_bitwise_the_same(kind, quantity):
    plain, nothing, _ = trained(kind, "")
    watched, readings, modes = trained(kind, quantity)
    assert nothing == []
    assert [reading.step for reading in readings] == [2, 4, 6]
    assert all(modes)
    assert len(plain) == len(watched)
    for one, other in zip(plain, watched, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_module_is_measured_in_evaluation_mode():
    torch.manual_seed(0)
    model = Small()
    batches = [(torch.randn(9, 6), torch.randint(3, (9,)))]
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    noise = attach(optimizer, 0.2, seed=1)

    def loss(batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    readings = []
    monitor(noise, loss, model, batches, every=1, callback=readings.append)
    loss(batches[0]).backward()
    optimizer.step()
    with noise.clean():
        model.eval()
        trace = hessian_trace(loss, model, batches)
        assert readings[0].loss == pytest.approx(float(loss(batches[0]).detach()), rel=1e-6)
    assert readings[0].trace.mean == pytest.approx(trace.mean, rel=1e-4)


def test_an_error_in_the_callback_leaves_all_as_it_was():
    class EnoughError(Exception):
        pass

    def stop(reading):
        raise EnoughError(reading.step)

    params, loss, optimizer, noise = bowl(momentum=0.5)
    train(optimizer, loss, 3)
    expected = [t.clone() for p in params.values() for t in (p.detach(), p.grad)]
    noise.stop()
    params, loss, optimizer, noise = bowl(momentum=0.5)
    watching = monitor(noise, loss, params, every=3, callback=stop, scale=5.0)
    train(optimizer, loss, 2)
    with pytest.raises(EnoughError, match="3"):
        train(optimizer, loss)
    found = [t for p in params.values() for t in (p.detach(), p.grad)]
    assert all(map(torch.equal, expected, found))
    assert noise.step_count == 3
    watching.stop()
    train(optimizer, loss, 3)  # no more readings, so no error
    assert watching.last.step == 3


def test_only_counted_steps_count():
    params, loss, optimizer, noise = bowl()
    readings = []
    monitor(noise, loss, params, every=2, callback=readings.append, scale=5.0)
    train(optimizer, loss)
    noise.pause()
    train(optimizer, loss, 5)
    noise.resume()
    assert readings == []
    train(optimizer, loss)
    assert [reading.step for reading in readings] == [2]
    noise.stop()
    train(optimizer, loss, 4)
    assert len(readings) == 1


def test_an_inert_noise_is_told_of_once():
    params, loss, optimizer, noise = bowl(sigma=1e-4)
    monitor(noise, loss, params, every=1, callback=lambda reading: None)
    with pytest.warns(InertNoiseWarning, match="inert at step 1, sigma 0.0001: it adds 1.3e-07"):
        train(optimizer, loss)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(optimizer, loss, 2)


def test_a_noise_that_is_off_on_purpose_is_not_inert():
    params, loss, optimizer, noise = bowl(schedule=Linear(0, 2))
    readings = []
    monitor(noise, loss, params, every=1, callback=readings.append)
    train(optimizer, loss, 4)
    assert [reading.sigma > 0 for reading in readings] == [True, False, False, False]
    assert readings[-1].regulariser.mean == 0


def test_a_frozen_tensor_need_not_be_watched():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)).double()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.01)
    noise = attach(optimizer, 0.05, seed=0)
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)
    readings = []
    monitor(noise, lambda: model(x).square().mean() + 1, model, every=1, callback=readings.append)
    optimizer.step()
    assert readings[0].sigma == pytest.approx(0.05)


@pytest.mark.filterwarnings("ignore:sigma is .* the noise drowns:UserWarning")
@pytest.mark.parametrize("quantity", ["regulariser", "sharpness"])
def test_an_explosive_noise_is_told_of(quantity):
    params, loss, optimizer, noise = bowl(sigma=2.0)
    monitor(noise, loss, params, every=1, callback=lambda reading: None, quantity=quantity)
    with pytest.warns(ExplosiveNoiseWarning, match="explosive at step 1, sigma 2: "):
        train(optimizer, loss)


def test_sharpness_far_above_its_second_order_is_explosive():
    w = double(*[0.0] * 30)

    def loss():
        return (w**2).sum() / 2 + 1e6 * (w**6).sum() + 1.0

    optimizer = torch.optim.SGD([("w", w)], lr=1e-9)
    noise = attach(optimizer, 0.12, seed=0)
    monitor(noise, loss, [("w", w)], every=1, callback=lambda r: None, quantity="sharpness",
            scale=1e4)  # fmt: skip
    with pytest.warns(ExplosiveNoiseWarning, match="the second order is"):
        train(optimizer, loss)


def test_a_diverged_training_is_told_of_and_goes_on():
    params, loss, optimizer, noise = bowl()
    readings = []
    monitor(noise, loss, params, every=1, callback=readings.append)
    train(optimizer, loss)
    with torch.no_grad():
        params["a"].fill_(math.inf)
    noise.vouch()
    with pytest.warns(ExplosiveNoiseWarning, match="the loss is nan at z and nan at w"):
        train(optimizer, loss)
    assert math.isnan(readings[-1].loss)
    assert math.isnan(readings[-1].regulariser.mean)
    assert bool(params["a"].isinf().any() | params["a"].isnan().any())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"every": 0}, ValueError, "every must be a whole number >= 1; got 0"),
        ({"every": 1.5}, ValueError, "every must be a whole number >= 1; got 1.5"),
        (
            {"quantity": "trace"},
            ValueError,
            "unknown quantity 'trace'; accepted: reg",
        ),
        ({"callback": None}, TypeError, "callback must be a function of a Reading; got None"),
        ({"draws": 1, "quantity": "sharpness"}, ValueError, "draws must .* >= 2; got 1"),
        ({"max_probes": 0}, ValueError, "max_probes must be a whole number >= 5; got 0"),
        ({"scale": 0}, ValueError, "scale must be a finite number > 0; got 0"),
        ({"noise": None}, TypeError, r"noise must be what attach\(\) returned; got NoneType"),
        ({"params": [double(1.0)]}, ValueError, "parameter 'a' takes noise, but is not in params"),
        ({"batches": iter([1])}, ValueError, r"only once; pass list\(batches\)"),
        ({"batch_norm": "eval"}, ValueError, "batch_norm needs params to be a module"),
    ],
)
def test_mistakes_are_found_before_anything_changes(change, error, message):
    params, loss, optimizer, noise = bowl()
    hooks = len(optimizer._optimizer_step_post_hooks)
    arguments = {"noise": noise, "params": params, "every": 1, "callback": print} | change
    with pytest.raises(error, match=message):
        monitor(loss=loss, **arguments)
    assert len(optimizer._optimizer_step_post_hooks) == hooks


def test_noise_that_cannot_be_monitored():
    params, loss, _optimizer, noise = bowl(taps=(1.0,))
    with pytest.raises(ValueError, match=r"taps \(1.0,\) do not sum to zero: there is no z"):
        monitor(noise, loss, params, every=1, callback=print)
    noise.stop(remove=False)
    with pytest.raises(ValueError, match="the noise was stopped"):
        monitor(noise, loss, params, every=1, callback=print)


def test_a_loss_that_is_zero_at_zero_needs_a_scale():
    u = double(1.0, 1.0)
    optimizer = torch.optim.SGD([u], lr=0.1)
    noise = attach(optimizer, 0.1, seed=5)
    with pytest.raises(ValueError, match="all weights at zero, 0, is no scale; give scale="):
        monitor(noise, lambda: (u**2).sum(), [u], every=1, callback=print)


def test_parameters_as_a_generator():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    noise = attach(optimizer, 0.1, seed=6)
    x, readings = torch.randn(5, 3), []
    monitor(noise, lambda b: (model(b) - 1).square().mean(), model.parameters(), [x], every=1,
            callback=readings.append)  # fmt: skip
    (model(x) - 1).square().mean().backward()
    optimizer.step()
    assert readings[0].regulariser.mean > 0


def _rows(relative, **options):
    """A bowl over a matrix whose rows differ by a factor 100 in size and 1,000 in curvature."""
    torch.manual_seed(0)
    model = nn.Linear(50, 2, bias=False).double()
    model.weight.data[0] *= 100
    curvatures = torch.tensor([[1e-3], [1.0]], dtype=torch.float64)

    def loss():
        return (curvatures * model.weight**2).sum() / 2 + 1.0

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    noise = perturb(model, optimizer, 0.1, relative=relative, seed=0, audit=False, **options)
    return model, curvatures, loss, optimizer, noise


@pytest.mark.parametrize("relative", ["filter", "element"])
def test_noise_that_differs_within_a_tensor_is_measured_as_it_is(relative):
    model, curvatures, loss, optimizer, noise = _rows(relative)
    with pytest.raises(ValueError, match="use quantity='sharpness', whose second order it is"):
        monitor(noise, loss, model, every=1, callback=print, scale=1.0)
    readings = []
    monitor(noise, loss, model, every=1, callback=readings.append, scale=1.0, draws=400,
            quantity="sharpness")  # fmt: skip
    model(torch.ones(1, 50, dtype=torch.float64)).sum().backward()
    optimizer.step()
    z = model.weight.detach()
    sizes = z.square() if relative == "element" else z.square().mean(1, keepdim=True)
    right = float((curvatures * 0.01 * sizes.expand_as(z)).sum() / 2)
    (reading,) = readings
    for found in (reading.regulariser, reading.sharpness):
        assert abs(found.mean - right) < 4 * found.sem + 1e-3 * right
        assert found.sem < 0.1 * right
    assert reading.sigma == pytest.approx(
        float((0.01 * sizes.expand_as(z)).mean().sqrt()), rel=1e-3
    )


def test_layers_that_take_turns_are_measured_over_a_round():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    parameters = dict(model.named_parameters())

    def loss():
        first, second = parameters["0.weight"], parameters["1.weight"]
        return (first**2).sum() / 2 + 10 * (second**2).sum() / 2 + 1.0

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    noise = perturb(model, optimizer, 0.1, layers="one", seed=0, audit=False)
    with pytest.raises(ValueError, match="use quantity='regulariser', the mean over their turns"):
        monitor(noise, loss, model, every=1, callback=print, scale=1.0, quantity="sharpness")
    readings = []
    monitor(noise, loss, model, every=1, callback=readings.append, scale=1.0)
    for _ in range(3):
        model(torch.ones(1, 3, dtype=torch.float64)).sum().backward()
        optimizer.step()
    turns = [0.01 * 12 / 2, 0.01 * 10 * 8 / 2]
    assert [r.regulariser.mean for r in readings] == pytest.approx([sum(turns) / 2] * 3)
