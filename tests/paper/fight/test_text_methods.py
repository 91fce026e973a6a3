"""Muon is torch's, NEFTune's noise has its size, six methods are there."""

import math
from types import SimpleNamespace

import pytest
import torch

from antipgd.paper.fight.contestant import built_in, contestant
from antipgd.paper.fight.methods import muon, neftune
from antipgd.paper.fight.six import IMAGES, TEXT


class Corner:
    """What a bout is to these two methods: gradients that are given, AdamW that stands still."""

    value, lr, n, noisy, rows = 2.0, 0.01, 1, True, torch.arange(3)

    def __init__(self, gradients=(), embedded=(40, 50)):
        self.state, self.gradients = {}, list(gradients)
        self.problem = SimpleNamespace(embedded=embedded)
        self.how = {}

    def gradient(self, at, **how):
        self.how = how
        return self.gradients.pop(0) if self.gradients else torch.zeros_like(at)

    def descend(self, w, g):
        return w.clone()

    def draw(self, n):
        return torch.randn(6000, generator=torch.Generator().manual_seed(n))

    def tensors(self, flat):
        return {"head.weight": flat[:12].view(3, 4), "layers.0.out.weight": flat[12:].view(6, 4)}


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_is_torchs_but_for_its_half_precision():
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(36, generator=generator) for _ in range(3)]
    w = torch.randn(36, generator=generator)
    theirs = w[12:].view(6, 4).clone().requires_grad_()
    optimizer = torch.optim.Muon(
        [theirs], lr=2.0 * 0.01, momentum=muon.MOMENTUM, weight_decay=muon.DECAY,
        adjust_lr_fn="match_rms_adamw",
    )  # fmt: skip
    bout, ours = Corner(gradients), w
    for gradient in gradients:
        ours = muon.step(bout, ours)
        theirs.grad = gradient[12:].view(6, 4).clone()
        optimizer.step()
    moved = (theirs.detach().reshape(-1) - w[12:]).norm()
    assert (ours[12:] - theirs.detach().reshape(-1)).norm() < 0.02 * moved
    assert torch.equal(ours[:12], w[:12])  # the head is the base's


def test_neftune_is_uniform_and_of_its_size():
    bout = Corner()
    neftune.step(bout, torch.zeros(36))
    noise = bout.how["embedding_noise"]
    most = 2.0 / math.sqrt(40 * 50)
    assert noise.shape == (3, 40, 50)
    assert float(noise.abs().max()) <= most
    ratio = float(noise.std()) / (most / math.sqrt(3))
    assert abs(ratio - 1) < 0.05
    assert abs(ratio * 1.5 - 1) > 0.05
    assert abs(ratio / 1.5 - 1) > 0.05


def test_neftune_ends_with_the_noise():
    bout = Corner()
    bout.noisy = False
    neftune.step(bout, torch.zeros(36))
    assert bout.how == {}


@pytest.mark.parametrize("six", [IMAGES, TEXT])
def test_six_are_contestants(six):
    texts = built_in()
    assert len(set(six)) == 6
    assert all(contestant(name, texts[name]).name == name for name in six)
