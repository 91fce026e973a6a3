"""Lightning's Trainer with the callbacks: bitwise a plain loop, clean in between, exact resume.

Nothing is downloaded. The plain loop is the explicit z-form for form="forward", and `attach` for
form="weights"; neither knows Lightning.
"""

import copy
import os
import subprocess
import sys
from pathlib import Path

import lightning.pytorch as pl
import pytest
import pytorch_lightning
import torch
from lightning.pytorch.callbacks import (
    EMAWeightAveraging,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from antipgd.torch import AnticorrelatedBatches, attach
from antipgd.trainers.lightning import AntiPGD, FlatnessMonitor, SigmaFinder
from explicit import Explicit, same
from matrix import cell

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{message}")
    for message in (
        "The '.*dataloader' does not have many workers",
        "`isinstance.treespec, LeafSpec.` is deprecated",
        "Be aware that when using `ckpt_path`, callbacks used to create the checkpoint",
        "`training_step` returned `None`",
        "You defined a `validation_step` but have no `val_dataloader`",
    )
]
SIGMA, SEED, BATCHES = 0.05, 17, 8
ROWS = torch.arange(5 * BATCHES)
FORMS = ("forward", "weights")


def forms(*qualities):
    """Both forms, as answers in the table of hosts."""
    own = [pytest.param(form, marks=cell("lightning", *qualities, form=form)) for form in FORMS]
    return pytest.mark.parametrize("form", own)


def data():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(5 * BATCHES, 6, generator=generator)
    return x, x[:, :3].argmax(1)


def loader():
    return DataLoader(TensorDataset(*data()), batch_size=5)


class Network(pl.LightningModule):
    def __init__(self, norm=False):
        super().__init__()
        torch.manual_seed(0)
        inner = [nn.BatchNorm1d(8)] if norm else []
        self.net = nn.Sequential(nn.Linear(6, 8), *inner, nn.Tanh(), nn.Linear(8, 3))
        self.seen = []  # what validation saw: the weights and the loss

    def forward(self, x):
        return self.net(x)

    def loss(self, batch):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def training_step(self, batch, index):
        return self.loss(batch)

    def validation_step(self, batch, index):
        loss = self.loss(batch)
        self.log("val", loss)
        self.seen.append((values(self), loss.clone()))

    test_step = validation_step

    def predict_step(self, batch, index):
        return self(batch[0])

    def configure_optimizers(self):
        optimizer, scheduler = rates(self)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def rates(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.8)


