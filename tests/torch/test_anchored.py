"""Optimizers that would keep the noise in the weights, or lose its record, are refused."""

import copy
import logging
import random

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.optim import optimizer as torch_optimizer

from antipgd.torch import AntiPGD, anchored, attach
from training import SEED, flat, make_model, train

PERTURB = r"antipgd\.torch\.perturb\(model, optimizer, sigma=…\)"


class Slow(torch.optim.SGD):
    """Pulls the weights half-way to an average of them, as Lookahead does."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                slow = self.state[p].setdefault("slow", p.detach().clone())
                p.lerp_(slow, 0.5)
                slow.copy_(p)


class Plain(torch.optim.SGD):
    """Steps by itself, and is ordinary."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"])


class Container(torch.optim.Optimizer):
    """As TorchTitan's: one for each part of the model, and a state_dict of its own."""

    def __init__(self, model):
        self.optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model[::3]]
        super().__init__([p for part in model[::3] for p in part.parameters()], {"lr": 0.1})

    def step(self, closure=None):
        for optimizer in self.optimizers:
            optimizer.step()


class Wrapper(torch.optim.Optimizer):
    """Decides when to step, as Accelerate's does."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def step(self, closure=None):
        self.optimizer.step(closure)

    def state_dict(self):
        return {"inner": self.optimizer.state_dict()}

    def load_state_dict(self, state):
        self.optimizer.load_state_dict(state["inner"])


class Forgetful(Wrapper):
    def state_dict(self):
        return {"groups": len(self.param_groups)}


def made(kind, **settings):
    return kind(make_model(torch.float32).parameters(), lr=0.1, **settings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: made(Slow), "Slow moves weights towards an average or an anchor"),
        (lambda: made(Slow, weight_decay=0.1), "Slow moves weights towards an average"),
        (lambda: Wrapper(made(Slow)), "Wrapper moves weights towards an average"),
        (lambda: Container(make_model()), "Container holds several optimizers in 'optimizers'"),
        (lambda: Forgetful(made(Plain)), "Forgetful does not save what Plain saves"),
        (lambda: made(type("ProdigyLike", (Plain,), {})), "ProdigyLike moves weights"),
        (lambda: made(type("Mine", (type("Lookahead", (Plain,), {}),), {})), "Lookahead moves"),
    ],
)
def test_refused_with_the_form_that_is_right(make, message):
    optimizer = make()
    with pytest.raises(ValueError, match=f"{message}.*{PERTURB}"):
        attach(optimizer, sigma=0.1)
    assert not any("antipgd" in group for group in optimizer.param_groups)


def test_what_the_probe_refuses_is_wrong_indeed():
    """And what it lets pass is right: rms of clean − start with zero gradients, in σ."""
    for kind, low, high in ((Slow, 0.1, 2), (Plain, 0, 1e-4)):
        w = torch.nn.Parameter(torch.zeros(500))
        optimizer = kind([w], lr=0.1)
        xi = torch.zeros(500)
        for _ in range(7):
            w.grad = torch.zeros_like(w)
            optimizer.step()
            new = 0.01 * torch.randn(500)
            w.data.add_(new - xi)
            xi = new
        assert low <= float((w.detach() - xi).square().mean().sqrt()) / 0.01 <= high
        assert low / 2 <= anchored.deviation(kind([w], lr=0.1)) <= high


@pytest.mark.parametrize(
    "make",
    [
        lambda: made(Plain),
        lambda: Wrapper(made(Plain)),
        lambda: Wrapper(made(torch.optim.AdamW)),
        lambda: made(type("Own", (torch.optim.SGD,), {})),
    ],
)
def test_ordinary_ones_pass(make, caplog):
    caplog.set_level(logging.INFO, "antipgd")
    optimizer = make()
    noise = attach(optimizer, sigma=0.1)
    optimizer.param_groups[0]["params"][0].grad = None
    assert noise.attached
    assert "could not try" not in caplog.text


def test_a_learning_rate_that_begins_at_zero_hides_nothing():
    optimizer = made(Slow)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 100)  # puts a step over ours
    assert optimizer.param_groups[0]["lr"] == 0
    with pytest.raises(ValueError, match="Slow moves weights towards"):
        attach(optimizer, sigma=0.1)


def test_found_also_after_steps_and_with_state():
    model = make_model(torch.float32)
    optimizer = Slow(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, 3)
    with pytest.raises(ValueError, match="Slow moves weights towards"):
        attach(optimizer, sigma=0.1)


def test_the_probe_leaves_everything_as_it_was():
    class Draws(Plain):
        """Uses every generator there is, and counts."""

        def step(self, closure=None):
            torch.randn(3), random.random(), np.random.rand()  # noqa: NPY002
            self.steps = getattr(self, "steps", 0) + 1
            super().step(closure)

    model = make_model(torch.float32)
    optimizer = Draws(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, 2)
    optimizer.register_step_post_hook(lambda *_: pytest.fail("a hook was called"))
    before, state = flat(model), copy.deepcopy(optimizer.state_dict())
    versions = [p._version for p in model.parameters()]
    here = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    seed = torch.initial_seed()
    attach(optimizer, sigma=0.1)
    assert np.array_equal(flat(model), before)
    assert [p._version for p in model.parameters()] == versions
    assert torch.equal(torch.get_rng_state(), here[0])
    assert random.getstate() == here[1]
    assert np.array_equal(np.random.get_state()[1], here[2][1])  # noqa: NPY002
    assert torch.initial_seed() == seed
    assert optimizer.steps == 2
    assert optimizer.state_dict()["state"].keys() == state["state"].keys()


class Closed(Plain):
    """Its step reaches the user's own parameters, past any copy."""

    def __init__(self, params, lr):
        params = list(params)
        super().__init__(params, lr=lr)
        self.move = lambda: [p.detach().add_(1) for p in params]

    def step(self, closure=None):
        self.move()


