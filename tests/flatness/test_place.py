"""One place, measured several times: the functions' own numbers, and a model left alone."""

import copy
import dataclasses
import pkgutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from antipgd import flatness
from antipgd.flatness import (
    ChangedError,
    ToleranceWarning,
    expected_sharpness,
    hessian_trace,
    measuring,
    spectrum,
    top_eigenvalues,
)
from antipgd.torch import attach

KINDS = [("mlp tanh", False), ("convolution", False), ("batch norm train", False),
         ("batch norm estimated", False), ("batch norm estimated", True)]  # fmt: skip


def same(one, other):
    """Bit for bit, whatever is in it."""
    if dataclasses.is_dataclass(one):
        fields = [field.name for field in dataclasses.fields(one)]
        return type(one) is type(other) and all(
            same(getattr(one, name), getattr(other, name)) for name in fields
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray | torch.Tensor):
        return one.dtype == other.dtype and one.tolist() == other.tolist()
    return one == other


@pytest.mark.parametrize(("kind", "float64"), KINDS)
def test_methods_and_functions_give_the_same_bits(cases, kind, float64):
    """Whatever was measured before, and also the second time."""
    case = cases[kind]()
    if float64:
        case.module.float()
        case.batches = [(x.float(), y) for x, y in case.batches]
    options = case.options | {"float64": float64}
    here = flatness.at(*case.arguments, **options)
    pairs = [
        (here.trace, hessian_trace, {}),
        (here.trace, hessian_trace, {"tolerance": 0.2, "seed": 3}),
        (here.sharpness, expected_sharpness, {"sigma": [0.1, 0.2], "trace": True, "draws": 9}),
        (here.sharpness, expected_sharpness, {"sigma": 0.1, "adaptive": True, "draws": 9}),
        (here.top_eigenvalues, top_eigenvalues, {"k": 3, "vectors": True}),
        (here.spectrum, spectrum, {"lanczos_steps": 9, "max_probes": 2}),
    ]
    expected = [function(*case.arguments, **wanted, **options) for _, function, wanted in pairs]
    found = [method(**wanted) for method, _, wanted in pairs]
    assert same(found, expected)
    assert same([method(**wanted) for method, _, wanted in pairs[:3:2]], expected[:3:2])
    other = hessian_trace(*case.arguments, method="hutchinson", seed=1, **options)
    assert not same(other, expected[0])


