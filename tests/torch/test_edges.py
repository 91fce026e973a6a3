"""Wrong input, odd optimizers, tensors that take no noise: said, and before anything moves."""

import copy
import gc
import io
import math
import pickle
import warnings

import numpy as np
import pytest
import torch

import antipgd.torch
from antipgd.noise import draws
from antipgd.torch import attach, beginning, norms, perturb
from antipgd.torch.detached import DetachedNoise
from antipgd.torch.living import attached_noises
from training import SEED, batch, flat, make_model, train


class Own(torch.optim.Optimizer):
    """Moves by a fixed share of the gradient: no learning rate anywhere."""

    def __init__(self, params):
        super().__init__(params, {"share": 0.05})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(group["share"] * parameter.grad)


def test_an_optimizer_without_learning_rate():
    model, twin = make_model(), make_model()
    optimizer, other = Own(model.named_parameters()), torch.optim.SGD(twin.named_parameters(), 0.05)
    noise, usual = (attach(o, sigma=0.05, seed=SEED) for o in (optimizer, other))
    train(model, optimizer, 5)
    train(twin, other, 5)
    assert np.abs(flat(model) - flat(twin)).max() < 1e-14
    assert noise.step_count == 5
    assert math.isnan(noise.clock)
    assert usual.clock > 0
    assert "clock unknown: param group 0 has no lr" in repr(noise)
    assert "clock unknown" not in repr(usual)
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(state)
    train(model, optimizer, 1)
    assert noise.step_count == 6
    assert math.isnan(noise.clock)
    noise.stop()
    with pytest.raises(
        ValueError, match="relative to its first value, which must be > 0; got None"
    ):
        attach(optimizer, sigma=0.1, schedule="lr")


def test_momentum_1_has_no_clock():
    model = make_model()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.001, momentum=1.0)
    noise = attach(optimizer, sigma=0.05)
    train(model, optimizer, 3)
    assert noise.step_count == 3
    assert math.isnan(noise.clock)
    assert "clock unknown: param group 0 has momentum 1" in repr(noise)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert math.isnan(noise.clock)


def test_meta_tensors_are_refused_with_the_way_out():
    with torch.device("meta"):
        model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    with pytest.raises(TypeError, match=r"'weight' is on the meta device.*to_empty"):
        attach(optimizer, sigma=0.1, relative=True)


def test_a_sigma_that_the_weights_type_cannot_hold():
    model = make_model(torch.float32)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.05)
    with pytest.raises(ValueError, match=r"sigma must be finite in torch.float32.*got 1e\+39"):
        attach(optimizer, sigma=1e39)
    noise = attach(optimizer, sigma=0.1)
    before = flat(model)
    noise.sigma = 3e38  # twice that, with taps 1, −1, is not
    with pytest.raises(ValueError, match=r"sigma must be finite in torch.float32, the type of '0"):
        train(model, optimizer, 1)
    assert np.array_equal(flat(model), before)
    assert noise.step_count == 0


@pytest.mark.parametrize(
    ("exclude", "message"),
    [
        ("bias", r"exclude 'bias' matches no parameter; did you mean '\*\.bias'\?"),
        (
            ["3.*", "0.wieght"],
            r"exclude '0.wieght' matches no parameter; did you mean '0.weight'\?",
        ),
        ([norms, "layer*"], r"exclude 'layer\*' matches no parameter; "),
    ],
)
def test_a_name_that_excludes_nothing_is_refused(exclude, message):
    model = make_model()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.05)
    if not isinstance(exclude, str):
        exclude = [norms(model) if rule is norms else rule for rule in exclude]
    with pytest.raises(ValueError, match=message):
        attach(optimizer, sigma=0.1, exclude=exclude)
    attach(optimizer, sigma=0.1, exclude=lambda name, parameter: False).stop()  # a predicate may


def noise_now(noise, parameter):
    return noise.injected(parameter).numpy()


