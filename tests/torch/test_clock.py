"""The clock: which it is, for whom it is unknown, and its number."""

import copy
import json
import math
import pickle

import pytest
import torch

from antipgd.noise import Linear, Window
from antipgd.torch import AntiPGD, attach, noise_of, perturb
from antipgd.torch.clock import Clock
from antipgd.torch.kinds import KINDS
from antipgd.torch.record import CLOCKS

optim = torch.optim


class Renamed(optim.SGD):
    pass


class Stepping(optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


class WithBetas(optim.Optimizer):
    """A stranger that looks like Adam, and is none."""

    def __init__(self, params, lr=0.01, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(group["lr"] * parameter.grad.sign())


def weight(*shape):
    parameter = torch.nn.Parameter(torch.ones(shape or (3, 4), dtype=torch.float64))
    parameter.grad = torch.zeros_like(parameter)
    return parameter


def clock_after(steps, optimizer, **settings):
    noise = attach(optimizer, **{"sigma": 0.1, "seed": 1} | settings)
    for _ in range(steps):
        optimizer.step()
    return noise.clock


TABLE = {
    "SGD": (lambda p: optim.SGD(p, 0.1), "sgd"),
    "foreach": (lambda p: optim.SGD(p, 0.1, foreach=True), "sgd"),
    "fused": (lambda p: optim.SGD(p, 0.1, fused=True), "sgd"),
    "Nesterov": (lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True), "sgd"),
    "decay": (lambda p: optim.SGD(p, 0.1, weight_decay=0.1), "sgd"),
    "maximize": (lambda p: optim.SGD(p, 0.1, maximize=True), "sgd"),
    "subclass": (lambda p: Renamed(p, 0.1), "sgd"),
    "subclass with a step": (lambda p: Stepping(p, 0.1), "unknown"),
    "Adam": (lambda p: optim.Adam(p, 0.1), "adam"),
    "Adam fused": (lambda p: optim.Adam(p, 0.1, fused=True), "adam"),
    "AdamW": (lambda p: optim.AdamW(p, 0.1, weight_decay=0), "adam"),
    "amsgrad": (lambda p: optim.Adam(p, 0.1, amsgrad=True), "unknown"),
    "decayed Adam": (lambda p: optim.Adam(p, 0.1, weight_decay=0.01), "unknown"),
    "decayed AdamW": (lambda p: optim.AdamW(p, 0.1, weight_decay=0.001), "unknown"),
    "NAdam": (lambda p: optim.NAdam(p, 0.1), "adam"),
    "RAdam": (lambda p: optim.RAdam(p, 0.1), "adam"),
    "RMSprop": (lambda p: optim.RMSprop(p, 0.1), "adam"),
    "RMSprop with momentum": (lambda p: optim.RMSprop(p, 0.1, momentum=0.5), "unknown"),
    "RMSprop centered": (lambda p: optim.RMSprop(p, 0.1, centered=True), "unknown"),
    "Muon": (lambda p: optim.Muon(p, 0.1, weight_decay=0.0), "muon"),
    "decayed Muon": (lambda p: optim.Muon(p, 0.1), "unknown"),
    "Adadelta": (lambda p: optim.Adadelta(p, 0.1), "unknown"),
    "Adafactor": (lambda p: optim.Adafactor(p, 0.1), "unknown"),
    "Adagrad": (lambda p: optim.Adagrad(p, 0.1), "unknown"),
    "Adamax": (lambda p: optim.Adamax(p, 0.1), "unknown"),
    "ASGD": (lambda p: optim.ASGD(p, 0.1), "unknown"),
    "Rprop": (lambda p: optim.Rprop(p, 0.1), "unknown"),
    "betas": (lambda p: WithBetas(p), "unknown"),
}


@pytest.mark.parametrize("name", TABLE)
def test_which_clock_for_which_optimizer(name):
    make, kind = TABLE[name]
    optimizer = make([weight()])
    noise = attach(optimizer, sigma=0.1)
    assert noise.clock.kind == kind
    optimizer.step()
    clock = noise.clock
    assert clock.kind == kind
    assert (clock > 0) == (kind != "unknown")
    assert math.isnan(clock) == (kind == "unknown")
    assert bool(clock.why) == (kind == "unknown")
    assert clock.measured == (kind in ("adam", "muon"))
    assert repr(noise).count("clock") == 1
    assert f"  {clock.line()}\n" in repr(noise)
    if kind == "unknown":
        assert type(optimizer).__name__ in clock.line()


def test_every_kind_can_be_saved():
    assert {*KINDS, "unknown"} == set(CLOCKS)


def test_a_clock_is_a_number():
    clock = clock_after(2, optim.SGD([weight()], 0.1))
    assert isinstance(clock, float)
    assert clock == pytest.approx(2 * 0.1 * 0.1**2, rel=1e-12)
    assert float(str(clock)) == float(f"{clock}") == json.loads(json.dumps(clock)) == clock
    assert type(clock + 1) is float
    assert repr(clock) == f"Clock({clock}, 'sgd')"
    assert clock.line() == (
        "clock 0.002: sgd, Σησ²(1−dampening)/(1−momentum), "
        "derived, the limit of small learning rates"
    )
    for other in (copy.copy(clock), copy.deepcopy(clock), pickle.loads(pickle.dumps(clock))):
        assert (other, other.kind, other.parts) == (clock, "sgd", {"sgd": clock})


def test_the_number_is_an_explicit_sum():
    """Over steps with their lr and σ, and the mean over all elements of two groups."""
    first, second = weight(3, 4), weight(5)
    groups = [{"params": [first], "lr": 0.1, "momentum": 0.5},
              {"params": [second], "lr": 0.02, "momentum": 0.9, "sigma": 0.3}]  # fmt: skip
    optimizer = optim.SGD(groups)
    decay = optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    noise = attach(optimizer, sigma=0.2, schedule=lambda n: 1 / n)
    expected = 0.0
    for n in range(1, 7):
        optimizer.step()
        scale = 0.8 ** (n - 1)
        expected += scale / n**2 * (12 * 0.1 * 0.2**2 / 0.5 + 5 * 0.02 * 0.3**2 / 0.1) / 17
        decay.step()
        assert noise.clock == pytest.approx(expected, rel=1e-12)


def test_adams_number():
    groups = [{"params": [weight(4)], "lr": 0.1}, {"params": [weight(2)], "lr": 0.4}]
    optimizer = optim.AdamW(groups, weight_decay=0)
    assert clock_after(3, optimizer) == pytest.approx(3 * 0.1 * (4 * 0.1 + 2 * 0.4) / 6, rel=1e-12)


def test_adamw_without_decay_is_adam():
    """So that what was measured of the one holds for the other."""
    ours, theirs = weight(), weight()
    optimizers = optim.AdamW([ours], 0.1, weight_decay=0), optim.Adam([theirs], 0.1)
    for n in range(5):
        for parameter, optimizer in zip((ours, theirs), optimizers, strict=True):
            parameter.grad = parameter.detach() ** 2 + n
            optimizer.step()
    assert torch.equal(ours, theirs)


def test_dampening_counts_where_there_is_momentum():
    with_momentum = optim.SGD([weight()], 0.1, momentum=0.9, dampening=0.6)
    without = optim.SGD([weight()], 0.1, dampening=0.6)
    assert clock_after(1, with_momentum) == pytest.approx(0.1 * 0.1**2 * 0.4 / 0.1, rel=1e-12)
    assert clock_after(1, without) == pytest.approx(0.1 * 0.1**2, rel=1e-12)


def test_taps():
    """w − z has the variance of the draws that it carries; else nothing is stationary."""
    for taps, factor in (((1.0, -2.0, 1.0), 2.0), ((0.5, -0.5), 0.25)):
        clock = clock_after(1, optim.SGD([weight()], 0.1), taps=taps)
        assert clock == pytest.approx(factor * 0.1 * 0.1**2, rel=1e-12)
        clock = clock_after(1, optim.Adam([weight()], 0.1), taps=taps)
        assert clock == pytest.approx(math.sqrt(factor) * 0.1 * 0.1, rel=1e-12)
    for taps in ((1.0,), (1.0, -0.9)):
        clock = clock_after(1, optim.SGD([weight()], 0.1), taps=taps)
        assert clock.kind == "unknown"
        assert f"taps {taps} do not sum to zero" in clock.why


def test_one_group_without_a_clock_is_a_reason():
    groups = [{"params": [weight()]}, {"params": [weight()], "momentum": 1.0}]
    clock = clock_after(2, optim.SGD(groups, 0.1))
    assert (clock.kind, clock.why) == ("unknown", "param group 1 has momentum 1")
    clock = clock_after(2, optim.SGD([weight()], 0.1, momentum=0.5, dampening=1.5))
    assert (clock.kind, clock.why) == ("unknown", "param group 0 has dampening 1.5")


def both(sigma=0.1):
    """A model with two optimizers of different kinds, and their noise."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1)).double()
    optimizers = [optim.SGD(model[0].parameters(), 0.1), optim.Adam(model[1].parameters(), 0.01)]
    return model, optimizers, perturb(model, optimizers, sigma=sigma, seed=1)


def go(model, optimizers, steps):
    for _ in range(steps):
        model(torch.ones(2, 4, dtype=torch.float64)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def test_clocks_of_two_kinds_are_not_added_up():
    model, optimizers, noise = both()
    assert dict(noise.clock.parts) == {"sgd": 0.0, "adam": 0.0}
    go(model, optimizers, 3)
    clock = noise.clock
    assert clock.kind == "mixed"
    assert math.isnan(clock)
    assert not clock.measured
    assert clock.parts == pytest.approx({"sgd": 3 * 0.1 * 0.1**2, "adam": 3 * 0.01 * 0.1})
    assert f"  clock mixed: sgd 0.003, adam 0.003; {clock.why}\n" in repr(noise)
    assert clock.why == "clocks of different kinds are not added up"
    assert math.isnan(noise.metrics()["noise/clock"])
    assert type(noise.metrics()["noise/clock"]) is float
    again = pickle.loads(pickle.dumps(noise))
    assert (again.clock.kind, again.clock.parts) == ("mixed", clock.parts)
    with pytest.raises(ValueError, match=r"clock must be 0 .* \(adam, sgd\); got 0.5"):
        noise.clock = 0.5
    noise.clock = 0
    assert set(noise.clock.parts.values()) == {0.0}


def test_only_who_takes_noise_has_a_say():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1)).double()
    optimizers = [optim.SGD(model[0].parameters(), 0.1), optim.Adam(model[1].parameters(), 0.01)]
    noise = perturb(model, optimizers, sigma=0.1, exclude="1.*")
    go(model, optimizers, 2)
    assert noise.clock.kind == "sgd"
    assert noise.clock == pytest.approx(2 * 0.1 * 0.1**2, rel=1e-12)


def test_clocks_of_two_kinds_are_saved_apart():
    model, optimizers, noise = both()
    go(model, optimizers, 2)
    states = copy.deepcopy([optimizer.state_dict() for optimizer in optimizers])
    saved = json.loads(states[0]["param_groups"][0]["antipgd"])
    assert (saved["clock"], [kind for kind, _ in saved["clocks"]]) == (None, ["adam", "sgd"])
    expected = dict(noise.clock.parts)
    other, others, resumed = both(sigma=0.05)
    other.load_state_dict(model.state_dict())
    for optimizer, state in zip(others, states, strict=True):
        optimizer.load_state_dict(state)
    assert resumed.clock.parts == expected
    go(other, others, 2)
    go(model, optimizers, 2)
    assert resumed.clock.parts == noise.clock.parts


def as_older(state):
    """A state as it was before clocks were said by kind."""
    state = copy.deepcopy(state)
    for group in state["param_groups"]:
        fields = json.loads(group["antipgd"])
        del fields["clocks"]
        group["antipgd"] = json.dumps(fields | {"clock": 0.5})
    return state


OLDER = {
    "sgd": (lambda p: optim.SGD(p, 0.1, momentum=0.9), {}, 0.5),
    "adam": (lambda p: optim.Adam(p, 0.1), {}, 0.5),
    "dampened": (lambda p: optim.SGD(p, 0.1, momentum=0.9, dampening=0.5), {}, math.nan),
    "taps": (lambda p: optim.SGD(p, 0.1), {"taps": (1.0, -2.0, 1.0)}, math.nan),
    "Adagrad": (lambda p: optim.Adagrad(p, 0.1), {}, math.nan),
}


@pytest.mark.parametrize("case", OLDER)
def test_an_older_states_number_counts_where_it_was_counted_alike(case):
    make, settings, expected = OLDER[case]
    optimizer = make([weight()])
    noise = attach(optimizer, sigma=0.1, **settings)
    optimizer.step()
    optimizer.load_state_dict(as_older(optimizer.state_dict()))
    assert noise.clock == pytest.approx(expected, nan_ok=True)
    assert noise.clock.why or not math.isnan(expected)
    before = noise.clock
    optimizer.load_state_dict(optimizer.state_dict())
    assert noise.clock == pytest.approx(before, nan_ok=True)


def test_a_state_of_another_kind_of_optimizer():
    first, second = optim.SGD([weight()], 0.1), optim.Adam([weight()], 0.1)
    clock_after(2, first)
    noise = attach(second, sigma=0.1)
    state = first.state_dict()["param_groups"][0]["antipgd"]
    own = second.state_dict()
    own["param_groups"][0]["antipgd"] = state
    second.load_state_dict(own)
    assert noise.clock.parts == pytest.approx({"sgd": 2 * 0.1 * 0.1**2, "adam": 0.0})


def test_pickled_and_lost_handles_keep_their_clock():
    optimizer = optim.SGD([weight()], 0.1)
    noise = attach(optimizer, sigma=0.1)
    optimizer.step()
    again = pickle.loads(pickle.dumps(noise))
    assert (again.clock, again.clock.kind) == (noise.clock, "sgd")
    named = AntiPGD([weight()], lr=0.1, sigma=0.1)
    named.step()
    assert copy.deepcopy(named).noise.clock == named.noise.clock > 0


def test_it_is_set_anew():
    optimizer = optim.SGD([weight()], 0.1)
    noise = attach(optimizer, sigma=0.1)
    noise.clock = 0.25
    optimizer.step()
    assert noise.clock == pytest.approx(0.25 + 0.1 * 0.1**2, rel=1e-12)
    with pytest.raises(ValueError, match=r"clock must be .* >= 0; got -1"):
        noise.clock = -1


def test_a_clock_without_parts_is_unknown():
    assert Clock({"unknown": math.nan}, "why").line() == "clock unknown: why"


# What it counts: in the widening valley ½v²‖u‖² noise takes ‖u‖² to e^(−2τ).


def fall(steps, d=5, paths=300, decay=0.0, hold=1, pairs=False, **options):
    """(ln ‖u_0‖²/‖u‖² of torch's SGD in the forward form, what its clock shows)."""
    sigma = math.sqrt(0.005)
    z = weight(paths, d + 1)
    with torch.no_grad():
        z.zero_()[:, 0] = 1
    optimizer = optim.SGD([z], **options, weight_decay=decay)
    draws = torch.Generator().manual_seed(3)
    sign = -1.0 if options.get("maximize") else 1.0
    twin = weight()
    other = optim.SGD([twin], **options, weight_decay=decay)
    noise = attach(other, sigma=sigma, hold=hold)
    xi = torch.zeros(z.shape, dtype=z.dtype)
    for n in range(steps):
        if pairs and n % 2:
            xi = -xi
        elif n % hold == 0:
            xi = sigma * torch.randn(z.shape, generator=draws, dtype=z.dtype)
        w = z.detach() + xi
        u, v = w[:, :-1], w[:, -1:]
        z.grad = sign * torch.cat([v * v * u, v * (u * u).sum(1, keepdim=True)], 1)
        optimizer.step()
        twin.grad = torch.zeros_like(twin)
        other.step()
    u = z.detach()[:, :-1]
    return float(-u.square().sum(1).log().mean()), float(noise.clock)


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.02},
        {"lr": 0.02, "hold": 5},
        {"lr": 0.02, "pairs": True},
        {"lr": 0.02, "maximize": True},
        {"lr": 0.004, "momentum": 0.8},
        {"lr": 0.004, "momentum": 0.8, "nesterov": True},
        {"lr": 0.008, "momentum": 0.8, "dampening": 0.5},
        {"lr": 0.02, "dampening": 0.5},
    ],
    ids=str,
)
def test_what_sgds_clock_counts(options):
    fell, clock = fall(2000, **options)
    assert clock == pytest.approx(0.2, rel=1e-9)
    assert fell == pytest.approx(2 * clock, rel=0.06)


