"""Weights replaced behind the noise are found; ordinary scripts hear nothing of it."""

import copy
import io

import numpy as np
import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from antipgd.torch import attach, clean_state_dict
from antipgd.torch.sampling import diagonal, elements
from training import SEED, batch, flat, train

SIGMA = 0.02
REPLACED = r"weights were replaced since the last step: .* do not carry the noise"
MISFIT = r"the loaded noise does not belong to the weights that are there: "
WAYS = r"noise\.reset\(\).*state of its optimizer.*noise\.vouch\(\).*antipgd\.torch\.perturb\("


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 1)
    )


def begin(steps=5, kind=torch.optim.AdamW, **settings):
    model = make_model()
    optimizer = kind(model.named_parameters(), lr=0.01)
    noise = attach(optimizer, **{"sigma": SIGMA, "seed": SEED} | settings)
    train(model, optimizer, steps)
    return model, optimizer, noise


def finish(model, optimizer, noise, steps=3):
    """All that looks at the weights."""
    train(model, optimizer, steps)
    with noise.clean():
        model(batch(torch.float32)[0])
    optimizer.state_dict()
    train(model, optimizer, steps)
    noise.stop()


# Ordinary scripts


def plain(model, optimizer, noise):
    train(model, optimizer, 40)


def amp_and_clipping(model, optimizer, noise):
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    x, y = batch(torch.float32)
    for step in range(8):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = ((model(x) - y) ** 2).mean()
        scaler.scale(loss * (float("inf") if step in (1, 4) else 1)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def ema_beside(model, optimizer, noise):
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for _ in range(5):
        train(model, optimizer, 1)
        averaged.update_parameters(model)
    averaged(batch(torch.float32)[0])


def ema_swapped_and_back(model, optimizer, noise):
    for exchange in (by_copy, by_data, by_reference):
        kept = [p.detach().clone() for p in model.parameters()]
        exchange(model, [0.5 * w for w in kept])
        model(batch(torch.float32)[0])
        exchange(model, kept)
        train(model, optimizer, 1)


def tied(model, optimizer, noise):
    optimizer.zero_grad()
    model[3].bias = model[3].bias
    twin = torch.nn.Linear(6, 32)
    twin.weight = model[0].weight
    twin(batch(torch.float32)[0]).sum().backward()
    optimizer.step()


def weight_clipping(model, optimizer, noise):
    for write in (torch.Tensor.clamp_, lambda w, a, b: w.data.clamp_(a, b)):
        for _ in range(5):
            train(model, optimizer, 1)
            with torch.no_grad():
                for p in model.parameters():
                    write(p, -0.05, 0.05)


def unit_norm(model, optimizer, noise):
    for _ in range(10):
        train(model, optimizer, 1)
        with torch.no_grad():
            model[0].weight.mul_(1 / model[0].weight.norm())
            model[3].weight.sub_(model[3].weight.mean())


def masks(model, optimizer, noise):
    generator = torch.Generator().manual_seed(3)
    kept = {n: torch.rand(p.shape, generator=generator) < 0.1 for n, p in model.named_parameters()}
    for _ in range(10):
        train(model, optimizer, 1)
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.mul_(kept[name])


def another_optimizer(model, optimizer, noise):
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        train(model, optimizer, 1)
        train(model, other, 1)


def freezing(model, optimizer, noise):
    for on in (False, True):
        model[0].requires_grad_(on)
        train(model, optimizer, 2)


def pausing_and_resting(model, optimizer, noise):
    noise.pause()
    train(model, optimizer, 3)
    noise.resume()
    optimizer.param_groups[0]["lr"] = 0.0
    train(model, optimizer, 2)
    optimizer.param_groups[0]["lr"] = 0.01


def types_and_places(model, optimizer, noise):
    for move in (lambda: model.double(), lambda: model.float(), lambda: model.to("cpu")):
        move()
        with noise.clean():
            pass
    optimizer.state.clear()  # AdamW's own, of other types
    model.half().float()  # rounds, far below σ


def the_same_again(model, optimizer, noise):
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    with noise.clean():
        pass
    model.load_state_dict(model.state_dict(), assign=True)


def members_come_and_go(model, optimizer, noise):
    more = torch.nn.Parameter(torch.ones(40))
    optimizer.add_param_group({"params": [("more", more)]})
    optimizer.state_dict()
    train(model, optimizer, 1)
    del optimizer.param_groups[-1]
    optimizer.state_dict()
    train(model, optimizer, 1)


def by_copy(model, weights):
    with torch.no_grad():
        for p, w in zip(model.parameters(), weights, strict=True):
            p.copy_(w)


def by_data(model, weights):
    for p, w in zip(model.parameters(), weights, strict=True):
        p.data.copy_(w)


def by_reference(model, weights):
    for p, w in zip(model.parameters(), weights, strict=True):
        p.data = w.clone()


def by_loading(model, weights):
    names = [name for name, _ in model.named_parameters()]
    model.load_state_dict(dict(zip(names, weights, strict=True)))


@pytest.mark.parametrize(
    "script",
    [plain, amp_and_clipping, ema_beside, ema_swapped_and_back, tied, weight_clipping, unit_norm,
     masks, another_optimizer, freezing, pausing_and_resting, types_and_places, the_same_again,
     members_come_and_go],
    ids=lambda script: script.__name__,
)  # fmt: skip
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_ordinary_scripts_hear_nothing(script, kind):
    model, optimizer, noise = begin(kind=kind)
    script(model, optimizer, noise)
    finish(model, optimizer, noise)


def test_weights_that_diverged_are_not_called_replaced():
    model, optimizer, noise = begin()
    x, _ = batch(torch.float32)
    for _ in range(3):
        optimizer.zero_grad()
        (model(x) * float("nan")).sum().backward()
        optimizer.step()
    optimizer.state_dict()
    noise.stop()


# Replaced


def earlier(model, optimizer):
    """The weights of now, while training goes on."""
    kept = [p.detach().clone() for p in model.parameters()]
    train(model, optimizer, 10)
    return kept


def acts(model, optimizer, noise):
    return {
        "step": lambda: train(model, optimizer, 1),
        "clean": lambda: noise.clean().__enter__(),
        "stop": noise.stop,
        "save": optimizer.state_dict,
        "copy": lambda: copy.deepcopy(optimizer),
    }


@pytest.mark.parametrize("what", ["best", "average", "clean", "fresh"])
@pytest.mark.parametrize("act", ["step", "clean", "stop", "save", "copy"])
@pytest.mark.parametrize("put", [by_loading, by_copy, by_data, by_reference])
def test_replaced_weights_are_found(put, act, what):
    model, optimizer, noise = begin()
    best = earlier(model, optimizer)
    with noise.clean():
        z = [p.detach().clone() for p in model.parameters()]
    values = {
        "best": best,  # noisy ones of an earlier step
        "average": [(a + b) / 2 for a, b in zip(best, z, strict=True)],
        "clean": z,
        "fresh": [p.detach() for p in make_model().parameters()],
    }
    put(model, values[what])
    before, count = flat(model), noise.step_count
    with pytest.raises(RuntimeError, match=f"{REPLACED}.*{WAYS}"):
        acts(model, optimizer, noise)[act]()
    assert np.array_equal(flat(model), before)
    assert noise.step_count == count


def test_one_layer_alone():
    model, _optimizer, noise = begin()
    model[0].reset_parameters()
    with pytest.raises(RuntimeError, match=r"since the last step: 0\.weight, 0\.bias do not"):
        noise.stop()


def test_what_can_be_done_reset():
    model, optimizer, noise = begin()
    with noise.clean():
        z = copy.deepcopy(model.state_dict())
    train(model, optimizer, 5)
    model.load_state_dict(z)
    with pytest.raises(RuntimeError, match=REPLACED):
        train(model, optimizer, 1)
    noise.reset()
    with noise.clean():
        assert all(torch.equal(model.state_dict()[name], value) for name, value in z.items())
    finish(model, optimizer, noise)


def test_what_can_be_done_loading_both():
    model, optimizer, noise = begin()
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    with noise.clean():
        z = flat(model)
    train(model, optimizer, 5)
    model.load_state_dict(saved[0])
    with pytest.raises(RuntimeError, match=REPLACED):
        noise.stop()
    optimizer.load_state_dict(saved[1])
    with noise.clean():
        assert np.array_equal(flat(model), z)
    finish(model, optimizer, noise)


def test_what_can_be_done_vouching():
    model, _optimizer, noise = begin()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        model[0].weight.add_(torch.randn(32, 6, generator=generator))  # 50 σ: nobody can tell
    with pytest.raises(RuntimeError, match=REPLACED):
        noise.stop()
    before = model[0].weight.detach() - noise.injected(model[0].weight)
    noise.vouch()
    noise.stop()
    assert torch.equal(model[0].weight, before)


# Resuming


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("order", ["m o a", "o m a", "a m o", "a o m", "m a o", "o a m"])
def test_a_resume_is_silent_in_any_order(order):
    model, optimizer, noise = begin()
    saved = through_a_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    train(model, optimizer, 3)
    expected = flat(model)
    noise.stop(remove=False)
    model = make_model()
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=0.01)
    found = []
    acts = {
        "m": lambda: model.load_state_dict(saved["model"]),
        "o": lambda: optimizer.load_state_dict(saved["optimizer"]),
        "a": lambda: found.append(attach(optimizer, SIGMA, seed=SEED)),
    }
    for word in order.split():
        acts[word]()
    train(model, optimizer, 3)
    assert np.array_equal(flat(model), expected)
    finish(model, optimizer, found[0])


