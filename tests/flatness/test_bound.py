"""The bound of a small classifier against the formula written out in NumPy."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from antipgd.flatness import pac_bayes_bound
from antipgd.flatness.probes import SHARPNESS, Probes

GRIDS = {"s_grid": [0.1, 0.5, 2.0], "lambda_grid": [5.0, 50.0, 500.0], "delta": 0.1}
FEW = GRIDS | {"draws": 20}


def classifier(dtype=torch.float64, bias=True):
    """40 points on either side of a plane, a tenth of them mislabelled."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(3, 1, bias=bias).to(dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    x = torch.randn(40, 3, generator=generator).to(dtype)
    y = torch.sign(x[:, 0] + 0.2)
    y[::10] *= -1

    def losses(batch):
        return (model(batch[0])[:, 0] * batch[1] <= 0).float()

    return losses, model, [(x[:7], y[:7]), (x[7:], y[7:])]


def by_hand(w, prior, batches, draws, printed=False):
    """min over the grids of mean + Hoeffding + λ/8n + (KL + ln(1/0.9δ) + ln|grids|)/λ."""
    x, y = (torch.cat(parts).double().numpy() for parts in zip(*batches, strict=True))
    n, count, delta = len(x), len(draws), GRIDS["delta"]
    widths, lams = GRIDS["s_grid"], GRIDS["lambda_grid"]
    totals = []
    for s in widths:
        moved = w + s * draws
        margins = (moved[:, :3] @ x.T + moved[:, 3:]) * y
        mean = (margins <= 0).mean()
        cost = math.sqrt(math.log(len(widths) / (0.1 * delta)) / (2 * count))
        kl = ((w - prior) ** 2).sum() / (2 * s**2)
        for lam in lams:
            rest = kl + math.log(1 / (0.9 * delta)) + math.log(len(widths) * len(lams))
            totals.append(mean + cost + lam / ((2 if printed else 8) * n) + rest / lam)
    return min(totals)


@pytest.mark.parametrize("printed", [False, True])
def test_it_equals_the_formula_in_numpy(printed):
    losses, model, batches = classifier()
    w = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()
    device = torch.device("cpu")
    draws = Probes(3, ["weight", "bias"], [3, 1], torch.float64, device, "gaussian")
    draws = draws.rows(SHARPNESS, 0, 70).numpy()
    for prior in (np.zeros(4), np.array([0.5, -1.0, 2.0, 0.1])):
        bound = pac_bayes_bound(
            losses, model, batches, torch.from_numpy(prior), draws=70, seed=3, printed=printed,
            **GRIDS,
        )  # fmt: skip
        exact = by_hand(w, prior, batches, draws, printed)
        assert bound.total == pytest.approx(exact, rel=1e-12)
        assert bound.total != pytest.approx(by_hand(w, prior, batches, draws, not printed))
        assert bound.kl == pytest.approx(((w - prior) ** 2).sum() / (2 * bound.s**2))


def test_the_prior_in_all_its_forms():
    losses, model, batches = classifier()
    other = nn.Linear(3, 1).double()
    flat = torch.cat([p.detach().reshape(-1) for p in other.parameters()])
    forms = [
        flat, other, other.state_dict(), list(other.parameters()), other.parameters(),
        {"module.bias": other.bias, "module.weight": other.weight, "running": torch.ones(2)},
    ]  # fmt: skip
    kls = [pac_bayes_bound(losses, model, batches, prior, **FEW).kl for prior in forms]
    assert kls == [kls[0]] * len(forms)
    zero = pac_bayes_bound(losses, model, batches, 0, **FEW)
    assert zero == pac_bayes_bound(losses, model, batches, torch.zeros(4), **FEW)


def test_examples_count_alike_however_they_are_batched():
    losses, model, batches = classifier()
    joined = [tuple(torch.cat(parts) for parts in zip(*batches, strict=True))]
    one, other = (
        pac_bayes_bound(losses, model, data, 0, memory=memory, **FEW)
        for data, memory in [(batches, 2**30), (joined, 100)]
    )
    assert one.total == pytest.approx(other.total, rel=1e-12)
    without = pac_bayes_bound(lambda: losses(joined[0]), model, None, 0, **FEW)
    assert without.total == pytest.approx(other.total, rel=1e-12)


def test_more_draws_cost_less_and_single_precision_will_do():
    made = classifier(torch.float32)
    few, many = (pac_bayes_bound(*made, 0, draws=draws, **GRIDS) for draws in (20, 320))
    assert few.sampling == pytest.approx(4 * many.sampling)
    double = pac_bayes_bound(*made, 0, draws=320, float64=True, **GRIDS)
    assert double.total == pytest.approx(many.total, abs=1e-3)


