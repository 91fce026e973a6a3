"""The networks, against a second derivation: convolutions as matrix products, norms by hand."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy, relu, unfold

from antipgd.paper.networks.models import groups_of, make_network

CASES = [("resnet18", 4, (3, 16, 16)), ("cnn", 6, (1, 8, 8)), ("lenet", 4, (1, 8, 8)),
         ("lenet", 3, (2, 9, 9)), ("mlp", 12, (1, 8, 8))]  # fmt: skip


def network(model, width, shape, classes=10, seed=0, norm="batch"):
    return make_network(model, width, shape, classes, seed, norm)


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
        ("lenet", 4, (1, 8, 8), 10, 36 + 8 + 36 * 8 + 16 + 33 * 16 + 17 * 10),
        ("lenet", 3, (2, 9, 13), 7, 54 + 6 + 27 * 6 + 12 + (6 * 3 * 4 + 1) * 12 + 13 * 7),
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


def group_norm(x, scale, shift):
    """Groups of neighbouring channels, as many as `GROUPS` says, one after another."""
    parts = []
    for part in x.chunk(GROUPS[x.shape[1]], 1):
        mean = part.mean((1, 2, 3), keepdim=True)
        var = ((part - mean) ** 2).mean((1, 2, 3), keepdim=True)
        parts.append((part - mean) / (var + 1e-5).sqrt())
    return scale[:, None, None] * torch.cat(parts, 1) + shift[:, None, None]


def again(model, weights, x, norm="batch"):
    """What the network should compute in training, from its weights alone."""
    w = iter(weights)

    def conv_norm(x, stride=1):
        x = convolution(x, next(w), stride)
        if norm == "none":
            return x + next(w)[:, None, None]
        return {"batch": batch_norm, "group": group_norm}[norm](x, next(w), next(w))

    if model == "mlp":
        x = x.reshape(len(x), -1)
        for _ in range(2):
            x = (x @ next(w).T + next(w)).clamp(min=0)
    elif model == "lenet":
        x = conv_norm(conv_norm(x, 2).clamp(min=0), 2).clamp(min=0)
        x = (x.reshape(len(x), -1) @ next(w).T + next(w)).clamp(min=0)
    elif model == "cnn":
        x = conv_norm(conv_norm(x).clamp(min=0), 2).clamp(min=0).mean((2, 3))
    else:
        x = conv_norm(x).clamp(min=0)
        for stride in (1, 1, 2, 1, 2, 1, 2, 1):
            inner = conv_norm(conv_norm(x, stride).clamp(min=0))
            x = (inner + (x if stride == 1 else conv_norm(x, stride))).clamp(min=0)
        x = x.mean((2, 3))
    return x @ next(w).T + next(w)


GROUPS = {1: 1, 2: 1, 3: 1, 4: 2, 5: 1, 6: 3, 8: 4, 12: 6, 16: 8, 24: 8, 32: 8, 36: 6, 64: 8}


def test_groups_divide_the_channels_and_none_is_a_channel_alone():
    assert {channels: groups_of(channels) for channels in GROUPS} == GROUPS
    for channels in range(2, 600):
        groups = groups_of(channels)
        assert channels % groups == 0
        assert channels // groups >= 2
        assert not any(channels % more == 0 and channels // more >= 2
                       for more in range(groups + 1, 9))  # fmt: skip


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize(("model", "width", "shape"), CASES)
def test_one_training_step_agrees_with_a_second_derivation(model, width, shape, norm):
    made = network(model, width, shape, norm=norm).double()
    for p in made.parameters():  # what begins at zero would hide the others
        if not p.detach().any():
            torch.nn.init.uniform_(p, -0.1, 0.1, generator=torch.Generator().manual_seed(4))
    x = torch.randn(6, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = torch.tensor([0, 1, 2, 3, 4, 9])
    start = [p.detach().clone().requires_grad_() for p in made.parameters()]
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    cross_entropy(made(x), y).backward()
    assert all(p.grad is not None and p.grad.any() for p in made.parameters())
    optimizer.step()

    outputs = again(model, start, x, norm)
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


def test_without_norms_the_scale_is_kept_through_all_blocks():
    """And torch's own bounds, which norms repair, would lose it: that is what He's are for."""
    x = torch.randn(64, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    kept = {}
    for norm in ("none", "batch"):
        made = network("resnet18", 16, (3, 16, 16), norm="none")
        if norm == "batch":
            made.load_state_dict(network("resnet18", 16, (3, 16, 16)).state_dict(), strict=False)
        with torch.no_grad():
            first = relu(made.conv1(x))
            kept[norm] = float(made.blocks(first).square().mean() / x.square().mean())
    assert 0.3 < kept["none"] < 8
    assert kept["batch"] < 0.05


def test_without_norms_convolutions_have_biases_and_the_bounds_of_he():
    made = network("resnet18", 16, (3, 16, 16), norm="none")
    blocks = made.blocks
    bound = math.sqrt(6) / math.sqrt(9 * 128)
    assert float(blocks[7].conv1.weight.detach().abs().max()) == pytest.approx(bound, rel=1e-3)
    for zero in (
        blocks[7].conv2.weight,
        blocks[7].conv1.bias,
        made.linear.weight,
        made.linear.bias,
    ):
        assert not zero.detach().any()
    assert all(block.conv1.weight.detach().any() for block in blocks)


def test_without_norms_only_the_last_layer_of_a_lenet_begins_at_zero():
    made = network("lenet", 8, (1, 8, 8), norm="none")
    bounds = {"conv1": 9, "conv2": 9 * 8, "hidden": 16 * 4}
    for name, inputs in bounds.items():
        layer = getattr(made, name)
        largest = float(layer.weight.detach().abs().max())
        assert largest == pytest.approx(math.sqrt(6 / inputs), rel=0.05), name
        assert not layer.bias.detach().any()
    assert not made.linear.weight.detach().any()
    normed = network("lenet", 8, (1, 8, 8))
    assert float(normed.hidden.weight.detach().abs().max()) == pytest.approx(1 / 8, rel=0.05)
    assert normed.linear.weight.detach().any()


@pytest.mark.parametrize(("norm", "width"), [("group", 1), ("group", 2), ("group", 3), ("none", 2),
                                             ("none", 3)])  # fmt: skip
def test_narrow_networks_see_their_images(norm, width):
    """Also where the last stage is a single pixel."""
    made = network("resnet18", width, (1, 8, 8), norm=norm)
    if norm == "none":  # whose last layer begins at zero
        torch.nn.init.ones_(made.linear.weight)
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    outputs = made(x).detach()
    assert float((outputs - outputs.mean(0)).abs().max()) > 1e-3
