"""Rounding by hand, noise of the right size only, fine-tuning as torch does it, known traces."""

import math

import numpy as np
import pytest
import torch

from antipgd.paper.fight import survival
from antipgd.paper.fight.problem import LOSS, Sizes
from antipgd.paper.fight.problems import make
from antipgd.paper.fight.second import turned


class Bowl:
    """L = ½ Σ h w²: a diagonal Hessian, whose traces are known."""

    def __init__(self, layout, h, target=0.0, optimizer="sgd"):
        self.sizes = Sizes("bowl", "", LOSS, 10, 5, 5, 1, lr=0.5, momentum=0.9, optimizer=optimizer)
        self.layout, self.h, self.target = layout, h, target

    def loss(self, w, rows=None):
        return 0.5 * (self.h * (w - self.target) ** 2).sum()

    def gradient(self, w, rows=None):
        return self.h * (w - self.target)

    def score(self, w):
        return {"test_loss": float(self.loss(w))}

    def second_task(self):
        return Bowl(self.layout, self.h, target=1.0)


LAYOUT = [("a.weight", (2, 3)), ("a.bias", (2,))]
WEIGHTS = torch.tensor([1.0, 0.52, -0.26, 7.0, -3.4, 0.4, 0.123, -0.456])


def test_rounding_to_four_bits_by_hand():
    rounded = survival.rounded(Bowl(LAYOUT, torch.ones(8)), WEIGHTS, 4)
    by_hand = torch.tensor([1, 4 / 7, -2 / 7, 7, -3, 0, 0.123, -0.456])
    torch.testing.assert_close(rounded, by_hand)
    one_scale = (WEIGHTS[:6]).round()  # of the whole tensor, 7/7: another thing
    assert not torch.allclose(rounded[:6], one_scale)


@pytest.mark.parametrize("bits", [8, 4])
def test_rounding_is_the_slow_one(bits):
    layout = [("conv.weight", (3, 2, 2)), ("norm.weight", (3,)), ("dead.weight", (1, 2))]
    w = torch.cat([torch.from_numpy(np.random.default_rng(0).normal(size=15)), torch.zeros(2)])
    expected = w.clone()
    for channel in range(3):
        own = range(4 * channel, 4 * channel + 4)
        scale = max(abs(float(w[i])) for i in own) / (2 ** (bits - 1) - 1)
        for i in own:
            expected[i] = round(float(w[i]) / scale) * scale
    found = survival.rounded(Bowl(layout, torch.ones(17)), w, bits)
    torch.testing.assert_close(found, expected)
    assert (found - w).abs().max() > 0


def test_noise_has_its_share_of_each_tensor_and_neither_two_thirds_nor_three_halves():
    layout = [("large.weight", (100, 100)), ("small.weight", (100, 100))]
    w = torch.cat([torch.full((10_000,), 5.0), torch.full((10_000,), 0.01)])
    noise = survival.noised(Bowl(layout, torch.ones(20_000)), w, 0.03, seed=1, draw=1) - w
    for part, rms in zip(noise.split(10_000), (5.0, 0.01), strict=True):
        ratio = float(part.std()) / (0.03 * rms)
        assert abs(ratio - 1) < 0.05
        assert abs(ratio / 1.5 - 1) > 0.05
        assert abs(ratio * 1.5 - 1) > 0.05
        assert abs(float(part.mean())) < 0.05 * 0.03 * rms


def test_draws_of_noise_differ_and_come_again():
    bowl = Bowl(LAYOUT, torch.ones(8))
    first, second, again = (survival.noised(bowl, WEIGHTS, 0.1, 0, draw) for draw in (1, 2, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_fine_tuning_is_torchs_sgd():
    bowl = Bowl(LAYOUT, torch.linspace(0.1, 1, 8), target=1.0)
    w = WEIGHTS.clone().requires_grad_()
    rate = survival.SECOND_RATES["sgd"] * bowl.sizes.lr
    optimizer = torch.optim.SGD([w], lr=rate, momentum=survival.SECOND_MOMENTUM)
    for _ in range(survival.SECOND_STEPS):
        optimizer.zero_grad()
        bowl.loss(w).backward()
        optimizer.step()
    torch.testing.assert_close(survival.fine_tuned(bowl, WEIGHTS, seed=0), w.detach())


def test_columns_of_a_bowl_are_known():
    h = torch.linspace(0.1, 0.8, 8)
    found = survival.survive(Bowl(LAYOUT, h), WEIGHTS, lr=0.1, seed=0)
    matrix, bias = WEIGHTS[:6], WEIGHTS[6:]
    scaled = matrix.square().mean() * h[:6].sum() + bias.square().mean() * h[6:].sum()
    assert found["scaled_trace"] == pytest.approx(float(scaled), rel=1e-5)
    assert found["score"] == pytest.approx(float(0.5 * (h * WEIGHTS**2).sum()))
    assert found["at_limit"] == 0
    assert found["effective_sharpness"] > float(h.sum())
    assert found["second"] < found["second_before"]
    assert found["noise10_sd"] > found["noise1_sd"] > 0
    assert all(math.isfinite(value) for value in found.values())


def test_what_makes_no_sense_is_left_out():
    h = torch.linspace(0.1, 0.8, 8)
    unstable = survival.survive(Bowl(LAYOUT, h), WEIGHTS, lr=10.0, seed=0)
    assert unstable["at_limit"] > 0
    assert "effective_sharpness" not in unstable
    adam = Bowl(LAYOUT, h, optimizer="adamw")
    adam.sizes, second = adam.sizes, adam
    adam.second_task = lambda: second
    assert "effective_sharpness" not in survival.survive(adam, WEIGHTS, lr=0.1, seed=0)


def test_a_classifier_that_has_learnt_nothing_has_no_trace_at_equal_loss():
    digits = make("digits", 5000)
    found = survival.survive(digits, digits.start(), lr=0.05, seed=5000)
    assert "scaled_trace" not in found
    assert 0 <= found["int4"] <= 1


def test_turned_images_have_other_labels():
    images = torch.arange(8.0).view(2, 1, 2, 2)
    after, labels = turned(images, torch.tensor([0, 9]), 10)
    assert after[0, 0].tolist() == [[1, 3], [0, 2]]
    assert labels.tolist() == [1, 0]
