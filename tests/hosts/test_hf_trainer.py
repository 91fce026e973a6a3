"""The Trainer of Hugging Face with the callbacks: bitwise a plain loop, clean, exact resume.

Nothing is downloaded. The plain loop is the explicit z-form for form="forward", and `attach` for
form="weights"; neither knows the Trainer.
"""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import Dataset
from transformers import (
    PretrainedConfig,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    get_linear_schedule_with_warmup,
)

from antipgd.torch import attach
from antipgd.trainers.transformers import (
    AntiPGDCallback,
    FlatnessMonitorCallback,
    SigmaFinderCallback,
)
from explicit import Explicit, same
from matrix import cell

SIGMA, SEED, BATCHES, CLIP = 0.05, 17, 8, 0.5
FORMS = ("forward", "weights")


def forms(*qualities):
    """Both forms, as answers in the table of hosts."""
    own = [pytest.param(form, marks=cell("hf_trainer", *qualities, form=form)) for form in FORMS]
    return pytest.mark.parametrize("form", own)


class Config(PretrainedConfig):
    model_type = "tiny-for-the-tests"


class Network(PreTrainedModel):
    config_class = Config

    def __init__(self, config=None):
        super().__init__(config or Config())
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        self.seen = []  # what evaluation saw: the weights
        self.post_init()

    def _init_weights(self, module):
        pass

    def forward(self, x, labels=None):
        if not self.training:
            self.seen.append(values(self))
        logits = self.net(x)
        return Output(loss=nn.functional.cross_entropy(logits, labels), logits=logits)


class Output(dict):
    """As the models of the library give it: by key and by attribute."""

    def __getattr__(self, name):
        return self[name]


class Examples(Dataset):
    def __init__(self, batches=BATCHES):
        x = torch.randn(5 * BATCHES, 6, generator=torch.Generator().manual_seed(3))
        self.x = x[: 5 * batches]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index]
        return {"x": x, "labels": x[:3].argmax()}


def batches():
    rows = [Examples()[i] for i in range(len(Examples()))]
    for first in range(0, len(rows), 5):
        part = rows[first : first + 5]
        yield {key: torch.stack([row[key] for row in part]) for key in ("x", "labels")}


def values(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def equal(one, other):
    return all(same(one[name], other[name]) for name in other)


def arguments(tmp_path, **options):
    defaults = {
        "output_dir": str(tmp_path), "use_cpu": True, "report_to": "none", "disable_tqdm": True,
        "per_device_train_batch_size": 5, "per_device_eval_batch_size": 5, "num_train_epochs": 2,
        "learning_rate": 0.02, "weight_decay": 0.1, "optim": "adamw_torch", "max_grad_norm": CLIP,
        "train_sampling_strategy": "sequential", "save_strategy": "no", "logging_steps": 4,
        "dataloader_pin_memory": False,
    }  # fmt: skip
    return TrainingArguments(**(defaults | options))


def noise(form, **settings):
    return AntiPGDCallback(SIGMA, form, seed=SEED, **settings)


def training(tmp_path, *callbacks, model=None, **options):
    return Trainer(
        model or Network(), arguments(tmp_path, **options), train_dataset=Examples(),
        eval_dataset=Examples(2), callbacks=list(callbacks),
    )  # fmt: skip


def trained(tmp_path, form, *others, model=None, resume=None, **options):
    callback = noise(form)
    trainer = training(tmp_path, callback, *others, model=model, **options)
    trainer.train(resume_from_checkpoint=resume)
    return trainer.model, callback, trainer


def rates(model, steps):
    decayed = [p for name, p in model.named_parameters() if "bias" not in name]
    others = [p for name, p in model.named_parameters() if "bias" in name]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.02)
    return optimizer, get_linear_schedule_with_warmup(optimizer, 0, steps)


