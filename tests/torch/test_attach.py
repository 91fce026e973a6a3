"""Whole trajectories against the reference, with the same optimizer as its base step."""

import json
import math

import numpy as np
import pytest
import torch

import antipgd.torch
from antipgd.noise import ANTI, Cosine, Window
from antipgd.torch import attach
from stream_backends import LAWS
from training import SEED, batch, draw_for, flat, make_model, reference, train

OPTIMIZERS = {
    "sgd": lambda p, **k: torch.optim.SGD(p, lr=0.05, **k),
    "momentum": lambda p, **k: torch.optim.SGD(p, lr=0.05, momentum=0.9, **k),
    "nesterov": lambda p, **k: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True, **k),
    "decay": lambda p, **k: torch.optim.SGD(p, lr=0.05, weight_decay=0.1, **k),
    "maximize": lambda p, **k: torch.optim.SGD(p, lr=0.001, maximize=True, **k),
    "adamw": lambda p, **k: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, **k),
    "tensor lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01)),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.003),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
}
STEPS = 25


def run(make_optimizer, dtype=torch.float64, steps=STEPS, before_step=None, **noise):
    model = make_model(dtype)
    optimizer = make_optimizer(model.named_parameters())
    settings = {"sigma": 0.05, "seed": SEED} | noise
    handle = attach(optimizer, **settings)
    train(model, optimizer, steps, before_step=before_step and before_step(optimizer))
    return model, optimizer, handle


def expect(make_optimizer, dtype=torch.float64, steps=STEPS, before_step=None, **settings):
    model = make_model(dtype)
    optimizer = make_optimizer(model.parameters())
    settings = {"sigma": 0.05} | settings
    return reference(
        model, optimizer, steps, before_step=before_step and before_step(optimizer), **settings
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_trajectory_in_float64(name):
    model, *_ = run(OPTIMIZERS[name])
    assert np.abs(flat(model) - expect(OPTIMIZERS[name])).max() < 1e-12


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_trajectory_in_float32_is_bitwise(name):
    model, *_ = run(OPTIMIZERS[name], torch.float32)
    assert np.array_equal(flat(model), expect(OPTIMIZERS[name], torch.float32))


@pytest.mark.parametrize("variant", ["foreach", "fused"])
@pytest.mark.parametrize("name", ["sgd", "momentum", "nesterov", "decay", "maximize", "adamw"])
def test_foreach_and_fused(name, variant):
    def make(parameters):
        return OPTIMIZERS[name](parameters, **{variant: True})

    model, *_ = run(make, torch.float32)
    assert np.array_equal(flat(model), expect(make, torch.float32))


@pytest.mark.parametrize("law", LAWS)
def test_laws(law):
    model, *_ = run(OPTIMIZERS["momentum"], torch.float32, law=law)
    assert np.array_equal(flat(model), expect(OPTIMIZERS["momentum"], torch.float32, law=law))


@pytest.mark.parametrize("taps", [(1.0,), (1.0, -0.9), (1.0, -0.5, -0.5), (1.0, 0.0, 0.0, -1.0)])
def test_taps(taps):
    model, *_ = run(OPTIMIZERS["momentum"], torch.float32, taps=taps)
    assert np.array_equal(flat(model), expect(OPTIMIZERS["momentum"], torch.float32, taps=taps))


@pytest.mark.parametrize("schedule", [Cosine(0, 20), Window(3, 10), lambda n: 1 / n])
def test_schedules(schedule):
    model, *_ = run(OPTIMIZERS["sgd"], schedule=schedule)
    wanted = expect(OPTIMIZERS["sgd"], sigma=lambda n: 0.05 * schedule(n))
    assert np.abs(flat(model) - wanted).max() < 1e-12


def test_learning_rate_scheduler_and_the_schedule_that_follows_it():
    def halve(optimizer):
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
        return lambda step: scheduler.step() if step else None

    model, _, handle = run(OPTIMIZERS["sgd"], before_step=halve, schedule="lr")
    wanted = expect(
        OPTIMIZERS["sgd"], before_step=halve, sigma=lambda n: 0.05 * 0.5 ** ((n - 1) // 5)
    )
    assert np.abs(flat(model) - wanted).max() < 1e-12
    assert handle.step_count == STEPS


def test_sigma_changed_between_steps():
    model = make_model()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.05)
    noise = attach(optimizer, sigma=0.1, seed=SEED)

    def change(step):
        noise.sigma = 0.1 / (step + 1)

    train(model, optimizer, 10, before_step=change)
    wanted = expect(OPTIMIZERS["sgd"], steps=10, sigma=lambda n: 0.1 / n)
    assert np.abs(flat(model) - wanted).max() < 1e-12


def test_gradient_accumulation_counts_steps_not_backwards():
    model = make_model()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.05)
    noise = attach(optimizer, sigma=0.05, seed=SEED)
    x, y = batch()
    for _ in range(5):
        optimizer.zero_grad()
        for part in (slice(0, 10), slice(10, 20)):
            (((model(x[part]) - y[part]) ** 2).mean() / 2).backward()
        optimizer.step()
    assert noise.step_count == 5
    assert np.abs(flat(model) - expect(OPTIMIZERS["sgd"], steps=5)).max() < 1e-12


