"""Flatness of a perturbed model is that of its clean weights, whatever mode it is in."""

import pytest
import torch
from torch import nn

from antipgd.flatness import expected_sharpness, hessian_trace, monitor
from antipgd.torch import attach, perturb


def trained(how, steps=6):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.05)
    if how == "perturb":
        noise = perturb(model, optimizer, 0.05, seed=3)
    else:
        noise = attach(optimizer, 0.05, seed=3, model=model)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(16, 4, generator=generator, dtype=torch.float64)
    batches = [(x, x[:, :1].sin())]

    def loss(batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    readings = []
    watch = monitor(noise, loss, model, batches, every=2, callback=readings.append)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(batches[0]).backward()
        optimizer.step()
    watch.stop()
    return model, (noise, optimizer), loss, batches, readings


def test_readings_are_those_of_the_other_form():
    *_, mine = trained("perturb")
    *_, theirs = trained("attach")
    assert len(mine) == 3
    for a, b in zip(mine, theirs, strict=True):
        for name, value in b.metrics().items():
            assert a.metrics()[name] == pytest.approx(value, rel=1e-9), name


def test_a_trace_is_that_of_the_clean_weights():
    model, (noise, _optimizer), loss, batches, _ = trained("perturb")
    assert noise.injected(model[0].weight).any()
    model.train()
    noisy = loss(batches[0])
    in_training = hessian_trace(loss, model, batches, method="exact")
    assert torch.equal(loss(batches[0]), noisy)  # the noise is back
    noise.stop()
    assert in_training.mean == hessian_trace(loss, model, batches, method="exact").mean
    assert not torch.equal(loss(batches[0]), noisy)


class Adapted(nn.Module):
    """A frozen base, and what is trained beside it and behind it."""

    def __init__(self):
        super().__init__()
        self.base, self.adapter = nn.Linear(4, 6), nn.Linear(4, 6, bias=False)
        self.head = nn.Linear(6, 1)
        self.base.requires_grad_(False)

    def forward(self, x):
        return self.head(torch.tanh(self.base(x) + self.adapter(x)))


@pytest.mark.parametrize(
    ("settings", "measured"),
    [
        ({"exclude": "head.*"}, lambda model: model.head),
        ({"exclude": "head.*"}, lambda model: [model.head.weight]),
        ({"exclude": ["adapter.*", "head.*"], "frozen": "base.*"}, lambda model: model),
    ],
)
def test_noise_on_other_tensors_of_the_model_is_off_as_well(settings, measured):
    torch.manual_seed(0)
    model = Adapted().double().train()
    x = torch.randn(16, 4, dtype=torch.float64)
    batches = [(x, x[:, :1].sin())]
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)

    def loss(batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    noise = perturb(model, optimizer, 0.1, seed=3, **settings)
    loss(batches[0]).backward()
    optimizer.step()
    with noise.off():
        clean = loss(batches[0]).item()
    found = hessian_trace(loss, measured(model), batches, method="exact")
    sharp = expected_sharpness(loss, measured(model), batches, 0.01, draws=4)
    assert sharp.loss == pytest.approx(clean, rel=1e-12)
    assert loss(batches[0]).item() != pytest.approx(clean, rel=1e-3)
    noise.stop()
    assert found.mean == hessian_trace(loss, measured(model), batches, method="exact").mean
