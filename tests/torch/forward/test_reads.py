"""Ways of reading a weight: noisy in a training pass, clean outside it, or refused by name."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.functional import linear
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

from antipgd.torch import perturb
from explicit import SEED, Explicit, same, weighted
from kinds import Reads, weight

SIGMA = 0.03


def sgd(model):
    return torch.optim.SGD(model.named_parameters(), lr=0.01)


def perturbed(model, steps=2, run=None, **options):
    """A model after some steps, its twin in the explicit z-form, its noise and its optimizer."""
    explicit = Explicit(model, sgd, SIGMA)
    optimizer = sgd(model)
    noise = perturb(model, optimizer, SIGMA, seed=SEED, **options)
    for _ in range(steps):
        for one in (model, explicit.carrier):
            torch.manual_seed(1)
            weighted(run(one) if run else one(batch())).backward()
        optimizer.step()
        optimizer.zero_grad()
        explicit.step()
    assert noise.step_count == steps
    return explicit, noise, optimizer


def batch():
    return torch.linspace(-1, 1, 30).reshape(5, 6)


def mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def same_gradients(model, other):
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return all(same(a.grad, b.grad) for a, b in pairs)


# Outside a pass


@pytest.mark.parametrize("make", [parametrizations.weight_norm, parametrizations.orthogonal])
def test_a_parametrized_weight_read_outside_a_pass_is_clean(make):
    model = nn.Sequential(make(nn.Linear(6, 6)), nn.Linear(6, 2))
    explicit, noise, _optimizer = perturbed(model)
    assert same(model[0].weight, explicit.clean[0].weight)
    assert not noise._passes.seen
    weighted(model(batch())).backward()
    assert same(model[0].weight, explicit.clean[0].weight)


def test_parametrizations_are_not_cached_from_pass_to_pass():
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 6)))
    explicit, *_ = perturbed(model)
    noisy, clean = explicit.carrier(batch()), explicit.at_z()(batch())
    with parametrize.cached():
        before = model[0].weight
        assert same(model(batch()), noisy)
        assert same(model[0].weight, before)
        model.eval()
        assert same(model(batch()), clean)


def test_reading_between_forward_and_backward_is_clean():
    model = mlp()
    explicit, *_ = perturbed(model)
    loss = weighted(model(batch()))
    assert same(model[0].weight, explicit.clean[0].weight)
    loss.backward()
    assert same(model[0].weight, explicit.clean[0].weight)


def test_two_forwards_and_one_backward():
    model = mlp()
    explicit, *_ = perturbed(model)
    for one in (model, explicit.carrier):
        (weighted(one(batch())) + weighted(one(2 * batch()))).backward()
    assert same_gradients(model, explicit.carrier)


# torch.func


def test_functional_call_with_parameters_of_ones_own():
    model = mlp()
    explicit, *_ = perturbed(model)
    own = {n: (p.detach() * 2).requires_grad_() for n, p in model.named_parameters()}
    theirs = {n: p.detach() for n, p in explicit.clean.named_parameters()}
    with torch.no_grad():
        for name, z in explicit.clean.named_parameters():
            z.mul_(2)
            theirs[name] = explicit.w(name).requires_grad_()
    ours, expected = (
        functional_call(model, own, batch()),
        functional_call(explicit.carrier, theirs, batch()),
    )
    assert same(ours, expected)
    weighted(ours).backward()
    weighted(expected).backward()
    assert all(same(own[name].grad, theirs[name].grad) for name in own)
    assert all(p.grad is None for p in model.parameters())


def test_functional_call_inside_forward_leaves_the_parameters():
    def through(self, x):
        fast = {n: p + 0.1 for n, p in self.part.named_parameters()}
        return functional_call(self.part, fast, x) + linear(x, self.part.weight)

    model = Reads(through, part=nn.Linear(6, 6))
    explicit, *_ = perturbed(model, audit=False)  # named_parameters() gives z: that is meant here
    before = dict(model.named_parameters())
    assert torch.allclose(model(batch()), explicit.carrier(batch()))
    assert all(before[name] is p for name, p in model.named_parameters())
    assert type(model.part.weight) is nn.Parameter


def test_parameters_made_of_others_are_no_alarm():
    """MAML: a pass with parameters that a gradient step has made of the model's own."""
    model = mlp()
    explicit, noise, optimizer = perturbed(model, steps=0)
    for _ in range(3):
        for one, step in ((model, None), (explicit.carrier, explicit)):
            own = dict(one.named_parameters())
            inner = torch.autograd.grad(
                weighted(one(batch())), list(own.values()), create_graph=True
            )
            fast = {n: p - 0.1 * g for (n, p), g in zip(own.items(), inner, strict=True)}
            weighted(functional_call(one, fast, batch())).backward()
            if step is None:
                optimizer.step()
                optimizer.zero_grad()
            else:
                step.step()
    assert noise.step_count == 3


