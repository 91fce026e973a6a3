"""Layers that take turns, and noise shared out over filters, in both forms."""

import copy
import io
import json
import re
import struct
from functools import partial

import numpy as np
import pytest
import torch

from antipgd.noise import draws
from antipgd.noise.reference import clean, in_turn, perturbed
from antipgd.torch import attach, clean_state_dict, perturb
from antipgd.torch.layers import layer_of
from training import SEED, batch, make_model, train

SIGMA, STEPS = 0.05, 11
LAYERS = ("0", "2", "3")  # of make_model
FORMS = ("weights", "forward")
SHAPED = {"layers": {"layers": "one"}, "filters": {"relative": "filter"},
          "both": {"layers": "one", "relative": "filter", "hold": 2}}  # fmt: skip


def make(form, dtype=torch.float64, seed=0, **settings):
    model = make_model(dtype, seed)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.05, momentum=0.9)
    on = (optimizer,) if form == "weights" else (model, optimizer)
    add = attach if form == "weights" else perturb
    return model, optimizer, add(*on, sigma=SIGMA, seed=SEED, **settings)


def rms(array):
    return float(f"{np.sqrt(np.square(array).mean()):.4g}")


def shape_of(z):
    """σ of a tensor, and what of it each filter gets."""
    if z.ndim < 2:
        return SIGMA * rms(z), None
    size = rms(z)
    rows = np.sqrt(np.square(z).mean(axis=tuple(range(1, z.ndim))))
    shares = np.array([float(f"{row / size:.4g}") for row in rows], np.float32)
    return SIGMA * size, shares.reshape(-1, *[1] * (z.ndim - 1))