def values(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def equal(one, other):
    return all(same(one[name], other[name]) for name in other)


def noise(form, **settings):
    return AntiPGD(SIGMA, form, seed=SEED, **settings)


def trainer(tmp_path, *callbacks, epochs=2, **options):
    defaults = {
        "accelerator": "cpu", "logger": False, "enable_progress_bar": False,
        "enable_model_summary": False, "default_root_dir": tmp_path, "max_epochs": epochs,
        "enable_checkpointing": any(isinstance(c, ModelCheckpoint) for c in callbacks),
    }  # fmt: skip
    return pl.Trainer(callbacks=list(callbacks), **(defaults | options))


def fitted(tmp_path, form, *others, model=None, resume=None, **options):
    model, callback = model or Network(), noise(form)
    fitting = trainer(tmp_path, callback, *others, **options)
    fitting.fit(model, loader(), loader(), ckpt_path=resume)
    return model, callback, fitting


def plain(form, epochs, accumulated=1, sigma=SIGMA, after=lambda z: None, make=Network):
    """The loop by hand. `after` gets the clean weights after each step."""
    model = make()
    run = _explicit if form == "forward" else _attached
    return run(model, epochs, accumulated, sigma, after)


def _batches(epochs, accumulated):
    """(batch, whether a step follows), as Lightning counts: the last of an epoch always does."""
    for _ in range(epochs):
        for index, batch in enumerate(loader(), 1):
            yield batch, index % accumulated == 0 or index == BATCHES


def _explicit(model, epochs, accumulated, sigma, after):
    schedulers = []

    def make_optimizer(clean):
        optimizer, scheduler = rates(clean)
        schedulers.append(scheduler)
        return optimizer

    explicit = Explicit(model, make_optimizer, sigma, seed=SEED)
    for batch, steps in _batches(epochs, accumulated):
        (explicit.carrier.loss(batch) / accumulated).backward()
        if steps:
            explicit.step()
            schedulers[0].step()
            after(values(explicit.clean))
    return values(explicit.clean)


def _attached(model, epochs, accumulated, sigma, after):
    optimizer, scheduler = rates(model)
    handle = attach(optimizer, sigma=sigma, seed=SEED, model=model)
    for batch, steps in _batches(epochs, accumulated):
        (model.loss(batch) / accumulated).backward()
        if steps:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            with handle.clean():
                after(values(model))
    handle.stop()
    return values(model)


# The noise acts, and on what


@pytest.mark.parametrize("form", FORMS)
def test_training_is_bitwise_the_plain_loop(form, tmp_path):
    model, callback, _ = fitted(tmp_path, form)
    z = plain(form, 2)
    assert equal(values(model), z)
    assert callback.noise.step_count == 2 * BATCHES
    assert not equal(z, plain(form, 2, sigma=0.0))


@forms("accumulation")
def test_accumulation(form, tmp_path):
    model, callback, fitting = fitted(tmp_path, form, accumulate_grad_batches=3)
    assert callback.noise.step_count == fitting.global_step == 2 * 3
    assert equal(values(model), plain(form, 2, accumulated=3))


@pytest.mark.parametrize("form", FORMS)
def test_relative_sigma_and_the_other_settings_reach_the_library(form, tmp_path):
    callback = AntiPGD(0.3, form, relative=True, law="rademacher", exclude="*.bias", hold=2)
    trainer(tmp_path, callback, max_steps=1).fit(Network(), loader())
    handle = callback.noise
    assert (str(handle.law), handle.drawing.hold, handle.relative) == ("rademacher", 2, True)
    assert handle.left_out == ["net.0.bias", "net.2.bias"]


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_without_loss_is_a_step_as_it_is_for_the_trainer(form, tmp_path):
    class Skipping(Network):
        def training_step(self, batch, index):
            return None if index % 2 else self.loss(batch)

    _, callback, fitting = fitted(tmp_path, form, model=Skipping(), epochs=1)
    assert callback.noise.step_count == fitting.global_step == BATCHES


# Evaluation


@forms("evaluation")
def test_evaluation_is_clean(form, tmp_path):
    """Before the first step, in the middle of an epoch, and between micro-batches."""
    model, _, _ = fitted(tmp_path, form, accumulate_grad_batches=3, val_check_interval=0.5)
    found = []
    plain(form, 2, accumulated=3, after=found.append)
    start = values(Network())
    # Sanity check (2 batches), then after 4 and 8 batches: 1 and 3 steps; 4 and 6 in epoch 2.
    for place, z in enumerate([start, found[0], found[2], found[3], found[5]]):
        first = 0 if place == 0 else 2 + (place - 1) * BATCHES
        weights, loss = model.seen[first]
        assert equal(weights, z)
        twin = Network().eval()
        twin.load_state_dict(z)
        assert same(loss, twin.loss(next(iter(loader()))))
    assert len(model.seen) == 2 + 4 * BATCHES


@forms("evaluation")
def test_evaluation_in_training_mode_is_clean(form, tmp_path):
    class Training(Network):
        def on_validation_model_eval(self):
            pass

    model, _, _ = fitted(tmp_path, form, model=Training(), epochs=1)
    twin = Network()
    twin.load_state_dict(plain(form, 1))
    assert same(model.seen[2][1], twin.loss(next(iter(loader()))))


@forms("evaluation")
def test_evaluation_after_fit_is_clean(form, tmp_path):
    model, _, fitting = fitted(tmp_path, form)
    z = plain(form, 2)
    model.seen.clear()
    fitting.test(model, loader(), verbose=False)
    assert equal(model.seen[0][0], z)
    twin = Network().eval()
    twin.load_state_dict(z)
    assert same(fitting.predict(model, loader())[0], twin(data()[0][:5]))


# Weights that are saved


def checkpoints(tmp_path, **options):
    return ModelCheckpoint(tmp_path / "kept", save_top_k=-1, **options)


@forms("weights")
def test_weights_in_checkpoints_are_clean(form, tmp_path):
    every = checkpoints(tmp_path, every_n_train_steps=3, filename="{step}")
    small = ModelCheckpoint(
        tmp_path / "small", every_n_train_steps=2, save_top_k=-1, save_weights_only=True,
        filename="{step}",
    )  # fmt: skip
    _, _, fitting = fitted(tmp_path, form, every, small)
    found = []
    plain(form, 2, after=found.append)
    fitting.save_checkpoint(tmp_path / "kept" / "step=16.ckpt")
    for folder, steps in (("kept", (3, 6, 9, 12, 15, 16)), ("small", range(2, 17, 2))):
        for step in steps:
            state = torch.load(tmp_path / folder / f"step={step}.ckpt", weights_only=True)
            assert equal(state["state_dict"], found[step - 1])


@forms("weights")
def test_weights_of_an_epoch_that_was_cut_short_are_clean(form, tmp_path):
    class Short(Network):
        def on_train_batch_start(self, batch, index):
            return -1 if index == 3 else None

    kept = checkpoints(tmp_path, save_on_train_epoch_end=True, filename="{epoch}")
    _, callback, _ = fitted(tmp_path, form, kept, model=Short(), epochs=1)
    found = []
    plain(form, 1, after=found.append)
    assert callback.noise.step_count == 3
    state = torch.load(tmp_path / "kept" / "epoch=0.ckpt", weights_only=True)
    assert equal(state["state_dict"], found[2])


@forms("weights")
def test_the_best_weights_are_clean(form, tmp_path):
    best = ModelCheckpoint(tmp_path, monitor="val", filename="best")
    _, _, fitting = fitted(tmp_path, form, best, epochs=3)
    z = []
    plain(form, 3, after=z.append)
    losses = [float(fitting.callback_metrics["val"])]
    state = torch.load(best.best_model_path, weights_only=True)
    assert equal(state["state_dict"], z[state["global_step"] - 1])
    twin = Network()
    fitting.validate(twin, loader(), ckpt_path="best", verbose=False)
    losses.append(float(fitting.callback_metrics["val"]))
    assert losses[1] == float(best.best_model_score)
    assert losses[1] <= losses[0]


# Resume


@forms("resume")
@pytest.mark.parametrize("accumulated", [1, 3])
def test_resume_is_bitwise(form, accumulated, tmp_path):
    options = {"accumulate_grad_batches": accumulated, "val_check_interval": 0.5}
    kept = checkpoints(tmp_path, every_n_epochs=1, filename="{epoch}", save_on_train_epoch_end=True)
    whole, first, _ = fitted(tmp_path, form, kept, epochs=3, **options)
    path = tmp_path / "kept" / "epoch=0.ckpt"
    again, callback, _ = fitted(tmp_path, form, epochs=3, resume=path, **options)
    assert callback.noise.step_count == first.noise.step_count
    assert equal(values(again), values(whole))
    assert equal(values(again), plain(form, 3, accumulated))
    assert equal(again.seen[0][0], torch.load(path, weights_only=True)["state_dict"])


@forms("resume")
def test_resume_in_the_middle_of_an_epoch_is_bitwise(form, tmp_path):
    """With a loader that can be resumed: the batches by number."""

    class Numbered:
        def __init__(self):
            self.next = 0

        def __len__(self):
            return BATCHES

        def __iter__(self):
            self.next %= BATCHES
            batches = list(loader())
            while self.next < BATCHES:
                self.next += 1
                yield batches[self.next - 1]

        def state_dict(self):
            return {"next": self.next}

        def load_state_dict(self, state):
            self.next = state["next"]

    kept = checkpoints(tmp_path, every_n_train_steps=5, filename="{step}")
    whole, again = Network(), Network()
    trainer(tmp_path, noise(form), kept).fit(whole, Numbered())
    path = tmp_path / "kept" / "step=5.ckpt"
    trainer(tmp_path, noise(form)).fit(again, Numbered(), ckpt_path=path)
    assert equal(values(whole), plain(form, 2))
    assert equal(values(again), values(whole))


@forms("resume")
def test_resume_on_two_ranks_is_bitwise(form, tmp_path):
    script = Path(__file__).with_name("lightning_ranks.py")
    places = [str(script.parent), str(script.parents[1] / "torch" / "forward")]
    path = os.pathsep.join([*places, os.environ.get("PYTHONPATH", "")])
    found = subprocess.run(
        [sys.executable, script, form, tmp_path],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert "rank 0 is done" in found.stdout


@pytest.mark.parametrize("limit", [1.0, 3])
def test_every_epoch_has_batches_of_its_own(limit, tmp_path):
    """Lightning never asks for the end of an epoch, and here not for more than its limit."""

    class Batched(Network):
        def __init__(self):
            super().__init__()
            self.came = []

        def train_dataloader(self):
            batches = AnticorrelatedBatches(5 * BATCHES, 5, order="mirrored", seed=1)
            batches.set_epoch(self.current_epoch)
            return DataLoader(TensorDataset(*data(), ROWS), batch_sampler=batches)

        def training_step(self, batch, index):
            self.came.append(batch[2].tolist())
            return super().training_step(batch, index)

    batches = AnticorrelatedBatches(5 * BATCHES, 5, order="mirrored", seed=1)
    wanted = [row for _ in range(4) for row in list(batches)[: BATCHES if limit == 1.0 else limit]]
    options = {"limit_train_batches": limit, "use_distributed_sampler": False}
    whole, again = Batched(), Batched()
    fitting = trainer(tmp_path, epochs=2, **options)
    fitting.fit(whole)
    fitting.save_checkpoint(tmp_path / "two.ckpt")
    trainer(tmp_path, epochs=4, **options).fit(again, ckpt_path=tmp_path / "two.ckpt")
    assert whole.came + again.came == wanted


def test_a_sampler_that_lightning_puts_in_is_refused(tmp_path):
    batches = AnticorrelatedBatches(5 * BATCHES, 5)
    given = DataLoader(TensorDataset(*data()), batch_sampler=batches)
    with pytest.raises(TypeError, match=r"got a SequentialSampler.*use_distributed_sampler=False"):
        trainer(tmp_path).predict(Network(), given)


def test_resume_from_what_is_saved_after_fit(tmp_path):
    _, _, fitting = fitted(tmp_path, "forward")
    fitting.save_checkpoint(tmp_path / "end.ckpt")
    again, callback, _ = fitted(tmp_path, "forward", epochs=3, resume=tmp_path / "end.ckpt")
    assert callback.noise.step_count == 3 * BATCHES
    assert equal(values(again), plain("forward", 3))


def test_resume_with_noise_in_the_weights_from_what_is_saved_after_fit(tmp_path):
    """The noisy weights are gone by then: the first step is made at z, the draws go on."""
    _, _, fitting = fitted(tmp_path, "weights")
    fitting.save_checkpoint(tmp_path / "end.ckpt")
    _, callback, _ = fitted(tmp_path, "weights", epochs=3, resume=tmp_path / "end.ckpt")
    assert callback.noise.step_count == 3 * BATCHES


def test_resume_in_the_other_form_is_refused(tmp_path):
    kept = checkpoints(tmp_path, every_n_epochs=1, filename="{epoch}")
    fitted(tmp_path, "forward", kept, epochs=1)
    with pytest.raises(ValueError, match=r"its weights are clean .perturb.: go on with perturb"):
        fitted(tmp_path, "weights", resume=tmp_path / "kept" / "epoch=0.ckpt")


# Averages


@pytest.mark.parametrize("before", [True, False])
@forms("averages")
def test_averages_by_ema(form, before, tmp_path):
    average, expected = EMAWeightAveraging(decay=0.9), {}
    model, callback = Network(), noise(form)
    callbacks = [average, callback] if before else [callback, average]
    trainer(tmp_path, *callbacks).fit(model, loader(), loader())

    def update(z):
        for name, value in z.items():
            expected[name] = value if name not in expected else expected[name].lerp(value, 0.1)

    z = plain(form, 2, after=update)
    for name, value in values(model).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-6, atol=1e-7)
    assert not equal(z, expected)


@forms("averages")
def test_averages_by_swa(form, tmp_path):
    """Its last epoch estimates BatchNorm statistics: at the clean average, without noise."""

    class Plain(Network):
        def __init__(self):
            super().__init__(norm=True)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05)

    seen = []

    class Watch(pl.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            seen.append(values(pl_module))

    swa = StochasticWeightAveraging(swa_lrs=0.05, swa_epoch_start=2, annealing_epochs=1)
    model, callback = Plain(), noise(form)
    trainer(tmp_path, swa, Watch(), callback, epochs=4).fit(model, loader())
    assert callback.noise.step_count == 4 * BATCHES
    assert not callback.noise.paused
    # Averaged at the starts of epochs 1, 2 and 3; epoch 4 begins with the average. Lightning ends
    # it with a step by the last gradient of epoch 3, also without noise.
    for name, value in seen[4].items():
        mean = (seen[1][name] + seen[2][name] + seen[3][name]) / 3
        torch.testing.assert_close(value, mean, rtol=1e-5, atol=1e-6)
    twin = Plain()
    twin.load_state_dict(seen[4], strict=False)
    inner = twin.net[1]
    inner.reset_running_stats()
    inner.momentum = None
    with torch.no_grad():
        for batch in loader():
            twin(batch[0])
    torch.testing.assert_close(model.net[1].running_mean, inner.running_mean)
    torch.testing.assert_close(model.net[1].running_var, inner.running_var)


# Interrupted


class Breaking(Network):
    error = RuntimeError("broken")

    def training_step(self, batch, index):
        if self.global_step == 5:
            self.before = values(self)
            raise self.error
        return self.loss(batch)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_weights_are_clean_after_an_exception(form, error, tmp_path, monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(Breaking, "error", error("broken"))
    model = Breaking()
    with pytest.raises((RuntimeError, SystemExit)):
        fitted(tmp_path, form, model=model)
    found = []
    plain(form, 1, after=found.append)
    assert equal(values(model), found[4])
    assert equal(model.before, found[4]) == (form == "forward")
    again, _, _ = fitted(tmp_path, form, model=Network())  # another training begins as usual
    assert equal(values(again), plain(form, 2))


def test_resume_from_what_an_exception_leaves(tmp_path):
    kept = ModelCheckpoint(tmp_path / "kept", save_on_exception=True)
    with pytest.raises(RuntimeError, match="broken"):
        fitted(tmp_path, "forward", kept, model=Breaking())
    (path,) = (tmp_path / "kept").glob("*.ckpt")
    state = torch.load(path, weights_only=True)
    found = []
    plain("forward", 1, after=found.append)
    assert equal(state["state_dict"], found[4])
    assert '"step": 5' in state["optimizer_states"][0]["param_groups"][0]["antipgd"]


# Bad input


@cell("lightning", "bad_input")
def test_bad_input_without_sigma():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'sigma'"):
        AntiPGD()


@cell("lightning", "bad_input")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sigma": -1}, "sigma must be a finite number >= 0"),
        ({"sigma": 0.1, "form": "both"}, "unknown form 'both'; accepted: forward, weights"),
        ({"sigma": 0.1, "sedd": 3}, "takes no 'sedd'; did you mean 'seed'"),
        ({"sigma": 0.1, "form": "weights", "audit": False}, "form='weights' takes no 'audit'"),
    ],
)
def test_bad_input_is_refused_at_once(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        AntiPGD(**arguments)


class Manual(Network):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, index):
        self.loss(batch).backward()
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()

    def configure_optimizers(self):
        first, last = self.net[0].parameters(), self.net[-1].parameters()
        return torch.optim.SGD(first, lr=0.1), torch.optim.AdamW(last, lr=0.01)


