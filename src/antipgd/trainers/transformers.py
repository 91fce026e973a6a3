"""Callbacks for the Trainer of Hugging Face: `Trainer(callbacks=[AntiPGDCallback(0.3, …)])`.

`AntiPGDCallback` is the noise, `SigmaFinderCallback` finds σ where a training without noise ends,
`FlatnessMonitorCallback` watches what the noise does. Needs `transformers` (the extra of that
name). The Trainer does not say who it is: it is found among the frames that call.
"""

import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from antipgd.extras import needed_by

with needed_by("antipgd.trainers.transformers", "transformers"):
    from transformers import Trainer, TrainerCallback

from antipgd.torch import Noise
from antipgd.trainers.measures import Loss, Searching, Watching, labelled, own_loss
from antipgd.trainers.within_steps import NoiseWithinSteps


def _calling_trainer() -> Trainer:
    """The Trainer whose event this is."""
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Trainer):
            return owner
        frame = frame.f_back  # type: ignore[assignment]
    raise RuntimeError("this callback is for transformers.Trainer, which does not call it here")


def _come_first(callback: TrainerCallback) -> Trainer:
    """Stand before what saves at a step's end and before what reports; returns the Trainer."""
    trainer = _calling_trainer()
    handler = trainer.callback_handler
    handler.callbacks = [callback, *(c for c in handler.callbacks if c is not callback)]
    return trainer


class AntiPGDCallback(TrainerCallback):
    """Anticorrelated noise while `Trainer.train` trains; evaluation and checkpoints are clean.

    With form="forward" the model reads noisy weights in its training passes, with form="weights"
    it has them while it steps; the other settings are those of `antipgd.torch.perturb` and
    `attach`. `noise` is the handle of the last training.
    """

    def __init__(self, sigma: float, form: str = "forward", **settings: Any) -> None:
        self._within = NoiseWithinSteps(sigma, form, settings)
        self._guarded: Trainer | None = None

    @property
    def noise(self) -> Noise | None:
        """The handle, once training has begun."""
        return self._within.noise

    # Beginning

    def guard(self, trainer: Trainer) -> None:
        """Let `trainer.train` leave clean weights behind whatever ends it.

        `Trainer(callbacks=[…])` does that by itself, `trainer.add_callback` does not.
        """
        if self._guarded is not trainer:
            self._guarded = trainer
            trainer.train = partial(_ended_after, trainer.train, self._within)

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.guard(_calling_trainer())

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any, optimizer: Any, **kwargs: Any
    ) -> None:
        trainer = _come_first(self)
        if self._within.form == "weights" and self._guarded is not trainer:
            raise ValueError(
                "form='weights' must get noise out of the weights if train() is interrupted: give "
                "the callback to Trainer(callbacks=[…]), or call callback.guard(trainer) before"
            )
        self._within.begin(model, [optimizer])
        self._within.resume()
        self._within.close()

    # Steps

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._within.open()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._within.close()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._within.close()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any, **kwargs: Any) -> None:
        if self.noise is not None and self.noise.attached and "loss" in logs:
            _add_to_log(state, logs, self.noise.metrics())

    # The end

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._within.end()


class SigmaFinderCallback(Searching, TrainerCallback):
    """σ for the next training, found where this one, without noise, ends: `sigma` and `found`.

    `batches` are so many of the training loader's, or several of your own; `loss` is a function of
    the model and a batch, by default `model(**batch).loss`. The other options are those of
    `antipgd.flatness.find_sigma`. The model is measured in evaluation mode.
    """

    def __init__(
        self, batches: int | Iterable[Any] = 8, loss: Loss = own_loss, **options: Any
    ) -> None:
        super().__init__(batches, loss, options)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        others = _calling_trainer().callback_handler.callbacks
        if any(isinstance(callback, AntiPGDCallback) for callback in others):
            raise ValueError(
                "SigmaFinderCallback looks at a training without noise: leave AntiPGDCallback out"
            )

    def on_train_end(
        self, args: Any, state: Any, control: Any, model: Any, train_dataloader: Any, **kwargs: Any
    ) -> None:
        found = self.search(model, train_dataloader)
        if state.is_world_process_zero:
            print(found)
        _calling_trainer().log(labelled("sigma_finder", found.metrics()))


class FlatnessMonitorCallback(Watching, TrainerCallback):
    """What the noise of an `AntiPGDCallback` does, measured at z every so many steps: `readings`.

    `batches` are a few of your own, on the model's device; `loss` is that of `SigmaFinderCallback`.
    The other options are those of `antipgd.flatness.monitor`. A reading is in the next log.
    """

    def __init__(
        self,
        noise: AntiPGDCallback,
        batches: Iterable[Any],
        every: int,
        loss: Loss = own_loss,
        **options: Any,
    ) -> None:
        if not isinstance(noise, AntiPGDCallback):
            raise TypeError(f"noise must be the trainer's AntiPGDCallback; got {noise!r}")
        super().__init__(batches, every, loss, options)
        self._noise = noise

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = _come_first(self)
        if self._noise not in trainer.callback_handler.callbacks:
            raise ValueError(
                "FlatnessMonitorCallback watches an AntiPGDCallback: give that to the Trainer, too"
            )
        self.end()

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
        if not self.watches and self._noise.noise is not None:
            self.watch(self._noise.noise, model)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any, **kwargs: Any) -> None:
        for reading in self.unlogged()[-1:]:  # a log has room for one
            _add_to_log(state, logs, labelled("flatness", reading.metrics()))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.end()


def _ended_after(train: Callable[..., Any], within: NoiseWithinSteps, *args: Any, **kw: Any) -> Any:
    try:
        return train(*args, **kw)
    finally:
        within.end()


def _add_to_log(state: Any, logs: dict[str, Any], metrics: dict[str, float]) -> None:
    """To what the reporters after us get, and to the history, which has it already."""
    logs.update(metrics)
    state.log_history[-1].update(metrics)
