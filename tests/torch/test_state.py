"""Saving, resuming, clean weights: bitwise where nothing but copying happens."""

import copy
import io
import json
import pickle
import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from antipgd.noise import Cosine, Plateau, Window, draws
from antipgd.torch import AntiPGD, attach, clean_state_dict, norms, perturb
from antipgd.torch.record import BY_PARAMETER
from training import SEED, batch, flat, make_model, train

SETTINGS = {
    "constant": {},
    "scheduled": {"schedule": Cosine(0, 12)},
    "long taps": {"taps": (1.0, -0.3, -0.7)},
    "no clean weights": {"taps": (1.0, -0.9)},
    "relative": {"relative": True},
    "rademacher": {"law": "rademacher"},
}


def make(**settings):
    model = make_model(torch.float32)
    groups = [
        {"params": list(model[0].named_parameters("0")), "lr": 0.05},
        {"params": list(model[2:].named_parameters("rest")), "lr": 0.02, "sigma": 0.03},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    return model, optimizer, attach(optimizer, sigma=0.1, seed=SEED, **settings)


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def noise_in(state, group=0):
    return json.loads(state["param_groups"][group]["antipgd"])


def changed(state, **fields):
    """A copy of an optimizer's state with other noise in all its param groups."""
    state = copy.deepcopy(state)
    for i, group in enumerate(state["param_groups"]):
        common = {key: value for key, value in fields.items() if i == 0 or key not in BY_PARAMETER}
        group["antipgd"] = json.dumps(noise_in(state, i) | common)
    return state


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("at", [0, 1, 2, 7])
@pytest.mark.parametrize("order", ["attach, load", "load, attach"])
def test_resume_is_bitwise(settings, at, order):
    model, optimizer, noise = make(**settings)
    train(model, optimizer, 12)
    whole = flat(model)
    clock = noise.clock
    noise.stop(remove=False)

    model, optimizer, noise = make(**settings)
    train(model, optimizer, at)
    if noise.removable:
        with noise.clean():
            pass
    saved = through_a_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    noise.stop(remove=False)

    model, optimizer, noise = make(**settings)
    model.load_state_dict(saved["model"])
    if order == "load, attach":
        noise.stop(remove=False)
        optimizer.load_state_dict(saved["optimizer"])
        noise = attach(optimizer, sigma=0.7, seed=1, **settings)  # the checkpoint's values win
    else:
        optimizer.load_state_dict(saved["optimizer"])
    assert noise.step_count == at
    assert noise.sigma == 0.1
    assert optimizer.param_groups[0]["antipgd"] == "attached"
    train(model, optimizer, 12 - at)
    assert np.array_equal(flat(model), whole)
    assert noise.clock == pytest.approx(clock, rel=1e-12, nan_ok=True)
    assert noise.clock.kind == clock.kind


@pytest.mark.parametrize("order", ["attach, load", "load, attach"])
def test_resume_of_a_schedule_that_follows_the_learning_rate(order):
    def begin():
        model = make_model(torch.float32)
        optimizer = torch.optim.SGD(model.named_parameters(), lr=0.08)
        return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)

    def go(model, optimizer, scheduler, steps):
        for _ in range(steps):
            train(model, optimizer, 1)
            scheduler.step()

    model, optimizer, scheduler = begin()
    noise = attach(optimizer, sigma=0.1, seed=SEED, schedule="lr")
    go(model, optimizer, scheduler, 5)
    noise.pause()
    noise.resume()
    saved = through_a_file([part.state_dict() for part in (model, optimizer, scheduler)])
    go(model, optimizer, scheduler, 5)
    noise.stop(remove=False)
    whole = flat(model)

    parts = model, optimizer, scheduler = begin()
    if order == "attach, load":
        noise = attach(optimizer, sigma=0.1, seed=SEED, schedule="lr")
    for part, state in zip(parts, saved, strict=True):
        part.load_state_dict(state)
    if order == "load, attach":
        noise = attach(optimizer, sigma=0.1, seed=SEED, schedule="lr")
    go(model, optimizer, scheduler, 5)
    assert np.array_equal(flat(model), whole)


