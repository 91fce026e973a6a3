"""Optimizers that step, load or wrap in ways of their own: the noise hears of it, or is refused."""

import copy
import io

import numpy as np
import pytest
import torch

from antipgd.torch import attach, perturb
from training import SEED, batch, draw_for, flat, make_model, set_flat

SIGMA = 0.03


def gradients(model):
    x, y = batch(next(model.parameters()).dtype)
    model.zero_grad()
    ((model(x) - y) ** 2).mean().backward()


def step(model, optimizer):
    gradients(model)
    optimizer.step()


class SAM(torch.optim.Optimizer):
    """As its authors have it: most people call its two halves, not step()."""

    def __init__(self, params, base, rho=0.05, **settings):
        super().__init__(params, {"rho": rho, **settings})
        self.base_optimizer = base(self.param_groups, **settings)
        self.param_groups = self.base_optimizer.param_groups

    def parameters(self):
        return [p for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm() for p in self.parameters()]).norm()
        for p in self.parameters():
            self.state[p]["up"] = p.grad * (self.param_groups[0]["rho"] / norm)
            p.add_(self.state[p]["up"])

    @torch.no_grad()
    def second_step(self):
        for p in self.parameters():
            p.sub_(self.state[p].pop("up"))
        self.base_optimizer.step()

    def step(self, closure=None):
        self.first_step()
        with torch.enable_grad():
            closure()
        self.second_step()


def two_halves(model, optimizer):
    gradients(model)
    optimizer.first_step()
    gradients(model)
    optimizer.second_step()


def one_step(model, optimizer):
    gradients(model)
    optimizer.step(lambda: gradients(model))


def sam(model):
    return SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)


def explicit_sam(steps):
    """z by hand: at every step a copy that holds z + ξ_n goes up, and its gradient moves z."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    xi = draw_for(model)
    for n in range(steps):
        above = copy.deepcopy(model)
        set_flat(above, flat(model) + (SIGMA * xi(n).astype(float) if n else 0.0))
        gradients(above)
        slopes = [p.grad.clone() for p in above.parameters()]
        norm = torch.stack([g.norm() for g in slopes]).norm()
        with torch.no_grad():
            for p, slope in zip(above.parameters(), slopes, strict=True):
                p.add_(slope * (0.05 / norm))
        gradients(above)
        for z, p in zip(model.parameters(), above.parameters(), strict=True):
            z.grad = p.grad
        optimizer.step()
    return flat(model)


@pytest.mark.parametrize("train", [two_halves, one_step])
def test_sam_in_one_step_or_two(train):
    model = make_model()
    optimizer = sam(model)
    noise = perturb(model, optimizer, SIGMA, seed=SEED)
    for n in range(6):
        train(model, optimizer)
        assert noise.step_count == n + 1
    np.testing.assert_allclose(flat(model), explicit_sam(6), rtol=0, atol=1e-12)
    noise.stop()
    train(model, optimizer)
    assert noise.step_count == 6


@pytest.mark.parametrize("train", [two_halves, one_step])
def test_sam_with_noise_in_the_weights(train):
    model = make_model()
    optimizer = sam(model)
    noise = attach(optimizer, SIGMA, seed=SEED, model=model)
    for n in range(6):
        train(model, optimizer)
        assert noise.step_count == n + 1
    carried = flat(model) - explicit_sam(6)
    np.testing.assert_allclose(
        carried, SIGMA * draw_for(model)(6).astype(float), rtol=0, atol=1e-12
    )


class LoadsAlone(torch.optim.AdamW):
    """Loads as the optimizers of bitsandbytes do: what is saved replaces the groups, no hooks."""

    def load_state_dict(self, state_dict):
        state_dict = copy.deepcopy(state_dict)
        own = [p for group in self.param_groups for p in group["params"]]
        state = {own[key]: value for key, value in state_dict["state"].items()}
        groups = [
            {**saved, "params": group["params"]}
            for saved, group in zip(state_dict["param_groups"], self.param_groups, strict=True)
        ]
        self.__setstate__({"state": state, "param_groups": groups})


def saved(model, optimizer):
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    return torch.load(file)


FORMS = {
    "forward": perturb,
    "weights": lambda model, optimizer, *given, **more: attach(
        optimizer, *given, model=model, **more
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seen_by", ["a step", "a save"])
def test_a_state_that_is_loaded_without_hooks(form, seen_by):
    def begin(seed):
        model = make_model()
        optimizer = LoadsAlone(model.parameters(), lr=0.01)
        return model, optimizer, FORMS[form](model, optimizer, SIGMA, seed=seed)

    model, optimizer, noise = begin(SEED)
    for _ in range(5):
        step(model, optimizer)
    weights, state = saved(model, optimizer)
    other, theirs, resumed = begin(1)
    step(other, theirs)
    other.load_state_dict(weights)
    theirs.load_state_dict(state)
    if seen_by == "a save":
        again = saved(other, theirs)[1]
        assert again["param_groups"][0]["antipgd"] == state["param_groups"][0]["antipgd"]
        assert (resumed.step_count, resumed.seed) == (5, SEED)
    for n in range(5, 8):
        step(model, optimizer)
        step(other, theirs)
        assert (noise.step_count, resumed.step_count) == (n + 1, n + 1)
        np.testing.assert_array_equal(flat(other), flat(model))
    for loaded in (noise, resumed):
        loaded.stop()
    np.testing.assert_array_equal(flat(other), flat(model))


def test_another_noise_that_is_loaded_without_hooks_is_refused():
    model = make_model()
    optimizer = LoadsAlone(model.parameters(), lr=0.01)
    perturb(model, optimizer, SIGMA, law="uniform")
    step(model, optimizer)
    other = make_model()
    theirs = LoadsAlone(other.parameters(), lr=0.01)
    noise = perturb(other, theirs, SIGMA)
    theirs.load_state_dict(optimizer.state_dict())
    with pytest.raises(ValueError, match="law"):
        gradients(other)
    assert noise.step_count == 0


class Base:
    """A wrapper that is no Optimizer and calls what it wraps its base, as schedule-free's does."""

    def __init__(self, base):
        self.base = base