def refused(tmp_path, *callbacks, model, match):
    start = values(model)
    with pytest.raises((ValueError, TypeError), match=match):
        trainer(tmp_path, *callbacks).fit(model, loader())
    assert equal(values(model), start)


@cell("lightning", "bad_input", form="weights")
def test_bad_input_for_noise_in_the_weights(tmp_path):
    refused(tmp_path, noise("weights"), model=Manual(), match="needs automatic optimization")


@cell("lightning", "bad_input")
def test_bad_input_noise_twice(tmp_path):
    twice = noise("forward"), noise("weights")
    refused(tmp_path, *twice, model=Network(), match="has noise already")


@cell("lightning", "bad_input")
def test_bad_input_the_settings_of_the_library(tmp_path):
    callback = AntiPGD(0.1, exclude="no such name")
    refused(tmp_path, callback, model=Network(), match="no such name")


@cell("lightning", "bad_input")
def test_bad_input_the_other_package(tmp_path):
    class Other(pytorch_lightning.LightningModule):
        training_step, configure_optimizers = Network.training_step, Network.configure_optimizers

        def __init__(self):
            super().__init__()
            self.net = nn.Linear(6, 3)

    other = pytorch_lightning.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, default_root_dir=tmp_path,
        enable_progress_bar=False, enable_model_summary=False, max_epochs=1,
        callbacks=[noise("forward")],
    )  # fmt: skip
    message = "for lightning.pytorch.Trainer; got the Trainer of pytorch_lightning: import it from"
    with pytest.raises(TypeError, match=message):
        other.fit(Other(), loader())