def test_a_paused_noise_is_saved_as_paused():
    model, optimizer, noise = make()
    train(model, optimizer, 2)
    noise.pause()
    state = optimizer.state_dict()
    noise.resume()
    optimizer.load_state_dict(state)
    assert noise.paused


def test_saved_state_is_small_and_plain():
    model, optimizer, _ = make()
    train(model, optimizer, 2)
    state = json.loads(optimizer.state_dict()["param_groups"][0]["antipgd"])
    assert state["names"] == ["0.weight", "0.bias"]
    assert state["format"] == 1
    assert not {"form", "namespace", "relative", "paused"} & set(state)  # as usual
    assert len(json.dumps(state)) < 500


def test_clean_weights_from_files_alone():
    for settings in ({}, {"taps": (1.0, -0.3, -0.7)}, {"law": "student-t:5", "namespace": "a"}):
        model = make_model(torch.float32)
        optimizer = torch.optim.AdamW(model.named_parameters(), lr=0.01)
        noise = attach(optimizer, sigma=0.1, seed=SEED, **settings)
        train(model, optimizer, 5)
        weights = {f"module.{k}": v.clone() for k, v in model.state_dict().items()}
        clean = clean_state_dict(weights, through_a_file(optimizer.state_dict()))
        with noise.clean():
            for name, parameter in model.named_parameters():
                assert torch.equal(clean[f"module.{name}"], parameter)
                assert not torch.equal(weights[f"module.{name}"], parameter)
        noise.stop()


def test_clean_state_dict_says_what_is_missing():
    model, optimizer, noise = make()
    with pytest.raises(ValueError, match=r"no 'rest.2.weight' of shape \(8,\)"):
        clean_state_dict(model.state_dict(), optimizer.state_dict())
    noise.stop()
    with pytest.raises(ValueError, match="has no noise in it"):
        clean_state_dict(model.state_dict(), optimizer.state_dict())
    pgd = attach(optimizer, sigma=0.1, taps=(1,))
    with pytest.raises(ValueError, match="do not sum to zero"):
        clean_state_dict(model.state_dict(), optimizer.state_dict())
    pgd.stop(remove=False)


def test_clean_is_z_inside_and_bitwise_w_after():
    model, optimizer, noise = make()
    train(model, optimizer, 6)
    w = flat(model)
    carried = torch.cat([noise.injected(p).reshape(-1) for p in model.parameters()]).numpy()
    with noise.clean():
        assert np.array_equal(flat(model), w - carried)
        assert np.abs(carried).max() > 0.1
    assert np.array_equal(flat(model), w)
    with pytest.raises(ZeroDivisionError), noise.clean():
        raise ZeroDivisionError
    assert np.array_equal(flat(model), w)
    train(model, optimizer, 1)


def test_what_is_refused_inside_clean():
    model, optimizer, noise = make()
    train(model, optimizer, 2)
    w, state = flat(model), optimizer.state_dict()
    with noise.clean():
        for call in (
            optimizer.step,
            lambda: optimizer.load_state_dict(state),
            noise.stop,
            lambda: noise.clean().__enter__(),
        ):
            with pytest.raises(RuntimeError, match=r"inside clean\(\)"):
                call()
    assert np.array_equal(flat(model), w)
    assert noise.step_count == 2


def test_a_weight_changed_inside_clean_is_reported():
    model, optimizer, noise = make()
    train(model, optimizer, 2)
    w = flat(model)

    def meddle():
        with noise.clean(), torch.no_grad():
            model[0].bias.add_(1)

    with pytest.warns(UserWarning, match=r"changed inside clean\(\).*: 0.bias$"):
        meddle()
    assert np.array_equal(flat(model), w)


def test_stop_leaves_z_after_a_sigma_that_changed_every_step():
    for taps in ((1.0, -1.0), (1.0, -0.5, -0.5)):
        model, optimizer, noise = make(taps=taps)
        start = flat(model)
        for group in optimizer.param_groups:
            group["lr"] = 1e-30  # counted, but moves nothing
        for step in range(20):
            noise.sigma = 0.01 * (step + 1)
            optimizer.param_groups[1]["sigma"] = 0.3 / (step + 1)
            train(model, optimizer, 1)
        assert np.abs(flat(model) - start).max() > 0.1
        noise.stop()
        assert np.abs(flat(model) - start).max() < 1e-5
        train(model, optimizer, 1)
        assert np.abs(flat(model) - start).max() < 1e-5
        noise.stop()  # twice is harmless


