"""Noise in units of each element: w = z + σ|z|ξ, where the pass has z at hand."""

import copy

import numpy as np
import pytest
import torch

from antipgd.noise import draws
from antipgd.torch import attach, perturb
from training import SEED, batch, make_model, train

SIGMA, STEPS = 0.1, 9


def make(dtype=torch.float64, seed=0, **settings):
    model = make_model(dtype, seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    noise = perturb(model, optimizer, sigma=SIGMA, seed=SEED, relative="element", **settings)
    return model, optimizer, noise


def explicit(steps, sigma=SIGMA):
    """The same by hand: gradients at w, steps at z. What is zero at the start grows, and then takes
    noise."""
    model = make_model()
    named = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        z = {name: p.detach().clone() for name, p in named.items()}
        for name in named if step else ():
            xi = torch.from_numpy(draws(SEED, name, step, 0, z[name].numel()).astype(np.float64))
            named[name].data = z[name] + sigma * z[name].abs() * xi.view_as(z[name])
        x, y = batch()
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        for name, p in named.items():
            p.data = z[name]
        optimizer.step()
    return named


def test_passes_read_z_and_draws_of_its_size():
    model, optimizer, _ = make()
    train(model, optimizer, STEPS)
    wanted = explicit(STEPS)
    for name, p in model.named_parameters():
        assert torch.allclose(p, wanted[name], rtol=0, atol=1e-13), name
    for wrong in (2 / 3, 3 / 2, -1.0):
        other = explicit(STEPS, wrong * SIGMA)
        assert not torch.allclose(model[0].weight, other["0.weight"], rtol=0, atol=1e-6)


def test_the_size_is_that_of_the_pass_not_of_the_start():
    model, optimizer, noise = make()
    train(model, optimizer, 1)
    weight = dict(model.named_parameters())["0.weight"]
    before = noise.injected(weight)
    with torch.no_grad():
        weight.mul_(2)
    assert torch.allclose(noise.injected(weight), 2 * before, rtol=1e-14, atol=0)
    read = []
    model[0].register_forward_hook(lambda module, x, y: read.append(module.weight.detach()))
    model(batch()[0])
    assert torch.allclose(read[0] - weight.detach(), 2 * before, rtol=0, atol=1e-14)
    noise.stop()


@pytest.mark.parametrize("memory", ["keep", "recompute"])
@pytest.mark.parametrize("at", [1, 4])
def test_resumed_midway_bit_for_bit(at, memory):
    model, optimizer, _ = make(memory=memory)
    train(model, optimizer, at)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    other, its_optimizer, _ = make(seed=3, memory=memory)  # of another root mean square
    other.load_state_dict(saved[0])
    its_optimizer.load_state_dict(saved[1])
    train(model, optimizer, STEPS)
    train(other, its_optimizer, STEPS)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_functional_passes_and_bfloat16_read_the_same():
    model, optimizer, _ = make(torch.float32)
    train(model, optimizer, 3)
    x = batch(torch.float32)[0]
    assert torch.equal(torch.func.vjp(lambda x: model(x), x)[0], model(x))
    model, optimizer, noise = make(torch.bfloat16)
    train(model, optimizer, 1)
    weight = dict(model.named_parameters())["0.weight"]
    read = []
    model[0].register_forward_hook(lambda module, x, y: read.append(module.weight.detach()))
    model(batch(torch.bfloat16)[0])
    assert torch.equal(read[0], (weight.detach().float() + noise.injected(weight)).bfloat16())


def test_noise_in_the_weights_refuses_it():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"relative='element' needs the clean weights.*perturb"):
        attach(optimizer, 0.1, relative="element")
    assert "antipgd" not in optimizer.param_groups[0]


def test_rescaling_leaves_what_passes_read_as_it_is():
    model, optimizer, noise = make(hold=4)
    train(model, optimizer, 2)
    weight = dict(model.named_parameters())["0.weight"]
    with torch.no_grad():
        weight.mul_(0.25)
    before = noise.injected(weight)
    noise.rescale()
    assert torch.equal(noise.injected(weight), before)


def test_zeros_take_noise_once_they_have_grown():
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 4).double()
    torch.nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    noise = perturb(model, optimizer, sigma=SIGMA, seed=SEED, relative="element")
    model(torch.ones(3, 6, dtype=torch.float64)).square().sum().backward()
    optimizer.step()
    bias = dict(model.named_parameters())["bias"]
    xi = torch.from_numpy(draws(SEED, "bias", 1, 0, 4).astype(np.float64))
    assert torch.allclose(noise.injected(bias), SIGMA * bias.detach().abs() * xi, rtol=1e-6, atol=0)


def test_it_is_not_compiled():
    model, _, _ = make(torch.float32)
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match="relative='element' does not work under torch"):
        torch.compile(model, backend="aot_eager", fullgraph=True)(batch(torch.float32)[0])
    torch._dynamo.reset()
