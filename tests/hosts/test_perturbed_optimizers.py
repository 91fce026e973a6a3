"""perturb under optimizers of other packages: bitwise the explicit z-form; clean where people look.

Averaging and 8-bit optimizers too, which noise in the weights would make silently wrong.
"""

import pytest
import torch
from pytorch_optimizer import Lookahead, ScheduleFreeWrapper
from schedulefree import AdamWScheduleFree, RAdamScheduleFree, SGDScheduleFree
from torchao.optim import AdamW8bit

from antipgd.torch import perturb
from explicit_model import explicit_gradients, make, perturbed_gradients
from matrix import cell

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


HOST = {
    "8-bit AdamW": "torchao", "Lookahead": "pytorch_optimizer",
    "ScheduleFreeWrapper": "pytorch_optimizer",
}  # fmt: skip
KINDS = [
    pytest.param(kind, marks=cell(HOST.get(kind, "schedulefree"), "weights")) for kind in OPTIMIZERS
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
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
