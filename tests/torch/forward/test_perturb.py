"""perturb: the same trajectory as the explicit z-form, in every type, for any optimizer."""

import copy
import gc
import pickle
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from antipgd.noise import draws
from antipgd.noise.taps import carried
from antipgd.torch import Noise, attach, perturb
from antipgd.torch.drawing import Drawing

SEED = 17
SIGMA = 0.05


def make(dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 16),
        nn.Tanh(),
        nn.LayerNorm(16),
        nn.Linear(16, 16),
        nn.Tanh(),
        nn.Linear(16, 1),
    ).to(dtype)


def batch(dtype=torch.float32, step=0):
    generator = torch.Generator().manual_seed(100 + step % 5)
    x = torch.randn(20, 6, generator=generator, dtype=torch.float64)
    return x.to(dtype), x[:, :1].sin().to(dtype)


def backward(model, step=0):
    x, y = batch(next(model.parameters()).dtype, step)
    ((model(x) - y) ** 2).mean().backward()


def noisy_value(z, name, terms, seed=SEED, law="gaussian"):
    """z + Σ c · ξ_k for (k, c) in `terms`, by NumPy, rounded to nearest in z's type."""
    wide = np.float64 if z.dtype == torch.float64 else np.float32
    value = z.detach().to(torch.float64 if wide is np.float64 else torch.float32).numpy()
    total = None
    for k, coefficient in terms:
        if k >= 1 and coefficient:
            term = draws(seed, name, k, 0, z.numel(), law).astype(wide) * wide(coefficient)
            total = term if total is None else total + term
    if total is not None:
        value = value + total.reshape(value.shape)
    return torch.from_numpy(np.ascontiguousarray(value)).to(z.dtype)


def explicit_step(model, optimizers, n, sigma=SIGMA, taps=(1.0, -1.0), law="gaussian"):
    """One step of z by the gradient of a copy that holds w = z + Σ_j c_j σ ξ_{n−j}."""
    coefficients = [c * sigma for c in carried(taps)[:-1]]
    noisy = copy.deepcopy(model)
    with torch.no_grad():
        for name, w in noisy.named_parameters():
            terms = [(n - j, c) for j, c in enumerate(coefficients)]
            w.copy_(noisy_value(w, name, terms, law=law))
    noisy.zero_grad()
    backward(noisy, n)
    for z, w in zip(model.parameters(), noisy.parameters(), strict=True):
        z.grad = w.grad
    for optimizer in optimizers:
        optimizer.step()


def matrices(model):
    return [p for p in model.parameters() if p.dim() == 2]


def vectors(model):
    return [p for p in model.parameters() if p.dim() != 2]


