"""What happens between a forward pass and its backward: w is made again as it was."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from antipgd.torch import perturb
from interpreted import as_if_on_gpus

PLACES = {"cpu": nullcontext, "gpu": as_if_on_gpus}


def mlp(*widths):
    first, hidden, last = widths
    return nn.Sequential(nn.Linear(first, hidden), nn.Tanh(), nn.Linear(hidden, last))


def adversarial(batches=1, steps=2, **options):
    """The generator's gradients in a GAN whose discriminator steps before they are taken."""
    torch.manual_seed(0)
    pair = nn.ModuleDict({"G": mlp(3, 4, 2), "D": mlp(2, 4, 1)})
    of_g, of_d = (torch.optim.SGD(pair[name].parameters(), lr=0.1) for name in "GD")
    perturb(pair, [of_g, of_d], sigma=0.3, seed=1, **options)
    found = []
    for _ in range(steps):
        pair.zero_grad()
        fakes = []
        for i in range(batches):
            fakes.append(pair["G"](torch.linspace(-1, 1 + i, 6).reshape(2, 3)))
            pair["D"](fakes[-1].detach()).square().mean().backward()
        of_d.step()
        pair["D"].zero_grad()
        for fake in fakes:
            pair["D"](fake).square().mean().backward()
        found += [p.grad.clone() for p in pair["G"].parameters()]
        of_g.step()
    return found


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("draws", ["step", "micro-batch"])
def test_a_step_between_forward_and_backward(batches, draws):
    wanted = adversarial(batches, draws=draws)
    for place in PLACES.values():
        with place():
            found = adversarial(batches, draws=draws, memory="recompute")
        assert all(map(torch.equal, found, wanted))


def scheduled(**options):
    """Gradients of the first of two heads, taken after σ of the second was changed by a step."""
    torch.manual_seed(0)
    heads = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(3, 2)})
    optimizers = [torch.optim.SGD(heads[name].parameters(), lr=0.1) for name in "ab"]
    perturb(heads, optimizers, sigma=0.2, seed=1, schedule=lambda step: 1 / step, **options)
    found = []
    for _ in range(2):
        x = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
        losses = [heads[name](x).square().sum() for name in "ba"]
        for loss, optimizer in zip(losses, optimizers[::-1], strict=True):
            loss.backward()
            optimizer.step()
        found.append(x.grad)
    return found


def test_coefficients_that_change_between_them():
    wanted = scheduled()
    for place in PLACES.values():
        with place():
            assert all(map(torch.equal, scheduled(memory="recompute"), wanted))


def test_nothing_is_brought_to_the_device_where_no_step_was_made(monkeypatch):
    brought = []
    monkeypatch.setattr("antipgd.torch.forward.forming.place_of", brought.append)
    with as_if_on_gpus():
        torch.manual_seed(0)
        model = mlp(3, 4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        perturb(model, optimizer, sigma=0.1, seed=1, memory="recompute")
        for _ in range(2):
            model(torch.ones(2, 3)).square().sum().backward()
            optimizer.step()
    assert brought == []