def test_torch_func():
    model = mlp()
    explicit, *_ = perturbed(model)
    x = batch()
    clean = {n: p.detach() for n, p in model.named_parameters()}
    noisy = {n: p.detach() for n, p in explicit.carrier.named_parameters()}

    def loss(one):
        return lambda params, rows: weighted(functional_call(one, params, rows))

    ours, theirs = loss(model), loss(explicit.carrier)
    a, b = grad(ours)(clean, x), grad(theirs)(noisy, x)
    assert all(same(a[name], b[name]) for name in a)
    per_sample = vmap(grad(ours), in_dims=(None, 0))(clean, x[:, None])
    expected = vmap(grad(theirs), in_dims=(None, 0))(noisy, x[:, None])
    assert all(same(per_sample[name], expected[name]) for name in a)
    direction = {n: torch.ones_like(p) for n, p in clean.items()}
    along = jvp(lambda p: functional_call(model, p, x), (clean,), (direction,))
    along_too = jvp(lambda p: functional_call(explicit.carrier, p, x), (noisy,), (direction,))
    assert all(same(one, other) for one, other in zip(along, along_too, strict=True))
    assert all(same(p, clean[name]) for name, p in model.named_parameters())


def test_torch_func_when_first_read():
    model = mlp()
    optimizer = sgd(model)
    noise = perturb(model, optimizer, SIGMA, seed=SEED)
    clean = {n: p.detach() for n, p in model.named_parameters()}
    grad(lambda p: weighted(functional_call(model, p, batch())))(clean)
    weighted(model(batch())).backward()
    optimizer.step()
    assert noise.step_count == 1


def test_forward_mode_outside_torch_func():
    from torch.autograd import forward_ad

    model = mlp()
    explicit, *_ = perturbed(model)
    found = []
    for one in (model, explicit.carrier):
        with forward_ad.dual_level():
            made = forward_ad.make_dual(batch(), torch.ones(5, 6))
            found.append(forward_ad.unpack_dual(one(made)).tangent)
    assert same(*found)


def test_gradient_penalty():
    model = mlp()
    explicit, _noise, optimizer = perturbed(model, steps=0)
    for _ in range(3):
        for one in (model, explicit.carrier):
            x = batch().requires_grad_()
            out = one(x)
            [by_input] = torch.autograd.grad(weighted(out), x, create_graph=True)
            by_weights = torch.autograd.grad(weighted(out), one.parameters(), create_graph=True)
            (by_input.square().sum() + sum(g.square().sum() for g in by_weights)).backward()
        assert same_gradients(model, explicit.carrier)
        optimizer.step()
        optimizer.zero_grad()
        explicit.step()


# Precision


def under_autocast(one):
    with torch.autocast("cpu", torch.bfloat16):
        return one(batch())


@pytest.mark.parametrize("memory", ["keep", "recompute"])
def test_autocast(memory):
    model = mlp()
    explicit, *_ = perturbed(model, run=under_autocast, memory=memory)
    ours, theirs = under_autocast(model), under_autocast(explicit.carrier)
    assert ours.dtype == torch.bfloat16
    assert same(ours, theirs)
    weighted(ours).backward()
    weighted(theirs).backward()
    assert same_gradients(model, explicit.carrier)


def test_autocast_with_reuse():
    """A weight read twice is cast twice, and its gradients are summed after the cast."""
    model = Reads(lambda self, x: self.part(self.part(x).tanh()), part=nn.Linear(6, 6))
    explicit, *_ = perturbed(model, run=under_autocast, steps=1)
    explicit.clean.load_state_dict(model.state_dict())
    explicit.write()
    ours, theirs = under_autocast(model), under_autocast(explicit.carrier)
    assert same(ours, theirs)
    weighted(ours).backward()
    weighted(theirs).backward()
    for a, b in zip(model.parameters(), explicit.carrier.parameters(), strict=True):
        assert (a.grad - b.grad).abs().max() <= 2**-7 * b.grad.abs().max()


# Parts that are frozen


