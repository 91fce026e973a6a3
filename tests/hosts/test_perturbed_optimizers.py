"""perturb under optimizers of other packages: bitwise the explicit z-form; clean where people look.

Averaging and 8-bit optimizers too, which noise in the weights would make silently wrong.
"""

import io

import pytest
import torch
from pytorch_optimizer import Lookahead, ScheduleFreeWrapper
from schedulefree import AdamWScheduleFree, RAdamScheduleFree, SGDScheduleFree
from torch_ema import ExponentialMovingAverage
from torchao.optim import AdamW8bit

from antipgd.torch import perturb
from explicit_model import explicit_gradients, make, perturbed_gradients

SEED, SIGMA = 17, 0.05


def in_training(optimizer):
    if hasattr(optimizer, "train"):
        optimizer.train()
    return optimizer


OPTIMIZERS = {
    "schedule-free SGD": lambda p: in_training(SGDScheduleFree(p, lr=0.05)),
    "schedule-free AdamW": lambda p: in_training(AdamWScheduleFree(p, lr=0.005, eps=1e-4)),
    "schedule-free RAdam": lambda p: in_training(RAdamScheduleFree(p, lr=0.005, eps=1e-4)),
    "Lookahead": lambda p: Lookahead(torch.optim.SGD(p, lr=0.05, momentum=0.9), k=5),
    "ScheduleFreeWrapper": lambda p: in_training(
        ScheduleFreeWrapper(torch.optim.SGD(p, lr=0.05), momentum=0.9)
    ),
    "8-bit AdamW": lambda p: AdamW8bit(p, lr=0.005, eps=1e-4),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_bitwise_the_explicit_z_form(kind, dtype):
    model, reference = make(dtype), make(dtype)
    optimizer = OPTIMIZERS[kind](list(model.parameters()))
    theirs = OPTIMIZERS[kind](list(reference.parameters()))
    noise = perturb(model, optimizer, SIGMA, seed=SEED)
    for n in range(200):
        perturbed_gradients(model, n)
        optimizer.step()
        explicit_gradients(reference, n, SIGMA, SEED)
        theirs.step()
        assert noise.step_count == n + 1
    for (name, z), expected in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert torch.isfinite(z).all()
        assert torch.equal(z, expected), name


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_resume(kind):
    def begin():
        model = make(torch.float32)
        optimizer = OPTIMIZERS[kind](list(model.parameters()))
        return model, optimizer, perturb(model, optimizer, SIGMA, seed=SEED)

    model, optimizer, before = begin()
    for n in range(7):
        perturbed_gradients(model, n)
        optimizer.step()
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=False)
    other, theirs, noise = begin()
    other.load_state_dict(weights)
    theirs.load_state_dict(state)
    assert noise.step_count == 7
    if hasattr(theirs, "train"):
        theirs.train()
    # Whether the optimizer itself resumes exactly is its own affair; the draws do.
    assert torch.equal(noise.injected(other[0].weight), before.injected(model[0].weight))


def test_an_average_of_weights_is_one_of_clean_weights():
    model, reference = make(torch.float32), make(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    theirs = torch.optim.SGD(reference.parameters(), lr=0.05)
    noise = perturb(model, optimizer, SIGMA, seed=SEED)
    averages = [ExponentialMovingAverage(m.parameters(), decay=0.9) for m in (model, reference)]
    for n in range(20):
        perturbed_gradients(model, n)
        optimizer.step()
        explicit_gradients(reference, n, SIGMA, SEED)
        theirs.step()
        for average in averages:
            average.update()
        if n % 5 == 4:  # evaluated at the average, and back
            with averages[0].average_parameters(), averages[1].average_parameters():
                for z, expected in zip(model.parameters(), reference.parameters(), strict=True):
                    assert torch.equal(z, expected)
    assert noise.step_count == 20
    for z, expected in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(z, expected)
