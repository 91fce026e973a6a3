"""The noise of trainers in a loop by hand: bitwise `perturb` and `attach`, and clean between steps.

The loop is what a trainer makes: batches, some of which end with a step, and things done between.
"""

import copy
import gc
import io
import pickle

import pytest
import torch
from torch import nn

from antipgd.torch import attach, perturb
from antipgd.torch.left_behind import leave_on_purpose
from antipgd.trainers.within_steps import NOISY, NoiseWithinSteps
from explicit import Explicit, same

SIGMA, SEED = 0.05, 17
FORMS = ("forward", "weights")
MAKE = {"forward": perturb, "weights": lambda model, *rest, **more: attach(*rest, **more)}


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, torch.optim.AdamW(model.named_parameters(), lr=0.01, weight_decay=0.1)


def backward(model, number):
    x = torch.randn(10, 6, generator=torch.Generator().manual_seed(number))
    (model(x) - x[:, :1].sin()).square().mean().backward()


def values(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def equal(one, other):
    return all(same(one[name], other[name]) for name in one)


def begun(form, model, optimizer, **settings):
    within = NoiseWithinSteps(SIGMA, form, {"seed": SEED, **settings})
    within.begin(model, [optimizer])
    within.resume()
    within.close()
    return within


def train(within, model, optimizer, first, steps, accumulated=1, between=lambda: None):
    for number in range(first * accumulated, (first + steps) * accumulated):
        within.open()
        backward(model, number)
        if (number + 1) % accumulated == 0:
            optimizer.step()
            optimizer.zero_grad()
        within.close()
        between()


def by_hand(form, steps, accumulated=1, sigma=SIGMA):
    """The library's own loop, with the handle kept to the end; its clean weights."""
    model, optimizer = make()
    noise = MAKE[form](model, optimizer, sigma=sigma, seed=SEED)
    for number in range(steps * accumulated):
        backward(model, number)
        if (number + 1) % accumulated == 0:
            optimizer.step()
            optimizer.zero_grad()
    w = values(model)
    noise.stop()
    return w, values(model)


def saved(model, optimizer):
    """As a file would have it."""
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def resumed(form, state, **settings):
    model, optimizer = make()
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return begun(form, model, optimizer, **settings), model, optimizer


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("accumulated", [1, 3])
def test_it_is_the_library_in_a_plain_loop(form, accumulated):
    model, optimizer = make()
    within = begun(form, model, optimizer)
    train(within, model, optimizer, 0, 7, accumulated)
    assert within.noise.step_count == 7
    w, z = by_hand(form, 7, accumulated)
    assert equal(values(model), z)
    if form == "weights":
        within.open()
        assert equal(values(model), w)
        assert not equal(w, z)
    within.end()
    assert equal(values(model), z)
    assert not equal(z, by_hand(form, 7, accumulated, sigma=0.0)[1])


def test_the_forward_form_is_the_explicit_z_form():
    model, optimizer = make()
    explicit = Explicit(
        model, lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, weight_decay=0.1), SIGMA
    )
    within = begun("forward", model, optimizer)
    train(within, model, optimizer, 0, 5)
    for number in range(5):
        backward(explicit.carrier, number)
        explicit.step()
    assert equal(values(model), values(explicit.clean))


@pytest.mark.parametrize("form", FORMS)
def test_between_steps_a_pass_is_clean_in_either_mode(form):
    model, optimizer = make()
    within = begun(form, model, optimizer)
    x = torch.ones(2, 6)

    def check():
        plain = make()[0]
        plain.load_state_dict(model.state_dict())
        for mode in (True, False):
            assert same(model.train(mode)(x), plain(x))
        model.train()

    train(within, model, optimizer, 0, 3, between=check)
    at_z = model(x)
    within.open()
    assert not same(model(x), at_z)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("accumulated", [1, 2])
def test_it_resumes_bitwise_from_clean_weights(form, accumulated):
    model, optimizer = make()
    within = begun(form, model, optimizer)
    train(within, model, optimizer, 0, 4, accumulated)
    state = saved(model, optimizer)
    z = values(model)
    assert equal(state["model"], z)
    train(within, model, optimizer, 4, 4, accumulated)
    other, again, theirs = resumed(form, state)
    assert equal(values(again), z)
    assert other.noise.step_count == 4
    train(other, again, theirs, 4, 4, accumulated)
    assert equal(values(again), values(model))
    assert equal(values(again), by_hand(form, 8, accumulated)[1])