def test_a_backward_through_an_older_graph_fails_loudly():
    model, optimizer, noise = make()
    x, y = batch(torch.float32)
    loss = ((model(x) - y) ** 2).mean()
    for group in optimizer.param_groups:
        group["lr"] = 1e-3
    optimizer.step()  # no gradients: only our noise changes the weights
    assert noise.step_count == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    loss = ((model(x) - y) ** 2).mean()
    with noise.clean():
        pass
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_no_clean_weights_without_telescoping():
    model, optimizer, noise = make(taps=(1.0, -0.9))
    train(model, optimizer, 2)
    assert not noise.removable
    for call in (lambda: noise.clean().__enter__(), noise.stop,
                 lambda: noise.injected(model[0].weight)):  # fmt: skip
        with pytest.raises(ValueError, match=r"taps \(1.0, -0.9\) do not sum to zero"):
            call()
    noise.stop(remove=False)
    assert not noise.attached


def test_pause_resume_and_reset():
    model, optimizer, noise = make()
    train(model, optimizer, 2)
    noise.pause()
    carried = noise.injected(model[0].weight).clone()
    train(model, optimizer, 3)
    assert noise.step_count == 2
    assert torch.equal(noise.injected(model[0].weight), carried)
    noise.resume()
    train(model, optimizer, 1)
    assert noise.step_count == 3
    with noise.clean():
        clean = copy.deepcopy(model.state_dict())
    model.load_state_dict(clean)
    noise.reset()
    before = flat(model)
    with noise.clean():
        assert np.array_equal(flat(model), before)


def test_batchnorm_is_recalibrated_inside_and_restored_after():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8))
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    x, _ = batch(torch.float32)
    noise = attach(optimizer, sigma=0.1, model=model)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    before = copy.deepcopy(model.state_dict())
    with noise.clean(recalibrate=[x]):
        hidden = model[0](x)
        assert torch.allclose(model[1].running_mean, hidden.mean(0), atol=1e-6)
        assert torch.allclose(model[1].running_var, hidden.var(0), atol=1e-5)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    noise.stop()
    with pytest.raises(ValueError, match="recalibrate needs the model"):
        attach(optimizer, sigma=0.1).clean(recalibrate=[x]).__enter__()


@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_anti_pgd_survives_copies(make_copy):
    model = make_model(torch.float32)
    optimizer = AntiPGD(model.parameters(), 0.05, 0.1, 0.9, model=model, seed=SEED, law="uniform")
    train(model, optimizer, 3)
    both = make_copy({"model": model, "optimizer": optimizer})
    train(model, optimizer, 4)
    train(both["model"], both["optimizer"], 4)
    assert np.array_equal(flat(both["model"]), flat(model))
    assert both["optimizer"].noise.step_count == 7
    optimizer.noise.stop()
    both["optimizer"].noise.stop()
    assert np.array_equal(flat(both["model"]), flat(model))


def test_a_checkpoint_without_noise_means_clean_weights(caplog):
    model, optimizer, noise = make()
    plain = copy.deepcopy(optimizer.state_dict())
    for group in plain["param_groups"]:
        del group["antipgd"]
    train(model, optimizer, 2)
    optimizer.load_state_dict(plain)
    assert "taken to be clean" in caplog.text
    w = flat(model)
    with noise.clean():
        assert np.array_equal(flat(model), w)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"law": "laplace"}, "its law is 'laplace'.*this optimizer's is 'gaussian'"),
        ({"taps": [1.0, -0.9]}, r"its taps is \(1.0, -0.9\)"),
        ({"stream": 99}, "in param group 0 its stream is 99"),
        ({"names": ["0.bias", "0.weight"]}, r"its names is \['0.bias', '0.weight'\]"),
        ({"shapes": [[8, 7], [8]]}, "its shapes is"),
    ],
)
def test_a_checkpoint_of_other_noise_is_refused_and_changes_nothing(change, message):
    model, optimizer, noise = make()
    train(model, optimizer, 3)
    state = changed(optimizer.state_dict(), **change)
    state["param_groups"][0]["lr"] = 123.0
    before, w = optimizer.state_dict(), flat(model)
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == 0.05
    assert optimizer.state_dict()["param_groups"] == before["param_groups"]
    assert np.array_equal(flat(model), w)
    noise.stop(remove=False)
    optimizer.load_state_dict(state)  # without noise nobody minds
    with pytest.raises(ValueError, match=message):
        attach(optimizer, sigma=0.1)