def test_several_optimizers_by_hand_in_the_forward_form(tmp_path):
    model, callback = Manual(), noise("forward")
    trainer(tmp_path, callback, epochs=1).fit(model, loader())
    assert callback.noise.step_count == BATCHES

    class Both:
        def __init__(self, model):
            self.each = Manual.configure_optimizers(model)

        def step(self):
            for optimizer in self.each:
                optimizer.step()

        def zero_grad(self):
            for optimizer in self.each:
                optimizer.zero_grad()

    explicit = Explicit(Manual(), Both, SIGMA, seed=SEED)
    for batch in loader():
        explicit.carrier.loss(batch).backward()
        explicit.step()
    assert equal(values(model), values(explicit.clean))


def test_weights_that_are_read_past_the_noise_are_refused(tmp_path):
    class Past(Network):
        def training_step(self, batch, index):
            hidden = torch.tanh(nn.functional.linear(batch[0], self.net[0].weight))
            return nn.functional.cross_entropy(self.net[2](hidden), batch[1])

    model = Past()
    with pytest.raises(RuntimeError, match=r"net\.0\.weight"):
        fitted(tmp_path, "forward", model=model)
    assert model.trainer.global_step == 1  # gradients are made inside the optimizer's step


# Logs, finder, monitor


class Kept(pl.loggers.logger.Logger):
    name, version = "kept", 0

    def __init__(self):
        super().__init__()
        self.rows = []

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, metrics))

    def log_hyperparams(self, *args, **kwargs):
        pass


