"""Every kind of module, in a training pass: bitwise the explicit z-form, and clean outside."""

import pytest
import torch

from antipgd.torch import perturb
from explicit import SEED, Explicit, same, tensors, weighted
from kinds import KINDS

SIGMA = 0.03


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def sgd(model):
    return torch.optim.SGD(model.named_parameters(), lr=0.01)


def made(name):
    make, make_input = KINDS[name]
    torch.manual_seed(0)
    return make().train(), make_input()


def seen(model):
    """What a model looks like to who does not read its weights in a pass."""
    names = [(name, id(p), type(p)) for name, p in model.named_parameters(remove_duplicate=False)]
    return names, list(model.state_dict()), [type(m) for m in model.modules()]


def run(model, inputs):
    torch.manual_seed(1)  # for dropout
    output = model(*inputs)
    weighted(output).backward()
    return output


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters()}


def assert_same_pass(model, explicit, inputs):
    ours, theirs = run(model, inputs), run(explicit.carrier, inputs)
    assert all(same(a, b) for a, b in zip(tensors(ours), tensors(theirs), strict=True))
    expected = gradients(explicit.carrier)
    for name, gradient in gradients(model).items():
        assert (gradient is None) == (expected[name] is None), name
        assert gradient is None or same(gradient, expected[name]), name
    for (name, a), b in zip(model.named_buffers(), explicit.carrier.buffers(), strict=True):
        assert same(a, b), name
    return ours


def train(model, explicit, optimizer, inputs, steps):
    for _ in range(steps):
        assert_same_pass(model, explicit, inputs)
        optimizer.step()
        optimizer.zero_grad()
        explicit.step()


def assert_eval_is_clean(model, explicit, inputs):
    plain = explicit.at_z().eval()
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)  # which hooks switch off; it rounds otherwise
    try:
        for a, b in zip(tensors(model(*inputs)), tensors(plain(*inputs)), strict=True):
            assert same(a, b)
        with torch.no_grad():
            for a, b in zip(tensors(model(*inputs)), tensors(plain(*inputs)), strict=True):
                assert same(a, b)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("memory", ["keep", "recompute"])
@pytest.mark.parametrize("name", KINDS)
def test_kind(name, memory):
    model, inputs = made(name)
    explicit = Explicit(model, sgd, SIGMA)
    optimizer = sgd(model)
    before = seen(model)
    noise = perturb(model, optimizer, SIGMA, seed=SEED, memory=memory)
    assert seen(model) == before
    train(model, explicit, optimizer, inputs, steps=3)
    output = assert_same_pass(model, explicit, inputs)
    torch.manual_seed(1)
    at_z = explicit.at_z()(*inputs)
    assert any(not same(a, b) for a, b in zip(tensors(output), tensors(at_z), strict=True))
    for (key, z), theirs in zip(model.named_parameters(), explicit.clean.parameters(), strict=True):
        assert same(z, theirs), key
    assert seen(model) == before
    assert_eval_is_clean(model, explicit, inputs)
    assert noise.step_count == 3
    assert noise._passes.depth == 0