@pytest.mark.parametrize("sigma", [-1, float("nan"), float("inf"), "0.1", None])
def test_bad_sigma(sigma):
    optimizer = torch.optim.SGD(make_model().named_parameters(), lr=0.1)
    with pytest.raises(ValueError, match="sigma must be a finite number >= 0"):
        attach(optimizer, sigma=sigma)
    optimizer.param_groups[0]["sigma"] = sigma
    with pytest.raises(ValueError, match="sigma of a param group must be"):
        attach(optimizer, sigma=0.1)
    del optimizer.param_groups[0]["sigma"]
    noise = attach(optimizer, sigma=0.1)
    with pytest.raises(ValueError, match="sigma must be"):
        noise.sigma = sigma
    assert noise.sigma == 0.1


def test_other_bad_input():
    model = make_model()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    with pytest.raises(TypeError, match=r"needs a torch.optim.Optimizer; got Sequential"):
        attach(model, sigma=0.1)
    with pytest.raises(
        ValueError, match="schedule must be a function of the step or 'lr'; got 'cos'"
    ):
        attach(optimizer, sigma=0.1, schedule="cos")
    optimizer.param_groups[0]["lr"] = 0.0
    with pytest.raises(ValueError, match=r"which must be > 0; got 0\.0"):
        attach(optimizer, sigma=0.1, schedule="lr")
    optimizer.param_groups[0]["lr"] = 0.1
    with pytest.raises(ValueError, match="unknown law 'normal'"):
        attach(optimizer, sigma=0.1, law="normal")
    with pytest.raises(ValueError, match="taps must be"):
        attach(optimizer, sigma=0.1, taps=())
    noise = attach(optimizer, sigma=0.1)
    with pytest.raises(ValueError, match="has noise already; stop"):
        attach(optimizer, sigma=0.1)
    other = torch.optim.SGD([("x", model[0].weight)], lr=0.1)
    with pytest.raises(ValueError, match=r"'0.weight' has noise already through another optimizer"):
        attach(other, sigma=0.1)
    with pytest.raises(ValueError, match=r"rescale\(\) is for relative=True"):
        noise.rescale()
    with pytest.raises(KeyError, match="takes no noise"):
        noise.injected(make_model()[0].weight)
    noise.stop()
    attach(optimizer, sigma=0.1)


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        (torch.float16, "autocast"),
        (torch.bfloat16, "autocast"),
        (torch.complex64, "float32 and float64; 'w' is torch.complex64"),
    ],
)
def test_weights_of_other_types_are_refused(dtype, message):
    w = torch.nn.Parameter(torch.ones(3, dtype=dtype))
    with pytest.raises(TypeError, match=message):
        attach(torch.optim.SGD([("w", w)], lr=0.1), sigma=0.1)


def test_two_parameters_of_one_name_are_refused():
    a, b = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([("w", a), ("module.w", b)], lr=0.1)
    with pytest.raises(ValueError, match="two parameters have the name 'w'"):
        attach(optimizer, sigma=0.1)


def test_a_parameter_that_is_listed_twice_is_refused_as_that():
    w = torch.nn.Parameter(torch.ones(3))
    with pytest.warns(UserWarning, match="duplicate"):
        twice = torch.optim.SGD([w, w], lr=0.1)
    with pytest.raises(ValueError, match=r"lists parameter '\d' twice.*list it once"):
        attach(twice, sigma=0.1)


def test_param_groups_listed_twice_later_are_refused_as_that():
    _, optimizer, _ = make()
    optimizer.param_groups.extend(optimizer.param_groups[:1])
    with pytest.raises(ValueError, match=r"lists parameter '0\.weight' twice"):
        optimizer.state_dict()