@pytest.mark.parametrize("forgotten", ["model", "optimizer"])
def test_a_resume_of_one_alone_is_loud(forgotten):
    model, optimizer, noise = begin(steps=30)
    saved = through_a_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    noise.stop(remove=False)
    model, optimizer, noise = begin(steps=3)
    if forgotten == "optimizer":
        model.load_state_dict(saved["model"])
    else:
        optimizer.load_state_dict(saved["optimizer"])
    with pytest.raises(RuntimeError, match=MISFIT if forgotten == "model" else REPLACED):
        train(model, optimizer, 1)


def test_a_copied_optimizer_that_trained_without_its_noise():
    """Its weights still carry the draw that it was copied with, which is shown, and taken out."""
    model, optimizer, noise = begin()
    other_model, other = copy.deepcopy((model, optimizer))
    with pytest.warns(UserWarning, match="the weights keep its last draw in them"):
        train(other_model, other, 20)
    carried = [noise.injected(p) for p in model.parameters()]
    wanted = [p.detach() - x for p, x in zip(other_model.parameters(), carried, strict=True)]
    attach(other, sigma=SIGMA).stop()
    for p, z in zip(other_model.parameters(), wanted, strict=True):
        assert torch.allclose(p, z, atol=1e-6)


def test_best_weights_saved_one_line_too_late():
    model, optimizer, noise = begin()
    with noise.clean():
        inside = model.state_dict()
        copied = copy.deepcopy(inside)
    best = copy.deepcopy(model.state_dict())
    assert all(torch.equal(inside[name], best[name]) for name in best)  # one memory: w again
    train(model, optimizer, 10)
    model.load_state_dict(best)
    with pytest.raises(RuntimeError, match=REPLACED):
        noise.stop()
    model.load_state_dict(copied)
    noise.reset()
    noise.stop()
    assert all(torch.equal(model.state_dict()[name], value) for name, value in copied.items())


