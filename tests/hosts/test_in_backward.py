"""Optimizers that step inside backward: what a step is there, and what is refused."""

import pytest
import torch

from antipgd.torch import perturb
from explicit_model import loss_of, make
from matrix import cell, refused
from optimizer_rigs import SEED, SIGMA, hooked


@cell("in_backward", "accumulation")
def test_each_backward_pass_is_a_step():
    """Micro-batches with a backward pass each are steps, each with its draw: nothing adds up."""
    rig, reference = hooked(), hooked()
    noise = perturb(rig.model, rig.given, SIGMA, seed=SEED)
    for n in range(8):
        (loss_of(rig.model, n // 2, part=n % 2, parts=2)).backward()
        assert noise.step_count == n + 1
        assert all(p.grad is None for p in rig.model.parameters())
        reference.backward_explicitly(
            n, lambda model, n: loss_of(model, n // 2, n % 2, 2).backward()
        )
    for z, expected in zip(rig.model.parameters(), reference.model.parameters(), strict=True):
        assert torch.equal(z, expected)


@cell("in_backward", "bad_input")
def test_states_of_different_steps_are_refused(record_property):
    """Of many optimizers it is easy to load some from another file."""
    rig = hooked()
    noise = perturb(rig.model, rig.given, SIGMA, seed=SEED)
    states = []
    for n in range(3):
        rig.train(n)
        states.append([optimizer.state_dict() for optimizer in rig.optimizers])
    rig.optimizers[0].load_state_dict(states[0][0])
    for optimizer, state in zip(rig.optimizers[1:], states[1][1:], strict=True):
        optimizer.load_state_dict(state)
    before = [p.detach().clone() for p in rig.model.parameters()]
    with refused(record_property, RuntimeError, "loaded from different steps of the noise"):
        rig.train(3)
    assert all(torch.equal(a, b) for a, b in zip(before, rig.model.parameters(), strict=True))
    assert noise.step_count in (1, 2)


def test_given_in_part_the_others_take_no_noise():
    rig = hooked()
    noise = perturb(rig.model, rig.optimizers[:1], SIGMA, seed=SEED)
    rig.train(0)
    assert [member.name for member in noise.members] == ["0.weight"]
    with pytest.raises(KeyError, match="takes no noise here"):
        noise.injected(rig.model[0].bias)


@cell("in_backward", "bad_input")
def test_an_optimizer_given_twice(record_property):
    model = make(torch.float32)
    own = [torch.optim.SGD([p], lr=0.1) for p in model.parameters()]
    with refused(record_property, ValueError, "listed twice"):
        perturb(model, [*own, own[0]], SIGMA)
    assert type(model[0]._parameters) is dict
