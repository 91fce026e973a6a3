"""Derivatives that are not those of the loss are told; others, in any precision, are not."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, log_softmax, mse_loss

from antipgd.flatness import at, expected_sharpness, hessian_trace, top_eigenvalues

weight_norm = nn.utils.parametrizations.weight_norm
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def data(dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 10, generator=generator).to(dtype)
    return x, x[:, :3].argmax(1)


def relu():
    return nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(),
                         nn.Linear(24, 3))  # fmt: skip


def normed():
    return nn.Sequential(nn.Linear(10, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3))


def convolution():
    return nn.Sequential(nn.Unflatten(1, (1, 10)), nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.GELU(),
                         nn.MaxPool1d(2), nn.Flatten(), nn.Linear(16, 3)).eval()  # fmt: skip


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.embed, self.encoder = nn.Linear(2, 8), nn.TransformerEncoder(layer, 1)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.encoder(self.embed(x.reshape(-1, 5, 2))).mean(1))


class Gated(nn.Module):
    """The scale of its weights apart, written in plain operations."""

    def __init__(self):
        super().__init__()
        self.length, self.v = nn.Parameter(torch.rand(3, 1) + 0.5), nn.Parameter(torch.randn(3, 10))

    def forward(self, x):
        return x @ (self.length * self.v / self.v.norm(dim=1, keepdim=True)).T


def trained(make, dtype, steps):
    torch.manual_seed(0)
    model, (x, y) = make().to(dtype), data(dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return model, (lambda batch: cross_entropy(model(batch[0]), batch[1])), [(x, y)]


@BOTH
@pytest.mark.parametrize("steps", [0, 300])
@pytest.mark.parametrize("make", [relu, normed, convolution, Transformer, Gated])
def test_true_derivatives_are_not_warned_of(make, steps, dtype):
    model, loss, batches = trained(make, dtype, steps)
    hessian_trace(loss, model, batches, max_probes=48)  # where warnings are errors
    last = list(model.parameters())[-2:]
    for _ in range(3):  # far beyond what is resolved: a loss of zero
        with torch.no_grad():
            for p in last:
                p.mul_(3)
        hessian_trace(loss, model, batches, max_probes=48)


@pytest.mark.parametrize("make", [relu, normed, Transformer])
@pytest.mark.parametrize("steps", [0, 300])
def test_half_precision_inside_is_not_warned_of(make, steps):
    model, _, batches = trained(make, torch.float32, steps)

    def loss(batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return cross_entropy(model(batch[0]).float(), batch[1])

    hessian_trace(loss, model, batches, max_probes=48)


@BOTH
def test_a_minimum_found_to_the_last_bit_is_not_warned_of(dtype):
    x, _ = data(dtype)
    y = x @ torch.ones(10, 2, dtype=dtype) + 0.1 * torch.randn(60, 2).to(dtype)
    w = torch.linalg.lstsq(x, y).solution
    hessian_trace(lambda b: mse_loss(b[0] @ w, b[1]), [w], [(x, y)])
    hessian_trace(lambda b: ((b[0] @ w - b[1]) ** 4).mean() + 7, [w], [(x, y)])


def test_a_loss_that_does_not_exist_beside_the_weights_is_measured():
    w = torch.tensor([3.0, 0.006], dtype=torch.float64)
    x = torch.tensor([3.1, 2.9], dtype=torch.float64)
    found = hessian_trace(lambda: -torch.distributions.Normal(w[0], w[1]).log_prob(x).mean(), [w])
    by_hand = 1 / w[1] ** 2 + (-1 / w[1] ** 2 + 3 * (0.1**2) / w[1] ** 4)
    assert found.mean == pytest.approx(float(by_hand))


def test_the_look_keeps_to_the_memory_that_is_given():
    layer = weight_norm(nn.Linear(3, 4))
    x, y = torch.randn(50, 3), torch.randn(50, 4)

    def loss(batch):
        return mse_loss(layer(batch[0]), batch[1])

    with pytest.warns(UserWarning, match="not symmetric"):
        hessian_trace(loss, layer, [(x, y)], method="hutchinson", max_probes=32)
    few = 2 * 3 * 20 * 12 - 1  # bytes of rows and images, in double too
    hessian_trace(loss, layer, [(x, y)], method="hutchinson", max_probes=32, memory=few)


def test_a_loss_that_differentiates_is_measured():
    w = torch.randn(6, generator=torch.Generator().manual_seed(0)).double()

    def loss():
        value = (w**3).sum()
        return torch.autograd.grad(value, w, create_graph=True)[0].square().sum()

    assert hessian_trace(loss, [w]).mean == pytest.approx(float((108 * w**2).sum()))


@BOTH
def test_a_wrong_second_derivative_is_warned_of(dtype):
    """That of torch's weight_norm is; the same in plain operations is right (above)."""
    torch.manual_seed(0)
    model, batches = weight_norm(nn.Linear(10, 3)).to(dtype), [data(dtype)]
    x, y = batches[0]

    def loss(batch):
        return cross_entropy(model(batch[0]), batch[1])

    here = at(loss, model, batches)
    with pytest.warns(UserWarning, match=r"is not symmetric: u·Hv is .* weight_norm") as told:
        found = here.trace(method="exact")
    assert told[0].filename == __file__
    here.trace(method="exact")  # once for each place

    def plain(bias, length, v):
        return cross_entropy(x @ (length * v / v.norm(dim=1, keepdim=True)).T + bias, y)

    parts = [p.detach() for p in model.parameters()]
    blocks = torch.autograd.functional.hessian(plain, tuple(parts))
    exact = sum(float(blocks[i][i].reshape(p.numel(), -1).trace()) for i, p in enumerate(parts))
    assert found.mean != pytest.approx(exact, rel=0.02)


@BOTH
@pytest.mark.parametrize("steps", [0, 30])
def test_a_gradient_that_is_not_the_losss_is_warned_of(dtype, steps):
    model, _, batches = trained(relu, dtype, steps)

    def focal(batch):
        chance = log_softmax(model(batch[0]), 1).gather(1, batch[1][:, None])
        return -(((1 - chance.exp()) ** 2).detach() * chance).mean()

    with pytest.warns(UserWarning, match=r"the gradient is not that of the loss: .* detached"):
        top_eigenvalues(focal, model, batches)
    expected_sharpness(focal, model, batches, 0.01, draws=4)  # by values alone, which are right


def test_what_cannot_be_looked_at_twice_is_not_warned_of():
    """Of a loss that cannot be computed in double precision nothing is sure."""
    torch.manual_seed(0)
    model, (x, y) = weight_norm(nn.Linear(10, 3)), data(torch.float32)
    assert hessian_trace(lambda: cross_entropy(model(x), y), model).mean > 0