def test_a_checkpoint_of_half_precision_is_close_enough():
    model, optimizer, noise = begin()
    halved = {name: value.bfloat16() for name, value in model.state_dict().items()}
    saved = through_a_file({"model": halved, "optimizer": optimizer.state_dict()})
    noise.stop(remove=False)
    model, optimizer, noise = begin(steps=0)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    finish(model, optimizer, noise)


def test_states_of_different_steps_do_not_give_clean_weights():
    model, optimizer, _ = begin()
    best = copy.deepcopy(model.state_dict())
    train(model, optimizer, 10)
    with pytest.raises(ValueError, match=r"do not belong together: .*'0\.weight'"):
        clean_state_dict(best, optimizer.state_dict())
    clean_state_dict(model.state_dict(), optimizer.state_dict())
    halved = {name: value.bfloat16() for name, value in model.state_dict().items()}
    clean_state_dict(halved, optimizer.state_dict())


def test_taps_without_clean_weights_are_not_watched():
    model, optimizer, _noise = begin(taps=(1.0, -0.9))
    model.load_state_dict(make_model().state_dict())
    train(model, optimizer, 2)
    assert "samples" not in optimizer.state_dict()["param_groups"][0]["antipgd"]


@pytest.mark.parametrize(
    "shape", [(), (1,), (5,), (40,), (3, 3, 3), (64, 3, 3, 3), (2, 50), (0, 4)]
)
def test_elements_that_are_kept(shape):
    whole = torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape)
    places = elements(whole)
    assert diagonal(whole).tolist() == places.tolist()
    assert len(set(places.tolist())) == len(places)
    assert len(places) == min(16, max(shape, default=1), whole.numel())
    if whole.dim() == 4:
        assert diagonal(whole.to(memory_format=torch.channels_last)).tolist() == places.tolist()


@pytest.mark.parametrize("relative", [True, "filter"])
def test_replaced_weights_are_found_where_few_filters_are_large(relative):
    """σ of the whole tensor is that of its few large rows; the elements looked at are of all."""
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 1000, bias=False)
    model.weight.data[1::100] *= 30
    optimizer = torch.optim.SGD(model.named_parameters(), lr=1e-4)
    noise = attach(optimizer, sigma=0.1, seed=SEED, relative=relative)
    x = torch.randn(8, 64)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step()
    step()
    with noise.clean():
        clean = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.copy_(clean)
    with pytest.raises(RuntimeError, match=REPLACED):
        step()


def test_saved_weights_of_other_draws_are_found_where_few_filters_are_large():
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 1000, bias=False)
    model.weight.data[1::100] *= 30
    optimizer = torch.optim.SGD(model.named_parameters(), lr=1e-4)
    noise = attach(optimizer, sigma=0.1, seed=SEED, relative="filter")
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    state = optimizer.state_dict()
    clean_state_dict(model.state_dict(), state)
    with noise.clean():
        clean = {"weight": model.weight.detach().clone()}
    with pytest.raises(ValueError, match="the two states do not belong together"):
        clean_state_dict(clean, state)