@pytest.mark.parametrize("form", FORMS)
def test_the_trainer_logs_the_noise_at_its_interval(form, tmp_path):
    logger = Kept()
    fitted(tmp_path, form, logger=logger, log_every_n_steps=4)
    rows = [(step, m["noise/step"], m["noise/sigma"]) for step, m in logger.rows
            if "noise/step" in m]  # fmt: skip
    assert [(step + 1, number) for step, number, _ in rows] == [(n, n) for n in (4, 8, 12, 16)]
    assert {round(sigma, 6) for *_, sigma in rows} == {SIGMA}


def test_the_finder(tmp_path):
    from antipgd import flatness

    logger, finder = Kept(), SigmaFinder(batches=4, draws=4, lr=0.05)
    model = Network()
    trainer(tmp_path, finder, epochs=20, logger=logger, log_every_n_steps=4).fit(model, loader())
    batches = list(loader())[:4]
    found = flatness.find_sigma(model.eval().loss, model, batches, draws=4, lr=0.05)
    assert finder.sigma == finder.found.sigma == found.sigma
    assert finder.found.judged == "errors"
    (row,) = [m for _, m in logger.rows if "sigma_finder/sigma" in m]
    assert row["sigma_finder/sigma"] == found.sigma
    assert model.training is False
    refused(tmp_path, noise("forward"), SigmaFinder(), model=Network(), match="leave AntiPGD out")
    with pytest.raises(ValueError, match="batches must be a whole number >= 1; got 0"):
        SigmaFinder(batches=0)
    with pytest.raises(ValueError, match="a list or loader of batches; got <"):
        SigmaFinder(batches=iter(batches))