@pytest.mark.parametrize("taps", [(1.0, -1.0), (1.0, -0.5, -0.5)])
def test_frozen_tensors_take_none_join_and_leave(taps):
    w = torch.nn.Parameter(torch.zeros(50))
    frozen = torch.nn.Parameter(torch.ones(50), requires_grad=False)
    optimizer = torch.optim.SGD([("w", w), ("frozen", frozen)], lr=0.1)
    noise = attach(optimizer, sigma=0.2, seed=SEED, taps=taps)
    assert repr(noise).count("sigma 0.2") == 1
    assert "frozen: frozen" in repr(noise)
    carried = 1.0 if len(taps) == 2 else 1.25  # 1² + (1 − .5)²
    optimizer.step()
    assert noise.clock == pytest.approx(carried * 0.1 * 0.2**2)
    assert (frozen == 1).all()
    frozen.requires_grad_(True)
    optimizer.step()  # joins, with no draw from before
    first = taps[0] * 0.2 * draws(SEED, "frozen", 2, 0, 50)
    assert np.allclose(frozen.detach().numpy() - 1, first, atol=1e-6)
    frozen.requires_grad_(False)
    for left in range(len(taps) - 1, -1, -1):  # gives its draws back; w = z + ξ all the while
        carried = noise_now(noise, frozen)
        assert np.allclose(frozen.numpy() - 1, carried, atol=1e-6)
        assert (np.abs(carried).max() > 0) == (left > 0)
        with noise.clean():
            assert np.allclose(frozen.numpy(), 1, atol=1e-6)
        optimizer.step()
    assert np.abs(noise_now(noise, w)).max() > 0.1
    noise.stop()
    assert np.abs(w.detach().numpy()).max() < 1e-6


def test_a_checkpoint_does_not_mind_what_is_frozen():
    def begin(frozen):
        model = make_model(torch.float32)
        model[0].requires_grad_(not frozen)
        optimizer = torch.optim.SGD(model.named_parameters(), lr=0.05)
        return model, optimizer, attach(optimizer, sigma=0.1, seed=SEED)

    model, optimizer, noise = begin(frozen=False)
    train(model, optimizer, 3)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    with noise.clean():
        z = flat(model)
    model, optimizer, noise = begin(frozen=True)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    with noise.clean():
        assert np.array_equal(flat(model), z)
    train(model, optimizer, 1)
    assert np.allclose(model[0].weight.detach().numpy().ravel(), z[:48], atol=1e-6)  # given back


def test_frozen_tensors_may_be_of_any_type_until_they_are_not_frozen():
    w = torch.nn.Parameter(torch.ones(5))
    half = torch.nn.Parameter(torch.ones(5, dtype=torch.bfloat16), requires_grad=False)
    optimizer = torch.optim.SGD([("w", w), ("half", half)], lr=0.1)
    noise = attach(optimizer, sigma=0.1)
    optimizer.step()
    with noise.clean():
        assert (half == 1).all()
    half.requires_grad_(True)
    before = w.detach().clone()
    with pytest.raises(TypeError, match=r"'half' is torch.bfloat16"):
        optimizer.step()
    assert torch.equal(w, before)
    assert noise.step_count == 1


def test_nothing_that_takes_noise_is_said():
    model = make_model()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="no parameter takes noise: all are excluded or frozen"):
        attach(optimizer, sigma=0.1, exclude="*")


def test_relative_sigma_says_what_takes_none(caplog):
    model = make_model(torch.float32)
    torch.nn.init.zeros_(model[3].bias)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    attach(optimizer, sigma=0.3, relative=True)
    assert caplog.text.count("no noise on tensors of zeros until rescale(): 2.bias, 3.bias") == 1


def noisy_as(form, model, optimizer, **options):
    return perturb(model, optimizer, **options) if form == "forward" else attach(
        optimizer, model=model, **options
    )  # fmt: skip


@pytest.mark.parametrize("form", ["weights", "forward"])
@pytest.mark.parametrize("relative", [True, "filter"])
def test_zeros_that_join_later_are_named_and_those_that_grew_while_frozen_measured(
    form, relative, caplog
):
    model = make_model(torch.float32)
    for parameter in (*model[2].parameters(), *model[3].parameters()):
        torch.nn.init.zeros_(parameter)
    model[3].requires_grad_(False)
    optimizer = torch.optim.SGD(model[0].named_parameters(), lr=1e-6)
    optimizer.add_param_group({"params": [*model[3].named_parameters()]})
    noise = noisy_as(form, model, optimizer, sigma=0.3, relative=relative, seed=SEED)
    assert "no noise on tensors of zeros" not in caplog.text
    torch.nn.init.constant_(model[3].weight, 0.5)  # loaded, or initialised, by now
    train(model, optimizer, 1)
    assert not noise.injected(model[3].weight).any()
    model[3].requires_grad_(True)
    train(model, optimizer, 1)
    assert caplog.messages[-1:] == [
        "relative sigma: no noise on tensors of zeros until rescale(): 3.bias"
    ]
    assert noise.injected(model[3].weight).std() == pytest.approx(0.15, rel=0.6)
    optimizer.add_param_group({"params": [*model[2].named_parameters()]})
    train(model, optimizer, 2)
    assert [text for text in caplog.messages if "2." in text] == [
        "relative sigma: no noise on tensors of zeros until rescale(): 2.weight, 2.bias"
    ]