def test_weight_decay_comes_on_top():
    """‖u‖² falls by what the noise does, which the clock counts, and by 2Σηλ."""
    fell, clock = fall(2000, lr=0.02, decay=0.01)
    assert fell - 2 * 2000 * 0.02 * 0.01 == pytest.approx(2 * clock, rel=0.1)
    assert clock == pytest.approx(0.2, rel=1e-9)


def test_tensors_without_elements_count_nothing():
    empty = torch.nn.Parameter(torch.zeros(0, 3))
    optimizer = torch.optim.SGD([empty], lr=0.1)
    noise = attach(optimizer, sigma=0.1)
    empty.grad = torch.zeros(0, 3)
    optimizer.step()
    assert (noise.step_count, noise.clock) == (1, 0)


# What a held draw counts, and what is shown of it


@pytest.mark.parametrize("form", ["weights", "forward"])
@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (Window(0, 5), [1, 1, 1, 1, 1, 1, 0, 0, 0]),
        (Window(2, 7), [0, 0, 0, 1, 1, 1, 1, 1, 1]),
        (Linear(0, 10), [0.9, 0.9, 0.9, 0.6, 0.6, 0.6, 0.3, 0.3, 0.3]),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:hold=3 with Window:UserWarning")
def test_a_held_draw_counts_with_the_sigma_that_it_came_with(form, schedule, factors):
    model = torch.nn.Linear(4, 3).double()
    optimizer = optim.SGD(model.parameters(), 0.1)
    kind = attach if form == "weights" else lambda o, **options: perturb(model, o, **options)
    noise = kind(optimizer, sigma=0.2, seed=1, hold=3, schedule=schedule)
    expected = 0.0
    for step, factor in enumerate(factors):
        assert noise.metrics()["noise/sigma"] == pytest.approx(0.2 * factor)
        go(model, [optimizer], 1)
        expected += 0.1 * (0.2 * factor) ** 2
        assert noise.clock == pytest.approx(expected, rel=1e-12)
        assert bool(noise.injected(model.weight).any()) == (factor > 0)
        if step == 4:  # while one is held
            before = noise.clock
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            assert noise.clock == before


