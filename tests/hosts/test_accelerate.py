"""Accelerate: perturb after `prepare`, with the optimizer that `prepare` has given."""

import copy

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from safetensors.torch import load_file
from torch.nn.functional import mse_loss
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch_ema import ExponentialMovingAverage

from antipgd.torch import attach, clean_state_dict, perturb
from matrix import cell, refused
from small_training import (
    NOISE,
    SIGMA,
    batches,
    check_explicit,
    check_same,
    explicit,
    momentum,
    network,
)


@pytest.fixture(autouse=True)
def _forget():
    """Accelerate keeps what it found out for the whole process."""
    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


class Run:
    """A training as Accelerate's users write it."""

    def __init__(self, form="forward", seed=0, accumulated=1, mixed="no"):
        self.accelerator = Accelerator(
            cpu=True, gradient_accumulation_steps=accumulated, mixed_precision=mixed
        )
        model = network(seed)
        self.model, self.optimizer = self.accelerator.prepare(model, momentum(model))
        if form == "forward":
            self.noise = perturb(self.model, self.optimizer, **NOISE)
        else:
            self.noise = attach(self.optimizer.optimizer, model=self.model, **NOISE)

    def train(self, data):
        self.model.train()
        for x, y in data:
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(mse_loss(self.model(x), y))
                self.optimizer.step()
                self.optimizer.zero_grad()
        return self


DATA = batches(12)


def both(*qualities):
    """The test is one of each form."""
    marks = [
        pytest.param(form, marks=cell("accelerate", *qualities, form=form))
        for form in ("forward", "weights")
    ]
    return pytest.mark.parametrize("form", marks)


@both("resume")
def test_load_state_goes_on_bit_for_bit(form, tmp_path):
    whole = Run(form).train(DATA)
    half = Run(form).train(DATA[:5])
    half.accelerator.save_state(tmp_path)
    other = Run(form, seed=9)
    other.accelerator.load_state(tmp_path)
    assert other.noise.step_count == 5
    other.train(DATA[5:])
    check_same(other.model, whole.model)
    assert other.noise.step_count == len(DATA)
    if form == "forward":
        check_explicit(other.model, DATA)


@cell("accelerate", "evaluation")
@pytest.mark.parametrize("mixed", ["no", "bf16"])
def test_evaluation_is_at_the_clean_weights(mixed):
    run = Run(mixed=mixed)
    x, _ = DATA[0]
    for _ in range(2):  # in the middle of training, and at its end
        run.train(DATA[:5])
        noisy = run.model(x)
        run.model.eval()
        with torch.no_grad():
            found = run.accelerator.gather_for_metrics(run.model(x))
        plain = network()
        plain.load_state_dict(run.accelerator.unwrap_model(run.model).state_dict())
        with torch.no_grad(), run.accelerator.autocast():
            assert torch.equal(found, plain.eval()(x).float())
        assert not torch.equal(found, noisy)


@cell("accelerate", "evaluation", form="weights")
def test_evaluation_inside_clean():
    run = Run("weights").train(DATA)
    walk = explicit(DATA)
    with run.noise.clean(), torch.no_grad():
        found = run.accelerator.gather_for_metrics(run.model.eval()(DATA[0][0]))
    close(found, walk.at_z().eval()(DATA[0][0]))
    apart = (run.model(DATA[0][0]) - found).abs().max()
    assert apart > 100 * TOLERANCE


TOLERANCE = 1e-5  # noise in the weights rounds them at every step


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


@cell("accelerate", "weights")
def test_saved_weights_are_clean(tmp_path):
    run = Run().train(DATA)
    run.accelerator.save_model(run.model, tmp_path)
    check_explicit(load_file(tmp_path / "model.safetensors"), DATA)
    check_explicit(run.accelerator.get_state_dict(run.model), DATA)
    check_explicit(run.accelerator.unwrap_model(run.model), DATA)


@cell("accelerate", "weights", form="weights")
def test_saved_weights_of_the_other_form_are_clean_inside_clean(tmp_path):
    run = Run("weights").train(DATA)
    with run.noise.clean():
        run.accelerator.save_model(run.model, tmp_path)
    run.accelerator.save_state(tmp_path / "state")
    noisy = load_file(tmp_path / "state" / "model.safetensors")
    state = torch.load(tmp_path / "state" / "optimizer.bin")
    for found in (load_file(tmp_path / "model.safetensors"), clean_state_dict(noisy, state)):
        for name, z in explicit(DATA).clean.named_parameters():
            close(found[name], z.detach())
            assert (noisy[name] - z).abs().max() > 100 * TOLERANCE


@both("accumulation")
def test_accumulated_batches_are_one_step(form):
    run = Run(form, accumulated=3).train(DATA)
    assert run.noise.step_count == 4
    if form == "forward":
        check_explicit(run.model, DATA, accumulated=3)
        return
    with run.noise.clean():
        for name, z in explicit(DATA, accumulated=3).clean.named_parameters():
            close(run.model.get_parameter(name), z)


class Averages:
    """What Accelerate's users average with: torch_ema, and torch's own two."""

    def __init__(self, model):
        self.ema = ExponentialMovingAverage(model.parameters(), decay=0.9)
        moving = get_ema_multi_avg_fn(0.9)
        self.own = AveragedModel(model), AveragedModel(model, multi_avg_fn=moving)

    def update(self, model):
        self.ema.update(model.parameters())
        for average in self.own:
            average.update_parameters(model)

    def found(self):
        mine = [p for average in self.own for p in average.module.parameters()]
        return [p.detach() for p in (*self.ema.shadow_params, *mine)]


@both("averages")
def test_averages_are_those_of_clean_weights(form):
    run, walk = Run(form), explicit([])
    averages, expected = Averages(run.accelerator.unwrap_model(run.model)), Averages(walk.clean)
    for x, y in DATA:
        run.train([(x, y)])
        with run.noise.clean():
            averages.update(run.accelerator.unwrap_model(run.model))
        mse_loss(walk.carrier(x), y).backward()
        walk.step()
        expected.update(walk.clean)
    for found, z in zip(averages.found(), expected.found(), strict=True):
        close(found, z) if form == "weights" else check_same({"": found}, {"": z})


@cell("accelerate", "bad_input")
@pytest.mark.parametrize("sigma", [-0.1, float("nan"), "0.1"])
def test_a_wrong_sigma(sigma, record_property):
    run = Run()
    run.noise.stop()
    with refused(record_property, ValueError, "sigma must be a finite number >= 0"):
        perturb(run.model, run.optimizer, sigma)
    check_same(run.model, network())


@cell("accelerate", "bad_input")
def test_perturbed_before_and_after_prepare(record_property):
    run = Run()
    with refused(record_property, ValueError, "this optimizer has noise already"):
        perturb(run.model, run.optimizer, SIGMA)
    run.train(DATA)
    check_explicit(run.model, DATA)


@cell("accelerate", "bad_input")
def test_an_optimizer_of_another_model(record_property):
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(network(), momentum(copy.deepcopy(network())))
    with refused(record_property, ValueError, "optimizer 0 has a parameter .* not in the model"):
        perturb(model, optimizer, SIGMA)


def test_before_prepare_is_the_same():
    """On one process Accelerate keeps model and optimizer."""
    model = network()
    optimizer = momentum(model)
    noise = perturb(model, optimizer, **NOISE)
    run = Run.__new__(Run)
    run.accelerator, run.noise = Accelerator(cpu=True), noise
    run.model, run.optimizer = run.accelerator.prepare(model, optimizer)
    check_explicit(run.train(DATA).model, DATA)