def test_a_garbage_optimizer_does_not_stand_in_the_way():
    for _ in range(3):
        model = make_model()
        optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
        optimizer.me = optimizer  # garbage that only the collector finds
        assert attach(optimizer, sigma=0.1, seed=1).attached
        del model, optimizer


def test_capture_in_a_cuda_graph_is_refused(monkeypatch):
    model, optimizer, noise = make()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    w = flat(model)
    with pytest.raises(RuntimeError, match="every replay would repeat one draw"):
        optimizer.step()
    assert np.array_equal(flat(model), w)
    assert noise.step_count == 0


def test_tied_weights_are_cleaned_under_every_name():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
            self.b.weight = self.a.weight

    model = Tied()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    noise = attach(optimizer, sigma=0.1)
    optimizer.step()
    saved = through_a_file([model.state_dict(), optimizer.state_dict()])
    clean = clean_state_dict(*saved)
    noise.stop()
    for name in ("a.weight", "b.weight"):
        assert torch.equal(clean[name], model.a.weight)


def test_a_state_saved_inside_clean_is_that_of_clean_weights():
    model, optimizer, noise = make()
    train(model, optimizer, 3)
    with noise.clean():
        saved = through_a_file([model.state_dict(), optimizer.state_dict()])
        z = flat(model)
    noise.stop(remove=False)
    model, optimizer, noise = make()
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    assert noise.step_count == 3
    noise.stop()
    assert np.array_equal(flat(model), z)


def test_an_optimizer_that_gets_parameters_inside_clean():
    model, optimizer, noise = make()
    train(model, optimizer, 2)
    w = flat(model)
    with noise.clean():
        optimizer.add_param_group({"params": [("new", torch.nn.Parameter(torch.ones(3)))]})
        with pytest.raises(RuntimeError, match=r"reset\(\) inside clean"):
            noise.reset()
    assert np.array_equal(flat(model), w)
    train(model, optimizer, 1)
    assert noise.step_count == 3
    assert len(noise.members) == 7


