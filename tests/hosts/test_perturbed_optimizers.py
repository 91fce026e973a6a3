"""perturb under optimizers of other packages: bitwise the explicit z-form; clean where people look.

Averaging and 8-bit optimizers too, which noise in the weights would make silently wrong.
"""

import pytest
import torch
from pytorch_optimizer import Lookahead, ScheduleFreeWrapper
from schedulefree import AdamWScheduleFree, RAdamScheduleFree, SGDScheduleFree
from torch import nn
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


def test_a_lora_base_takes_noise_and_merges_clean():
    from peft import LoraConfig, get_peft_model

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(6, 6)

        def forward(self, x):
            return self.proj(x)

    torch.manual_seed(0)
    model = get_peft_model(Net(), LoraConfig(target_modules=["proj"], r=2, lora_alpha=4))
    base = model.base_model.model.proj.base_layer.weight
    before = base.detach().clone()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.05)
    noise = perturb(model, optimizer, SIGMA, seed=SEED, frozen="*base_layer.weight")
    x = torch.randn(8, 6)
    for _ in range(5):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    assert noise.injected(base).any()
    assert torch.equal(base, before)
    assert base.grad is None
    lora = model.base_model.model.proj
    delta = lora.get_delta_weight("default").detach()
    merged = model.merge_and_unload()
    torch.testing.assert_close(merged.proj.weight.detach(), before + delta)