OPTIMIZERS = {
    "sgd": lambda m: [torch.optim.SGD(m.parameters(), lr=0.05)],
    "momentum": lambda m: [torch.optim.SGD(m.parameters(), lr=0.02, momentum=0.9, nesterov=True)],
    "decay": lambda m: [torch.optim.SGD(m.parameters(), lr=0.02, weight_decay=0.1)],
    "adamw": lambda m: [torch.optim.AdamW(m.parameters(), lr=0.003, eps=1e-4)],
    "fused adamw": lambda m: [torch.optim.AdamW(m.parameters(), lr=0.003, eps=1e-4, fused=True)],
    "muon and adamw": lambda m: [
        torch.optim.Muon(matrices(m), lr=0.003),
        torch.optim.AdamW(vectors(m), lr=0.003, eps=1e-4),
    ],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_bitwise_the_explicit_z_form(kind, dtype):
    model, reference = make(dtype), make(dtype)
    optimizers, theirs = OPTIMIZERS[kind](model), OPTIMIZERS[kind](reference)
    noise = perturb(model, optimizers, SIGMA, seed=SEED)
    for n in range(200):
        model.zero_grad()
        backward(model, n)
        for optimizer in optimizers:
            optimizer.step()
        explicit_step(reference, theirs, n)
        assert noise.step_count == n + 1
    for (name, z), expected in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert torch.isfinite(z).all()
        assert torch.equal(z, expected), name
        assert torch.equal(z.grad, expected.grad), name


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_the_trajectory_of_noise_in_the_weights(kind):
    def optimizer_of(model):
        if kind == "adam":
            return torch.optim.AdamW(model.named_parameters(), lr=0.003, weight_decay=0)
        momentum = 0.9 if kind == "momentum" else 0.0
        return torch.optim.SGD(model.named_parameters(), lr=0.02, momentum=momentum)

    model, other = make(torch.float64), make(torch.float64)
    optimizer, theirs = optimizer_of(model), optimizer_of(other)
    perturb(model, optimizer, SIGMA, seed=SEED)
    in_weights = attach(theirs, SIGMA, seed=SEED)
    for n in range(200):
        for m, o in ((model, optimizer), (other, theirs)):
            m.zero_grad()
            backward(m, n)
            o.step()
    with in_weights.clean():
        for z, expected in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(z, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("law", ["gaussian", "rademacher", "uniform", "student-t:5"])
@pytest.mark.parametrize("taps", [(1.0, -1.0), (1.0, -2.0, 1.0), (0.5, 0.5, -1.0)])
def test_laws_and_taps(law, taps):
    model, reference = make(), make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    theirs = torch.optim.SGD(reference.parameters(), lr=0.05)
    perturb(model, optimizer, SIGMA, seed=SEED, law=law, taps=taps)
    for n in range(12):
        model.zero_grad()
        backward(model, n)
        optimizer.step()
        explicit_step(reference, [theirs], n, taps=taps, law=law)
    for z, expected in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(z, expected)


def read(model, name="3.weight"):
    """What a training pass reads of a weight, by the identity as input."""
    owner, key = name.rsplit(".", 1)
    module = model.get_submodule(owner)
    found = []
    probe = module.register_forward_pre_hook(lambda m, a: found.append(getattr(m, key)))
    with torch.no_grad():
        model(batch(next(model.parameters()).dtype)[0])
    probe.remove()
    return found[0].detach().clone()


def noise_read(model, name="3.weight"):
    return read(model, name) - model.get_parameter(name).detach()


def xi(model, k, name="3.weight", number=0):
    z = model.get_parameter(name)
    key = name if number == 0 else f"{name}@{number}"
    values = draws(SEED, key, k, 0, z.numel()) if k >= 1 else np.zeros(z.numel())
    return torch.from_numpy(values).reshape(z.shape).to(z.dtype)


def counted(model, optimizer, steps=1):
    for _ in range(steps):
        model.zero_grad()
        backward(model)
        optimizer.step()


def still(model, **options):
    """A model in float64 whose optimizer moves nothing though its steps count."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-300)
    return optimizer, perturb(model, optimizer, SIGMA, seed=SEED, **options)


@pytest.mark.parametrize("hold", [1, 2, 3])
def test_a_held_draw_stays(hold):
    model = make(torch.float64)
    optimizer, noise = still(model, hold=hold)
    in_weights = make(torch.float64)
    theirs = torch.optim.SGD(in_weights.named_parameters(), lr=1e-300)
    attached = attach(theirs, SIGMA, seed=SEED, hold=hold)
    z = in_weights.get_parameter("3.weight").detach().clone()
    for n in range(8):
        expected = SIGMA * xi(model, -(-n // hold))
        torch.testing.assert_close(noise_read(model), expected, rtol=0, atol=1e-15)
        w = in_weights.get_parameter("3.weight")
        torch.testing.assert_close(w - z, expected, rtol=0, atol=1e-14)
        torch.testing.assert_close(attached.injected(w), expected, rtol=0, atol=1e-15)
        counted(model, optimizer)
        counted(in_weights, theirs)
    attached.stop()
    torch.testing.assert_close(in_weights.get_parameter("3.weight").detach(), z, rtol=0, atol=1e-14)
    assert noise.step_count == 8


def test_antithetic_steps_take_draws_in_pairs():
    model = make(torch.float64)
    optimizer, _ = still(model, antithetic=True)
    for n in range(7):
        sign = 1 if n % 2 else -1
        expected = sign * SIGMA * xi(model, -(-n // 2))
        torch.testing.assert_close(noise_read(model), expected, rtol=0, atol=1e-15)
        counted(model, optimizer)


def test_antithetic_pairs_with_longer_taps():
    drawing = Drawing(antithetic=True)
    # c = (1, −1): ξ_d − ξ_{d−1} where ξ_{2k} = −ξ_{2k−1}
    assert drawing.terms(0, [1.0, -1.0]) == (0, [0.0, 0.0])
    assert drawing.terms(1, [1.0, -1.0]) == (1, [1.0, 0.0])
    assert drawing.terms(2, [1.0, -1.0]) == (1, [-2.0, 0.0])
    assert drawing.terms(3, [1.0, -1.0]) == (2, [1.0, 1.0])


@pytest.mark.parametrize("antithetic", [False, True])
def test_each_micro_batch_has_its_own_draw(antithetic):
    model = make(torch.float64)
    optimizer, _ = still(model, draws="micro-batch", antithetic=antithetic)
    counted(model, optimizer)
    for n in (1, 2):
        for number in range(4):
            which, sign = (number // 2, -1 if number % 2 else 1) if antithetic else (number, 1)
            expected = sign * SIGMA * xi(model, n, number=which)
            for _ in range(2):  # passes without a gradient are of the same micro-batch
                torch.testing.assert_close(noise_read(model), expected, rtol=0, atol=1e-15)
            backward(model)
        optimizer.step()
        model.zero_grad()


def test_evaluation_and_everything_outside_a_pass_is_clean():
    model, plain = make(), make()
    optimizer, noise = still(model)
    counted(model, optimizer, 3)
    x, _ = batch()
    assert not torch.equal(model(x), plain(x))
    assert torch.equal(model.eval()(x), plain(x))
    model.train()
    with noise.off():
        assert torch.equal(model(x), plain(x))
        with noise.clean():
            assert torch.equal(model(x), plain(x))
        assert torch.equal(model(x), plain(x))
    assert not torch.equal(model(x), plain(x))
    for name, expected in plain.named_parameters():
        assert torch.equal(model.get_parameter(name), expected)
        assert torch.equal(model.state_dict()[name], expected)
        assert isinstance(model.get_parameter(name), nn.Parameter)
    model[3].eval()  # a part of it
    assert not noise_read(model).any()
    assert noise_read(model, "5.weight").any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_counted_steps_without_gradients_leave_the_weights_alone(dtype):
    for make_optimizer in (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.0, eps=1e-4),
    ):
        model = nn.Linear(4, 3).to(dtype)
        before = [p.detach().clone() for p in model.parameters()]
        optimizer = make_optimizer(model.parameters())
        noise = perturb(model, optimizer, 0.1, seed=SEED)
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        for n in range(1000):
            if n % 100 == 0:
                model(torch.zeros(2, 4, dtype=dtype))
            optimizer.step()
        assert noise.step_count == 1000
        for p, start in zip(model.parameters(), before, strict=True):
            assert torch.equal(p, start)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_hundred_thousand_counted_steps(dtype):
    model = nn.Linear(4, 3).to(dtype)
    plain = copy.deepcopy(model)
    pairs = []
    for m in (model, plain):
        pairs.append(torch.optim.AdamW(m.parameters(), lr=0.01, weight_decay=0.0, eps=1e-4))
        for p in m.parameters():
            p.grad = torch.zeros_like(p)
    noise = perturb(model, pairs[0], 0.1, seed=SEED)
    for n in range(100_000):
        if n % 1000 == 0:
            model(torch.zeros(2, 4, dtype=dtype))
        for optimizer in pairs:
            optimizer.step()
    assert noise.step_count == 100_000
    for p, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(p, expected)


def test_several_optimizers_that_step_together_make_one_step():
    model = make()
    optimizers = OPTIMIZERS["muon and adamw"](model)
    noise = perturb(model, optimizers, SIGMA, seed=SEED)
    for n in range(3):
        backward(model)
        for optimizer in optimizers:
            optimizer.step()
        assert noise.step_count == n + 1
    for optimizer in optimizers * 2:  # also where no pass is made between
        optimizer.step()
    assert noise.step_count == 5
    optimizers[0].step()
    backward(model)
    optimizers[1].step()  # a pass between them: two steps
    assert noise.step_count == 7
    assert noise.optimizers == optimizers
    with pytest.raises(AttributeError, match="2 optimizers"):
        _ = noise.optimizer


def test_steps_inside_backward_make_one_step():
    model, reference = make(), make()
    each = {p: torch.optim.SGD([p], lr=0.02, momentum=0.9) for p in model.parameters()}
    noise = perturb(model, list(each.values()), SIGMA, seed=SEED)

    def step_and_forget(parameter):
        each[parameter].step()
        each[parameter].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step_and_forget)
    theirs = torch.optim.SGD(reference.parameters(), lr=0.02, momentum=0.9)
    for n in range(20):
        backward(model, n)
        explicit_step(reference, [theirs], n)
        assert noise.step_count == n + 1
    for z, expected in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(z, expected)


def test_steps_that_do_not_count():
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    noise = perturb(model, optimizer, SIGMA, seed=SEED)
    counted(model, optimizer, 2)
    kept = noise_read(model)
    optimizer.param_groups[0]["lr"] = 0.0
    counted(model, optimizer, 2)
    assert noise.step_count == 2
    optimizer.param_groups[0]["lr"] = 0.05
    noise.pause()
    before = model.get_parameter("3.weight").detach().clone()
    counted(model, optimizer, 2)
    assert noise.step_count == 2
    moved = model.get_parameter("3.weight")
    assert not torch.equal(before, moved)  # training goes on
    torch.testing.assert_close(noise_read(model), kept, rtol=0, atol=1e-6)  # with the same draw
    noise.resume()
    counted(model, optimizer)
    assert noise.step_count == 3


@pytest.mark.parametrize("order", ["load first", "perturb first"])
@pytest.mark.parametrize("kind", ["momentum", "muon and adamw"])
@pytest.mark.parametrize("options", [{}, {"relative": True, "hold": 2, "taps": (1, -2, 1)}])
def test_resume_is_exact(order, kind, options):
    def begin():
        model = make()
        optimizers = OPTIMIZERS[kind](model)
        return model, optimizers

    def train(model, optimizers, first, last):
        for n in range(first, last):
            model.zero_grad()
            backward(model, n)
            for optimizer in optimizers:
                optimizer.step()

    model, optimizers = begin()
    perturb(model, optimizers, 0.1, seed=SEED, **options)
    train(model, optimizers, 0, 7)
    saved = pickle.dumps((model.state_dict(), [o.state_dict() for o in optimizers]))
    train(model, optimizers, 7, 15)

    other, theirs = begin()
    weights, states = pickle.loads(saved)
    if order == "load first":
        for optimizer, state in zip(theirs, states, strict=True):
            optimizer.load_state_dict(state)
        noise = perturb(other, theirs, 0.1, seed=99, **options)
    else:
        noise = perturb(other, theirs, 0.1, seed=99, **options)
        for optimizer, state in zip(theirs, states, strict=True):
            optimizer.load_state_dict(state)
    other.load_state_dict(weights)
    assert (noise.step_count, noise.seed) == (7, SEED)
    train(other, theirs, 7, 15)
    for z, expected in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(z, expected)


def test_a_checkpoint_that_lost_the_noise_is_clean(caplog):
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    perturb(model, optimizer, SIGMA, seed=SEED)
    counted(model, optimizer, 3)
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        del group["antipgd"]
    other = make(seed=1)
    theirs = torch.optim.SGD(other.parameters(), lr=0.05)
    noise = perturb(other, theirs, SIGMA, seed=SEED)
    theirs.load_state_dict(state)
    other.load_state_dict(model.state_dict())
    assert "no noise in it" in caplog.text
    assert noise.step_count == 0
    for z, expected in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(z, expected)


def test_optimizers_loaded_from_different_steps_are_refused():
    model = make()
    optimizers = OPTIMIZERS["muon and adamw"](model)
    perturb(model, optimizers, SIGMA, seed=SEED)
    early = [copy.deepcopy(o.state_dict()) for o in optimizers]
    backward(model)
    for optimizer in optimizers:
        optimizer.step()
    late = [copy.deepcopy(o.state_dict()) for o in optimizers]
    optimizers[0].load_state_dict(early[0])
    optimizers[1].load_state_dict(late[1])
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match=r"different steps of the noise: \[0, 1\]"):
        optimizers[0].step()
    for z, expected in zip(model.parameters(), before, strict=True):
        assert torch.equal(z, expected)
    optimizers[0].load_state_dict(late[0])
    optimizers[1].load_state_dict(late[1])
    optimizers[0].step()
    optimizers[1].load_state_dict(late[1])
    with pytest.warns(UserWarning, match="1 of 2 optimizers were loaded"):
        optimizers[0].step()


def test_checkpoints_of_the_other_form_are_refused():
    model, other = make(), make()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.05)
    theirs = torch.optim.SGD(other.named_parameters(), lr=0.05)
    perturb(model, optimizer, SIGMA, seed=SEED)
    attach(theirs, SIGMA, seed=SEED)
    with pytest.raises(ValueError, match=r"its noise is in the weights .attach.: go on with"):
        optimizer.load_state_dict(theirs.state_dict())
    with pytest.raises(ValueError, match=r"its weights are clean .perturb.: go on with perturb"):
        theirs.load_state_dict(optimizer.state_dict())


def test_a_frozen_base_takes_noise_where_asked():
    model = make(torch.float64)
    for p in model[0].parameters():
        p.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-300)
    noise = perturb(model, optimizer, SIGMA, seed=SEED, frozen="0.*", exclude="5.*")
    counted(model, optimizer, 2)
    for name in ("0.weight", "0.bias", "3.weight"):
        torch.testing.assert_close(
            noise_read(model, name), SIGMA * xi(model, 2, name), rtol=0, atol=1e-15
        )
    assert not noise_read(model, "5.weight").any()
    assert model.get_parameter("0.weight").grad is None
    state = optimizer.state_dict()
    noise.stop()
    optimizer.load_state_dict(state)
    again = perturb(model, optimizer, SIGMA, seed=1, frozen="0.*", exclude="5.*")
    assert again.step_count == 2
    torch.testing.assert_close(
        noise_read(model, "0.weight"), SIGMA * xi(model, 2, "0.weight"), rtol=0, atol=1e-15
    )
    again.stop()
    with pytest.raises(ValueError, match=r"frozen '1\.\*' matches no parameter"):
        perturb(model, optimizer, SIGMA, frozen="1.*")


def test_who_takes_noise_though_frozen_takes_that_of_its_group():
    """What no optimizer has takes the noise's own; when one gets it, that of the group."""
    model = make(torch.float64)
    model[0].requires_grad_(False)
    groups = [{"params": model[3].parameters(), "sigma": 0.02}, {"params": model[5].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.01)
    noise = perturb(model, optimizer, SIGMA, seed=SEED, frozen="*")

    def sigmas():
        return {m.name: s for m, s in zip(noise.members, noise.sigmas(), strict=True)}

    found = sigmas()
    assert {found[name] for name in ("3.weight", "3.bias")} == {0.02}
    assert {found[name] for name in ("0.weight", "0.bias", "5.weight")} == {SIGMA}
    assert noise.metrics()["noise/sigma"] == SIGMA
    model[3].weight.requires_grad_(False)
    assert sigmas()["3.weight"] == 0.02
    optimizer.add_param_group({"params": model[0].parameters(), "sigma": 0.01})
    counted(model, optimizer, 1)
    assert {sigmas()[name] for name in ("0.weight", "0.bias")} == {0.01}


def test_freezing_and_unfreezing_as_in_the_other_form():
    model, other = make(torch.float64), make(torch.float64)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.01)
    theirs = torch.optim.SGD(other.named_parameters(), lr=0.01)
    perturb(model, optimizer, SIGMA, seed=SEED)
    attached = attach(theirs, SIGMA, seed=SEED)
    for n in range(12):
        for m, o in ((model, optimizer), (other, theirs)):
            m[3].weight.requires_grad_(n < 3 or n > 7)
            m.zero_grad()
            backward(m, n)
            o.step()
        with attached.clean():
            for z, expected in zip(model.parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(z, expected, rtol=0, atol=1e-13)


def test_parameters_that_join_later():
    model = make(torch.float64)
    model.append(nn.Linear(1, 1).double())
    names = [n for n, _ in model.named_parameters() if not n.startswith("6.")]
    optimizer = torch.optim.SGD([model.get_parameter(n) for n in names], lr=1e-300)
    perturb(model, optimizer, SIGMA, seed=SEED)
    counted(model, optimizer, 2)
    assert not noise_read(model, "6.weight").any()
    optimizer.add_param_group({"params": list(model[6].parameters())})
    assert not noise_read(model, "6.weight").any()
    counted(model, optimizer)
    expected = SIGMA * xi(model, 3, "6.weight")
    torch.testing.assert_close(noise_read(model, "6.weight"), expected, rtol=0, atol=1e-15)


def test_a_parametrization_registered_later_is_followed():
    model = make(torch.float64)
    optimizer, _ = still(model)
    counted(model, optimizer, 2)

    class Double(nn.Module):
        def forward(self, weight):
            return 2 * weight

    nn.utils.parametrize.register_parametrization(model[3], "weight", Double())
    with torch.no_grad():
        z = model[3].parametrizations.weight.original.detach()
        expected = 2 * (z + SIGMA * xi_of("3.weight", 2, z))
        found = []
        hook = model[3].register_forward_pre_hook(lambda m, a: found.append(m.weight))
        model(batch(torch.float64)[0])
        hook.remove()
    torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-14)


def xi_of(name, k, z):
    return torch.from_numpy(draws(SEED, name, k, 0, z.numel())).reshape(z.shape).to(z.dtype)


def test_stop_leaves_nothing_behind():
    model, plain = make(), make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    noise = perturb(model, optimizer, SIGMA, seed=SEED)
    counted(model, optimizer, 2)
    noise.stop()
    noise.stop()
    assert not noise.attached
    for module, other in zip(model.modules(), plain.modules(), strict=True):
        assert type(module._parameters) is type(other._parameters)
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    for p in model.parameters():
        assert not p._backward_hooks
    assert "antipgd" not in optimizer.state_dict()["param_groups"][0]
    assert set(vars(model[0])) == set(vars(plain[0]))


def test_nothing_keeps_a_model_alive():
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    noise = perturb(model, optimizer, SIGMA, seed=SEED)
    counted(model, optimizer, 2)
    gone = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert gone() is None
    finally:
        gc.enable()
    with pytest.raises(ReferenceError, match="the model of this noise is gone"), noise.clean():
        pass


def test_metrics_and_repr():
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    noise = perturb(model, optimizer, SIGMA, seed=SEED, exclude="*.bias")
    counted(model, optimizer, 3)
    assert isinstance(noise, Noise)
    metrics = noise.metrics()
    assert all(isinstance(value, float) for value in metrics.values())
    assert metrics["noise/step"] == 3
    assert metrics["noise/sigma"] == SIGMA
    assert metrics["noise/clock"] == pytest.approx(3 * 0.05 * SIGMA**2)
    assert repr(noise).startswith("Noise(form=forward, law=gaussian")
    assert "3.weight (16, 16): sigma 0.05" in repr(noise)


def test_batch_norm_can_be_recalibrated():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    noise = perturb(model, optimizer, 0.1, seed=SEED)
    counted(model, optimizer, 3)
    before = model[1].running_mean.clone()
    x, _ = batch()
    with noise.recalibrate([x]):
        expected = model[0].eval()(x).mean(0)
        torch.testing.assert_close(model[1].running_mean, expected)
    assert torch.equal(model[1].running_mean, before)


def test_weights_of_16_bits_that_would_round_the_noise_away():
    for dtype in (torch.bfloat16, torch.float16):
        model = nn.Linear(64, 64, bias=False).to(dtype)
        size = float(model.weight.detach().float().square().mean().sqrt())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ValueError, match=r"whose type torch\.\w+ would round it away"):
            perturb(model, optimizer, size * 2**-9 * 0.9)
        with pytest.warns(UserWarning, match="rounds part of the noise away"):
            noise = perturb(model, optimizer, size * 2**-8)
        with pytest.raises(ValueError, match="would round it away"):
            noise.sigma = size * 2**-10
        assert noise.sigma == pytest.approx(size * 2**-8)
        noise.stop()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            perturb(model, optimizer, size * 2**-7 * 1.1)


def test_a_model_that_is_converted_later():
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    perturb(model, optimizer, 1e-4, seed=SEED)
    counted(model, optimizer, 2)
    model.bfloat16()
    with pytest.raises(ValueError, match="would round it away"):
        model(batch(torch.bfloat16)[0])
    model.double()
    counted(model, optimizer)
    torch.testing.assert_close(noise_read(model), 1e-4 * xi(model, 3), rtol=0, atol=1e-15)


def test_a_penalty_on_the_clean_weights_is_a_raw_read():
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    noise = perturb(model, optimizer, SIGMA, seed=SEED)
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(2):  # it does not go away by trying again
        model.zero_grad()
        backward(model)
        sum(p.square().sum() for p in model.parameters()).backward()
        with pytest.raises(RuntimeError, match=r"read without noise in a training pass: .*'3.weig"):
            optimizer.step()
    for z, expected in zip(model.parameters(), before, strict=True):
        assert torch.equal(z, expected)
    noise.stop()
    noise = perturb(model, optimizer, SIGMA, seed=SEED, audit=False)
    backward(model)
    sum(p.square().sum() for p in model.parameters()).backward()
    optimizer.step()
    assert noise.step_count == 1


def test_gradients_that_hooks_change_are_no_alarm():
    model = make()
    for p in model.parameters():
        p.register_hook(lambda g: g.clamp(-0.001, 0.001))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    noise = perturb(model, optimizer, SIGMA, seed=SEED)
    for p in model.parameters():
        p.register_hook(lambda g: 2 * g)
    counted(model, optimizer, 2)
    assert noise.step_count == 2


BAD = [
    (ValueError, "sigma must be a finite number >= 0", {"sigma": -1}),
    (ValueError, "sigma must be a finite number >= 0", {"sigma": "a"}),
    (ValueError, "unknown law 'normal'", {"law": "normal"}),
    (ValueError, r"taps must sum to zero in the forward form.*got \(1\.0,\)", {"taps": (1,)}),
    (ValueError, "taps must be one or more finite numbers", {"taps": "x"}),
    (ValueError, "seed must be an integer", {"seed": 1.5}),
    (ValueError, "schedule must be a function of the step or 'lr'; got 'cosine'",
     {"schedule": "cosine"}),
    (ValueError, "exclude 'nothing' matches no parameter", {"exclude": "nothing"}),
    (ValueError, "frozen 'nothing' matches no parameter", {"frozen": "nothing"}),
    (ValueError, "namespace must be text; got 3", {"namespace": 3}),
    (ValueError, "relative must be True, False, 'filter' or 'element'; got 1", {"relative": 1}),
    (ValueError, "hold must be a whole number >= 1.*; got 0", {"hold": 0}),
    (ValueError, "hold must be a whole number >= 1.*; got 1.5", {"hold": 1.5}),
    (ValueError, "unknown draws 'batch'", {"draws": "batch"}),
    (ValueError, "antithetic must be True or False; got 'yes'", {"antithetic": "yes"}),
    (ValueError, "unknown memory 'less'", {"memory": "less"}),
    (ValueError, "audit must be True or False; got 'yes'", {"audit": "yes"}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "change"), BAD)
def test_bad_input_is_refused_before_anything_changes(kind, message, change):
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with pytest.raises(kind, match=message):
        perturb(model, optimizer, **({"sigma": SIGMA} | change))
    assert_untouched(model, optimizer)


def assert_untouched(model, optimizer):
    assert type(model[0]._parameters) is dict
    assert not model[0]._forward_hooks
    assert not model[0]._forward_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert "antipgd" not in optimizer.param_groups[0]


def test_bad_models_and_optimizers():
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with pytest.raises(TypeError, match=r"needs a torch.nn.Module; got SGD"):
        perturb(optimizer, model, SIGMA)
    with pytest.raises(TypeError, match=r"needs a torch.optim.Optimizer or several; got str"):
        perturb(model, "sgd", SIGMA)
    with pytest.raises(ValueError, match="at least one optimizer"):
        perturb(model, [], SIGMA)
    with pytest.raises(ValueError, match="an optimizer is listed twice"):
        perturb(model, [optimizer, optimizer], SIGMA)
    foreign = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(3))], lr=0.05)
    with pytest.raises(ValueError, match=r"parameter of shape \(3,\) that is not in the model"):
        perturb(model, foreign, SIGMA)
    second = torch.optim.SGD(model[0].parameters(), lr=0.05)
    with pytest.raises(ValueError, match=r"optimizers 0 and 1 both have '0.weight'"):
        perturb(model, [optimizer, second], SIGMA)
    assert_untouched(model, optimizer)
    noise = perturb(model, optimizer, SIGMA)
    with pytest.raises(ValueError, match="has noise already"):
        perturb(model, optimizer, SIGMA)
    with pytest.raises(ValueError, match="has noise already"):
        attach(optimizer, SIGMA)
    with pytest.raises(ValueError, match="remove=False: the weights are clean already"):
        noise.stop(remove=False)
    noise.stop()
    assert_untouched(model, optimizer)
    whole = nn.ParameterList([torch.ones(3, dtype=torch.complex64)])
    with pytest.raises(TypeError, match=r"'0' is torch.complex64; accepted: float32"):
        perturb(whole, torch.optim.SGD(whole.parameters(), lr=0.1), SIGMA)