def test_groups_that_are_removed():
    a, b, c = (torch.nn.Parameter(torch.zeros(20)) for _ in range(3))
    groups = [{"params": [("a", a)], "sigma": 1.0}, {"params": [("b", b)], "sigma": 10.0}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    noise = attach(optimizer, sigma=7.0, seed=SEED)
    optimizer.step()
    assert a.std() > 0.5
    optimizer.param_groups.pop(0)
    optimizer.add_param_group({"params": [("c", c)], "sigma": 100.0})
    optimizer.step()
    assert abs(a).max() < 1e-6  # let go, and left clean
    for name, parameter, sigma in (("b", b, 10.0), ("c", c, 100.0)):
        xi = sigma * draws(SEED, name, 2, 0, 20)
        assert np.allclose(parameter.detach().numpy(), xi, rtol=1e-4, atol=1e-4)
    optimizer.param_groups.pop(1)
    assert noise_in(optimizer.state_dict())["names"] == ["b"]
    noise.stop()
    assert max(abs(b).max(), abs(c).max()) < 1e-4


def test_rescale_measures_the_clean_weights():
    w = torch.nn.Parameter(torch.ones(10_000))
    optimizer = torch.optim.SGD([w], lr=0.1)
    noise = attach(optimizer, sigma=0.9, relative=True)
    for _ in range(5):
        optimizer.step()
        noise.rescale()
        assert noise.members[0].scale == pytest.approx(1, abs=1e-3)


def test_a_step_that_calls_the_step_of_its_parent_counts_once():
    class Child(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    model = make_model()
    torch.optim.SGD(model.parameters(), lr=0.1)  # torch then hooks the parent's step too
    optimizer = Child(model.named_parameters(), lr=0.05)
    noise = attach(optimizer, sigma=0.1, seed=SEED)
    train(model, optimizer, 3)
    assert noise.step_count == 3


def test_what_is_bad_is_found_before_the_weights_move():
    model, optimizer, noise = make()
    train(model, optimizer, 2)
    w = flat(model)
    optimizer.param_groups[0]["sigma"] = -1.0
    with pytest.raises(ValueError, match="sigma must be"):
        train(model, optimizer, 1)
    del optimizer.param_groups[0]["sigma"]
    half = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer.add_param_group({"params": [("half", half)]})
    with pytest.raises(TypeError, match=r"'half' is torch.bfloat16"):
        train(model, optimizer, 1)
    assert np.array_equal(flat(model), w)
    assert noise.step_count == 2


@pytest.mark.parametrize("schedule", [0.5, lambda n: -1.0, lambda n: float("nan")])
def test_a_bad_schedule_leaves_the_optimizer_without_noise(schedule):
    model = make_model()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    with pytest.raises(ValueError, match="schedule"):
        attach(optimizer, sigma=0.1, schedule=schedule)
    train(model, optimizer, 1)
    attach(optimizer, sigma=0.1)


def test_exclude_from_a_generator():
    model = make_model()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    noise = attach(optimizer, sigma=0.1, exclude=(name for name in ("0.*", "3.*")))
    assert [member.name for member in noise.members] == ["2.weight", "2.bias"]


def test_numpy_seed_can_be_saved_and_bool_is_none():
    model = make_model()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    noise = attach(optimizer, sigma=0.1, seed=np.int64(3))
    assert noise_in(through_a_file(optimizer.state_dict()))["seed"] == 3
    noise.stop()
    with pytest.raises(ValueError, match="seed must be an integer"):
        attach(optimizer, sigma=0.1, seed=True)


def test_another_model_with_the_same_draws_is_a_note(caplog):
    models = [make_model() for _ in range(3)]
    optimizers = [torch.optim.SGD(model.named_parameters(), lr=0.1) for model in models]
    attach(optimizers[0], sigma=0.1, seed=3)
    with caplog.at_level("INFO", logger="antipgd"):
        attach(optimizers[1], sigma=0.1, seed=3, namespace="b")
        assert "draws the same noise" not in caplog.text
        attach(optimizers[2], sigma=0.1, seed=3)
    assert "another optimizer draws the same noise for '0.weight' (seed 3)" in caplog.text


def test_recalibration_leaves_modes_momenta_and_generator():
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.BatchNorm1d(8)
    )
    model[1].eval()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    noise = attach(optimizer, sigma=0.1, model=model)
    optimizer.step()
    x, _ = batch(torch.float32)
    before, generator = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    for batches in ([x], [x, "not a batch"]):
        try:
            with noise.clean(recalibrate=batches):
                assert [module.training for module in model] == [True, False, True, True]
        except (TypeError, AttributeError):
            assert len(batches) == 2
        assert [module.training for module in model] == [True, False, True, True]
        assert model[1].momentum == model[3].momentum == 0.1
        assert torch.equal(torch.get_rng_state(), generator)
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]), name


def test_a_copy_of_anti_pgd_with_a_predicate():
    model = make_model(torch.float32)
    optimizer = AntiPGD(model.named_parameters(), 0.05, 0.1, exclude=norms(model))
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        names = [member.name for member in other.noise.members]
        assert names == ["0.weight", "0.bias", "3.weight", "3.bias"]


MEMORY = r"""
import re, torch
from antipgd.torch import attach

def noisy(size):
    w = torch.nn.Parameter(torch.ones(size))
    optimizer = torch.optim.SGD([("w", w)], lr=0.1)
    return optimizer, attach(optimizer, sigma=0.1, namespace=str(size))

def peak():  # not ru_maxrss, which a process inherits from the one that started it
    return int(re.search(r"VmHWM:\s*(\d+)", open("/proc/self/status").read())[1]) * 1024

small, noise = noisy(10_000)
small.step()
with noise.clean():
    pass
optimizer, noise = noisy(100_000_000)
begin = peak()
for _ in range(3):
    optimizer.step()
middle = peak()
with noise.clean():
    pass
print((middle - begin) / 1e8, (peak() - middle) / 1e8)
"""