@pytest.mark.parametrize("form", FORMS)
def test_the_monitor(form, tmp_path):
    logger, callback, model = Kept(), noise(form), Network()
    batches = list(loader())[:2]
    monitor = FlatnessMonitor(callback, batches, every=5)
    trainer(tmp_path, monitor, callback, logger=logger, log_every_n_steps=4).fit(
        model, loader(), loader()
    )
    z = []
    assert equal(values(model), plain(form, 2, after=z.append))
    assert [reading.step for reading in monitor.readings] == [5, 10, 15]
    twin = Network().eval()
    twin.load_state_dict(z[9])
    loss = sum(twin.loss(batch).item() for batch in batches) / 2
    assert monitor.readings[1].loss == pytest.approx(loss, rel=1e-5)
    rows = [m for _, m in logger.rows if "flatness/regulariser" in m]
    assert [m["flatness/step"] for m in rows] == [5, 10, 15]
    assert all(m["flatness/regulariser_sem"] >= 0 for m in rows)
    alone = FlatnessMonitor(noise(form), batches, every=5)
    refused(tmp_path, alone, model=Network(), match="give that to the trainer, too")


# Imports


def test_neither_host_comes_with_the_library():
    code = (
        "import sys, antipgd, antipgd.torch, antipgd.trainers, antipgd.trainers.within_steps; "
        "names = 'lightning', 'transformers', 'accelerate', 'antipgd.flatness'; "
        "print([name for name in names if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_callbacks_bring_their_host_and_nothing_heavy():
    code = (
        "import sys, antipgd.torch, lightning.pytorch; before = set(sys.modules); "
        "import antipgd.trainers.lightning; "
        "print({name.split('.')[0] for name in set(sys.modules) - before})"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "{'antipgd'}"


def test_a_copy_of_the_callback_has_no_noise():
    assert copy.deepcopy(noise("forward")).noise is None