def test_a_frozen_batch_norm_in_eval_mode_is_clean():
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    model[1].eval()
    explicit = Explicit(model, sgd, SIGMA)
    explicit.excluded = {"1.weight", "1.bias"}
    optimizer = sgd(model)
    perturb(model, optimizer, SIGMA, seed=SEED, audit=False)
    for _ in range(3):
        for one in (model, explicit.carrier):
            weighted(one(batch())).backward()
        assert same_gradients(model, explicit.carrier)
        optimizer.step()
        optimizer.zero_grad()
        explicit.step()
    assert all(same(a, b) for a, b in zip(model.buffers(), explicit.carrier.buffers(), strict=True))


def test_frozen_parts():
    model = mlp()
    model[0].requires_grad_(False)
    explicit = Explicit(model, lambda m: torch.optim.SGD(m[2].parameters(), lr=0.01), SIGMA)
    explicit.excluded = {"0.weight", "0.bias"}
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.01)
    noise = perturb(model, optimizer, SIGMA, seed=SEED)
    for _ in range(3):
        for one in (model, explicit.carrier):
            weighted(one(batch())).backward()
        assert same(model[2].weight.grad, explicit.carrier[2].weight.grad)
        optimizer.step()
        optimizer.zero_grad()
        explicit.step()
    assert same(model(batch()), explicit.carrier(batch()))
    assert {member.name for member in noise.members} == {"2.weight", "2.bias"}


def test_a_frozen_base_that_takes_noise():
    model = mlp()
    model[0].requires_grad_(False)
    explicit = Explicit(model, lambda m: torch.optim.SGD(m[2].parameters(), lr=0.01), SIGMA)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.01)
    perturb(model, optimizer, SIGMA, seed=SEED, frozen="0.*")
    for _ in range(3):
        assert same(model(batch()), explicit.carrier(batch()))
        for one in (model, explicit.carrier):
            weighted(one(batch())).backward()
        assert same(model[2].weight.grad, explicit.carrier[2].weight.grad)
        optimizer.step()
        optimizer.zero_grad()
        explicit.step()
    assert model[0].weight.grad is None


# Past the noise: found by the audit, with the parameter's name


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = weight(6, 3)
        self.part = nn.Linear(6, 3)
        self.plain = [self.w]

    def forward(self, x):
        return x @ self.plain[0] + self.part(x)

    def encode(self, x):
        return self.part(x) @ self.w.T


def raw_reads():
    def by_name(self, x):
        return x @ dict(self.named_parameters())["w"]

    def half(self, x):
        return x @ self.w + x @ next(self.parameters())

    def by_values(self, x):
        return x @ next(iter(self._parameters.values()))

    own = {"w": weight(6, 3)}
    return {
        "list": (Listed(), lambda model, x: model(x)),
        "named_parameters": (Reads(by_name, **own), lambda model, x: model(x)),
        "half": (Reads(half, **own), lambda model, x: model(x)),
        "values": (Reads(by_values, **own), lambda model, x: model(x)),
        "method": (Listed(), lambda model, x: model.encode(x)),
        "argument": (Reads(lambda self, x, w: x @ w, **own), lambda model, x: model(x, model.w)),
        "penalty": (Reads(lambda self, x: x @ self.w, **own), with_penalty),
    }


def with_penalty(model, x):
    return model(x), 100 * model.w.square().sum()


@pytest.mark.parametrize("how", raw_reads())
@pytest.mark.parametrize("memory", ["keep", "recompute"])
def test_a_weight_read_past_the_noise(how, memory):
    model, run = raw_reads()[how]
    optimizer = sgd(model)
    perturb(model, optimizer, SIGMA, seed=SEED, memory=memory)
    before = copy.deepcopy(model.state_dict())
    weighted(run(model, batch())).backward()
    with pytest.raises(RuntimeError, match=r"read without noise in a .* pass: 'w' \([\d.]+%\)"):
        optimizer.step()
    assert all(same(a, before[name]) for name, a in model.state_dict().items())
    optimizer.zero_grad()
    weighted(run(model, batch())).backward()
    with pytest.raises(RuntimeError, match="read without noise"):  # again, not once
        optimizer.step()


@pytest.mark.parametrize("how", ["list", "half"])
@pytest.mark.parametrize("look", ["eval", "off"])
def test_a_look_without_gradients_before_a_step_does_not_excuse_it(how, look):
    model, run = raw_reads()[how]
    optimizer = sgd(model)
    noise = perturb(model, optimizer, SIGMA, seed=SEED)
    with torch.no_grad(), noise.off() if look == "off" else nullcontext():
        run(model.train(look == "off"), batch())
    weighted(run(model.train(), batch())).backward()
    with pytest.raises(RuntimeError, match="read without noise in a training pass: 'w'"):
        optimizer.step()