def plain(form, epochs=2, accumulated=1, sigma=SIGMA):
    """The loop by hand: the clean weights after each step."""
    steps = epochs * -(-BATCHES // accumulated)
    run = _explicit if form == "forward" else _attached
    return run(_batches(epochs, accumulated), steps, sigma)


def _batches(epochs, accumulated):
    """Lists of micro-batches, each for one step."""
    for _ in range(epochs):
        every = list(batches())
        for first in range(0, BATCHES, accumulated):
            yield every[first : first + accumulated]


def _gradients(model, parts):
    for batch in parts:
        (model(**batch).loss / len(parts)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)


def _explicit(steps, count, sigma):
    schedulers, found = [], []

    def make_optimizer(clean):
        optimizer, scheduler = rates(clean, count)
        schedulers.append(scheduler)
        return optimizer

    explicit = Explicit(Network().train(), make_optimizer, sigma, seed=SEED)
    for parts in steps:
        _gradients(explicit.carrier, parts)
        explicit.step()
        schedulers[0].step()
        found.append(values(explicit.clean))
    return found


def _attached(steps, count, sigma):
    model, found = Network().train(), []
    optimizer, scheduler = rates(model, count)
    handle = attach(optimizer, sigma=sigma, seed=SEED, model=model)
    for parts in steps:
        _gradients(model, parts)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        with handle.clean():
            found.append(values(model))
    return found


# The noise acts, and on what


@pytest.mark.parametrize("form", FORMS)
def test_training_is_bitwise_the_plain_loop(form, tmp_path):
    model, callback, _ = trained(tmp_path, form)
    z = plain(form)
    assert equal(values(model), z[-1])
    assert callback.noise.step_count == 2 * BATCHES
    assert not callback.noise.attached
    assert not equal(z[-1], plain(form, sigma=0.0)[-1])


@forms("accumulation")
def test_accumulation(form, tmp_path):
    model, callback, trainer = trained(tmp_path, form, gradient_accumulation_steps=3)
    assert callback.noise.step_count == trainer.state.global_step == 2 * 3
    assert equal(values(model), plain(form, accumulated=3)[-1])


# Evaluation


@forms("evaluation")
def test_evaluation_is_clean(form, tmp_path):
    """Before the first step, and in the middle of an epoch."""
    options = {"eval_strategy": "steps", "eval_steps": 3, "eval_on_start": True}
    model, _, trainer = trained(tmp_path, form, **options)
    z = plain(form)
    expected = [values(Network()), *(z[step - 1] for step in (3, 6, 9, 12, 15, 16))]
    assert len(model.seen) == 2 * len(expected)
    assert all(map(equal, model.seen[::2], expected))
    losses = [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row]
    twin = Network().eval()
    for found, weights in zip(losses, expected, strict=True):
        twin.load_state_dict(weights)
        exact = sum(twin(**batch).loss.item() for batch in list(batches())[:2]) / 2
        assert found == pytest.approx(exact, rel=1e-6)


@forms("evaluation")
def test_evaluation_after_training_is_clean(form, tmp_path):
    _, _, trainer = trained(tmp_path, form)
    twin = Network().eval()
    twin.load_state_dict(plain(form)[-1])
    expected = twin(**next(batches())).logits.detach().numpy()
    assert (trainer.predict(Examples(1)).predictions == expected).all()


@forms("evaluation")
def test_evaluation_that_another_callback_asks_for_is_clean(form, tmp_path):
    class Asking(TrainerCallback):
        def on_step_end(self, args, state, control, model, **kwargs):
            found.append(values(model))
            control.should_evaluate = control.should_save = state.global_step == 5

    found = []
    model, _, _ = trained(tmp_path, form, Asking())
    z = plain(form)
    assert all(map(equal, found, z))
    assert equal(model.seen[0], z[4])
    assert equal(load_file(tmp_path / "checkpoint-5" / "model.safetensors"), z[4])


# Weights that are saved


@forms("weights")
def test_weights_in_checkpoints_are_clean(form, tmp_path):
    _, _, trainer = trained(tmp_path, form, save_strategy="steps", save_steps=3)
    z = plain(form)
    trainer.save_model(tmp_path / "checkpoint-end")
    for step, name in [(3, 3), (6, 6), (9, 9), (12, 12), (15, 15), (16, "end")]:
        saved = load_file(tmp_path / f"checkpoint-{name}" / "model.safetensors")
        assert equal(saved, z[step - 1])
    assert equal(values(Network.from_pretrained(tmp_path / "checkpoint-end")), z[-1])


@forms("weights")
def test_the_best_weights_are_clean_and_stay_at_the_end(form, tmp_path):
    """The metric says which is best: here the step nearest to 6."""
    options = {
        "eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 3, "save_steps": 3,
        "load_best_model_at_end": True, "metric_for_best_model": "far", "greater_is_better": False,
    }  # fmt: skip
    callback = noise(form)
    trainer = training(tmp_path, callback, **options)
    trainer.compute_metrics = lambda _: {"far": abs(trainer.state.global_step - 6)}
    trainer.train()
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-6")
    assert equal(values(trainer.model), plain(form)[5])
    assert not callback.noise.attached


# Averages


@forms("averages")
def test_averages_that_a_callback_keeps_are_of_clean_weights(form, tmp_path):
    """The Trainer has none of its own."""

    class Average(TrainerCallback):
        def on_step_end(self, args, state, control, model, **kwargs):
            if state.global_step == 1:
                self.kept = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
            self.kept.update_parameters(model)

    average = Average()
    trained(tmp_path, form, average)
    expected = {}
    for z in plain(form):
        for name, value in z.items():
            expected[name] = value if name not in expected else expected[name].lerp(value, 0.1)
    for name, value in values(average.kept.module).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-6, atol=1e-7)


