"""Flatness at minima, as a record has it: against the flatness room called by hand."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from antipgd.flatness import effective_sharpness, trace_at_equal_loss
from antipgd.paper.networks import evaluate
from antipgd.paper.networks.evaluate import effective, flatness, traces_at_equal_loss
from antipgd.paper.networks.examples import make_examples
from antipgd.paper.networks.models import make_network
from antipgd.paper.networks.spec import EQUAL_LOSSES, MEASURES, make_training
from antipgd.paper.networks.train import train

FEW = 60  # images whose flatness is measured, of 100
TRACES = [f"trace_at_{loss:g}" for loss in EQUAL_LOSSES]


def spec(method="anti", model="cnn", **changes):
    values = {"batch": 20, "epochs": 60, "seed": 3, "images": 100, "width": 16, "lr": 0.1,
              "sigma": 0.01, "noise_stop": 59, "trace_images": 30, "trace_probes": 32,
              "flatness_images": FEW, "measure": (1,)}  # fmt: skip
    return make_training("digits", model, method, **(values | changes))


def fitted(run, tmp_path):
    """Its record's last row, the network with the weights it was measured at, and few images."""
    record = train(run, tmp_path)
    found = dict(zip(MEASURES, record.points[-1][2:], strict=True))
    examples = make_examples(run)
    model = make_network(run.model, run.width, examples.shape, 10, run.seed, run.norm)
    state = torch.load(tmp_path / run.name / "clean-at-end.pt", weights_only=True)
    model.load_state_dict(state)
    model = model.to(memory_format=torch.channels_last).eval()
    images, labels = examples.train
    return record, found, model, (images[:FEW], labels[:FEW])


@pytest.mark.parametrize("model", ["cnn", "lenet"])
def test_traces_are_those_at_equal_losses_of_the_weights_measured(model, tmp_path):
    run = spec(model=model)
    _record, found, network, few = fitted(run, tmp_path)
    assert found["train_accuracy"] == 1  # else there is nothing to compare
    for loss, name in zip(EQUAL_LOSSES, TRACES, strict=True):
        by_hand = trace_at_equal_loss(
            network, [few], loss, method="hutchinson", max_probes=32, seed=3, batch_norm="eval"
        )
        assert found[name] == pytest.approx(by_hand.mean, rel=1e-4), name
        if loss == 0.01:
            assert found["temperature"] == pytest.approx(by_hand.temperature, rel=1e-4)
    outputs = network(few[0]).detach().double()
    assert float(cross_entropy(found["temperature"] * outputs, few[1])) == pytest.approx(0.01)
    assert len({found[name] for name in TRACES}) == 3
    assert found["effective"] is None


def test_they_are_measured_at_the_cleanest_weights_where_all_images_are(tmp_path):
    run = spec(epochs=40, noise_start=30, noise_stop=35)
    record = train(run, tmp_path)
    there = {
        row[:2] for row in record.points if row[2 + MEASURES.index("trace_at_0.1")] is not None
    }
    assert there == {(30, "w_bn"), (35, "z_bn"), (40, "w_bn")}
    assert (1, "w_bn") in {row[:2] for row in record.points}


def test_there_is_no_trace_where_an_image_is_wrong():
    run = spec("gd", epochs=1)
    examples = make_examples(run)
    network = make_network("cnn", 16, examples.shape, 10, 0).eval()
    assert traces_at_equal_loss(run, network, examples.train) == {}
    record = train(spec("gd", epochs=1, measure=()))
    last = dict(zip(MEASURES, record.points[-1][2:], strict=True))
    assert last["train_accuracy"] < 1
    assert [last[name] for name in (*TRACES, "temperature")] == [None] * 4
    assert last["trace"] is not None


def test_only_losses_that_are_reached_have_a_trace():
    """A wrong image among hundreds: 0.1 is reached, 0.001 is not."""
    images = torch.eye(10).repeat(40, 1)
    labels = torch.arange(10).repeat(40)
    labels[0] = 1
    network = torch.nn.Linear(10, 10, bias=False)
    with torch.no_grad():
        network.weight.copy_(5 * torch.eye(10))
    run = spec("gd", flatness_images=400)
    found = traces_at_equal_loss(run, network, (images, labels))
    assert found.keys() == {"trace_at_0.1"}


def test_the_squared_loss_has_effective_sharpness_at_its_learning_rate(tmp_path):
    run = spec("gd", "mlp", loss="squared", lr=0.02, epochs=3)
    _record, found, network, few = fitted(run, tmp_path)
    assert [found[name] for name in (*TRACES, "temperature")] == [None] * 4

    def loss(batch):
        target = torch.nn.functional.one_hot(batch[1], 10).float()
        return 0.5 * (network(batch[0]) - target).square().sum(1).mean()

    def by_hand(lr, momentum):
        return effective_sharpness(
            loss, network, [few], lr, momentum, seed=3, batch_norm="eval"
        ).mean

    assert found["effective"] == pytest.approx(by_hand(0.02, 0.9), rel=1e-4)
    assert by_hand(0.03, 0.9) != pytest.approx(by_hand(0.02, 0.9), rel=1e-3)
    assert by_hand(0.02, 0.6) != pytest.approx(by_hand(0.02, 0.9), rel=1e-3)


def test_beyond_the_edge_it_is_infinite_and_nobody_is_warned():
    run = spec("gd", "mlp", loss="squared", lr=1000.0)
    examples = make_examples(run)
    network = make_network("mlp", 16, examples.shape, 10, 0)
    assert effective(run, network, examples.train) == {"effective": float("inf")}


def test_each_loss_is_measured_in_its_own_way(monkeypatch):
    monkeypatch.setattr(evaluate, "effective", lambda *_: "effective")
    monkeypatch.setattr(evaluate, "traces_at_equal_loss", lambda *_: "traces")
    assert flatness(spec("gd"), None, None) == "traces"
    assert flatness(spec("gd", loss="squared"), None, None) == "effective"
