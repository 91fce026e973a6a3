"""The networks, against a second derivation: convolutions as matrix products, norms by hand."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy, unfold

from antipgd.paper.networks.models import make_network

CASES = [("resnet18", 4, (3, 16, 16)), ("cnn", 6, (1, 8, 8)), ("mlp", 12, (1, 8, 8))]


def network(model, width, shape, classes=10, seed=0):
    return make_network(model, width, shape, classes, seed)


@pytest.mark.parametrize(("width", "count"), [(64, 11_173_962), (8, 176_402)])
def test_resnet18_has_as_many_parameters_as_published(width, count):
    assert sum(p.numel() for p in network("resnet18", width, (3, 32, 32)).parameters()) == count


def resnet_size(w, channels, classes):
    """Convolutions 3×3 and 1×1, two numbers per normalised channel, the linear layer."""
    total = 9 * channels * w + 2 * w
    before = w
    for now in (w, 2 * w, 4 * w, 8 * w):
        total += 9 * now * (before + 3 * now) + 4 * 2 * now
        total += (before * now + 2 * now) if before != now else 0
        before = now
    return total + 8 * w * classes + classes


@pytest.mark.parametrize(
    ("model", "width", "shape", "classes", "count"),
    [
        ("resnet18", 8, (3, 32, 32), 10, resnet_size(8, 3, 10)),
        ("resnet18", 5, (1, 8, 8), 7, resnet_size(5, 1, 7)),
        ("cnn", 6, (1, 8, 8), 10, 9 * 6 + 12 + 9 * 6 * 12 + 24 + 12 * 10 + 10),
        ("mlp", 12, (1, 8, 8), 10, 65 * 12 + 13 * 12 + 13 * 10),
    ],
)
def test_sizes_and_shapes(model, width, shape, classes, count):
    made = network(model, width, shape, classes)
    assert sum(p.numel() for p in made.parameters()) == count
    assert made(torch.randn(3, *shape)).shape == (3, classes)


def convolution(x, w, stride=1):
    """By patches and a matrix product."""
    k = w.shape[-1]
    patches = unfold(x, k, padding=k // 2, stride=stride)
    side = math.ceil(x.shape[-1] / stride)
    return (w.flatten(1) @ patches).reshape(len(x), len(w), side, side)


def batch_norm(x, scale, shift):
    mean = x.mean((0, 2, 3), keepdim=True)
    var = ((x - mean) ** 2).mean((0, 2, 3), keepdim=True)
    return scale[:, None, None] * (x - mean) / (var + 1e-5).sqrt() + shift[:, None, None]


def again(model, weights, x):
    """What the network should compute in training, from its weights alone."""
    w = iter(weights)

    def conv_norm(x, stride=1):
        return batch_norm(convolution(x, next(w), stride), next(w), next(w))

    if model == "mlp":
        x = x.reshape(len(x), -1)
        for _ in range(2):
            x = (x @ next(w).T + next(w)).clamp(min=0)
    elif model == "cnn":
        x = conv_norm(conv_norm(x).clamp(min=0), 2).clamp(min=0).mean((2, 3))
    else:
        x = conv_norm(x).clamp(min=0)
        for stride in (1, 1, 2, 1, 2, 1, 2, 1):
            inner = conv_norm(conv_norm(x, stride).clamp(min=0))
            x = (inner + (x if stride == 1 else conv_norm(x, stride))).clamp(min=0)
        x = x.mean((2, 3))
    return x @ next(w).T + next(w)


@pytest.mark.parametrize(("model", "width", "shape"), CASES)
def test_one_training_step_agrees_with_a_second_derivation(model, width, shape):
    made = network(model, width, shape).double()
    x = torch.randn(6, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = torch.tensor([0, 1, 2, 3, 4, 9])
    start = [p.detach().clone().requires_grad_() for p in made.parameters()]
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    cross_entropy(made(x), y).backward()
    assert all(p.grad is not None and p.grad.any() for p in made.parameters())
    optimizer.step()

    outputs = again(model, start, x)
    loss = (outputs.logsumexp(1) - outputs[torch.arange(6), y]).mean()
    gradients = torch.autograd.grad(loss, start)
    for new, old, g in zip(made.parameters(), start, gradients, strict=True):
        torch.testing.assert_close(new, old - 0.1 * g, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("model", "width", "shape"), CASES)
def test_weights_are_a_function_of_the_seed(model, width, shape):
    before = torch.get_rng_state()
    one, same, other = (network(model, width, shape, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    for a, b in zip(one.state_dict().values(), same.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(one.linear.weight, other.linear.weight)


def test_weights_are_distributed_as_torch_does_it():
    made = network("resnet18", 16, (3, 16, 16))
    usual = torch.nn.Conv2d(128, 128, 3, bias=False).weight.detach()
    drawn = made.blocks[7].conv1.weight.detach()
    bound = 1 / math.sqrt(9 * 128)
    assert drawn.abs().max() <= bound
    assert drawn.abs().max() > 0.999 * bound
    assert float(drawn.std()) == pytest.approx(float(usual.std()), rel=0.02)
    assert abs(float(drawn.mean())) < 4 * bound / math.sqrt(drawn.numel())
    assert made.bn1.weight.eq(1).all()
    assert made.bn1.running_var.eq(1).all()
    names = {name: p.flatten()[:9] for name, p in made.named_parameters() if p.dim() == 4}
    firsts = [tuple(p.div(p.abs().max()).tolist()) for p in names.values()]
    assert len(set(firsts)) == len(firsts)  # no two layers share draws