# Resume


@forms("resume")
@pytest.mark.parametrize("accumulated", [1, 3])
@pytest.mark.parametrize("step", [2, 4, 5])
def test_resume_is_bitwise(form, accumulated, step, tmp_path):
    """From the middle of an epoch, too, with evaluation in between."""
    options = {
        "gradient_accumulation_steps": accumulated, "num_train_epochs": 3,
        "eval_strategy": "steps", "eval_steps": 2,
    }  # fmt: skip
    whole, first, _ = trained(tmp_path, form, save_strategy="steps", save_steps=1, **options)
    path = tmp_path / f"checkpoint-{step}"
    again, callback, _ = trained(tmp_path / "again", form, resume=str(path), **options)
    assert callback.noise.step_count == first.noise.step_count
    assert equal(values(again), values(whole))
    assert equal(values(again), plain(form, 3, accumulated)[-1])


@forms("resume")
def test_resume_with_shuffled_batches_is_bitwise(form, tmp_path):
    options = {"train_sampling_strategy": "random", "num_train_epochs": 2}
    whole, _, _ = trained(tmp_path, form, save_strategy="steps", save_steps=5, **options)
    path = str(tmp_path / "checkpoint-5")
    again, _, _ = trained(tmp_path / "again", form, resume=path, **options)
    assert equal(values(again), values(whole))
    assert not equal(values(whole), plain(form)[-1])


def test_resume_in_the_other_form_is_refused(tmp_path):
    trained(tmp_path, "forward", save_strategy="steps", save_steps=5)
    with pytest.raises(ValueError, match=r"its weights are clean .perturb.: go on with perturb"):
        trained(tmp_path / "again", "weights", resume=str(tmp_path / "checkpoint-5"))


# Interrupted


class Breaking(TrainerCallback):
    def __init__(self, error):
        self.error = error

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        if state.global_step == 5:
            self.before = values(model)
            raise self.error("broken")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_weights_are_clean_after_an_exception(form, error, tmp_path):
    breaking = Breaking(error)
    trainer = training(tmp_path, noise(form), breaking)
    with pytest.raises(error, match="broken"):
        trainer.train()
    z = plain(form)
    assert equal(values(trainer.model), z[4])
    assert equal(breaking.before, z[4]) == (form == "forward")
    assert all(same(v, z[4][k]) for k, v in trainer.model.eval().state_dict().items())
    again, _, _ = trained(tmp_path, form)  # another training begins as usual
    assert equal(values(again), z[-1])


def test_a_callback_that_is_added_later_must_be_a_guard(tmp_path):
    callback = noise("weights")
    trainer = training(tmp_path)
    trainer.add_callback(callback)
    with pytest.raises(ValueError, match=r"Trainer\(callbacks=\[…\]\), or call callback.guard"):
        trainer.train()
    callback.guard(trainer)
    trainer.train()
    assert equal(values(trainer.model), plain("weights")[-1])
    late = training(tmp_path)
    late.add_callback(noise("forward"))
    late.train()
    assert equal(values(late.model), plain("forward")[-1])


