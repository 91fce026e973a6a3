"""Losses to begin with, batches, and what is found with them, without any host."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from antipgd import flatness
from antipgd.torch import perturb
from antipgd.trainers import measures


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3))
    x = torch.randn(40, 6)
    batches = [(x[:20], x[:20, :3].argmax(1)), (x[20:], x[20:, :3].argmax(1))]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(60):
        optimizer.zero_grad()
        for batch in batches:
            measures.classification(model, batch).backward()
        optimizer.step()
    return model, batches


def test_the_loss_of_pairs_is_cross_entropy():
    model, ((x, y), _) = make()
    model.eval()
    loss = measures.classification(model, (x, y))
    logits = model(x)
    by_hand = -sum(torch.log_softmax(logits[i], 0)[y[i]] for i in range(20)) / 20
    torch.testing.assert_close(loss, by_hand)


@pytest.mark.parametrize("batch", [torch.ones(2), (torch.ones(2), torch.ones(2)), {"x": 1}, [1, 2]])
def test_other_batches_need_a_loss(batch):
    with pytest.raises(ValueError, match=r"give loss= a function of \(model, batch\)"):
        measures.classification(nn.Identity(), batch)


def test_the_loss_that_a_model_gives():
    class Model(nn.Module):
        def forward(self, x, labels=None):
            loss = None if labels is None else (x - labels).square().mean()
            return SimpleNamespace(loss=loss)

    x = torch.tensor([3.0])
    assert measures.own_loss(Model(), {"x": x, "labels": torch.tensor([1.0])}) == 4
    with pytest.raises(ValueError, match="Model gives no loss for these batches"):
        measures.own_loss(Model(), {"x": x})


def test_batches_are_a_number_or_can_be_read_twice():
    for bad in (0, -1, True, iter([1, 2]), 2.5, None):
        with pytest.raises(ValueError, match="batches must be"):
            measures.check_batches(bad)
    measures.check_batches(3)
    measures.check_batches([1, 2])


def test_as_many_batches_of_a_loader_as_asked_for_and_moved():
    model, batches = make()
    searching = measures.Searching(1, measures.classification, {"draws": 8})
    assert searching.sigma is None
    found = searching.search(model, batches, lambda batch: (2 * batch[0], batch[1]))
    own = measures.Searching([(2 * batches[0][0], batches[0][1])], measures.classification,
                             {"draws": 8}).search(model, [])  # fmt: skip
    assert found.sigma == own.sigma == searching.sigma
    assert searching.search(model, batches).sigma != own.sigma


def test_sigma_is_found_in_evaluation_mode_and_the_mode_stays():
    model, batches = make()
    model.train()
    searching = measures.Searching(batches, measures.classification, {"draws": 8})
    found = searching.search(model, [])
    assert model.training
    assert model[2].training
    model.eval()
    own = flatness.find_sigma(
        lambda batch: measures.classification(model, batch), model, batches, draws=8
    )
    assert found.sigma == own.sigma
    assert found.judged == "errors"


def test_the_monitor_reads_the_noise():
    model, batches = make()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.01)
    noise = perturb(model, optimizer, sigma=0.05, seed=1)
    watching = measures.Watching(batches, 2, measures.classification, {})
    assert not watching.watches
    watching.watch(noise, model)
    assert watching.watches
    for step in range(1, 5):
        optimizer.zero_grad()
        measures.classification(model, batches[0]).backward()
        optimizer.step()
        assert [reading.step for reading in watching.unlogged()] == [step] * (step % 2 == 0)
    watching.end()
    assert not watching.watches
    with torch.no_grad():
        model.eval()
        loss = sum(measures.classification(model, batch).item() for batch in batches) / 2
    optimizer.step()
    optimizer.step()
    assert [reading.step for reading in watching.readings] == [2, 4]
    assert watching.readings[-1].loss == pytest.approx(loss, rel=1e-5)
    assert measures.labelled("flatness", {"loss": 1.0}) == {"flatness/loss": 1.0}
