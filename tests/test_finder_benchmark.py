"""The benchmark of `find_sigma`: many networks at once are what they are alone; its bars."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

import antipgd
import finder

MLP = finder.Pair("test", "digits", "mlp", 6, 20, "entropy", 0.1, 0.9, 12)
CNN = dataclasses.replace(MLP, network="cnn", width=3, loss="squared")


def alone(pair, seed, sigma, lane):
    """One network in the plainest loop there is, with the draws that its lane has."""
    model, data = finder.network(pair, seed), finder.examples(pair.data, pair.images, seed)
    named = [(f"{lane}.{seed}.{name}", p) for name, p in model.named_parameters()]
    optimizer = torch.optim.SGD(named, lr=pair.lr, momentum=pair.momentum)
    noise = antipgd.torch.attach(optimizer, sigma=sigma, seed=0)
    for step in range(pair.steps):
        if step == 10:  # 5/6 of twelve
            noise.stop()
        out = model(data.x)
        if pair.loss == "entropy":
            loss = functional.cross_entropy(out, data.y)
        else:
            loss = (out - functional.one_hot(data.y, 10)).square().sum(1).mean() / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("pair", [MLP, CNN], ids=["mlp", "cnn"])
def test_many_at_once_are_what_they_are_alone(pair):
    seeds, sigmas = [3, 4, 3], [0.0, 0.05, 0.02]
    together = finder.train(pair, seeds, sigmas)
    for lane, (model, seed, sigma) in enumerate(zip(together, seeds, sigmas, strict=True)):
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        assert torch.allclose(weights, alone(pair, seed, sigma, lane), atol=2e-5)
    assert not torch.allclose(together[0][1 if pair is MLP else 0].weight,
                              together[2][1 if pair is MLP else 0].weight, atol=1e-3)  # fmt: skip


def test_training_and_test_images_have_nothing_in_common():
    data = finder.examples("digits", 100, 7)
    assert len(data.x) == 100
    assert torch.bincount(data.y).tolist() == [10] * 10
    assert len(data.test_x) == 1697
    distances = torch.cdist(data.x.flatten(1), data.test_x.flatten(1))
    assert float(distances.min()) > 0


def test_batches_are_passes_in_an_order_of_their_own():
    batches = finder._Batches(dataclasses.replace(MLP, batch=10), [3, 4])
    passed = [batches.next() for _ in range(2)]
    labels = torch.cat([y for _, y in passed], 1)
    assert [torch.bincount(row).tolist() for row in labels] == [[2] * 10] * 2
    assert not torch.equal(labels[0], labels[1])


def test_the_best_of_the_grid_is_taken_from_means():
    rows = [{"accuracy": a, "loss": b} for a, b in zip(range(14), range(14, 0, -1), strict=True)]
    assert finder.best_of_grid(rows, "accuracy") == finder.best_of_grid(rows, "loss") == 0.16
    rows[0]["accuracy"] = 1000.0
    assert finder.best_of_grid(rows, "accuracy") == 0.0025
    rows[-1]["loss"] = math.nan  # a run that diverged
    assert finder.best_of_grid(rows, "loss") == 0.08


def test_holm():
    def row(mean, sem):
        return {"n": 32, "found_accuracy_none": {"mean": mean, "sem": sem}}

    # one-sided p of .5 points more: t = 2.5, 1.8, 1.75 with 31 degrees: .009, .041, .045
    assert finder._holm([row(2.0, 1.0), row(1.3, 1.0), row(1.25, 1.0)], "found") == [
        True, False, False,
    ]  # fmt: skip
    assert finder._holm([row(2.0, 0.5), row(2.0, 0.6)], "found") == [True, True]
    assert finder._holm([row(-0.6, 0.01)], "found") == [False]


def test_intervals_are_paired_students():
    values = np.array([1.0, 2.0, 4.0])
    low, high = finder._interval(values)
    assert (low + high) / 2 == pytest.approx(7 / 3)
    assert high - low == pytest.approx(2 * 4.302653 * values.std(ddof=1) / 3**0.5, rel=1e-6)


def test_the_documents_say_what_was_measured():
    """The table, and the counts below it, are those of the stored run."""
    kept = json.loads(finder.RESULTS.read_text())
    page = (finder.RESULTS.parents[1] / "docs" / "flatness.md").read_text()
    assert finder.table(kept["rows"]) in page
    said = finder.verdict(finder.PAIRS, kept["rows"])
    assert said == kept["verdict"]
    near, pairs = said["found"]["near"], said["pairs"]
    assert f"Within 0.5 points and 1.1 × of the grid's best in {near} of {pairs}" in page
    assert said["found"]["safe"] == said["found"]["near_enough"] == said["minima"] == pairs
    assert [row["pair"] for row in kept["rows"]] == [pair.name for pair in finder.PAIRS]