def reference(steps, dtype=torch.float64, layers="all", relative=False, hold=1, taps=(1.0, -1.0)):
    """Every tensor's trajectory by `noise.reference`, given its gradients; and its clean weights.

    The optimizer itself is the base step: all tensors step together, so the reference of each is
    asked step by step.
    """
    model = make_model(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    paths, left = {}, {}
    after = {}
    for name, parameter in model.named_parameters():
        start = parameter.detach().numpy().copy()
        sigma, shares = SIGMA, None
        if relative:
            sigma, shares = shape_of(start)
        if layers == "one":
            sigma = in_turn(sigma, LAYERS.index(name.partition(".")[0]), len(LAYERS))
        size = start.size

        def held(value, by=hold):
            return (lambda k: value(-(-k // by))) if callable(value) else value

        def draw(k, name=name, size=size, shape=start.shape):
            return draws(SEED, name, -(-k // hold), 0, size).reshape(shape)

        paths[name] = perturbed(lambda w, name=name: after[name], start, steps, draw=draw,
                                sigma=held(sigma), taps=taps, shares=shares)  # fmt: skip
        left[name] = partial(clean, draw=draw, sigma=held(sigma), taps=taps, shares=shares)
        next(paths[name])
    for _ in range(steps):
        train(model, optimizer, 1)
        for name, parameter in model.named_parameters():
            after[name] = parameter.detach().numpy().copy()
        for name, parameter in model.named_parameters():
            parameter.data = torch.from_numpy(next(paths[name]).copy())
    ws = {name: p.detach().numpy() for name, p in model.named_parameters()}
    return ws, {name: left[name](w, steps) for name, w in ws.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("settings", SHAPED.values(), ids=SHAPED)
def test_weights_walk_the_reference_bit_for_bit(settings, dtype):
    model, optimizer, noise = make("weights", dtype, **settings)
    train(model, optimizer, STEPS)
    ws, zs = reference(STEPS, dtype, **settings)
    for name, parameter in model.named_parameters():
        assert np.array_equal(parameter.detach().numpy(), ws[name]), name
    with noise.clean():
        for name, parameter in model.named_parameters():
            assert np.array_equal(parameter.detach().numpy(), zs[name]), name


@pytest.mark.parametrize("settings", SHAPED.values(), ids=SHAPED)
def test_passes_read_what_the_reference_carries(settings):
    model, optimizer, noise = make("forward", **settings)
    for step in range(STEPS + 1):
        ws, zs = reference(step, **settings)
        for name, parameter in model.named_parameters():
            found = parameter.detach().numpy()
            assert np.allclose(found, zs[name], rtol=0, atol=1e-13), (step, name)
            xi = noise.injected(parameter).numpy()
            assert np.allclose(xi, ws[name] - zs[name], rtol=0, atol=1e-13), (step, name)
            for wrong in (2 / 3, 3 / 2):
                far = np.allclose(wrong * xi, ws[name] - zs[name], rtol=0, atol=1e-13)
                assert not far or not xi.any()
        train(model, optimizer, 1)


def test_a_pass_reads_z_and_its_draw():
    """In the very bits: w = z + σ·share·ξ, and the gradient of it reaches z as it is."""
    model, optimizer, _ = make("forward", torch.float32, relative="filter", layers="one")
    sigma, shares = shape_of(dict(model.named_parameters())["0.weight"].detach().numpy())
    train(model, optimizer, 1)
    z = model[0].weight.detach().clone().numpy()
    read = []
    model[0].register_forward_hook(lambda module, x, y: read.append(module.weight))
    model(batch(torch.float32)[0]).sum().backward()
    xi = draws(SEED, "0.weight", 1, 0, z.size).reshape(z.shape) * np.float32(sigma)
    assert np.array_equal(read[0].detach().numpy(), z + xi * shares)


def test_one_layer_has_noise_at_a_time():
    for form in FORMS:
        model, optimizer, noise = make(form, layers="one")
        for step in range(7):
            carry = {name for name, p in model.named_parameters() if noise.injected(p).any()}
            turn = LAYERS[(step - 1) % 3] if step else None
            assert carry == ({f"{turn}.weight", f"{turn}.bias"} if step else set())
            train(model, optimizer, 1)


def test_a_frozen_layer_has_no_turn():
    model, optimizer, noise = make("forward", layers="one")
    model[2].requires_grad_(False)
    seen = []
    for _ in range(4):
        train(model, optimizer, 1)
        seen.append({n.partition(".")[0] for n, p in model.named_parameters()
                     if noise.injected(p).any()})  # fmt: skip
    assert seen == [{"0"}, {"3"}, {"0"}, {"3"}]


def test_antithetic_draws_stay_with_their_layer():
    model, optimizer, noise = make("forward", layers="one", antithetic=True)
    carried = []
    for _ in range(4):
        train(model, optimizer, 1)
        carried.append([noise.injected(p) for p in model.parameters()])
    for plus, minus in zip(carried[::2], carried[1::2], strict=True):
        assert all(torch.equal(a, -b) for a, b in zip(plus, minus, strict=True))
    assert carried[0][0].any()
    assert not carried[2][0].any()


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("at", [1, 4, 5])
@pytest.mark.parametrize("settings", SHAPED.values(), ids=SHAPED)
@pytest.mark.parametrize("form", FORMS)
def test_resumed_midway_bit_for_bit(form, settings, at):
    model, optimizer, _ = make(form, **settings)
    train(model, optimizer, at)
    saved = through_a_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    train(model, optimizer, STEPS - at)
    again, its_optimizer, _ = make(form, seed=3, **settings)  # whose own filters are others
    again.load_state_dict(saved["model"])
    its_optimizer.load_state_dict(saved["optimizer"])
    train(again, its_optimizer, STEPS - at)
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("settings", SHAPED.values(), ids=SHAPED)
def test_clean_from_the_files_alone(settings):
    model, optimizer, noise = make("weights", torch.float32, **settings)
    train(model, optimizer, 5)
    found = clean_state_dict(model.state_dict(), optimizer.state_dict())
    with noise.clean():
        for name, parameter in model.named_parameters():
            assert torch.equal(found[name], parameter), name


def test_shares_are_as_large_in_all_as_the_tensor_s_own():
    _, _, noise = make("weights", relative="filter")
    _, _, plain = make("weights", relative=True, namespace="other")
    for member, other in zip(noise.members, plain.members, strict=True):
        assert member.scale == other.scale
        if member.shares is not None:
            assert float(member.shares.square().mean()) == pytest.approx(1, abs=2e-3)
            assert member.shares.max() > 1.05 * member.shares.min() or len(member.shares) == 1


@pytest.mark.parametrize("form", FORMS)
def test_rescale_measures_the_filters_anew_and_leaves_z_alone(form):
    model, optimizer, noise = make(form, relative="filter")
    train(model, optimizer, 3)

    def clean_weights():
        with noise.clean():
            return [p.detach().clone() for p in model.parameters()]

    before = clean_weights()
    with torch.no_grad():  # z of one filter ten times as large
        model[0].weight[2] += 9 * before[0][2]
    if form == "weights":
        noise.vouch()
    old = noise.members[0].shares.clone()
    before = clean_weights()
    noise.rescale()
    shares = noise.members[0].shares
    assert shares[2] / shares[0] == pytest.approx(10 * float(old[2] / old[0]), rel=0.2)
    for a, b in zip(before, clean_weights(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-14)
    assert noise.injected(model[0].weight)[2].abs().max() > 0
    train(model, optimizer, 3)
    noise.stop()


def test_recomputed_and_functional_passes_read_the_same():
    models = []
    for memory in ("keep", "recompute"):
        settings = {"relative": "filter", "layers": "one", "memory": memory}
        model, optimizer, _ = make("forward", torch.float32, **settings)
        train(model, optimizer, 4)
        models.append(model)
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(a, b)
    model = models[0]
    x = batch(torch.float32)[0]
    named = dict(model.named_parameters())
    functional = torch.func.functional_call(model, named, x)
    assert torch.equal(functional, model(x))
    jvp = torch.func.vjp(lambda x: model(x), x)[0]
    assert torch.equal(jvp, functional)


def test_bfloat16_reads_rounded_once():
    model = make_model(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    noise = perturb(model, optimizer, sigma=0.1, seed=SEED, relative="filter")
    train(model, optimizer, 1)
    read = []
    model[0].register_forward_hook(lambda module, x, y: read.append(module.weight.detach()))
    model(batch(torch.bfloat16)[0])
    z = model[0].weight.detach()
    assert torch.equal(read[0], (z.float() + noise.injected(z_of(model))).bfloat16())


def z_of(model):
    return dict(model.named_parameters())["0.weight"]


def test_convolutions_and_channels_last():
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 2, 3))
        model.to(memory_format=layout)
        z = model[0].weight.detach().contiguous().numpy().copy()
        optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
        noise = attach(optimizer, SIGMA, seed=SEED, relative="filter")
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        sigma, shares = shape_of(z)
        xi = draws(SEED, "0.weight", 1, 0, z.size).reshape(z.shape) * np.float32(sigma)
        assert np.array_equal(noise.injected(model[0].weight).numpy(), xi * shares)
        assert np.array_equal(model[0].weight.detach().numpy(), z + xi * shares)
        noise.stop()


def test_the_clock_counts_what_each_element_gets():
    model, optimizer, one = make("weights", layers="one")
    train(model, optimizer, 3)
    other, its_optimizer, everywhere = make("weights", namespace="other")
    train(other, its_optimizer, 1)
    assert float(one.clock) == pytest.approx(float(everywhere.clock))


@pytest.fixture
def _compiled_anew():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("form", FORMS)
def test_a_state_of_another_shape_is_refused_before_anything_changes(form):
    model, optimizer, _ = make(form, **SHAPED["both"])
    train(model, optimizer, 3)
    state = copy.deepcopy(optimizer.state_dict())
    other, its_optimizer, noise = make(form, relative=True, hold=2)
    before = [p.detach().clone() for p in other.parameters()]
    with pytest.raises(ValueError, match=r"its (layers|relative) is '(one|filter)'"):
        its_optimizer.load_state_dict(state)
    assert noise.step_count == 0
    for a, b in zip(before, other.parameters(), strict=True):
        assert torch.equal(a, b)


def spoilt(shares, kind):
    if kind == "missing":
        return None
    if kind == "short":
        return [shares[0][:8], *shares[1:]]
    if kind == "negative":
        return [struct.pack("<f", -1.0).hex() + shares[0][8:], *shares[1:]]
    if kind == "infinite":
        return [struct.pack("<f", float("inf")).hex() + shares[0][8:], *shares[1:]]
    return ["xyz", *shares[1:]]


@pytest.mark.parametrize(
    ("kind", "message"),
    [("missing", "shares must have 8 numbers for '0.weight', one for each filter; got 0"),
     ("short", "got 1"), ("negative", "finite numbers >= 0"), ("infinite", "finite numbers >= 0"),
     ("text", "eight hexadecimal digits")],
)  # fmt: skip
def test_spoilt_shares_are_refused(kind, message):
    model, optimizer, _ = make("weights", relative="filter")
    train(model, optimizer, 2)
    state = copy.deepcopy(optimizer.state_dict())
    group = state["param_groups"][0]
    record = json.loads(group["antipgd"])
    assert record["relative"] == "filter"
    found = spoilt(record["shares"], kind)
    if found is None:
        del record["shares"]
    else:
        record["shares"] = found
    group["antipgd"] = json.dumps(record)
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(state)


def test_a_plain_record_says_nothing_of_either():
    _, optimizer, _ = make("weights", relative=True)
    text = optimizer.state_dict()["param_groups"][0]["antipgd"]
    assert "layers" not in text
    assert "shares" not in text


@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_accepted_is_refused(form):
    for settings, message in (
        ({"layers": "two"}, "unknown layers 'two'"),
        ({"relative": "row"}, "relative must be True, False, 'filter' or 'element'; got 'row'"),
        ({"relative": 1}, "relative must be True, False, 'filter' or 'element'; got 1"),
    ):
        with pytest.raises(ValueError, match=message):
            make(form, **settings)
    single = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(single.named_parameters(), lr=0.1)
    with pytest.raises(ValueError, match="needs two layers or more that take noise; got"):
        attach(optimizer, 0.1, layers="one")
    assert "antipgd" not in optimizer.param_groups[0]


def test_layers_need_names():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=re.escape("give model=, or make the optimizer from")):
        attach(optimizer, 0.1, layers="one")
    attach(optimizer, 0.1, layers="one", model=model).stop()


@pytest.mark.usefixtures("_compiled_anew")
def test_filters_are_not_compiled():
    model, _, _ = make("forward", torch.float32, relative="filter")
    with pytest.raises(RuntimeError, match=r"relative='filter' does not work under torch\.compile"):
        torch.compile(model, backend="aot_eager", fullgraph=True)(batch(torch.float32)[0])


@pytest.mark.usefixtures("_compiled_anew")
def test_layers_in_turn_are_compiled():
    path = []
    for compiled in (False, True):
        model, optimizer, noise = make("forward", torch.float32, layers="one")
        call = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        x, y = batch(torch.float32)
        for _ in range(5):
            optimizer.zero_grad()
            ((call(x) - y) ** 2).mean().backward()
            optimizer.step()
        path.append([p.detach().clone() for p in model.parameters()])
        noise.stop()
    assert all(torch.equal(a, b) for a, b in zip(*path, strict=True))


def test_rescale_of_filters_needs_clean_weights_to_measure():
    _, _, noise = make("weights", relative="filter", taps=(1.0, -0.5))
    with pytest.raises(ValueError, match="do not sum to zero"):
        noise.rescale()
    _, _, noise = make("weights", relative="filter", namespace="other")
    with noise.clean(), pytest.raises(RuntimeError, match="rescale"):
        noise.rescale()


def test_names_of_layers():
    names = {"0.weight": "0", "0.bias": "0", "w": "", "ws.0": "ws.0", "a.b.weight": "a.b",
             "a.parametrizations.weight.original": "a"}  # fmt: skip
    assert {name: layer_of(name) for name in names} == names


def test_it_says_so():
    _, _, noise = make("weights", layers="one", relative="filter")
    assert "relative to each filter, one layer a draw" in repr(noise)
