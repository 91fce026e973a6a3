"""Both forms of a training's noise, against each other and against plain loops; draws by name."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from antipgd.noise import draws
from antipgd.paper.networks.checkpoint import Checkpoints
from antipgd.paper.networks.evaluate import loss_and_accuracy
from antipgd.paper.networks.examples import epoch_order, make_examples
from antipgd.paper.networks.models import make_network
from antipgd.paper.networks.noising import Draws
from antipgd.paper.networks.spec import make_training
from antipgd.paper.networks.train import StoppedError, train


def spec(method="anti", model="cnn", **changes):
    values = {"batch": 50, "epochs": 3, "seed": 0, "images": 200, "width": 4, "sigma": 0.02}
    return make_training("digits", model, method, **(values | changes))


def weights(tmp_path, run, name="clean-at-end"):
    return torch.load(tmp_path / run.name / f"{name}.pt", weights_only=True)


@pytest.mark.parametrize(
    "changes",
    [{}, {"model": "mlp"}, {"noisy": "no_norms", "law": "rademacher"}, {"micro": 25},
     {"relative": True, "sigma": 0.1, "noise_start": 1}, {"method": "noise", "taps": (1, -2, 1)}],
    ids=["cnn", "mlp", "no_norms", "micro", "relative", "taps"],
)  # fmt: skip
def test_both_forms_are_the_same_training(changes, tmp_path):
    """They measure at the same places, in the same order, what is equal up to rounding."""
    changes = {"noise_stop": 2, "measure": (1, 2, 3), "momentum": 0.9} | changes
    one, other = (spec(form=form, **changes) for form in ("weights", "forward"))
    a, b = train(one, tmp_path), train(other, tmp_path)
    assert [row[:2] for row in a.points] == [row[:2] for row in b.points]
    assert any(row[1] == "z" for row in b.points)
    for row, same in zip(a.points, b.points, strict=True):
        losses, others = (np.array([x[2], x[4]], float) for x in (row, same))
        np.testing.assert_allclose(losses, others, rtol=2e-4)
    for name in ("clean-at-stop", "clean-at-end"):
        first, second = weights(tmp_path, one, name), weights(tmp_path, other, name)
        for key, value in first.items():
            torch.testing.assert_close(value, second[key], rtol=1e-3, atol=1e-4)


def test_in_the_forward_form_the_parameters_are_z_and_decay_acts_there(tmp_path):
    run = spec(model="mlp", form="forward", epochs=2, weight_decay=0.1, momentum=0.0)
    record = train(run, tmp_path)
    examples = make_examples(run)
    model = make_network("mlp", 4, examples.shape, 10, 0)
    z = {name: p.detach().clone() for name, p in model.named_parameters()}
    n = 0

    def at_w():
        with torch.no_grad():
            for name, p in model.named_parameters():
                xi = draws(0, name, n, 0, p.numel()) if n else np.zeros(p.numel(), np.float32)
                p.copy_(z[name] + 0.02 * torch.from_numpy(xi).view(p.shape))

    for epoch in (1, 2):
        for rows in epoch_order(0, epoch, 200).reshape(-1, 50):
            at_w()
            model.zero_grad()
            cross_entropy(model(examples.train[0][rows]), examples.train[1][rows]).backward()
            for name, p in model.named_parameters():
                z[name] -= 0.05 * (p.grad + 0.1 * z[name])
            n += 1
    state = Checkpoints(tmp_path, run).load()["model"]
    for name, value in z.items():
        torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-6)
    at_w()
    rows = {row[1]: row for row in record.points if row[0] == 2}
    loss, _ = loss_and_accuracy(model, examples.train)
    assert rows["w"][2] == pytest.approx(loss, rel=1e-5)
    assert rows["z"][2] != pytest.approx(loss, rel=1e-5)


def stop_after(steps):
    left = [steps]

    def tick(epochs):
        left[0] -= 1
        if left[0] < 0:
            raise StoppedError

    return tick


@pytest.mark.parametrize(
    "changes",
    [{"form": "forward"}, {"method": "noise", "taps": (1, -0.5)}, {"method": "two_point"},
     {"method": "trace_penalty"}, {"ema": 0.9}, {"form": "forward", "ema": 0.9}],
    ids=str,
)  # fmt: skip
def test_stopped_again_and_again_it_goes_on_with_the_same_bits(changes, tmp_path):
    settings = {"epochs": 4, "noise_start": 1, "noise_stop": 3, "measure": (2,), "barriers": True}
    run = spec(**(settings | changes))
    whole = train(run, tmp_path / "whole")
    record, stops = None, 0
    while record is None:
        try:
            record = train(run, tmp_path / "parts", tick=stop_after(7))
        except StoppedError:
            stops += 1
        assert stops < 30
    assert stops >= 3
    assert record == whole
    train(run.prefix(), tmp_path / "shared")
    assert train(run, tmp_path / "shared") == whole


@pytest.mark.parametrize("noisy", ["all", "no_norms"])
@pytest.mark.parametrize("channels_last", [True, False])
def test_draws_are_those_of_the_stream(noisy, channels_last):
    run = spec(noisy=noisy)
    model = make_network("cnn", 4, (2, 8, 8), 10, 0)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    drawn = Draws(run, model.to(memory_format=layout), "gaussian")
    drawn.at(1)
    found = dict(drawn.at(3))
    every = dict(model.named_parameters())
    assert found.keys() == {n for n in every if noisy == "all" or not n.startswith("bn")}
    for name, xi in found.items():
        expected = draws(0, name, 3, 0, xi.numel())
        np.testing.assert_array_equal(xi.contiguous().reshape(-1).numpy(), expected)