@pytest.mark.parametrize("fused", [False, True])
def test_grad_scaler_with_skipped_steps(fused):
    model = make_model(torch.float32)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.05, fused=fused)
    noise = attach(optimizer, sigma=0.05, seed=SEED)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    x, y = batch(torch.float32)
    for step in range(6):
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        scaler.scale(loss * (float("inf") if step in (1, 4) else 1)).backward()
        before = flat(model)
        scaler.step(optimizer)
        scaler.update()
        assert (step in (1, 4)) == np.array_equal(flat(model), before)
    assert noise.step_count == 4
    noise.stop()


def test_closure():
    model = make_model()
    optimizer = torch.optim.LBFGS(list(model.named_parameters()), lr=0.1, max_iter=3)
    noise = attach(optimizer, sigma=0.01, seed=SEED)
    x, y = batch()

    def closure():
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        return loss

    before = flat(model)
    loss = optimizer.step(closure)
    assert loss.item() > 0
    assert noise.step_count == 1
    assert not np.array_equal(flat(model), before)


def test_parameters_of_every_kind_get_their_injection():
    """Without gradient, scalar, empty, non-contiguous, channels_last: w = z + ξ holds."""
    names = {
        "no_gradient": torch.nn.Parameter(torch.ones(5)),
        "scalar": torch.nn.Parameter(torch.tensor(1.0)),
        "empty": torch.nn.Parameter(torch.empty(0, 3)),
        "transposed": torch.nn.Parameter(torch.ones(3, 7).t()),
        "channels_last": torch.nn.Parameter(
            torch.ones(4, 3, 2, 2).to(memory_format=torch.channels_last)
        ),
        "double": torch.nn.Parameter(torch.ones(6, dtype=torch.float64)),
    }
    optimizer = torch.optim.SGD(list(names.items()), lr=0.1)
    noise = attach(optimizer, sigma=0.3, seed=SEED)
    for _ in range(3):
        optimizer.step()
    for name, parameter in names.items():
        size = parameter.numel()
        xi = antipgd.noise.draws(SEED, name, 3, 0, size).reshape(parameter.shape)
        assert np.allclose(parameter.detach().numpy() - 1, 0.3 * xi, atol=1e-6), name
        assert np.allclose(noise.injected(parameter).numpy(), 0.3 * xi, atol=1e-7), name


def test_tied_weights_are_one_parameter():
    model = make_model()
    tied = torch.nn.ModuleDict({"a": model[0], "b": model[0], "c": model[3]})
    optimizer = torch.optim.SGD(tied.named_parameters(), lr=0.1)
    assert len(attach(optimizer, sigma=0.1).members) == 4


def test_a_param_group_added_half_way_joins_then():
    a, b = torch.nn.Parameter(torch.zeros(50)), torch.nn.Parameter(torch.zeros(50))
    optimizer = torch.optim.SGD([("a", a)], lr=0.1)
    noise = attach(optimizer, sigma=0.2, seed=SEED)
    for _ in range(3):
        optimizer.step()
    optimizer.add_param_group({"params": [("b", b)], "sigma": 0.4})
    assert (b == 0).all()
    for n in (4, 5):
        optimizer.step()
        for name, parameter, sigma in (("a", a, 0.2), ("b", b, 0.4)):
            xi = antipgd.noise.draws(SEED, name, n, 0, 50)
            assert np.allclose(parameter.detach().numpy(), sigma * xi, atol=1e-6), (name, n)
    noise.stop()
    assert max(abs(a).max(), abs(b).max()) < 1e-6