def test_the_model_is_left_as_it_was():
    _, model, batches = classifier()
    model = nn.Sequential(model, nn.BatchNorm1d(1).double())
    model.train()

    def scores(batch):
        return (model(batch[0])[:, 0] * batch[1] <= 0).float()

    before = [t.clone() for t in model.state_dict().values()], torch.get_rng_state()
    pac_bayes_bound(scores, model, batches, 0, batch_norm="eval", **FEW)

    def failing(batch):
        torch.rand(1)
        if not torch.equal(model[0].weight, before[0][0]):
            raise RuntimeError("under noise")
        return scores(batch)

    with pytest.raises(RuntimeError, match="under noise"):
        pac_bayes_bound(failing, model, batches, 0, batch_norm="eval", **FEW)
    with pytest.raises(ValueError, match="batch norms are in training mode"):
        pac_bayes_bound(scores, model, batches, 0, **FEW)
    assert all(map(torch.equal, before[0], model.state_dict().values()))
    assert torch.equal(before[1], torch.get_rng_state())
    assert model.training


@pytest.mark.parametrize("float64", [False, True])
def test_a_prior_that_was_trained_along_is_refused(float64):
    losses, model, batches = classifier(torch.float32)
    aliases = [model.state_dict(), model, list(model.parameters()), model.parameters(),
               {"weight": torch.zeros(1, 3), "bias": model.bias.detach()}]  # fmt: skip
    for prior in aliases:
        with pytest.raises(ValueError, match=r"prior shares the memory of '(weight|bias)'.* copy"):
            pac_bayes_bound(losses, model, batches, prior, float64=float64, **FEW)
    copied = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert pac_bayes_bound(losses, model, batches, copied, float64=float64, **FEW).kl == 0


def test_losses_of_another_model_are_refused():
    losses, model, batches = classifier()
    _, other, _ = classifier()
    with pytest.raises(ValueError, match="loss does not depend on any of params"):
        pac_bayes_bound(losses, other, batches, 0, **FEW)
    # The same answers under all draws are no reason.
    assert pac_bayes_bound(losses, model, batches, 0, **FEW | {"s_grid": [1e-6]}).empirical > 0


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (torch.zeros(5), r"a flat prior must have shape \(4,\); got \(5,\)"),
        (torch.full((4,), math.nan), "prior must be finite"),
        (1.0, "prior must be 0, a flat tensor, tensors, a state dict or a module; got 1.0"),
        ({"weight": torch.zeros(1, 3)}, "prior has no parameter 'bias'; it has weight"),
        ({"weight": torch.zeros(3), "bias": torch.zeros(1)},
         r"prior of 'weight' must have shape \(1, 3\); got \(3,\)"),
        ([torch.zeros(1, 3)], "prior must hold 2 tensors, one for each parameter; got 1"),
        ([0.0, 0.0], r"prior of 'weight' must have shape \(1, 3\); got 0.0"),
    ],
)  # fmt: skip
def test_messages_of_the_prior(prior, message):
    with pytest.raises((ValueError, TypeError), match=message):
        pac_bayes_bound(*classifier(), prior, **FEW)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"s_grid": []}, r"s_grid must hold at least one number, all finite and > 0; got \[\]"),
        ({"lambda_grid": [0.0]}, r"lambda_grid\[0\] must be .* > 0; got 0.0"),
        ({"delta": 1.0}, "delta must be a finite number > 0 and < 1; got 1.0"),
        ({"draws": 0}, "draws must be a whole number >= 1; got 0"),
    ],
)
def test_messages_of_the_options_come_before_the_data(options, message):
    _, model, _ = classifier()

    def losses(batch):
        raise AssertionError("looked at the data")

    with pytest.raises(ValueError, match=message):
        pac_bayes_bound(losses, model, [torch.ones(3)], 0, **(GRIDS | options))


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        (lambda x: x.mean(), r"one loss per example, of shape \(n,\); got \(\)"),
        (lambda x: 0.5, r"one loss per example, of shape \(n,\); got float"),
        (lambda x: 2 * x, r"losses must lie in \[0, 1\].*from 2 to 2"),
        (lambda x: x * math.nan, r"losses must lie in \[0, 1\].*from nan to nan"),
        (lambda x: x[:3], "losses gave 3 values for a batch of 5 examples"),
    ],
)
def test_messages_of_the_losses(losses, message):
    w = torch.zeros(2)
    with pytest.raises(ValueError, match=message):
        pac_bayes_bound(losses, [w], [torch.ones(5)], 0, **FEW)