def test_the_noisy_weights_are_in_the_saved_optimizer_alone():
    model, optimizer = make()
    within = begun("weights", model, optimizer)
    train(within, model, optimizer, 0, 4)
    state = saved(model, optimizer)
    (group,) = state["optimizer"]["param_groups"]
    assert NOISY not in optimizer.param_groups[0]
    w, z = by_hand("weights", 4)
    assert all(map(same, group[NOISY]["weights"], w.values()))
    # Without the callback: the record beside is that of clean weights.
    again, plain = make()
    again.load_state_dict(state["model"])
    plain.load_state_dict(state["optimizer"])
    noise = attach(plain, sigma=SIGMA, seed=SEED)
    assert noise.step_count == 4
    noise.stop()
    assert equal(values(again), z)


def test_noisy_weights_of_other_weights_are_not_put_on():
    model, optimizer = make()
    train(begun("weights", model, optimizer), model, optimizer, 0, 3)
    state = saved(model, optimizer)
    state["model"] = {name: 2 * value for name, value in state["model"].items()}
    with pytest.warns(UserWarning, match="not those that were saved with the optimizer"):
        within, again, _ = resumed("weights", state)
    assert equal(values(again), state["model"])
    within.end()
    assert equal(values(again), state["model"])


def test_noisy_weights_of_other_shapes_are_refused():
    model, optimizer = make()
    train(begun("weights", model, optimizer), model, optimizer, 0, 3)
    state = saved(model, optimizer)
    state["optimizer"]["param_groups"][0][NOISY]["weights"].pop()
    with pytest.raises(ValueError, match="noisy weights are not of this model's shapes"):
        resumed("weights", state)


def test_sharded_weights_are_saved_clean_alone(monkeypatch):
    monkeypatch.setattr("antipgd.trainers.within_steps.is_sharded", lambda _: True)
    model, optimizer = make()
    train(begun("weights", model, optimizer), model, optimizer, 0, 3)
    state = saved(model, optimizer)
    assert NOISY not in state["optimizer"]["param_groups"][0]
    within, again, theirs = resumed("weights", state)
    assert equal(values(again), by_hand("weights", 3)[1])
    train(within, again, theirs, 3, 1)
    assert within.noise.step_count == 4
    xi = within.noise.injected(again[0].weight)
    assert 0.5 * SIGMA < float(xi.square().mean().sqrt()) < 1.5 * SIGMA  # of draw 4 alone


@pytest.mark.parametrize("form", FORMS)
def test_while_it_rests_steps_are_clean_and_do_not_count(form):
    model, optimizer = make()
    within = begun(form, model, optimizer)
    train(within, model, optimizer, 0, 3)
    plain, same_steps = make()
    state = saved(model, optimizer)
    plain.load_state_dict(state["model"])
    same_steps.load_state_dict(state["optimizer"])
    leave_on_purpose(same_steps)
    within.rest()
    for one, stepping in ((model, optimizer), (plain, same_steps)):
        backward(one, 3)
        stepping.step()
        stepping.zero_grad()
    assert equal(values(model), values(plain))
    assert within.noise.step_count == 3
    within.open()
    assert not within.noise.paused
    within.noise.pause()  # by the user, who says when it ends
    within.rest()
    within.open()
    assert within.noise.paused


@pytest.mark.parametrize("unseen", [False, True])  # by the tensors' version counters
def test_what_is_written_between_steps_stays(unseen):
    model, optimizer = make()
    within = begun("weights", model, optimizer)
    train(within, model, optimizer, 0, 3)
    with torch.no_grad():
        (model[0].weight.data if unseen else model[0].weight).clamp_(-0.1, 0.1)
    clipped = values(model)
    within.open()
    w = values(model)
    xi = {name: within.noise.injected(p) for name, p in model.named_parameters()}
    assert same(w["0.weight"], clipped["0.weight"] + xi["0.weight"])
    assert not same(w["0.weight"], clipped["0.weight"])
    within.close()
    for name, z in values(model).items():
        torch.testing.assert_close(z, clipped[name], rtol=0, atol=1e-7)