def test_a_parameter_put_into_an_existing_group_joins_too():
    a, b = torch.nn.Parameter(torch.zeros(50)), torch.nn.Parameter(torch.zeros(50))
    optimizer = torch.optim.SGD([a], lr=0.1)
    noise = attach(optimizer, sigma=0.2, seed=SEED)
    optimizer.step()
    optimizer.param_groups[0]["params"].append(b)
    state = json.loads(optimizer.state_dict()["param_groups"][0]["antipgd"])
    assert state["sigmas"] == [[0.2], [0.0]]
    optimizer.step()
    xi = antipgd.noise.draws(SEED, "1", 2, 0, 50)
    assert np.allclose(b.detach().numpy(), 0.2 * xi, atol=1e-6)
    noise.stop()
    assert max(abs(a).max(), abs(b).max()) < 1e-6


def test_compiled_model_and_step():
    model = make_model(torch.float32)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.05)
    attach(optimizer, sigma=0.05, seed=SEED)
    compiled = torch.compile(model, backend="eager")
    step = torch.compile(optimizer.step, backend="eager")
    x, y = batch(torch.float32)
    for _ in range(5):
        optimizer.zero_grad()
        ((compiled(x) - y) ** 2).mean().backward()
        step()
    wanted = expect(OPTIMIZERS["sgd"], torch.float32, steps=5)
    assert np.abs(flat(model) - wanted).max() < 1e-6


def test_a_step_at_learning_rate_zero_is_not_counted():
    model = make_model()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.0)
    noise = attach(optimizer, sigma=0.1)
    before = flat(model)
    train(model, optimizer, 3)
    assert noise.step_count == 0
    assert np.array_equal(flat(model), before)


def test_weights_that_were_moved_to_other_memory():
    model = make_model()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.05)
    attach(optimizer, sigma=0.05, seed=SEED)
    train(model, optimizer, 3)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    train(model, optimizer, 4)
    assert np.abs(flat(model) - expect(OPTIMIZERS["sgd"], steps=7)).max() < 1e-12


def test_plain_torch_gives_the_same_bits(monkeypatch):
    monkeypatch.setattr(antipgd.torch.adding, "compiled_targets", lambda: None)
    model, *_ = run(OPTIMIZERS["momentum"], torch.float32)
    assert np.array_equal(flat(model), expect(OPTIMIZERS["momentum"], torch.float32))


def test_relative_sigma_is_a_multiple_of_each_tensors_rms():
    model = make_model(torch.float32)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    sizes = {n: p.detach().square().mean().sqrt().item() for n, p in model.named_parameters()}
    noise = attach(optimizer, sigma=0.5, relative=True, seed=SEED)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        xi = antipgd.noise.draws(SEED, name, 1, 0, parameter.numel()).reshape(parameter.shape)
        assert np.allclose(noise.injected(parameter).numpy(), 0.5 * sizes[name] * xi, rtol=1e-3)
    with noise.clean():
        clean = flat(model)
    noise.rescale()
    optimizer.step()
    noise.stop()
    assert np.abs(flat(model) - clean).max() < 1e-6  # each draw left with the σ it came with


def test_exclusions():
    model = make_model()

    def noisy(exclude):
        noise = attach(torch.optim.SGD(model.named_parameters(), lr=0.1), 0.1, exclude=exclude)
        names = {member.name for member in noise.members}
        noise.stop()
        return names

    every = {name for name, _ in model.named_parameters()}
    assert noisy(None) == every
    assert noisy("0.weight") == every - {"0.weight"}
    assert noisy(["*.bias", "3.*"]) == {"0.weight", "2.weight"}
    assert noisy(antipgd.torch.vectors) == {"0.weight", "3.weight"}
    assert noisy(antipgd.torch.biases) == {"0.weight", "2.weight", "3.weight"}
    assert noisy(antipgd.torch.norms(model)) == every - {"2.weight", "2.bias"}
    assert noisy([antipgd.torch.norms(model), lambda n, p: p.numel() < 2]) == {
        "0.weight", "0.bias", "3.weight",
    }  # fmt: skip