def network(dtype=torch.float64):
    """With all that may change without a word: statistics, dropout, a frozen layer, a buffer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.5),
                          nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)).to(dtype)  # fmt: skip
    model[4].requires_grad_(False)
    model.register_buffer("shift", torch.zeros(2, dtype=dtype))
    x, y = torch.randn(12, 4, dtype=dtype), torch.randn(12, 2, dtype=dtype)

    def loss(batch):
        return ((model(batch[0]) + model.shift - batch[1]) ** 2).mean()

    return loss, model.eval(), [(x[:5], y[:5]), (x[5:], y[5:])]


def test_it_is_checked_and_estimated_once(monkeypatch):
    loss, model, batches = network()
    calls, checks, plain = [], [], measuring.check_deterministic
    monkeypatch.setattr(
        measuring, "check_deterministic", lambda objective: checks.append(plain(objective))
    )

    def counted(batch):
        calls.append(model[1].training)
        return loss(batch)

    here = flatness.at(counted, model, batches, batch_norm="estimated")
    assert calls == [True, True, False, False]  # a pass for the statistics, two looks
    for looks in (7, 0):  # before the first product, whether derivatives and loss agree
        calls.clear()
        here.trace(method="hutchinson", max_probes=32)
        assert calls == [False] * (looks + 2)  # one pass, all products at once
    assert len(checks) == 1


@pytest.mark.parametrize("float64", [False, True])
def test_the_model_is_the_users_between_measurements(float64):
    loss, model, batches = network(torch.float32)
    model.train()
    model(batches[0][0]).sum().backward()
    model.eval()
    before = copy.deepcopy(model.state_dict())
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    here = flatness.at(loss, model, batches, batch_norm="estimated", float64=float64)
    measurements = [here.trace, here.spectrum, here.top_eigenvalues, lambda: here.sharpness(0.1)]
    for measure in (lambda: None, *measurements):
        measure()
        now = model.state_dict()
        assert all(torch.equal(now[key], before[key]) for key in before)
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        assert not any(part.training for part in model.modules())
        kept = [p.grad for p in model.parameters() if p.grad is not None]
        assert all(map(torch.equal, kept, gradients))


def stepped(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[0].weight.grad = torch.ones_like(model[0].weight)
    optimizer.step()


def written_through_data(model):
    model[6].bias.data[0] += 1e-12


def written_through_numpy(model):
    model[0].weight.detach().numpy()[1, 2] = 3.0


def swapped(model):
    """The same numbers at other places."""
    with torch.no_grad():
        model[0].weight.copy_(model[0].weight.flip(0))


def gathered(model):
    model.train()(torch.ones(3, 4, dtype=torch.float64))
    model.eval()


def unfrozen_and_moved(model):
    with torch.no_grad():
        model[4].weight.mul_(2)


CHANGES = {
    stepped: "the values of '0.weight' changed since flatness.at",
    written_through_data: "the values of '6.bias' changed",
    written_through_numpy: "the values of '0.weight' changed",
    swapped: "the values of '0.weight' changed",
    gathered: r"the values of 'running_mean of BatchNorm1d \(2\)' changed",
    unfrozen_and_moved: "the values of '4.weight' changed",
    lambda model: model.shift.add_(1): r"the values of 'shift of Sequential \(0\)' changed",
    lambda model: model.float(): "the values of '0.weight' changed",
    lambda model: setattr(model[6], "bias", nn.Parameter(model[6].bias.detach().clone())):
        "parameters were replaced, added or removed since",
    lambda model: model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True):
        "parameters were replaced, added or removed since",
    lambda model: model.append(nn.Linear(2, 2)): "parameters were replaced, added or removed",
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_changed_weights_are_refused(change):
    loss, model, batches = network()
    here = flatness.at(loss, model, batches)
    here.trace()
    change(model)
    for measure in (here.trace, here.spectrum, here.top_eigenvalues, lambda: here.sharpness(0.1)):
        with pytest.raises(ChangedError, match=CHANGES[change] + ".*call flatness.at again"):
            measure()


def test_weights_that_came_back_are_not_refused():
    """Version counters would: a clean() that ends gives every bit back, and counts."""
    loss, model, batches = network()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    noise = attach(optimizer, 0.1, seed=0)
    loss(batches[0]).backward()
    optimizer.step()
    with noise.clean():
        here = flatness.at(loss, model, batches)
        at_z = here.trace().mean
    with pytest.raises(ChangedError, match=r"call flatness\.at again"):
        here.trace()
    with noise.clean():
        assert here.trace().mean == at_z


def test_modes_are_those_of_the_check():
    loss, model, batches = network()
    here = flatness.at(loss, model, batches)
    expected = here.trace()
    model.train()
    assert same(here.trace(), expected)
    assert here.sharpness(0.1).batch_norm == "eval"
    assert all(part.training for part in model.modules())


def test_tensors_in_place_of_a_module():
    """The buffers of modules that the loss called are looked after, too."""
    loss, model, batches = network()
    here = flatness.at(loss, {"w": model[0].weight}, batches)
    expected = here.trace()
    model[1].train()
    assert same(here.trace(), expected)
    assert model[1].training
    model[1].running_var[0] = 7.0
    with pytest.raises(ChangedError, match="running_var of BatchNorm1d"):
        here.trace()


def test_data_that_change_are_noticed():
    loss, model, batches = network()
    here = flatness.at(loss, model, batches)
    here.trace()
    batches[1][0].mul_(2)
    with pytest.raises(flatness.NotDeterministicError, match="the mean loss over the batches was"):
        here.trace()


def test_an_iterator_is_kept():
    loss, model, batches = network()
    here = flatness.at(loss, model, iter(batches))
    assert same(here.trace(), hessian_trace(loss, model, batches))
    assert same(here.spectrum(), spectrum(loss, model, batches))


def test_warnings_point_at_the_line_that_asked():
    loss, model, batches = network()
    options = {"tolerance": 1e-5, "method": "hutchinson", "max_probes": 40}
    here = flatness.at(loss, model, batches)
    sharp = {"sigma": 0.1, "tolerance": 1e-5, "draws": 50}
    for measure in (
        lambda: here.trace(**options), lambda: hessian_trace(loss, model, batches, **options),
        lambda: here.sharpness(**sharp), lambda: expected_sharpness(loss, model, batches, **sharp),
    ):  # fmt: skip
        with pytest.warns(ToleranceWarning, match="not met after") as caught:
            measure()
        assert [one.filename for one in caught] == [__file__]


def test_what_a_place_shows():
    loss, model, batches = network()
    here = flatness.at(loss, model, batches, batch_norm="train")
    assert repr(here) == "Place(56 parameters, batch_norm='train')"


def test_no_function_hides_a_module():
    modules = {found.name for found in pkgutil.iter_modules(flatness.__path__)}
    assert "eigenvalues" in modules
    assert modules.isdisjoint(flatness.__all__)


def test_a_missing_requirement_is_named():
    """In a process of its own, since here all of them are loaded."""
    code = """
import sys
for name in ("scipy", "tqdm", "torch"):
    kept = sys.modules.pop(name, None)
    sys.modules[name] = None
    try:
        import antipgd.flatness
    except ImportError as error:
        print(error)
    del sys.modules[name]
    if kept is not None:
        sys.modules[name] = kept
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == [
        f"antipgd.flatness needs {name}: pip install {name}, "
        f"or all it needs in a clone: pip install '.[flatness]'"
        for name in ("scipy", "tqdm", "torch")
    ]