def test_a_pass_without_noise_that_has_gradients_excuses_what_it_reads():
    model, run = raw_reads()["half"]
    optimizer = sgd(model)
    perturb(model, optimizer, SIGMA, seed=SEED)
    weighted(run(model.eval(), batch())).backward()
    weighted(run(model.train(), batch())).backward()
    optimizer.step()


def test_without_the_audit_it_is_the_users_business():
    model, run = raw_reads()["penalty"]
    _, noise, _ = perturbed(model, run=lambda one: run(one, batch()), audit=False)
    assert noise.step_count == 2


# Writing and keeping


def test_a_weight_written_in_forward_is_refused():
    def clipped(self, x):
        self.w.data = self.w.data.clamp(-0.1, 0.1)
        return x @ self.w

    def scaled(self, x):
        self.w.data.mul_(0.5)
        return x @ self.w

    def renormed(self, x):
        with torch.no_grad():
            self.w.renorm_(2, 0, 0.1)
        return x @ self.w

    for write in (clipped, scaled, renormed):
        model = Reads(write, w=weight(6, 3))
        optimizer = sgd(model)
        perturb(model, optimizer, SIGMA, seed=SEED)
        with pytest.raises(RuntimeError, match="'w' was changed in forward"):
            model(batch())
        model.eval()
        model(batch())  # here it is the parameter itself that is changed


def test_a_weight_that_a_module_keeps_is_said():
    def keep(self, x):
        self.cache = self.w
        return x @ self.w

    def as_buffer(self, x):
        self.register_buffer("kept", self.w.detach(), persistent=False)
        return x @ self.w

    for read, name in ((keep, "cache"), (as_buffer, "kept")):
        model = Reads(read, w=weight(6, 3))
        optimizer = sgd(model)
        perturb(model, optimizer, SIGMA, seed=SEED)
        with pytest.warns(
            UserWarning, match=f"Reads keeps a noisy weight in its attribute '{name}'"
        ):
            model(batch())


def test_a_module_whose_output_is_a_weight():
    model = Reads(
        lambda self, x: linear(x, self.maker()), maker=Reads(lambda self: self.w, w=weight(3, 6))
    )
    explicit, *_ = perturbed(model)
    assert same(model(batch()), explicit.carrier(batch()))
    assert same(model.maker.w, explicit.clean.maker.w)


# Recomputation in backward


def checkpointed(mode):
    def through(self, x):
        return checkpoint(self.part, x, use_reentrant=mode)

    return Reads(through, part=nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)))


@pytest.mark.parametrize("mode", [True, False])
def test_a_checkpoint_around_the_model(mode):
    model = mlp()
    x = batch().requires_grad_()
    explicit, *_ = perturbed(model, run=lambda one: checkpoint(one, x, use_reentrant=mode))
    for one in (model, explicit.carrier):
        weighted(checkpoint(one, x, use_reentrant=mode)).backward()
    assert same_gradients(model, explicit.carrier)


@pytest.mark.parametrize("mode", [True, False])
def test_a_recomputed_pass_is_of_the_kind_that_it_was(mode):
    model = checkpointed(mode)
    x = batch().requires_grad_()
    explicit, noise, _optimizer = perturbed(model, run=lambda one: one(x))
    with noise.off():
        loss = weighted(model(x))
    loss.backward()  # outside off()
    at_z = explicit.at_z()
    weighted(at_z(x)).backward()
    assert same_gradients(model, at_z)
    loss = weighted(model(x))
    with pytest.raises(RuntimeError, match=r"both with noise and inside noise.off\(\)"):
        loss.backward()


@pytest.mark.parametrize("mode", [True, False])
def test_backward_inside_off_of_a_noisy_pass(mode):
    model = checkpointed(mode)
    x = batch().requires_grad_()
    explicit, noise, _optimizer = perturbed(model, run=lambda one: one(x))
    loss = weighted(model(x))
    with noise.off():
        loss.backward()
    weighted(explicit.carrier(x)).backward()
    assert same_gradients(model, explicit.carrier)


@pytest.mark.parametrize("mode", [True, False])
def test_a_recomputation_after_a_step_is_refused(mode):
    model = checkpointed(mode)
    x = batch().requires_grad_()
    _, _noise, optimizer = perturbed(model, run=lambda one: one(x))
    loss = weighted(model(x))
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    with pytest.raises(RuntimeError, match="recomputes a pass after a step was made"):
        loss.backward()