def test_a_wrapper_with_a_base():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    noise = perturb(model, Base(optimizer), SIGMA)
    assert noise.optimizer is optimizer


class Lomo(torch.optim.Optimizer):
    """Moves weights in its own backward."""

    def __init__(self, model):
        super().__init__(model.parameters(), {"lr": 0.1})

    def fused_backward(self, loss, lr):
        raise NotImplementedError


@pytest.mark.parametrize("form", FORMS)
def test_steps_that_nobody_hears_of_are_refused(form):
    model = make_model()
    optimizer = Lomo(model)
    with pytest.raises(TypeError, match=r"Lomo moves weights inside fused_backward\(\)"):
        FORMS[form](model, optimizer, SIGMA)
    assert not optimizer._optimizer_step_post_hooks
    assert type(model[0]._parameters) is dict


class HasSigma(torch.optim.SGD):
    """Its own setting has the name that the noise has for its σ in a param group."""

    def __init__(self, params, lr, sigma=1.0):
        super().__init__(params, lr=lr)
        self.defaults["sigma"] = sigma
        for group in self.param_groups:
            group.setdefault("sigma", sigma)


@pytest.mark.parametrize("form", FORMS)
def test_a_setting_of_the_optimizer_is_not_the_sigma_of_the_noise(form):
    model = make_model()
    optimizer = HasSigma(model.parameters(), lr=1e-300, sigma=-1.0)
    noise = FORMS[form](model, optimizer, SIGMA, seed=SEED)
    step(model, optimizer)
    w = np.concatenate([noise.injected(p).numpy().reshape(-1) for p in model.parameters()])
    np.testing.assert_allclose(w, SIGMA * draw_for(model)(1), rtol=1e-6)
    assert optimizer.param_groups[0]["sigma"] == -1.0
