"""Noise that waits for a plateau of the loss it is told of, in both forms."""

import io
import json

import pytest
import torch

import antipgd.optax
from antipgd.noise import Linear, Plateau, Window
from antipgd.torch import attach, perturb
from training import SEED, batch, flat, make_model

LOSSES = [
    3.0,
    2.0,
    1.99,
    1.98,
    1.97,
    1.96,
    1.95,
    1.94,
    1.93,
    1.92,
]  # no progress from the second on
BEGUN = 5  # with a patience of 3, reported after every step
FORMS = ("weights", "forward")


def make(form, schedule, **settings):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    on = (optimizer,) if form == "weights" else (model, optimizer)
    add = attach if form == "weights" else perturb
    return model, optimizer, add(*on, sigma=0.1, seed=SEED, schedule=schedule, **settings)


def train(model, optimizer, noise, losses):
    x, y = batch()
    for loss in losses:
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
        if loss is not None:
            noise.report(torch.tensor(loss))


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("taps", [(1.0, -1.0), (1.0, -2.0, 1.0)])
@pytest.mark.parametrize("form", FORMS)
def test_it_is_a_window_from_where_the_loss_stops_falling(form, taps):
    model, optimizer, noise = make(form, Plateau(patience=3), taps=taps)
    train(model, optimizer, noise, LOSSES)
    other, its_optimizer, its_noise = make(form, Window(BEGUN), taps=taps)
    train(other, its_optimizer, its_noise, [None] * len(LOSSES))
    assert (flat(model) == flat(other)).all()
    late, late_optimizer, its_noise = make(form, Window(BEGUN + 1), taps=taps)
    train(late, late_optimizer, its_noise, [None] * len(LOSSES))
    assert (flat(model) != flat(late)).any()  # the step it begins with matters
    assert noise.metrics()["noise/sigma"] == 0.1


@pytest.mark.parametrize("at", [1, 4, BEGUN, BEGUN + 2])
@pytest.mark.parametrize("form", FORMS)
def test_what_it_was_told_is_resumed(form, at):
    model, optimizer, noise = make(form, Plateau(patience=3, ramp=2))
    train(model, optimizer, noise, LOSSES)
    whole = flat(model)

    model, optimizer, noise = make(form, Plateau(patience=3, ramp=2))
    train(model, optimizer, noise, LOSSES[:at])
    saved = through_a_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    model, optimizer, noise = make(form, Plateau(patience=3, ramp=2))
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    train(model, optimizer, noise, LOSSES[at:])
    assert (flat(model) == whole).all()


def test_every_noise_has_its_own_memory():
    schedule = Plateau(patience=1)
    _, _, first = make("forward", schedule)
    _, _, second = make("weights", schedule)
    assert [first.report(1.0), first.report(1.0)] == [False, True]
    assert second.report(1.0) is False
    assert schedule == Plateau(patience=1)


def test_report_without_a_plateau_is_refused():
    _, _, noise = make("forward", Window(3))
    with pytest.raises(ValueError, match=r"report\(\) is for schedule=antipgd.noise.Plateau\(…\); "
                       r"this noise has schedule=Window\(start=3"):  # fmt: skip
        noise.report(1.0)


@pytest.mark.parametrize("form", FORMS)
def test_a_plateau_that_was_never_told_is_told_of(form):
    model, optimizer, noise = make(form, Plateau())
    train(model, optimizer, noise, [None] * 3)
    with pytest.warns(UserWarning, match=r"never told of a loss.*call noise.report\(loss\)"):
        noise.stop()
    model, optimizer, noise = make(form, Plateau())
    train(model, optimizer, noise, [1.0])
    noise.stop()


@pytest.mark.parametrize("value", [[1.0, 2], [None, -1, None], [1.0, 1, 0.5], "3", [[], 1, None]])
def test_a_broken_memory_in_a_checkpoint_is_refused(value):
    model, optimizer, noise = make("forward", Plateau())
    train(model, optimizer, noise, [1.0])
    state = optimizer.state_dict()
    (group,) = state["param_groups"]
    group["antipgd"] = json.dumps(json.loads(group["antipgd"]) | {"plateau": value})
    before = optimizer.state_dict()["param_groups"][0]["antipgd"]
    with pytest.raises(ValueError, match="plateau"):
        optimizer.load_state_dict(state)
    assert optimizer.state_dict()["param_groups"][0]["antipgd"] == before


def test_optax_has_none():
    with pytest.raises(ValueError, match=r"schedule=Plateau\(.* cannot be: wrap"):
        antipgd.optax.add_correlated_noise(0.1, schedule=Plateau())


@pytest.mark.parametrize("schedule", [Plateau(patience=2), Window(100), Linear(10, 20, 0.0, 1.0)])
def test_what_sigma_will_be_is_looked_at_before_there_is_any(schedule):
    model = make_model(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with pytest.raises(ValueError, match="would round it away"):
        perturb(model, optimizer, sigma=1e-4, relative=True, schedule=schedule)
    for form in FORMS:
        model = make_model(torch.float32)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        on = (optimizer,) if form == "weights" else (model, optimizer)
        with pytest.warns(UserWarning, match="the noise drowns its weights"):
            noise = (attach if form == "weights" else perturb)(*on, sigma=100, schedule=schedule)
        noise._schedule = None  # of a plateau that was never told stop() would say so
        noise.stop()


@pytest.mark.parametrize("form", FORMS)
def test_a_plateau_that_nobody_reports_is_asked_for_when_it_is_saved(form):
    model, optimizer, noise = make(form, Plateau(patience=2))
    optimizer.state_dict()  # before the first step there is nothing to report
    train(model, optimizer, noise, [None] * 3)
    with pytest.warns(UserWarning, match=r"was told of no loss in 3 steps.*noise\.report\(loss\)"):
        optimizer.state_dict()
    optimizer.state_dict()  # once
    noise.report(1.0)
    noise.stop()