@pytest.mark.parametrize("form", ["weights", "forward"])
def test_clean_weights_count_nothing_until_the_next_draw(form):
    model = torch.nn.Linear(4, 3).double()
    optimizer = optim.SGD(model.parameters(), 0.1)
    kind = attach if form == "weights" else lambda o, **options: perturb(model, o, **options)
    noise = kind(optimizer, sigma=0.2, seed=1, hold=3)
    go(model, [optimizer], 1)
    noise.reset()
    before = noise.clock
    go(model, [optimizer], 2)
    assert (noise.clock, noise.metrics()["noise/sigma"]) == (before, 0.2)
    go(model, [optimizer], 1)
    assert noise.clock > before


@pytest.mark.parametrize(
    ("window", "hold", "words"),
    [
        (Window(0, 50), 20, r"acts at steps 0 < n <= 60; give start and stop that are mul"),
        (Window(2, 7), 3, r"acts at steps 3 < n <= 9; "),
        (Window(2), 3, r"acts at steps 3 < n; "),
        (Window(1, 2), 5, r"the noise never acts; "),
    ],
    ids=str,
)
def test_a_window_that_ends_while_a_draw_is_held(window, hold, words):
    with pytest.warns(UserWarning, match=rf"hold={hold} with Window.*{words}"):
        attach(optim.SGD([weight()], 0.1), sigma=0.1, hold=hold, schedule=window)


