"""The two losses, against sums written out, and what they are of outputs that say nothing."""

import math

import pytest
import torch

from antipgd.paper.networks.accepted import loss_at_zero
from antipgd.paper.networks.evaluate import loss_and_accuracy
from antipgd.paper.networks.losses import LOSSES

OUTPUTS = torch.tensor([[0.5, -1.0, 2.0], [0.0, 0.25, 0.0]], dtype=torch.float64)
LABELS = torch.tensor([2, 0])


def test_the_squared_loss_is_half_the_squared_distance_to_the_label():
    by_hand = [(0.25 + 1 + 1) / 2, (1 + 0.0625) / 2]
    assert float(LOSSES["squared"](OUTPUTS, LABELS)) == pytest.approx(sum(by_hand) / 2)
    summed = LOSSES["squared"](OUTPUTS, LABELS, reduction="sum")
    assert float(summed) == pytest.approx(sum(by_hand))
    assert summed.dtype == torch.float64


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("classes", [2, 10])
def test_the_loss_of_outputs_that_are_zero(name, classes):
    labels = torch.arange(7) % classes
    zero = LOSSES[name](torch.zeros(7, classes, dtype=torch.float64), labels)
    assert float(zero) == pytest.approx(loss_at_zero(name, classes), rel=1e-12)
    assert loss_at_zero("cross_entropy", 10) == pytest.approx(math.log(10))


@pytest.mark.parametrize("name", LOSSES)
def test_it_is_measured_over_chunks_as_over_all(name):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(1203, 1, 2, 2, generator=generator), torch.arange(1203) % 3
    with torch.no_grad():
        outputs = model(images).double()
    found, right = loss_and_accuracy(model, (images, labels), loss=name)
    assert found == pytest.approx(float(LOSSES[name](outputs, labels)), rel=1e-5)
    assert right == pytest.approx(float((outputs.argmax(1) == labels).double().mean()))
