"""The average of a training's weights, against a sum over all of them."""

import pytest
import torch

from antipgd.paper.networks.averaging import Average
from antipgd.paper.networks.checkpoint import Checkpoints
from antipgd.paper.networks.evaluate import loss_and_accuracy
from antipgd.paper.networks.examples import make_examples
from antipgd.paper.networks.models import make_network
from antipgd.paper.networks.spec import make_training
from antipgd.paper.networks.train import train
from antipgd.torch.recalibration import recalibrated


def spec(method="gd", model="cnn", **changes):
    values = {"batch": 50, "epochs": 3, "seed": 0, "images": 200, "width": 4, "sigma": 0.02}
    return make_training("digits", model, method, **(values | changes))


def test_it_is_the_weighted_mean_of_all_weights_since_the_start():
    model = torch.nn.Linear(3, 2).double()
    average, decay, seen = Average(0.8, model), 0.8, []
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 8):
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
        seen.append(model.weight.detach().clone())
        average.add(model, step)
        shares = [decay ** (step - k) for k in range(1, step + 1)]
        expected = sum(share * w for share, w in zip(shares, seen, strict=True)) / sum(shares)
        torch.testing.assert_close(average.weights["weight"], expected)


def test_it_is_measured_with_statistics_of_its_own_and_disturbs_nothing(tmp_path):
    settings = {"measure": (1, 2), "noise_stop": 2, "trace_images": 40, "trace_probes": 32}
    run = spec("anti", ema=0.7, **settings)
    record, without = train(run, tmp_path), train(spec("anti", **settings))
    assert [row for row in record.points if row[1] != "ema"] == list(without.points)
    steps, traces = record.column("trace", "ema")
    assert steps.tolist() == [1, 2, 3]
    assert all(traces > 0)
    examples = make_examples(run)
    model = make_network("cnn", 4, examples.shape, 10, 0)
    state = Checkpoints(tmp_path, run).load()
    model.load_state_dict(state["model"] | state["average"])
    images = examples.train[0]
    with recalibrated(model, list(images.split(50))):
        loss, _ = loss_and_accuracy(model, examples.train)
    assert record.column("train_loss", "ema")[1][-1] == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("form", ["weights", "forward"])
def test_under_noise_it_is_of_the_weights_as_they_are(form):
    """Long averages of w and of z differ by no more than the noise that is left."""
    rows = {}
    for decay in (0.5, 0.99):
        run = spec("anti", "mlp", ema=decay, epochs=4, form=form, images=400, lr=1e-6, momentum=0)
        rows[decay] = {row[1]: row[2] for row in train(run).points if row[0] == 4}
    apart = {decay: abs(found["ema"] - found["z"]) for decay, found in rows.items()}
    if form == "forward":
        assert max(apart.values()) < 1e-4  # of z itself, which hardly moves here
    else:
        assert apart[0.99] < apart[0.5] < abs(rows[0.5]["w"] - rows[0.5]["z"])