@pytest.mark.parametrize("form", FORMS)
def test_weights_that_were_loaded_at_the_end_stay(form):
    model, optimizer = make()
    within = begun(form, model, optimizer)
    train(within, model, optimizer, 0, 3)
    best = copy.deepcopy(model.state_dict())
    train(within, model, optimizer, 3, 3)
    model.load_state_dict(best)
    within.end()
    assert equal(values(model), best)
    assert not within.noise.attached


@pytest.mark.parametrize("form", FORMS)
def test_ended_in_the_middle_of_a_step_it_leaves_clean_weights(form):
    model, optimizer = make()
    within = begun(form, model, optimizer)
    train(within, model, optimizer, 0, 3)
    z = values(model)
    within.open()
    backward(model, 3)
    within.end()
    assert equal(values(model), z)
    assert pickle.loads(pickle.dumps(within)).noise.step_count == 3  # a callback may be copied
    plain = make()[0]
    plain.load_state_dict(z)
    assert same(model(torch.ones(2, 6)), plain(torch.ones(2, 6)))


@pytest.mark.parametrize("form", FORMS)
def test_after_the_end_the_optimizer_keeps_the_step(form):
    model, optimizer = make()
    within = begun(form, model, optimizer)
    train(within, model, optimizer, 0, 3)
    within.end()
    other, again, theirs = resumed(form, saved(model, optimizer))
    assert other.noise.step_count == 3
    train(other, again, theirs, 3, 2)
    if form == "forward":
        assert equal(values(again), by_hand(form, 5)[1])
    other.end()


@pytest.mark.parametrize("form", FORMS)
def test_after_the_end_nothing_happens_though_the_host_goes_on(form):
    """As where a Lightning trainer validates another model later."""
    model, optimizer = make()
    within = begun(form, model, optimizer)
    train(within, model, optimizer, 0, 2)
    within.end()
    del model, optimizer
    gc.collect()
    for call in (within.close, within.open, within.rest, within.close, within.end):
        call()
    assert not within.noise.paused


def test_a_second_training_begins_where_the_first_was_broken_off():
    model, optimizer = make()
    within = begun("weights", model, optimizer)
    train(within, model, optimizer, 0, 3)
    within.open()
    first = within.noise
    within.begin(model, [optimizer])  # as where memory did not suffice for a batch
    assert not first.attached
    assert within.noise.step_count == 3
    within.end()


def test_noise_that_is_not_anticorrelated_stays_in_the_weights():
    model, optimizer = make()
    within = begun("weights", model, optimizer, taps=(1.0,))
    train(within, model, optimizer, 0, 3)
    w = values(model)
    within.end()
    assert equal(values(model), w)


def test_bad_input():
    with pytest.raises(ValueError, match="unknown form 'weight'; did you mean 'weights'"):
        NoiseWithinSteps(0.1, "weight", {})
    with pytest.raises(ValueError, match=r"sigma must be a finite number >= 0 .*got -0.1"):
        NoiseWithinSteps(-0.1, "forward", {})
    with pytest.raises(TypeError, match=r"form='weights' takes no 'draws'; .*accepted: relative"):
        NoiseWithinSteps(0.1, "weights", {"draws": "rank"})
    with pytest.raises(TypeError, match="form='forward' takes no 'relativ'; did you mean 'relati"):
        NoiseWithinSteps(0.1, "forward", {"relativ": True})
    with pytest.raises(TypeError, match="form='weights' takes no 'model'"):
        NoiseWithinSteps(0.1, "weights", {"model": nn.Linear(1, 1)})
    model, optimizer = make()
    second = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    within = NoiseWithinSteps(0.1, "weights", {})
    with pytest.raises(ValueError, match="takes one optimizer; got 2: use form='forward'"):
        within.begin(model, [optimizer, second])
    begun("forward", model, optimizer)
    with pytest.raises(ValueError, match="has noise already"):
        within.begin(model, [optimizer])