@pytest.mark.parametrize("form", ["weights", "forward"])
def test_zeros_that_take_noise_are_not_measured_anew_by_a_resume(form):
    def begin():
        model = make_model(torch.float32)
        torch.nn.init.zeros_(model[3].bias)
        optimizer = torch.optim.SGD(model.named_parameters(), lr=0.05)
        return model, optimizer, noisy_as(form, model, optimizer, sigma=0.1, relative=True)

    model, optimizer, noise = begin()
    train(model, optimizer, 3)
    assert model[3].bias.any()
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    train(model, optimizer, 3)
    assert not noise.injected(model[3].bias).any()
    again, theirs, noise = begin()
    again.load_state_dict(saved[0])
    theirs.load_state_dict(saved[1])
    train(again, theirs, 3)
    assert np.array_equal(flat(again), flat(model))
    assert not noise.injected(again[3].bias).any()


@pytest.mark.parametrize("sigma", [1.0, 2.0])
def test_a_relative_sigma_of_1_and_more_drowns(sigma):
    model = make_model(torch.float32)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="the noise drowns its weights") as found:
        attach(optimizer, sigma=sigma, relative=True, exclude="2.bias")
    assert "relative=True" not in str(found[0].message)
    assert "a smaller sigma or exclude=" in str(found[0].message)


def test_a_bias_near_zero_is_no_reason_to_warn():
    model = make_model(torch.float32)
    torch.nn.init.constant_(model[3].bias, 1e-6)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    attach(optimizer, sigma=0.1)


@pytest.mark.parametrize(("sigma", "drowns"), [(0.9, False), (1.01, True)])
def test_noise_drowns_where_it_is_as_large_as_the_weights_in_all(recwarn, sigma, drowns):
    """Two matrices of 1 and √7 of 4 elements: rms 2, one of them half of it."""
    one, other = torch.ones(2, 2), torch.full((2, 2), 7**0.5)
    ones = torch.full((100,), 50.0)  # the scales of a normalisation layer
    optimizer = torch.optim.SGD([torch.nn.Parameter(t) for t in (one, other, ones)], lr=0.1)
    attach(optimizer, sigma=2 * sigma)
    said = [str(w.message) for w in recwarn.list]
    assert len(said) == drowns
    if drowns:
        assert (
            "sigma is 1.01 times the root mean square of what it is added to, 2.02 times" in said[0]
        )