@pytest.mark.parametrize("window", [Window(0, 50), Window(10), Window(20, 30)], ids=str)
def test_a_window_of_whole_draws(window):
    attach(optim.SGD([weight()], 0.1), sigma=0.1, hold=10, schedule=window)


# Optimizers that take turns


def turns(kind=optim.SGD):
    """Two networks, an optimizer for each, and their noise."""
    torch.manual_seed(0)
    model = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)]).double()
    optimizers = [kind(part.parameters(), 0.1) for part in model]
    return model, optimizers, perturb(model, optimizers, sigma=0.2, seed=1)


def backward(model):
    model[1](model[0](torch.ones(2, 4, dtype=torch.float64))).square().mean().backward()


@pytest.mark.parametrize(("kind", "power"), [(optim.SGD, 2), (optim.Adam, 1)])
@pytest.mark.parametrize("together", [True, False])
def test_what_has_moved_counts_once(kind, power, together):
    """In steps of their own or in one: the draws are others, the progress is the same."""
    model, optimizers, noise = turns(kind)
    for _ in range(10):
        for turn, optimizer in enumerate(optimizers):
            if turn == 0 or not together:
                backward(model)
            optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()
    assert noise.step_count == (10 if together else 20)
    assert noise.clock == pytest.approx(10 * 0.1 * 0.2**power, rel=1e-12)