def test_zero_bytes_per_parameter_and_four_inside_clean():
    result = subprocess.run(
        [sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True
    )
    stepping, inside_clean = map(float, result.stdout.split())
    assert stepping < 0.05
    assert 3.5 < inside_clean < 4.5


# A schedule is code


@pytest.mark.parametrize("form", ["weights", "forward"])
@pytest.mark.parametrize("load_first", [True, False])
def test_a_schedule_that_a_checkpoint_had_is_asked_for(form, load_first):
    def begin(**schedule):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)

        def add():
            if form == "weights":
                return attach(optimizer, sigma=0.1, **schedule)
            return perturb(model, optimizer, sigma=0.1, **schedule)

        return model, optimizer, add

    model, optimizer, add = begin(schedule=Window(0, 5))
    noise = add()
    assert noise.metrics()["noise/sigma"] == 0.1
    assert "sigma=0.1 × schedule" in repr(noise)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    assert noise.metrics()["noise/sigma"] == 0
    state, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
    noise.stop()
    assert "stopped" in repr(noise)
    for schedule, asked in (({}, True), ({"schedule": Window(0, 5)}, False)):
        model, optimizer, add = begin(**schedule)
        model.load_state_dict(weights)
        expected = (
            pytest.warns(UserWarning, match="had a schedule, which is code and not saved")
            if asked
            else nullcontext()
        )
        if load_first:
            optimizer.load_state_dict(state)
            with expected:
                noise = add()
        else:
            noise = add()
            with expected:
                optimizer.load_state_dict(state)
        assert noise.step_count == 6
        noise.stop()


# σ that follows a learning rate


def to_one(optimizer):
    """A learning rate that begins low, and rises to 0.08 within ten steps."""
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.08, total_steps=30)


def cyclic(optimizer):
    return torch.optim.lr_scheduler.CyclicLR(
        optimizer, 0.08 / 50, 0.08, step_size_up=10, cycle_momentum=False
    )


def linear(optimizer):
    return torch.optim.lr_scheduler.LinearLR(optimizer, 0.02, total_iters=10)


def go_along(scheduler, model, optimizer, noise):
    """Twenty steps, and σ of each."""
    found = []
    for _ in range(20):
        found.append(max(noise.sigmas()))
        train(model, optimizer, 1)
        scheduler.step()
    return found


FORMS = {
    "weights": lambda model, optimizer, **options: attach(optimizer, model=model, **options),
    "forward": perturb,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("schedule", "noise_first"), [(to_one, False), (cyclic, True), (linear, True), (linear, False)]
)
def test_sigma_that_follows_a_warm_up_is_at_most_what_was_given(form, schedule, noise_first):
    model = make_model()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.08)
    scheduler = None if noise_first else schedule(optimizer)
    noise = FORMS[form](model, optimizer, sigma=0.1, seed=SEED, schedule="lr")
    scheduler = scheduler or schedule(optimizer)
    found = go_along(scheduler, model, optimizer, noise)
    assert found[0] < 0.01
    assert max(found) == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("schedule", [cyclic, to_one])
def test_sigma_that_has_grown_with_the_learning_rate_is_said_once(form, schedule):
    """The scheduler is made on the wrong side of the noise."""
    model = make_model()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.08 / 25)
    scheduler = schedule(optimizer) if schedule is cyclic else None
    noise = FORMS[form](model, optimizer, sigma=0.001, seed=SEED, schedule="lr")
    scheduler = scheduler or schedule(optimizer)
    with pytest.warns(UserWarning, match="schedule='lr': sigma is now .* times what") as said:
        go_along(scheduler, model, optimizer, noise)
    assert len(said) == 1
    assert "the learning rate began at 0.00" in str(said[0].message)
    assert noise.step_count == 20


def test_a_state_goes_on_with_the_learning_rate_that_it_was_relative_to():
    """Also where OneCycleLR was not looked at yet."""
    model = make_model()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.08)
    to_one(optimizer)
    noise = attach(optimizer, sigma=0.001, seed=SEED, schedule="lr")
    assert {member.first_lr for member in noise.members} == {0.08}
    state = copy.deepcopy(optimizer.state_dict())
    older = json.loads(state["param_groups"][0]["antipgd"])
    older["first_lrs"] = [0.0032] * len(older["first_lrs"])
    state["param_groups"][0]["antipgd"] = json.dumps(older)
    optimizer.load_state_dict(state)
    assert {member.first_lr for member in noise.members} == {0.0032}
    assert max(noise.sigmas()) == pytest.approx(0.001)


# BatchNorms that do not train