# Bad input


@cell("hf_trainer", "bad_input")
def test_bad_input_without_sigma():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'sigma'"):
        AntiPGDCallback()


@cell("hf_trainer", "bad_input")
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
        AntiPGDCallback(**arguments)


def refused(trainer, match):
    start = values(trainer.model)
    with pytest.raises((ValueError, TypeError), match=match):
        trainer.train()
    assert equal(values(trainer.model), start)


@cell("hf_trainer", "bad_input")
def test_bad_input_noise_twice(tmp_path):
    refused(training(tmp_path, noise("forward"), noise("weights")), "has noise already")


@cell("hf_trainer", "bad_input")
def test_bad_input_the_settings_of_the_library(tmp_path):
    refused(training(tmp_path, AntiPGDCallback(0.1, exclude="no such name")), "no such name")


# Logs, finder, monitor


class Reporter(TrainerCallback):
    def __init__(self):
        self.rows = []

    def on_log(self, args, state, control, logs, **kwargs):
        self.rows.append((state.global_step, dict(logs)))


@pytest.mark.parametrize("form", FORMS)
def test_the_trainer_logs_the_noise_at_its_interval(form, tmp_path):
    """Also for reporters that were there before."""
    reporter, callback = Reporter(), noise(form)
    trainer = training(tmp_path, reporter, callback)
    trainer.train()
    rows = [(step, row["noise/step"], row["noise/sigma"]) for step, row in reporter.rows
            if "loss" in row]  # fmt: skip
    assert rows == [(n, n, SIGMA) for n in (4, 8, 12, 16)]
    history = [row["noise/step"] for row in trainer.state.log_history if "loss" in row]
    assert history == [4, 8, 12, 16]


def test_the_finder(tmp_path, capsys):
    from antipgd import flatness

    finder, reporter = SigmaFinderCallback(batches=4, draws=4, lr=0.05), Reporter()
    trainer = training(tmp_path, finder, reporter, num_train_epochs=20)
    trainer.train()
    model = trainer.model.eval()
    own = list(batches())[:4]
    found = flatness.find_sigma(lambda b: model(**b).loss, model, own, draws=4, lr=0.05)
    assert finder.sigma == finder.found.sigma == found.sigma
    assert finder.found.judged == "errors"
    assert str(found) in capsys.readouterr().out
    (row,) = [row for _, row in reporter.rows if "sigma_finder/sigma" in row]
    assert row["sigma_finder/sigma"] == found.sigma
    refused(training(tmp_path, noise("forward"), SigmaFinderCallback()), "leave AntiPGDCallback")
    with pytest.raises(ValueError, match="batches must be a whole number >= 1; got 0"):
        SigmaFinderCallback(batches=0)


@pytest.mark.parametrize("form", FORMS)
def test_the_monitor(form, tmp_path):
    callback, reporter, own = noise(form), Reporter(), list(batches())[:2]
    monitor = FlatnessMonitorCallback(callback, own, every=5)
    trainer = training(tmp_path, monitor, reporter, callback)
    trainer.train()
    z = plain(form)
    assert equal(values(trainer.model), z[-1])
    assert [reading.step for reading in monitor.readings] == [5, 10, 15]
    twin = Network().eval()
    twin.load_state_dict(z[9])
    loss = sum(twin(**batch).loss.item() for batch in own) / 2
    assert monitor.readings[1].loss == pytest.approx(loss, rel=1e-5)
    rows = [(step, row["flatness/step"]) for step, row in reporter.rows if "flatness/step" in row]
    assert rows == [(8, 5), (12, 10), (16, 15)]
    assert all(reading.regulariser.sem >= 0 for reading in monitor.readings)
    alone = FlatnessMonitorCallback(noise(form), own, every=5)
    refused(training(tmp_path, alone), "give that to the Trainer, too")


# Imports


def test_the_callbacks_bring_their_host_and_nothing_heavy():
    code = (
        "import sys, antipgd.torch; from transformers import Trainer; before = set(sys.modules); "
        "import antipgd.trainers.transformers; "
        "print({name.split('.')[0] for name in set(sys.modules) - before})"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "{'antipgd'}"
