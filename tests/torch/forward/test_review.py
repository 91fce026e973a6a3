"""Ordinary programs that went wrong once: noises side by side, failures, blocks without noise."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from antipgd.torch import attach, clean_state_dict, perturb
from explicit import SEED, noisy, same, weighted

SIGMA = 0.03


def batch():
    return torch.linspace(-1, 1, 30).reshape(5, 6)


def mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))


def sgd(model, lr=0.01):
    return torch.optim.SGD(model.parameters(), lr=lr)


def trained(model, optimizers, steps, x=None):
    for _ in range(steps):
        weighted(model(batch() if x is None else x)).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def read(model, *modules):
    """The weights of these modules, as a training pass of the model reads them."""
    found = {}
    hooks = [
        module.register_forward_hook(lambda m, *_: found.update({m: m.weight.detach().clone()}))
        for module in modules
    ]
    with torch.no_grad():
        model(batch())
    for hook in hooks:
        hook.remove()
    return [found[module] for module in modules]


def w(module, name, steps):
    return noisy(module.weight, name, steps, [SIGMA])


# States


def test_the_clean_weights_of_perturb_are_not_cleaned():
    model = mlp()
    optimizer = sgd(model)
    perturb(model, optimizer, SIGMA, seed=SEED)
    trained(model, [optimizer], 2)
    with pytest.raises(ValueError, match="the weights are clean already"):
        clean_state_dict(model.state_dict(), optimizer.state_dict())


@pytest.mark.parametrize("model_first", [True, False])
def test_attach_goes_back_to_a_checkpoint_of_its_own(model_first):
    model = mlp()
    optimizer = sgd(model)
    noise = attach(optimizer, SIGMA, seed=SEED, model=model)
    trained(model, [optimizer], 3)
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    trained(model, [optimizer], 2)
    once = copy.deepcopy(model.state_dict())
    loads = [(model, kept[0]), (optimizer, kept[1])]
    for one, state in loads if model_first else loads[::-1]:
        one.load_state_dict(state)
    trained(model, [optimizer], 2)
    assert noise.step_count == 5
    assert all(same(a, once[name]) for name, a in model.state_dict().items())


# Several noises


def test_two_noises_in_one_model():
    model = mlp()
    first, second = sgd(model[0]), sgd(model[2])
    one = perturb(model, first, SIGMA, seed=SEED)
    trained(model, [first], 2)
    other = perturb(model, second, SIGMA, seed=SEED)
    trained(model, [first, second], 1)
    trained(model, [first], 1)
    a, b = read(model, model[0], model[2])
    assert same(a, w(model[0], "0.weight", 4))
    assert same(b, w(model[2], "2.weight", 1))
    other.stop()
    a, b = read(model, model[0], model[2])
    assert same(a, w(model[0], "0.weight", 4))
    assert same(b, model[2].weight)
    one.stop()
    for module in model.modules():
        assert type(module._parameters) is dict
        assert not module._forward_hooks


@pytest.mark.parametrize("memory", ["keep", "recompute"])
@pytest.mark.parametrize("inner_first", [True, False])
def test_a_noise_inside_the_model_of_another(inner_first, memory):
    model = nn.Sequential(mlp(), nn.Linear(6, 6))
    inner, outer = sgd(model[0]), sgd(model[1])
    pairs = [(model[0], inner), (model, outer)]
    for part, optimizer in pairs if inner_first else pairs[::-1]:
        perturb(part, optimizer, SIGMA, seed=SEED, memory=memory)
    trained(model, [inner, outer], 3)
    a, b = read(model, model[0][0], model[1])
    assert same(a, w(model[0][0], "0.weight", 3))
    assert same(b, w(model[1], "1.weight", 3))


@pytest.mark.parametrize("inner_first", [True, False])
def test_a_recurrent_layer_below_another_noise(inner_first):
    model = nn.ModuleDict({"rnn": nn.GRU(6, 4), "head": nn.Linear(4, 2)})
    model.forward = lambda x: model["head"](model["rnn"](x)[0])
    inner, outer = sgd(model["rnn"]), sgd(model["head"])
    pairs = [(model["rnn"], inner), (model, outer)]
    noises = [perturb(part, o, SIGMA) for part, o in (pairs if inner_first else pairs[::-1])]
    trained(model, [inner, outer], 3)
    flat = model["rnn"]._flat_weights
    assert all(a is b for a, b in zip(flat, model["rnn"].parameters(), strict=True))
    assert [noise.step_count for noise in noises] == [3, 3]


def test_two_noises_in_one_module_are_refused():
    model = mlp()
    weights = torch.optim.SGD([model[0].weight], lr=0.01)
    biases = torch.optim.SGD([model[0].bias], lr=0.01)
    perturb(model, weights, SIGMA, seed=SEED)
    with pytest.raises(ValueError, match="give perturb both optimizers at once"):
        perturb(model, biases, SIGMA, seed=SEED)
    trained(model, [weights, biases], 2)
    assert same(*read(model, model[0]), w(model[0], "0.weight", 2))


def test_a_module_that_gets_parameters_of_two_noises_later():
    model = mlp()
    first, second = torch.optim.SGD([model[0].weight], lr=0.01), sgd(model[2])
    perturb(model, first, SIGMA, seed=SEED)
    perturb(model, second, SIGMA, seed=SEED)
    second.add_param_group({"params": [model[0].bias]})
    for _ in range(2):  # it does not get right by trying again
        with pytest.raises(ValueError, match="both optimizers at once"):
            trained(model, [second], 1)


@pytest.mark.parametrize("remove", [True, False])
def test_noise_that_an_earlier_attach_has_left_is_not_taken_for_weights(remove):
    model = mlp()
    optimizer = sgd(model)
    left = attach(optimizer, SIGMA, seed=SEED, model=model)
    trained(model, [optimizer], 2)
    carried = left.injected(model[0].weight)
    optimizer = sgd(model)  # as when a notebook's cell runs again
    for begin in (lambda: attach(optimizer, SIGMA), lambda: perturb(model, optimizer, SIGMA)):
        with pytest.raises(ValueError, match="carries noise of an earlier attach"):
            begin()
    before = model[0].weight.detach().clone()
    left.stop(remove=remove)
    torch.testing.assert_close(before - model[0].weight, carried * remove)
    perturb(model, optimizer, SIGMA)


# Optimizers


def test_without_its_optimizer_noise_ends(caplog):
    model = mlp()
    optimizer = sgd(model)
    noise = perturb(model, optimizer, SIGMA, seed=SEED)
    trained(model, [optimizer], 2)
    del optimizer
    assert same(*read(model, model[0]), model[0].weight)
    assert "is gone" in caplog.text
    assert not noise.attached
    assert not any(module._forward_hooks for module in model.modules())


def test_one_of_two_optimizers_is_deleted():
    model = mlp()
    one, other = sgd(model[0]), sgd(model[2])
    noise = perturb(model, [one, other], SIGMA, seed=SEED)
    trained(model, [one, other], 1)
    del one
    with pytest.raises(ReferenceError, match="1 of 2 optimizers of this noise is gone"):
        trained(model, [other], 1)
    noise.stop()
    trained(model, [other], 1)


def test_a_failed_backward_with_steps_in_it_does_not_stop_the_count():
    model = mlp()
    each = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}
    noise = perturb(model, list(each.values()), SIGMA, seed=SEED)

    def step(parameter):
        each[parameter].step()
        each[parameter].zero_grad()

    def fail(gradient):
        raise ArithmeticError

    for p in each:
        p.register_post_accumulate_grad_hook(step)
    trained(model, [], 2)
    hook = model[0].weight.register_hook(fail)  # after model[2] has made its steps
    with pytest.raises(ArithmeticError):
        trained(model, [], 1)
    hook.remove()
    trained(model, [], 2)
    assert noise.step_count == 5
    assert same(*read(model, model[0]), w(model[0], "0.weight", 5))


def test_micro_batches_count_anew_after_a_step_that_does_not_count():
    model = mlp()
    optimizer = sgd(model)
    noise = perturb(model, optimizer, SIGMA, seed=SEED, draws="micro-batch")
    trained(model, [optimizer], 2)
    noise.pause()
    for _ in range(3):
        for _ in range(2):
            weighted(model(batch())).backward()
        optimizer.step()
    assert same(*read(model, model[0]), w(model[0], "0.weight", 2))


# Blocks without noise, and copies


class Checkpointed(nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.body, self.norm = mlp(), nn.BatchNorm1d(6)
        self.mode = mode

    def forward(self, x):
        return checkpoint(lambda v: self.norm(self.body(v)), x, use_reentrant=self.mode)


@pytest.mark.parametrize("mode", [True, False])
def test_evaluation_without_noise_between_checkpointed_steps(mode):
    model, x = Checkpointed(mode), batch().requires_grad_()
    optimizer = sgd(model)
    noise = perturb(model, optimizer, SIGMA, seed=SEED)
    for _ in range(2):
        trained(model, [optimizer], 2, x)
        with noise.recalibrate([x]):
            model.eval()(x)
        model.train()
        with noise.off(), torch.no_grad():
            model(x)
    assert noise.step_count == 4


@pytest.mark.parametrize("memory", ["keep", "recompute"])
@pytest.mark.parametrize("before", [0, 2])
def test_a_training_pass_in_inference_mode(before, memory):
    model = mlp()
    optimizer = sgd(model)
    noise = perturb(model, optimizer, SIGMA, seed=SEED, memory=memory)
    trained(model, [optimizer], before)
    with torch.inference_mode():
        expected = functional_call(copy.deepcopy(model), noisy_state(model, before), batch())
        assert same(model(batch()), expected)
        assert same(*read(model, model[0]), w(model[0], "0.weight", before))
    trained(model, [optimizer], 1)
    assert noise.step_count == before + 1


def noisy_state(model, steps):
    return {name: noisy(z, name, steps, [SIGMA]) for name, z in model.named_parameters()}


def test_a_copy_compiles_in_one_graph():
    model = mlp()
    optimizer = sgd(model)
    perturb(model, optimizer, SIGMA, seed=SEED)
    trained(model, [optimizer], 2)
    plain = copy.deepcopy(model)
    compiled = torch.compile(plain, backend="eager", fullgraph=True)
    assert same(compiled(batch()), model.eval()(batch()))