def test_one_of_them_counts_for_its_elements():
    model, optimizers, noise = turns()
    for _ in range(3):
        backward(model)
        optimizers[1].step()
    assert noise.step_count == 3
    assert noise.clock == pytest.approx(3 * 0.1 * 0.2**2 * 5 / 25, rel=1e-12)


def test_steps_inside_backward_count_for_who_has_made_them():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)).double()
    own = {p: optim.SGD([p], 0.1) for p in model.parameters()}
    noise = perturb(model, own.values(), sigma=0.2, seed=1)
    hooks = [p.register_post_accumulate_grad_hook(lambda q: own[q].step()) for p in own]
    backward(model)
    assert (noise.step_count, noise.clock) == (1, pytest.approx(0.1 * 0.2**2, rel=1e-12))
    for hook in hooks[2:]:
        hook.remove()
    backward(model)
    assert noise.step_count == 2
    assert noise.clock == pytest.approx(0.1 * 0.2**2 * (1 + 20 / 25), rel=1e-12)


def test_a_schedule_counts_alike_for_optimizers_that_step_together():
    model, optimizers, _ = turns()
    noise_of(optimizers[0]).stop()
    noise = perturb(model, optimizers, sigma=0.2, schedule=Window(0, 2))
    for _ in range(4):
        backward(model)
        for optimizer in optimizers:
            optimizer.step()
    assert noise.clock == pytest.approx(2 * 0.1 * 0.2**2, rel=1e-12)
