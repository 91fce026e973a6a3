"""Callbacks for Lightning: `Trainer(callbacks=[AntiPGD(0.3, relative=True)])`.

`AntiPGD` is the noise, `SigmaFinder` finds σ where a training without noise ends, `FlatnessMonitor`
watches what the noise does. Needs `lightning` (the extra of that name).
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

from antipgd.extras import needed_by

with needed_by("antipgd.trainers.lightning", "lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.utilities import rank_zero_info

from antipgd.torch import Noise
from antipgd.trainers.measures import Loss, Searching, Watching, classification, labelled
from antipgd.trainers.within_steps import NoiseWithinSteps


class AntiPGD(Callback):
    """Anticorrelated noise while `Trainer.fit` trains; validation and checkpoints are clean.

    With form="forward" the model reads noisy weights in its training passes, with form="weights"
    it has them while it steps; the other settings are those of `antipgd.torch.perturb` and
    `attach`. `noise` is the handle of the last fit.
    """

    def __init__(self, sigma: float, form: str = "forward", **settings: Any) -> None:
        self._within = NoiseWithinSteps(sigma, form, settings)

    @property
    def noise(self) -> Noise | None:
        """The handle, once fit has begun."""
        return self._within.noise

    # Beginning

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(trainer, Trainer):
            raise TypeError(
                f"this callback is for lightning.pytorch.Trainer; got the Trainer of "
                f"{type(trainer).__module__.split('.')[0]}: import it from lightning.pytorch"
            )
        if stage == "fit":  # first, so that others find clean weights when a batch ends
            others = [callback for callback in trainer.callbacks if callback is not self]
            trainer.callbacks = [self, *others]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._within.form == "weights" and not pl_module.automatic_optimization:
            raise ValueError(
                "form='weights' needs automatic optimization, which makes one step for a batch; "
                "use form='forward'"
            )
        self._within.begin(pl_module, trainer.optimizers)

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._within.close()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._within.open()
        self._within.resume()
        self._within.close()

    # Steps

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if getattr(trainer.fit_loop, "_skip_backward", False):
            self._within.rest()  # SWA estimates BatchNorm statistics at its average
        else:
            self._within.open()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._within.close()
        if self.noise is not None and not trainer.barebones:
            pl_module.log_dict(self.noise.metrics())

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._within.close()  # a batch that was skipped has no end

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._within.close()

    # The end

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._within.end()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._within.end()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._within.end()


class SigmaFinder(Searching, Callback):
    """σ for the next training, found where this one, without noise, ends: `sigma` and `found`.

    `batches` are so many of the training loader's, or several of your own; `loss` is a function of
    the module and a batch, by default cross-entropy of `module(x)` for pairs (x, y). The other
    options are those of `antipgd.flatness.find_sigma`. The module is measured in evaluation mode.
    """

    def __init__(
        self, batches: int | Iterable[Any] = 8, loss: Loss = classification, **options: Any
    ) -> None:
        super().__init__(batches, loss, options)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if any(isinstance(callback, AntiPGD) for callback in trainer.callbacks):
            raise ValueError("SigmaFinder looks at a training without noise: leave AntiPGD out")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        found = self.search(pl_module, trainer.train_dataloader, partial(_on_device, pl_module))
        rank_zero_info(str(found))
        _log(trainer, labelled("sigma_finder", found.metrics()))


class FlatnessMonitor(Watching, Callback):
    """What the noise of an `AntiPGD` does, measured at z every so many steps: `readings`.

    `batches` are a few of your own, `loss` is that of `SigmaFinder`; the other options are those of
    `antipgd.flatness.monitor`. Training itself is the same with and without it.
    """

    def __init__(
        self,
        noise: AntiPGD,
        batches: Iterable[Any],
        every: int,
        loss: Loss = classification,
        **options: Any,
    ) -> None:
        if not isinstance(noise, AntiPGD):
            raise TypeError(f"noise must be the trainer's AntiPGD; got {noise!r}")
        super().__init__(batches, every, loss, options)
        self._noise = noise

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._noise not in trainer.callbacks or self._noise.noise is None:
            raise ValueError("FlatnessMonitor watches an AntiPGD: give that to the trainer, too")
        self.watch(self._noise.noise, pl_module, partial(_on_device, pl_module))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        for reading in self.unlogged():
            _log(trainer, labelled("flatness", reading.metrics()))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.end()


def _on_device(module: LightningModule, batch: Any) -> Any:
    return module.transfer_batch_to_device(batch, module.device, 0)


def _log(trainer: Trainer, metrics: dict[str, float]) -> None:
    """To the trainer's loggers at once, whatever its interval."""
    for logger in trainer.loggers:
        logger.log_metrics(metrics, step=trainer.global_step)