def test_a_model_that_gets_a_new_optimizer():
    model = make(torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-300)
    old = perturb(model, optimizer, SIGMA, seed=1)
    counted(model, optimizer, 3)
    assert noise_read(model).any()
    del optimizer
    optimizer, noise = still(model)
    assert not old.attached
    assert not noise_read(model).any()
    counted(model, optimizer)
    torch.testing.assert_close(noise_read(model), SIGMA * xi(model, 1), rtol=0, atol=1e-15)
    noise.stop()
    assert not model[0]._forward_hooks


class Container(torch.optim.Optimizer):
    """Several optimizers as one, as TorchTitan has them: the steps are those of its parts."""

    def __init__(self, optimizers):
        self.optimizers = list(optimizers)
        every = [p for o in self.optimizers for g in o.param_groups for p in g["params"]]
        super().__init__(every, {})

    def step(self, closure=None):
        for optimizer in self.optimizers:
            optimizer.step()

    def state_dict(self):
        return {str(i): optimizer.state_dict() for i, optimizer in enumerate(self.optimizers)}

    def load_state_dict(self, state):
        for i, optimizer in enumerate(self.optimizers):
            optimizer.load_state_dict(state[str(i)])


def test_a_container_of_optimizers():
    model, reference = make(), make()
    container = Container(OPTIMIZERS["muon and adamw"](model))
    theirs = OPTIMIZERS["muon and adamw"](reference)
    noise = perturb(model, container, SIGMA, seed=SEED)
    for n in range(5):
        model.zero_grad()
        backward(model, n)
        container.step()
        explicit_step(reference, theirs, n)
    assert noise.step_count == 5
    for z, expected in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(z, expected)
    state = copy.deepcopy(container.state_dict())
    other = make()
    again = Container(OPTIMIZERS["muon and adamw"](other))
    resumed = perturb(other, again, SIGMA, seed=1)
    again.load_state_dict(state)
    assert (resumed.step_count, resumed.seed) == (5, SEED)


def test_copies_of_the_optimizer_are_of_clean_weights():
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    perturb(model, optimizer, SIGMA, seed=SEED)
    counted(model, optimizer, 3)
    other = copy.deepcopy(optimizer)
    for mine, theirs in zip(
        optimizer.param_groups[0]["params"], other.param_groups[0]["params"], strict=True
    ):
        assert torch.equal(mine, theirs)
    twin = make()
    twin.load_state_dict(model.state_dict())
    theirs = torch.optim.SGD(twin.parameters(), lr=0.05)
    theirs.load_state_dict(optimizer.state_dict())
    noise = perturb(twin, theirs, SIGMA, seed=1)
    assert (noise.step_count, noise.seed) == (3, SEED)
