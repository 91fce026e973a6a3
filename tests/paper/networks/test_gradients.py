"""Gradients of smoothed losses, against derivatives of the losses written out."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from antipgd.noise import draws
from antipgd.paper.networks.examples import epoch_order, make_examples
from antipgd.paper.networks.gradients import (
    backward,
    micro_batches,
    trace_penalty_backward,
    two_point_backward,
)
from antipgd.paper.networks.losses import LOSSES
from antipgd.paper.networks.models import make_network
from antipgd.paper.networks.ranks import Ranks
from antipgd.paper.networks.spec import make_training
from antipgd.paper.networks.train import train


def spec(method, model="mlp", **changes):
    values = {"batch": 50, "epochs": 2, "seed": 0, "images": 200, "width": 3, "sigma": 0.05}
    return make_training("digits", model, method, **(values | changes))


def some(count=12, width=2):
    images, labels = make_examples(spec("gd")).train
    model = make_network("mlp", width, (1, 8, 8), 10, 0).double()
    return model, (images[:count].double(), labels[:count])


def signs(model, seed=0):
    return [(name, torch.from_numpy(draws(seed, name, 1, 0, p.numel(), "rademacher"))
             .view(p.shape).double()) for name, p in model.named_parameters()]  # fmt: skip


def flat(tensors):
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


@pytest.fixture
def smooth(monkeypatch):
    """Without kinks, so that third derivatives are everywhere."""
    monkeypatch.setattr("antipgd.paper.networks.models.relu", lambda x, inplace=False: x.tanh())


@pytest.mark.usefixtures("smooth")
@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("micro", [None, 4])
def test_the_penalty_is_half_the_variance_times_the_curvature_along_the_probe(kind, micro):
    model, batch = some()
    v, sigma = signs(model), 0.3
    loss, _ = trace_penalty_backward(
        model, micro_batches(batch, micro), sigma, Ranks(), draw=lambda: v, loss=kind
    )
    weights = {name: p.detach() for name, p in model.named_parameters()}
    shapes = [(name, p.shape, p.numel()) for name, p in weights.items()]

    def value(w):
        parts = w.split([count for *_, count in shapes])
        named = {name: part.view(shape) for (name, shape, _), part in
                 zip(shapes, parts, strict=True)}  # fmt: skip
        return LOSSES[kind](torch.func.functional_call(model, named, (batch[0],)), batch[1])

    w, probe = flat(weights.values()), flat([x for _, x in v])
    assert loss == pytest.approx(float(value(w)), rel=1e-5)

    # ∇(vᵀHv) = d²/dt² ∇L(w + t v), by a difference
    step, gradient = 1e-4, torch.func.grad(value)
    second = (gradient(w + step * probe) - 2 * gradient(w) + gradient(w - step * probe)) / step**2
    expected = gradient(w) + sigma**2 / 2 * second
    found = flat([p.grad for p in model.parameters()])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    assert float((sigma**2 / 2 * second).norm()) > 0.05 * float(gradient(w).norm())


def test_two_points_are_the_mean_of_both_gradients():
    model, batch = some()
    xi = signs(model)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    parts, found = micro_batches(batch, 4), {}
    loss, right = two_point_backward(model, parts, 0.1, Ranks(), draw=lambda: xi)
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        assert torch.equal(p.detach(), start[name])
    total, losses, rights = None, [], []
    for sign in (1, -1):
        other = make_network("mlp", 2, (1, 8, 8), 10, 0).double()
        with torch.no_grad():
            for name, x in xi:
                other.get_parameter(name).add_(sign * 0.1 * x)
        value, count = backward(other, [batch], Ranks())
        losses.append(value)
        rights.append(count)
        own = flat([p.grad for p in other.parameters()])
        total = own if total is None else total + own
    torch.testing.assert_close(flat(found.values()), total / 2, rtol=1e-5, atol=1e-7)
    assert loss == pytest.approx(np.mean(losses), rel=1e-6)
    assert right == sum(rights) // 2


def test_two_points_keep_the_statistics_of_one_pass_and_excluded_weights_stay():
    images, labels = (tensor[:12] for tensor in make_examples(spec("gd")).train)
    model, plain = (make_network("cnn", 3, (1, 8, 8), 10, 0) for _ in range(2))
    xi = [(name, x.float()) for name, x in signs(model) if not name.startswith("bn")]
    two_point_backward(model, [(images, labels)], 0.1, Ranks(), draw=lambda: xi)
    with torch.no_grad():
        for name, x in xi:
            plain.get_parameter(name).add_(x, alpha=0.1)
    backward(plain, [(images, labels)], Ranks())
    assert torch.equal(model.bn1.running_var, plain.bn1.running_var)
    assert int(model.bn1.num_batches_tracked) == 1
    assert model.bn1.weight.grad is not None


@pytest.mark.parametrize("method", ["two_point", "trace_penalty"])
@pytest.mark.parametrize("noise_start", [0, 1])
def test_a_training_draws_by_the_steps_since_the_noise_began(method, noise_start, tmp_path):
    run = spec(method, noise_start=noise_start, momentum=0.0)
    train(run, tmp_path)
    examples = make_examples(run)
    model = make_network("mlp", 3, examples.shape, 10, 0)
    optimizer, law = torch.optim.SGD(model.parameters(), lr=0.05), run.law or "rademacher"
    n = 0
    for epoch in (1, 2):
        for rows in epoch_order(0, epoch, 200).reshape(-1, 50):
            batch = examples.train[0][rows], examples.train[1][rows]
            if epoch > noise_start:
                n += 1
                xi = [(name, torch.from_numpy(draws(0, name, n, 0, p.numel(), law)).view(p.shape))
                      for name, p in model.named_parameters()]  # fmt: skip
                gradient = two_point_backward if method == "two_point" else trace_penalty_backward
                gradient(model, [batch], 0.05, Ranks(), draw=lambda xi=xi: xi)
            else:
                model.zero_grad()
                cross_entropy(model(batch[0]), batch[1]).backward()
            optimizer.step()
    found = torch.load(tmp_path / run.name / "clean-at-end.pt", weights_only=True)
    for name, p in model.named_parameters():
        torch.testing.assert_close(found[name], p.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_the_penalty_can_be_derived_through_every_norm(norm):
    record = train(spec("trace_penalty", "resnet18", width=2, norm=norm, epochs=1, sigma=0.005))
    assert record.status == "ok"