class Talks(Plain):
    def step(self, closure=None):
        dist.all_reduce(torch.ones(3))
        super().step(closure)


class Fails(Plain):
    def step(self, closure=None):
        raise OSError("the disk is full")


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Closed, "UnprobedError: its copy still holds the original's parameters"),
        (Fails, "OSError: the disk is full"),
    ],
)
def test_a_probe_that_cannot_run_is_a_note(kind, why, caplog):
    caplog.set_level(logging.INFO, "antipgd")
    model = make_model(torch.float32)
    before = flat(model)
    attach(kind(model.parameters(), lr=0.1), sigma=0.1)
    assert f"could not try whether {kind.__name__} moves weights towards an average" in caplog.text
    assert why in caplog.text
    assert np.array_equal(flat(model), before)


def test_no_rank_is_asked(caplog, tmp_path):
    caplog.set_level(logging.INFO, "antipgd")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(Exception, match="its step asks other ranks"):
            anchored.deviation(made(Talks))
        attach(made(Talks), sigma=0.1)
    finally:
        dist.destroy_process_group()
    assert "UnprobedError: its step asks other ranks" in caplog.text


def test_hooks_of_all_optimizers_are_not_called(caplog):
    caplog.set_level(logging.INFO, "antipgd")
    hook = torch_optimizer.register_optimizer_step_post_hook(lambda *_: pytest.fail("called"))
    try:
        attach(made(Plain), sigma=0.1)
    finally:
        hook.remove()
    assert "hooks of all optimizers would see it" in caplog.text


def test_plain_classes_are_not_probed(monkeypatch):
    monkeypatch.setattr(anchored, "_probed", lambda *_: pytest.fail("probed"))
    for kind in (torch.optim.SGD, torch.optim.AdamW, type("Own", (torch.optim.Adam,), {})):
        attach(made(kind), sigma=0.1)
    AntiPGD(make_model().parameters(), 0.1, 0.1, seed=SEED)
    with pytest.raises(pytest.fail.Exception, match="probed"):
        attach(made(Plain), sigma=0.1)


def test_many_large_tensors_are_tried_on_a_few_small_ones():
    shapes = [(300, 300), (9,)]
    groups = [{"params": [torch.nn.Parameter(torch.ones(s)) for s in shapes]} for _ in range(20)]
    optimizer = Slow(groups, lr=0.1)
    copied = anchored.StandIn(optimizer, keeps_state=False)
    assert len(copied.parameters) == 16
    assert sum(p.numel() for p in copied.parameters) == 8 * (16 + 4)
    assert anchored.deviation(optimizer) > 0.1
