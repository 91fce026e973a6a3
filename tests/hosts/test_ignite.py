"""ignite: perturb when model and optimizer are there, before the trainer runs."""

import pytest
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, EMAHandler
from ignite.metrics import Loss
from torch.nn.functional import mse_loss
from torch.optim.swa_utils import AveragedModel

from antipgd.torch import perturb
from matrix import cell, refused
from small_training import (
    NOISE,
    SIGMA,
    batches,
    check_explicit,
    check_same,
    differ,
    explicit,
    momentum,
    network,
)

DATA = batches(12)


class Run:
    """A trainer as ignite makes it."""

    def __init__(self, seed=0, accumulated=1):
        self.model = network(seed)
        self.optimizer = momentum(self.model)
        self.noise = perturb(self.model, self.optimizer, **NOISE)
        self.trainer = create_supervised_trainer(
            self.model, self.optimizer, mse_loss, gradient_accumulation_steps=accumulated
        )
        self.parts = {
            "model": self.model, "optimizer": self.optimizer, "trainer": self.trainer
        }  # fmt: skip

    def train(self, data, epochs=1):
        self.trainer.run(data, max_epochs=epochs)
        return self


@cell("ignite", "resume")
def test_a_checkpoint_goes_on_bit_for_bit(tmp_path):
    """Saved by the handler after 1 of 3 epochs, loaded by `Checkpoint.load_objects`."""
    whole, half = Run().train(DATA, epochs=3), Run()
    keep = Checkpoint(half.parts, DiskSaver(tmp_path, create_dir=False), filename_prefix="half")
    half.trainer.add_event_handler(Events.EPOCH_COMPLETED, keep)
    half.train(DATA)
    other = Run(seed=9)
    Checkpoint.load_objects(other.parts, torch.load(tmp_path / keep.last_checkpoint))
    assert other.noise.step_count == len(DATA)
    other.train(DATA, epochs=3)
    assert other.noise.step_count == 3 * len(DATA)
    check_same(other.model, whole.model)
    check_explicit(other.model, 3 * DATA)


@cell("ignite", "evaluation")
def test_an_evaluator_sees_clean_weights():
    """After every epoch, with a metric, while the trainer waits."""
    run, losses = Run(), []
    evaluator = create_supervised_evaluator(run.model, {"loss": Loss(mse_loss)})

    @run.trainer.on(Events.EPOCH_COMPLETED)
    def evaluate(_):
        evaluator.run(DATA)
        plain = network(9)
        plain.load_state_dict(run.model.state_dict())
        again = create_supervised_evaluator(plain, {"loss": Loss(mse_loss)})
        losses.append((evaluator.state.metrics["loss"], again.run(DATA).metrics["loss"]))

    run.train(DATA, epochs=3)
    assert all(found == clean for found, clean in losses)
    noisy = sum(mse_loss(run.model.train()(x), y).item() for x, y in DATA) / len(DATA)
    assert abs(noisy - losses[-1][0]) > 1e-4


@cell("ignite", "weights")
def test_the_best_checkpoint_is_clean(tmp_path):
    run = Run()
    evaluator = create_supervised_evaluator(run.model, {"loss": Loss(mse_loss)})
    best = Checkpoint(
        {"model": run.model}, DiskSaver(tmp_path, create_dir=False), n_saved=1,
        score_function=lambda engine: -engine.state.metrics["loss"],
    )  # fmt: skip
    evaluator.add_event_handler(Events.COMPLETED, best)
    steps = []

    @run.trainer.on(Events.ITERATION_COMPLETED(every=4))
    def evaluate(trainer):
        before = best.last_checkpoint
        evaluator.run(DATA)
        if best.last_checkpoint != before:
            steps.append(trainer.state.iteration)

    run.train(DATA)
    assert steps
    check_explicit(torch.load(tmp_path / best.last_checkpoint), DATA[: steps[-1]])


@cell("ignite", "accumulation")
def test_accumulated_batches_are_one_step():
    run = Run(accumulated=3).train(DATA)
    assert run.noise.step_count == 4
    check_explicit(run.model, DATA, accumulated=3)


@cell("ignite", "averages")
@pytest.mark.parametrize("first", ["average", "noise"])
def test_moving_averages_are_those_of_clean_weights(first):
    """The handler copies the model, be it perturbed already or not yet."""

    def averages(model):
        return EMAHandler(model, momentum=0.1), AveragedModel(model)

    if first == "average":
        run = Run()
        run.noise.stop()
        ema, swa = averages(run.model)
        run.noise = perturb(run.model, run.optimizer, **NOISE)
    else:
        run = Run()
        ema, swa = averages(run.model)
    ema.attach(run.trainer)
    run.trainer.on(Events.ITERATION_COMPLETED)(lambda _: swa.update_parameters(run.model))
    run.train(DATA)
    zs = [explicit(DATA[:n]).clean for n in range(len(DATA) + 1)]
    for name, found in ema.ema_model.named_parameters():
        average = zs[0].get_parameter(name).detach().clone()
        for z in zs[1:]:
            average.mul_(0.9).add_(z.get_parameter(name).detach(), alpha=0.1)
        assert torch.equal(found, average), name
        mean = torch.stack([z.get_parameter(name).detach() for z in zs[1:]]).mean(0)
        torch.testing.assert_close(swa.module.get_parameter(name).detach(), mean)
    x = DATA[0][0]
    assert torch.equal(ema.ema_model.train()(x), ema.ema_model.eval()(x))  # it takes no noise


@cell("ignite", "bad_input")
@pytest.mark.parametrize("sigma", [-0.1, float("nan")])
def test_a_wrong_sigma(sigma, record_property):
    model = network()
    with refused(record_property, ValueError, "sigma must be a finite number >= 0"):
        perturb(model, momentum(model), sigma)
    check_same(model, network())


@cell("ignite", "bad_input")
def test_twice(record_property):
    run = Run()
    with refused(record_property, ValueError, "this optimizer has noise already"):
        perturb(run.model, run.optimizer, SIGMA)
    check_explicit(run.train(DATA).model, DATA)


@cell("ignite", "bad_input")
def test_the_optimizer_of_the_averaged_model(record_property):
    """The handler's copy is not what is trained."""
    run = Run()
    run.noise.stop()
    copied = EMAHandler(run.model).ema_model
    with refused(record_property, ValueError, "optimizer 0 has a parameter .* not in the model"):
        perturb(copied, run.optimizer, SIGMA)


@cell("ignite", "bad_input")
def test_weights_read_past_the_noise(record_property):
    """A trainer of one's own that calls the model's parts, not the model, is found by the audit."""
    run = Run()
    run.noise.stop()
    perturb(run.model, run.optimizer, **NOISE)
    layers = list(run.model)

    def forward(model, x):
        hidden = torch.nn.functional.linear(x, model.get_parameter("0.weight"), model[0].bias)
        for layer in layers[1:]:
            hidden = layer(hidden)
        return hidden

    trainer = create_supervised_trainer(run.model, run.optimizer, mse_loss, model_fn=forward)
    before = network()
    with refused(record_property, RuntimeError, "read without noise in a training pass"):
        trainer.run(DATA)
    check_same(run.model, before)
    assert not differ(run.model, before)