class Keeps(torch.nn.Module):
    """A module that holds on to its noise, as many trainers do."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(6, 1)
        self.optimizer = torch.optim.SGD(self.net.named_parameters(), lr=0.1)
        self.noise = attach(self.optimizer, sigma=0.1, seed=SEED)


def through_torch(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "make_copy", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), through_torch]
)
def test_a_module_that_keeps_its_noise_can_be_copied_and_saved(make_copy):
    module = Keeps()
    x, y = batch(torch.float32)
    ((module.net(x) - y) ** 2).mean().backward()
    module.optimizer.step()
    other = make_copy(module)
    assert isinstance(other.noise, DetachedNoise)
    assert (other.noise.step_count, other.noise.seed, other.noise.attached) == (1, SEED, False)
    with pytest.raises(AttributeError, match=r"clean: this is a copy of a noise's handle.*attach"):
        other.noise.clean()
    assert module.noise.attached
    noise = attach(other.optimizer, sigma=0.1)  # goes on where the original was
    assert noise.step_count == 1
    with noise.clean(), module.noise.clean():
        assert torch.equal(other.net.weight, module.net.weight)


def test_a_copy_of_anti_pgd_that_was_stopped():
    model = make_model(torch.float32)
    optimizer = antipgd.torch.AntiPGD(model.named_parameters(), 0.05, 0.1, seed=SEED)
    train(model, optimizer, 2)
    optimizer.noise.stop()
    other = copy.deepcopy(optimizer)
    assert not other.noise.attached
    assert "antipgd" not in other.param_groups[0]


def test_a_handle_whose_optimizer_is_gone():
    model = make_model()
    noise = attach(torch.optim.SGD(model.named_parameters(), lr=0.1), sigma=0.1)
    assert "optimizer is gone" in repr(noise)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        noise.stop()


def test_where_warnings_are_errors_advice_leaves_the_optimizer_without_noise():
    weights = torch.nn.Parameter(torch.ones(5, 5))
    optimizer = torch.optim.SGD([weights], lr=0.1)
    with pytest.raises(UserWarning, match="drowns"):
        attach(optimizer, sigma=9.0)
    assert "antipgd" not in optimizer.param_groups[0]
    optimizer.step()
    assert (weights == 1).all()


def test_relative_sigma_beside_quantised_tensors_that_are_frozen():
    weights = torch.nn.Parameter(torch.ones(5))
    packed = torch.nn.Parameter(torch.ones(5, dtype=torch.uint8), requires_grad=False)
    optimizer = torch.optim.SGD([weights, packed], lr=0.1)
    noise = attach(optimizer, sigma=0.1, relative=True)
    more = torch.nn.Parameter(torch.ones(5, dtype=torch.int8), requires_grad=False)
    optimizer.add_param_group({"params": [more]})
    optimizer.step()
    noise.rescale()
    noise.stop()
    assert torch.allclose(weights, torch.ones(5), atol=1e-6)


def test_weights_that_become_half_are_refused_before_they_move():
    model = make_model(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    noise = attach(optimizer, sigma=0.1, seed=SEED)
    train(model, optimizer, 2)
    with noise.clean():
        z = flat(model)
    model.half()
    before = flat(model)
    for act in (optimizer.step, noise.stop, noise.clean().__enter__):
        with pytest.raises(TypeError, match=r"'0' is torch\.float16"):
            act()
    assert noise.step_count == 2
    assert np.array_equal(flat(model), before)
    model.float()
    noise.stop()
    assert np.allclose(flat(model), z, atol=1e-3)


def test_rescale_refuses_weights_that_are_not_finite():
    first, second = torch.nn.Parameter(torch.ones(5)), torch.nn.Parameter(torch.ones(5))
    optimizer = torch.optim.SGD([first, second], lr=0.1)
    noise = attach(optimizer, sigma=0.1, relative=True)
    with torch.no_grad():
        first.mul_(3)
        second.fill_(math.nan)
    with pytest.raises(ValueError, match="weights of '1' are not finite"):
        noise.rescale()
    assert [member.scale for member in noise.members] == [1.0, 1.0]
    optimizer.state_dict()


def test_a_schedule_is_asked_once_for_a_group():
    asked = []
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(5)) for _ in range(9)], lr=0.1)
    attach(optimizer, sigma=0.1, schedule=lambda step: asked.append(step) or 1.0)
    asked.clear()
    optimizer.step()
    assert asked == [1]


def test_garbage_that_is_collected_while_attach_looks_around(monkeypatch):
    def garbage():
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(5))], lr=0.1)
        attach(optimizer, sigma=0.1)
        optimizer.itself = optimizer  # only the collector frees it

    looks = []

    def collect(noise):
        looks.append(noise)
        if len(looks) > 1:  # the first is at the new one, before the others are listed
            gc.collect()
        return {id(member.parameter) for member in noise.members}

    gc.disable()
    try:
        for _ in range(3):
            garbage()
        monkeypatch.setattr(beginning, "_parameters", collect)
        noise = attach(torch.optim.SGD([torch.nn.Parameter(torch.ones(5))], lr=0.1), sigma=0.1)
    finally:
        gc.enable()
    assert len(looks) > 3
    assert noise.step_count == 0


class Fading:
    """A weak reference whose object is collected as soon as somebody has looked."""

    def __init__(self, optimizer):
        self._left = [optimizer]

    def __call__(self):
        return self._left.pop() if self._left else None


def test_an_optimizer_that_is_collected_between_two_looks_is_held_by_the_first():
    model = make_model()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    noise = attach(optimizer, sigma=0.1)
    refs = noise.together._each
    noise.together._each = [Fading(optimizer)]
    assert [held for other, held in attached_noises() if other is noise] == [[optimizer]]
    assert noise.together.if_there is None  # by now
    assert [held for other, held in attached_noises() if other is noise] == []
    with pytest.raises(ReferenceError, match="the optimizer of this noise is gone"):
        _ = noise.together.each
    noise.together._each = refs
    noise.stop()
    assert "antipgd" not in optimizer.param_groups[0]
