"""A checkpoint that had noise and is trained on without: said once, and only then."""

import copy
import io
import json
import warnings

import pytest
import torch

from antipgd.torch import attach, clean_state_dict, expect_noise, forget_noise, perturb
from antipgd.torch.left_behind import leave_on_purpose
from training import flat, make_model, train


def made(form, seed=0, lr=0.05):
    model = make_model(seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    if form == "forward":
        return model, optimizer, perturb(model, optimizer, sigma=0.01, seed=3)
    if form == "weights":
        return model, optimizer, attach(optimizer, sigma=0.01, seed=3, model=model)
    return model, optimizer, None


def saved(form):
    """The states of model and optimizer after four steps with noise."""
    model, optimizer, _ = made(form)
    train(model, optimizer, 4)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def loaded(form, into=None):
    state = saved(form)
    model, optimizer, noise = made(into, seed=1)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return model, optimizer, noise


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("forward", r"SGD was saved with noise \(sigma 0\.01, step 4\).*on without it.*perturb"),
        ("weights", r"\(sigma 0\.01, step 4\).*keep its last draw in them.*attach"),
    ],
)
def test_a_resume_without_the_noise_is_said_once(form, words):
    model, optimizer, _ = loaded(form)
    with pytest.warns(UserWarning, match=words) as heard:
        train(model, optimizer, 3)
    assert len(heard) == 1
    assert heard[0].filename == __file__.replace("test_left_behind", "training")


def test_each_optimizer_is_said_by_itself():
    for _ in range(2):
        model, optimizer, _ = loaded("forward")
        with pytest.warns(UserWarning, match="nobody goes on with"):
            train(model, optimizer, 1)


@pytest.mark.parametrize("form", ["forward", "weights"])
@pytest.mark.parametrize("order", ["before", "after"])
def test_a_resume_with_the_noise_is_silent(form, order):
    model, optimizer, noise = loaded(form, form if order == "before" else None)
    if order == "after":
        give = (model, optimizer) if form == "forward" else (optimizer,)
        noise = {"forward": perturb, "weights": attach}[form](*give, sigma=0.01)
    train(model, optimizer, 2)
    assert noise.step_count == 6


@pytest.mark.parametrize("form", ["forward", "weights"])
def test_what_the_message_says_ends_it(form):
    model, optimizer, _ = loaded(form)
    before = flat(model)
    give = (model, optimizer) if form == "forward" else (optimizer,)
    keys = {"forward": {}, "weights": {"model": model}}[form]
    {"forward": perturb, "weights": attach}[form](*give, sigma=0.01, **keys).stop()
    assert (flat(model) == before).all() == (form == "forward")  # the draw has left the weights
    train(model, optimizer, 2)


def test_noise_that_was_stopped_and_noise_that_is_expected_are_silent():
    model, optimizer, noise = made("forward")
    train(model, optimizer, 1)
    noise.stop()
    train(model, optimizer, 1)
    model, optimizer, _ = made(None)
    expect_noise(optimizer)
    train(model, optimizer, 1)


def test_a_copy_that_steps_without_noise_is_said():
    model, optimizer, _ = made("forward")
    train(model, optimizer, 2)
    pair = copy.deepcopy([model, optimizer])
    with pytest.warns(UserWarning, match="nobody goes on with"):
        train(*pair, 1)
    train(model, optimizer, 1)


def test_a_compiled_step_is_said_too():
    model, optimizer, _ = loaded("forward")
    step = torch.compile(optimizer.step, backend="eager")
    ((model(torch.ones(2, 6, dtype=torch.float64))) ** 2).mean().backward()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        step()
    assert any("nobody goes on with" in str(one.message) for one in heard)


def test_a_record_that_is_left_on_purpose_is_silent_here_and_said_where_it_is_loaded():
    model, optimizer, noise = made("weights")
    train(model, optimizer, 2)
    with noise.clean():
        text = noise.records()[0].text()
    noise.stop()
    optimizer.param_groups[0]["antipgd"] = text
    leave_on_purpose(optimizer)
    train(model, optimizer, 1)
    other, theirs, _ = made(None)
    theirs.load_state_dict(optimizer.state_dict())
    with pytest.warns(UserWarning, match=r"step 2\).*goes on without it.*attach"):
        train(other, theirs, 1)


def test_a_probe_of_the_optimizer_at_attach_is_not_said():
    model, optimizer, _ = loaded("weights")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        attach(optimizer, sigma=0.01, model=model)
    assert [str(one.message) for one in heard] == []


def cleaned():
    """A resume without noise from weights that it was taken out of."""
    state = saved("weights")
    model, optimizer, _ = made(None, seed=1)
    names = [name for name, _ in model.named_parameters()]
    clean = clean_state_dict(state["model"], state["optimizer"], names)
    model.load_state_dict(clean)
    optimizer.load_state_dict(state["optimizer"])
    return model, optimizer


def test_weights_that_were_cleaned_are_not_said_to_keep_a_draw():
    model, optimizer = cleaned()
    words = r"goes on without it, from other weights.*attach\(.*\.reset\(\).*forget_noise"
    with pytest.warns(UserWarning, match=words) as heard:
        train(model, optimizer, 2)
    assert len(heard) == 1
    assert "keep its last draw" not in str(heard[0].message)


def test_the_way_on_from_cleaned_weights_works():
    model, optimizer = cleaned()
    noise = attach(optimizer, sigma=0.01, model=model)
    noise.reset()
    train(model, optimizer, 2)
    assert noise.step_count == 6
    noise.stop()


def test_where_no_record_can_tell_it_is_said_so():
    model, optimizer, _ = loaded("weights")
    (group,) = optimizer.param_groups
    content = json.loads(group["antipgd"])
    del content["samples"]  # as of sharded weights
    group["antipgd"] = json.dumps(content)
    with pytest.warns(UserWarning, match=r"keep its last draw in them, unless you cleaned them"):
        train(model, optimizer, 1)


@pytest.mark.parametrize("form", ["forward", "weights"])
def test_noise_that_is_forgotten_on_purpose_is_silent_for_good(form):
    model, optimizer, _ = loaded(form)
    before = flat(model)
    forget_noise(optimizer)
    assert (flat(model) == before).all()
    train(model, optimizer, 2)
    other, theirs, _ = made(None)
    theirs.load_state_dict(optimizer.state_dict())
    train(other, theirs, 1)


def test_noise_that_acts_is_not_forgotten():
    _, optimizer, noise = made("forward")
    with pytest.raises(ValueError, match=r"nobody goes on with; stop\(\) this one"):
        forget_noise(optimizer)
    noise.stop()


def test_a_step_that_does_not_count_is_no_step():
    model, optimizer, _ = loaded("forward")
    rate = optimizer.param_groups[0]["lr"]
    optimizer.param_groups[0]["lr"] = 0.0
    train(model, optimizer, 2)
    optimizer.param_groups[0]["lr"] = rate
    with pytest.warns(UserWarning, match="nobody goes on with"):
        train(model, optimizer, 1)


@pytest.mark.parametrize("first", [True, False])
def test_noise_that_was_forgotten_is_said_though_a_group_was_added(first):
    model, optimizer, _ = loaded("weights")
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
    if first:
        optimizer.param_groups.reverse()
    with pytest.warns(UserWarning, match=r"keep its last draw in them and no other comes"):
        train(model, optimizer, 1)