def test_names_from_the_optimizer_the_model_or_the_position():
    model = make_model()
    for optimizer, extra, first in (
        (torch.optim.SGD(model.named_parameters(), lr=0.1), {}, "0.weight"),
        (torch.optim.SGD(model.parameters(), lr=0.1), {"model": model}, "0.weight"),
        (torch.optim.SGD(model.parameters(), lr=0.1), {}, "0"),
    ):
        noise = attach(optimizer, sigma=0.1, **extra)
        assert noise.members[0].name == first
        noise.stop()


def test_five_seeds_give_five_noises_and_the_generator_is_not_advanced():
    seen = []
    for seed in range(5):
        model = make_model()
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
        noise = attach(optimizer, sigma=0.1)
        assert noise.seed == seed
        optimizer.step()
        seen.append(noise.injected(model[0].weight))
        assert torch.equal(torch.get_rng_state(), state)
        assert not optimizer.state
        noise.stop()
    for i, a in enumerate(seen):
        assert all(not torch.equal(a, b) for b in seen[:i])


def test_the_optimizer_stays_what_it_was():
    model = make_model()
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=0.01)
    noise = attach(optimizer, sigma=0.1)
    train(model, optimizer, 3)
    assert type(optimizer) is torch.optim.AdamW
    assert set(optimizer.state[model[0].weight]) == {"step", "exp_avg", "exp_avg_sq"}
    assert optimizer.param_groups[0]["antipgd"] == "attached"  # a mark, and no more
    noise.stop()
    assert "antipgd" not in optimizer.param_groups[0]


def test_clock():
    def clock(make, steps=10, **settings):
        *_, handle = run(make, steps=steps, **settings)
        return handle.clock

    assert clock(OPTIMIZERS["sgd"]) == pytest.approx(10 * 0.05 * 0.05**2)
    assert clock(OPTIMIZERS["momentum"]) == pytest.approx(10 * 0.05 * 0.05**2 / 0.1)
    assert math.isnan(clock(OPTIMIZERS["adamw"]))  # which has its decay
    halved = clock(OPTIMIZERS["sgd"], schedule=lambda n: 1.0 if n <= 5 else 0.5)
    assert halved == pytest.approx(5 * 0.05 * 0.05**2 * 1.25)


def test_anti_pgd_optimizer_is_sgd_with_noise():
    model = make_model(torch.float32)
    optimizer = antipgd.torch.AntiPGD(model.named_parameters(), 0.05, 0.05, 0.9, seed=SEED)
    train(model, optimizer, STEPS)
    assert isinstance(optimizer, torch.optim.SGD)
    assert np.array_equal(flat(model), expect(OPTIMIZERS["momentum"], torch.float32))


def test_zero_gradients_leave_the_variance_at_sigma_squared():
    w = torch.nn.Parameter(torch.zeros(100_000))
    optimizer = torch.optim.SGD([w], lr=0.1)
    noise = attach(optimizer, sigma=0.2, law="rademacher")
    for _ in range(50):
        optimizer.step()
    assert w.std().item() == pytest.approx(0.2, rel=0.02)
    noise.stop()
    pgd = attach(optimizer, sigma=0.2, taps=(1,), seed=9)
    for _ in range(50):
        optimizer.step()
    assert w.std().item() == pytest.approx(0.2 * 50**0.5, rel=0.02)
    pgd.stop(remove=False)


def test_repr_and_log(caplog):
    model = make_model(torch.float32)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    with (
        caplog.at_level("INFO", logger="antipgd"),
        pytest.warns(UserWarning, match=r"the noise drowns its weights.*relative=True") as warned,
    ):
        noise = attach(optimizer, sigma=3.0, exclude="*.bias", seed=5)
    assert warned[0].filename == __file__
    assert "noise on 3 tensors, seed 5: sigma/rms from 3 to" in caplog.text
    assert "0.weight (8, 6): sigma 3" in repr(noise)
    assert "excluded: 0.bias, 2.bias, 3.bias" in repr(noise)


def test_draws_of_a_namespace_are_its_own():
    model = make_model()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    noise = attach(optimizer, sigma=0.1, seed=SEED, namespace="generator")
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = flat(model)
    optimizer.step()
    xi = draw_for(model, namespace="generator")(1)
    assert np.abs(flat(model) - before - 0.1 * xi).max() < 1e-7
    assert noise.taps == ANTI
