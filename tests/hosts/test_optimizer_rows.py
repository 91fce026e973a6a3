"""perturb under each host's optimizers: the cells that ask the same of all of them."""

import copy

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch_ema import ExponentialMovingAverage

from antipgd.torch import perturb
from matrix import refused
from optimizer_rigs import SEED, SIGMA, rows

BATCH = torch.randn(9, 6, generator=torch.Generator().manual_seed(3))


@pytest.fixture(autouse=True)
def not_compiled():
    """torchao compiles its steps, a minute for these; test_perturbed_optimizers tries them so."""
    with torch.compiler.set_stance("force_eager"):
        yield


def begin(build, seed=SEED, sigma=SIGMA):
    rig = build()
    return rig, perturb(rig.model, rig.given, sigma, seed=seed)


def assert_same(model, other):
    theirs = other.state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.isfinite(tensor).all()
        assert torch.equal(tensor, theirs[name]), name


def differ(model, other):
    theirs = other.state_dict()
    return any(not torch.equal(tensor, theirs[name]) for name, tensor in model.state_dict().items())


@rows("weights")
def test_weights_are_those_of_the_explicit_z_form(build):
    (rig, noise), reference, plain = begin(build), build(), build()
    for n in range(15):
        rig.train(n)
        reference.train_explicitly(n)
        plain.train(n)
        assert noise.step_count == n + 1
    assert_same(rig.model, reference.model)
    for one in (rig, reference, plain):
        one.set_training(False)
    assert_same(rig.model, reference.model)
    assert_same(copy.deepcopy(rig.model), reference.model)
    assert differ(rig.model, plain.model)


@rows("resume")
def test_resume(build):
    rig, noise = begin(build)
    for n in range(7):
        rig.train(n)
    data = rig.saved()
    other, resumed = begin(build, seed=SEED + 1)
    other.load(data)
    other.saved()  # bitsandbytes loads without a word: heard of by now, or by the next pass
    assert (resumed.step_count, resumed.seed) == (7, SEED)
    for n in range(7, 12):
        for name, parameter in other.model.named_parameters():
            mine = noise.injected(rig.model.get_parameter(name))
            assert mine.any()
            assert torch.equal(resumed.injected(parameter), mine)
        rig.train(n)
        other.train(n)
        assert_same(other.model, rig.model)


@rows("evaluation")
def test_evaluation_in_the_middle_of_training(build):
    (rig, _), reference = begin(build), build()
    for n in range(8):
        rig.train(n)
        reference.train_explicitly(n)
        with torch.no_grad():
            noisy = rig.model(BATCH)
            rig.set_training(False)
            reference.set_training(False)
            clean = reference.model(BATCH)
            assert torch.equal(rig.model(BATCH), clean)
            rig.set_training(True)
            reference.set_training(True)
            assert not torch.equal(noisy, clean)
    assert_same(rig.model, reference.model)


@rows("accumulation")
def test_micro_batches_are_one_step(build):
    (rig, noise), reference = begin(build), build()
    for n in range(6):
        rig.train(n, parts=4)
        reference.train_explicitly(n, parts=4)
        assert noise.step_count == n + 1
    assert_same(rig.model, reference.model)


def averages_of(model):
    return [
        AveragedModel(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
    ]  # fmt: skip


@rows("averages")
def test_averages_are_of_clean_weights(build):
    (rig, _), reference = begin(build), build()
    ours, theirs = averages_of(rig.model), averages_of(reference.model)
    fast, slow = (
        ExponentialMovingAverage(one.model.parameters(), decay=0.9) for one in (rig, reference)
    )
    for n in range(8):
        rig.train(n)
        reference.train_explicitly(n)
        for average in ours:
            average.update_parameters(rig.model)
        for average in theirs:
            average.update_parameters(reference.model)
        fast.update()
        slow.update()
    for average, expected in zip(ours, theirs, strict=True):
        assert_same(average.module, expected.module)
        assert torch.equal(average.train()(BATCH), expected.train()(BATCH))  # a plain copy
    with fast.average_parameters(), slow.average_parameters():
        assert_same(rig.model, reference.model)
        assert differ(rig.model, ours[0].module)
    assert_same(rig.model, reference.model)


def facts(rig):
    """All that perturb would change."""
    hooks = [(len(m._forward_pre_hooks), len(m._forward_hooks)) for m in rig.model.modules()]
    kinds = [type(m._parameters) for m in rig.model.modules()]
    groups = [sorted(group) for o in rig.optimizers for group in o.param_groups]
    weights = [p.detach().clone() for p in rig.model.parameters()]
    listening = [
        [len(o._optimizer_step_post_hooks), len(o._optimizer_step_pre_hooks)]
        for o in rig.optimizers if hasattr(o, "_optimizer_step_post_hooks")
    ]  # fmt: skip
    return hooks, kinds, groups, listening, weights


def assert_untouched(rig, before):
    *rest, weights = facts(rig)
    assert rest == list(before[:-1])
    assert all(torch.equal(a, b) for a, b in zip(weights, before[-1], strict=True))


@rows("bad_input")
def test_bad_input(build, record_property):
    rig, other = build(), build()
    before = facts(rig)
    for sigma in (-0.1, float("nan"), float("inf"), "0.1", True):
        with pytest.raises((ValueError, TypeError), match="sigma"):
            perturb(rig.model, rig.given, sigma)
    with pytest.raises(ValueError, match="seed"):
        perturb(rig.model, rig.given, SIGMA, seed=-1)
    with pytest.raises(ValueError, match="that is not in the model"):
        perturb(rig.model, other.given, SIGMA)
    with pytest.raises(ValueError, match="needs at least one optimizer"):
        perturb(rig.model, [], SIGMA)
    with pytest.raises(ValueError, match="matches no parameter"):
        perturb(rig.model, rig.given, SIGMA, exclude="no_such_parameter")
    assert_untouched(rig, before)
    noise = perturb(rig.model, rig.given, SIGMA, seed=SEED)
    rig.train(0)
    once = facts(rig)
    with refused(record_property, ValueError, "already"):
        perturb(rig.model, rig.given, SIGMA)
    assert_untouched(rig, once)
    assert noise.step_count == 1