class Kept(torch.nn.Module):
    """A fine-tuned network whose first norm is frozen, as recipes for detection have it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.frozen, self.body = torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        for norm in (self.frozen, self.norm):
            norm.running_mean.fill_(3.0), norm.running_var.fill_(5.0)

    def train(self, mode=True):
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x):
        return self.norm(self.body(self.frozen(x)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mode", [True, False])
def test_batch_norms_that_do_not_train_keep_their_statistics(form, mode):
    model = Kept()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.05)
    noise = FORMS[form](model, optimizer, sigma=0.01, seed=SEED)
    model.train(mode)
    modes = [module.training for module in model.modules()]
    x, _ = batch(torch.float32)
    with noise.recalibrate([x]):
        assert [module.training for module in model.modules()] == modes
        assert set(model.frozen.running_mean.tolist()) == {3.0}
        assert set(model.frozen.running_var.tolist()) == {5.0}
        expected = model.body((x - 3) / (5 + model.frozen.eps) ** 0.5).mean(0)
        torch.testing.assert_close(model.norm.running_mean, expected)
    assert set(model.norm.running_mean.tolist()) == {3.0}


@pytest.mark.parametrize("batches", [[], iter([])])
def test_statistics_of_no_batch_are_refused(batches):
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8))
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.05)
    noise = perturb(model, optimizer, sigma=0.01, seed=SEED)
    model[1].running_mean.fill_(3.0)
    refused = f"at least one batch; got none from {type(batches).__name__}"
    with pytest.raises(ValueError, match=refused), noise.recalibrate(batches):
        raise AssertionError
    assert set(model[1].running_mean.tolist()) == {3.0}
    assert model[1].momentum == 0.1
    x, _ = batch(torch.float32)
    model(x)  # noise is on again
    with noise.recalibrate([x]):
        pass


def test_without_batch_norms_no_batch_is_asked_for():
    model = make_model()
    noise = perturb(model, torch.optim.SGD(model.named_parameters(), lr=0.05), sigma=0.01)
    with noise.recalibrate([]):
        pass


# States without noise: folds that begin where the first one did


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("settings", [{"schedule": Window(1, 3)}, {"hold": 2}, {"layers": "one"}])
def test_every_fold_has_the_noise_of_the_first(form, settings, caplog):
    model = make_model()
    optimizer = torch.optim.Adam(model.named_parameters(), lr=0.05, weight_decay=0)
    start = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    noise = FORMS[form](model, optimizer, sigma=0.1, seed=SEED, **settings)
    found = []
    for _ in range(3):
        model.load_state_dict(start[0])
        optimizer.load_state_dict(start[1])
        assert "and the noise begins at step 0" in caplog.text
        assert (noise.step_count, float(noise.clock)) == (0, 0)
        w = []
        for _ in range(5):
            train(model, optimizer, 1)
            w.append(flat(model))
        found.append([*w, float(noise.clock), noise.step_count])
    for again in found[1:]:
        assert all(map(np.array_equal, again, found[0]))
    assert found[0][-1] == 5
    assert found[0][-2] > 0


def test_every_fold_waits_for_its_own_plateau():
    model = make_model()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.05)
    start = copy.deepcopy(optimizer.state_dict())
    noise = perturb(model, optimizer, sigma=0.1, schedule=Plateau(patience=1))
    for fold in range(2):
        if fold:
            optimizer.load_state_dict(start)
        assert noise.metrics()["noise/sigma"] == 0
        train(model, optimizer, 2)
        assert [noise.report(1.0), noise.report(1.0)] == [False, True]
        assert noise.metrics()["noise/sigma"] == 0.1


def test_every_fold_of_several_optimizers():
    model = make_model()
    parts = [[*model[0].parameters()], [*model[2:].parameters()]]
    each = [torch.optim.SGD(part, lr=0.05) for part in parts]
    start = copy.deepcopy([one.state_dict() for one in each])
    noise = perturb(model, each, sigma=0.1, schedule=Window(0, 3))
    for _ in range(2):
        for one, state in zip(each, start, strict=True):
            one.load_state_dict(state)
        assert noise.step_count == 0
        for _ in range(4):
            train(model, each[0], 1)
            each[1].step()
        assert noise.step_count == 4
    each[0].load_state_dict(start[0])
    with pytest.warns(UserWarning, match="1 of 2 optimizers were loaded; .* from step 0"):
        train(model, each[0], 1)
