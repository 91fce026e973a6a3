"""TorchTitan's containers of optimizers: one for each part of a model, one for each parameter."""

import copy

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torchtitan.components.optimizer import OptimizersContainer, OptimizersInBackwardContainer

from antipgd.torch import attach, perturb
from explicit_model import explicit_gradients, make, perturbed_gradients
from matrix import cell, refused

SEED, SIGMA = 17, 0.05
SETTINGS = {"lr": 0.01, "betas": (0.9, 0.95), "weight_decay": 0.1}


def contained(kind=OptimizersContainer, parts=1):
    model = make(torch.float32)
    pieces = [model] if parts == 1 else [model[:3], model[3:]]
    return model, kind(pieces, torch.optim.AdamW, SETTINGS)


def steps(model, container, first, last):
    for n in range(first, last):
        perturbed_gradients(model, n)
        container.step()


def same(model, other):
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@cell("torchtitan", "weights", "evaluation")
def test_parts_that_are_called_one_by_one():
    """As pipelines call them: nobody calls the ModuleList that perturb was given."""
    model, container = contained(parts=2)
    parts = container.model_parts
    whole = nn.ModuleList(parts)
    noise = perturb(whole, container, SIGMA, seed=SEED)
    reference = nn.Sequential(*contained(parts=2)[1].model_parts)
    theirs = torch.optim.AdamW(reference.parameters(), **SETTINGS)
    piecewise = nn.Sequential()
    piecewise.forward = lambda x: parts[1](parts[0](x))
    piecewise.parameters = model.parameters
    for n in range(6):
        container.zero_grad()
        perturbed_gradients(piecewise, n)
        container.step()
        explicit_gradients(reference, n, SIGMA, SEED)
        theirs.step()
    assert noise.step_count == 6
    assert same(model, reference)
    x = torch.randn(5, 6)
    noisy = parts[1](parts[0](x))
    whole.eval()
    assert torch.equal(parts[1](parts[0](x)), reference.eval()(x))
    assert not torch.equal(noisy, reference(x))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@cell("torchtitan", "resume")
def test_through_a_distributed_checkpoint(tmp_path):
    """The container is a Stateful: TorchTitan's checkpointer hands it to DCP as it is."""
    model, container = contained()
    perturb(model, container, SIGMA, seed=SEED)
    steps(model, container, 0, 5)
    dcp.save({"model": model, "optimizer": container}, checkpoint_id=tmp_path)
    other, theirs = contained()
    noise = perturb(other, theirs, SIGMA, seed=SEED + 1)
    dcp.load({"model": other, "optimizer": theirs}, checkpoint_id=tmp_path)
    assert (noise.step_count, noise.seed) == (5, SEED)
    steps(model, container, 5, 9)
    steps(other, theirs, 5, 9)
    assert noise.injected(other[0].weight).any()
    assert same(other, model)


@cell("torchtitan", "weights", "evaluation", "accumulation")
def test_in_backward():
    """Every backward pass is a step: TorchTitan's container accumulates nothing."""
    model, container = contained(OptimizersInBackwardContainer)
    noise = perturb(model, container, SIGMA, seed=SEED)
    reference = make(torch.float32)
    theirs = torch.optim.AdamW(reference.parameters(), **SETTINGS)
    for n in range(6):
        perturbed_gradients(model, n)
        container.step()  # does nothing
        explicit_gradients(reference, n, SIGMA, SEED)
        theirs.step()
        assert noise.step_count == n + 1
    assert same(model, reference)
    x = torch.randn(5, 6)
    assert torch.equal(model.eval()(x), reference.eval()(x))


def resumed_in_backward(sigma):
    """The two that should be equal, and their noises."""
    model, container = contained(OptimizersInBackwardContainer)
    before = perturb(model, container, sigma, seed=SEED)
    steps(model, container, 0, 5)
    weights, state = copy.deepcopy((model.state_dict(), container.state_dict()))
    other, theirs = contained(OptimizersInBackwardContainer)
    after = perturb(other, theirs, sigma, seed=SEED)
    other.load_state_dict(weights)
    theirs.load_state_dict(state)
    with pytest.warns(UserWarning, match="1 of 8 optimizers were loaded; the noise goes on from"):
        steps(other, theirs, 5, 6)
    steps(other, theirs, 6, 8)
    steps(model, container, 5, 8)
    return model, other, before, after


@cell("torchtitan", "resume")
def test_resume_in_backward():
    """Its state_dict has the first parameter's optimizer alone: it does not resume, noise or no."""
    model, other, before, after = resumed_in_backward(SIGMA)
    assert after.step_count == 8
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(after.injected(theirs), before.injected(mine))
    assert not same(model, other)
    assert not same(*resumed_in_backward(0.0)[:2])


def untouched(model, container):
    plain = all(type(module._parameters) is dict for module in model.modules())
    return plain and not any("antipgd" in g for o in container for g in o.param_groups)


@cell("torchtitan", "bad_input")
def test_one_part_is_not_the_model(record_property):
    model, container = contained(parts=2)
    with refused(record_property, ValueError, "that is not in the model"):
        perturb(container.model_parts[0], container, SIGMA)
    with refused(record_property, TypeError, r"torch.nn.ModuleList\("):
        perturb(container.model_parts, container, SIGMA)
    assert untouched(model, container)


@cell("torchtitan", "bad_input", form="weights")
def test_noise_in_the_weights_of_a_container_is_refused(record_property):
    model, container = contained()
    with refused(record_property, ValueError, "holds several optimizers"):
        attach(container, SIGMA)
    assert untouched(model, container)
