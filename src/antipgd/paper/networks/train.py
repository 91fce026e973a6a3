"""One network trained: epochs of steps, noise by `antipgd.torch.attach`, measured, resumable.

An epoch is: the noise begins if it is its time, steps, measurements, the noise ends if it is its
time, checkpoint. A training killed at any moment goes on from its last checkpoint with the same
bits. Nothing random lives in this process: order, labels and noise are functions of the seed.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from antipgd.paper.engines.engine import StoppedError
from antipgd.paper.methods import TRAINABLE
from antipgd.paper.networks.accepted import DRAWN
from antipgd.paper.networks.augmenting import epoch_images
from antipgd.paper.networks.averaging import Average
from antipgd.paper.networks.checkpoint import Checkpoints
from antipgd.paper.networks.evaluate import Evaluator, Tick, point, saved_weights, weights_of
from antipgd.paper.networks.examples import Examples, corrupted, epoch_order, make_examples
from antipgd.paper.networks.gradients import GRADIENTS, Batch, micro_batches
from antipgd.paper.networks.logs import Log, write_log
from antipgd.paper.networks.machine import (
    check_device,
    check_memory,
    memory_advice,
    own_device,
    reproducible,
)
from antipgd.paper.networks.models import make_network
from antipgd.paper.networks.noising import Draws, begin_noise, let_go
from antipgd.paper.networks.optimizing import make_optimizer, set_rate
from antipgd.paper.networks.ranks import Ranks, join
from antipgd.paper.networks.spec import Training
from antipgd.paper.record import Point, Record
from antipgd.torch import Noise
from antipgd.torch.saved import KEY as NOISE_KEY

_SECONDS = 3.0  # between checkpoints of epochs that are shorter than that


@dataclass
class Progress:
    """How far a training is."""

    epoch: int = 0  # epochs that are done, with their measurements
    step: int = 0  # steps done of the epoch after them
    loss: float = 0.0  # sum over those steps
    right: int = 0
    points: list[Point] = field(default_factory=list)
    before: dict[str, Any] | None = None  # weights where the noise begins, for barriers
    diverged_at: int | None = None


class Trainer:
    """A training on its way."""

    def __init__(
        self,
        spec: Training,
        examples: Examples,
        checkpoints: Checkpoints | None,
        log: Log,
        ranks: Ranks,
    ) -> None:
        self.spec, self.examples, self.progress = spec, examples, Progress()
        layout = torch.channels_last if spec.channels_last else torch.contiguous_format
        model = make_network(
            spec.model, spec.width, examples.shape, examples.classes, spec.seed, spec.norm
        )
        device = examples.train[0].device
        check_memory(spec, model, examples.shape, str(device))
        self.model = model.to(device, memory_format=layout)  # type: ignore[call-overload]
        self.optimizer = make_optimizer(spec, self.model)
        self.noise: Noise | None = None
        self._average = Average(spec.ema, self.model) if spec.ema else None
        self.ranks = ranks
        self.ranks.check(spec.batch // (spec.micro or spec.batch))
        self._checkpoints, self._log, self._saved = checkpoints, log, time.monotonic() - _SECONDS
        self._evaluator = Evaluator(spec, self.model, examples)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches only."""
        return len(self.examples.train[1]) // self.spec.batch

    @property
    def done(self) -> bool:
        """Whether all epochs are behind, or it diverged, or its loss is as low as was asked."""
        progress = self.progress
        if progress.epoch == self.spec.epochs or progress.diverged_at is not None:
            return True
        return progress.step == 0 and self.spec.stops_at(progress.points, progress.epoch)

    # Checkpoints

    def save(self, unless_within: float = 0.0) -> None:
        """Write a checkpoint, if there is where to; not if the last one is hardly older than that,
        unless it is the end."""
        if not self.done and time.monotonic() - self._saved < unless_within:
            return
        self._saved = time.monotonic()
        if self._checkpoints is not None and self.ranks.first:
            state = {**vars(self.progress), "model": self.model.state_dict(),
                     "optimizer": self.optimizer.state_dict()}  # fmt: skip
            if self._average is not None:
                state["average"] = self._average.weights
            self._checkpoints.save(state)
            write_log(self._checkpoints.folder / "log.csv", self.progress.points)

    def resume(self) -> None:
        """Go on from this training's checkpoint, or from the end of the one it begins with."""
        if self._checkpoints is None:
            return
        if self.ranks.first:
            self._checkpoints.tidy()
        state = self._checkpoints.load()
        prefix = self.spec.prefix()
        if state is None and prefix is not None:
            found = self._checkpoints.of(prefix).load()
            state = found if found is not None and found["epoch"] == prefix.epochs else None
        if state is None:
            return
        self.progress = Progress(**{name: state[name] for name in vars(self.progress)})
        if self.progress.before is not None:  # loading a state into model and optimizer moves it
            device = self.examples.train[0].device
            self.progress.before = {k: w.to(device) for k, w in self.progress.before.items()}
        points, self.progress.points = self.progress.points, []
        self._add_points([tuple(row) for row in points])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self._average is not None:
            self._average.load(state["average"])
        if any(NOISE_KEY in group for group in self.optimizer.param_groups):
            self.noise = begin_noise(self.spec, self.model, self.optimizer)  # goes on from there

    def _keep(self, name: str) -> None:
        if self._checkpoints is not None and self.ranks.first:
            weights = saved_weights(self.spec, self.model, self.examples.train, self.noise)
            self._checkpoints.keep_weights(name, weights)

    # Training

    def _end_noise(self) -> None:
        """Take the draw out of the weights, where there are clean ones, and go on without."""
        if self.noise is not None:
            self.noise.stop(remove=self.noise.removable)
            self.noise = None

    def _step(self, batch: Batch, noisy: bool) -> tuple[float, int]:
        spec, progress = self.spec, self.progress
        per_epoch = self.steps_per_epoch
        step = progress.epoch * per_epoch + progress.step
        set_rate(self.optimizer, spec, step, per_epoch)
        parts = micro_batches(batch, spec.micro)
        kind = TRAINABLE[spec.method].gradient if noisy else "plain"
        how: dict[str, Any] = {"loss": spec.loss, "bf16": spec.bf16}
        if kind in DRAWN:
            how["draw"] = partial(self._draws.at, step + 1 - spec.noise_start * per_epoch)
        found = GRADIENTS[kind](self.model, parts, spec.sigma, self.ranks, **how)
        if math.isfinite(found[0]):
            self.optimizer.step()
            if self._average is not None:
                self._average.add(self.model, step + 1)
        return found

    @cached_property
    def _draws(self) -> Draws:
        return Draws(self.spec, self.model, self.spec.law or "rademacher")

    def steps(self) -> Iterator[float]:
        """The rest of this epoch, its loss after every step; ends where that is not finite."""
        spec, progress = self.spec, self.progress
        epoch, labels = progress.epoch + 1, self.examples.train[1]
        noisy = spec.noise_acts(epoch)
        if spec.barriers and (progress.epoch, progress.step) == (spec.noise_start, 0):
            progress.before = weights_of(self.model)
        if noisy and spec.taps and self.noise is None:
            self.noise = begin_noise(spec, self.model, self.optimizer)
        if noisy and spec.method == "label":
            labels = corrupted(labels, spec.sigma, self.examples.classes, spec.seed, epoch)
        order = epoch_order(spec.seed, epoch, len(labels))
        images = epoch_images(spec, self.examples.train[0], epoch)
        while progress.step < self.steps_per_epoch:
            rows = order[progress.step * spec.batch :][: spec.batch]
            loss, right = self._step((images(rows), labels[rows]), noisy)
            if not math.isfinite(loss):
                self._diverge(epoch)
                return
            progress.step += 1
            progress.loss += loss
            progress.right += right
            yield loss

    def run_epoch(self, tick: Tick, save_every: float) -> None:
        """Go on to the end of this epoch, and measure there."""
        for _ in self.steps():
            self._between_steps(tick, save_every)
        if not self.done:
            self._end_epoch(self.progress.epoch + 1, tick)

    def _between_steps(self, tick: Tick, save_every: float) -> None:
        try:
            tick(0)
        except StoppedError:
            self.save()
            raise
        if time.monotonic() - self._saved > save_every:
            self.save()

    def _diverge(self, epoch: int) -> None:
        self.progress.diverged_at = epoch
        self._add_points([point(epoch, "running", {"train_loss": math.inf})])

    def _end_epoch(self, epoch: int, tick: Tick) -> None:
        progress, steps = self.progress, self.steps_per_epoch
        if epoch in self.spec.measure:
            self.save()  # measuring may take long
        running = {"train_loss": progress.loss / steps,
                   "train_accuracy": progress.right / (steps * self.spec.batch)}  # fmt: skip
        self._tell(point(epoch, "running", running))
        if not all(torch.isfinite(p).all() for p in self.model.parameters()):
            self.progress.diverged_at = epoch
            return
        self.measure(epoch, tick)
        if epoch == self.spec.noise_stop:
            self._keep("clean-at-stop")
            self._end_noise()
        progress.epoch, progress.step, progress.loss, progress.right = epoch, 0, 0.0, 0

    def measure(self, epoch: int, tick: Tick) -> None:
        """Measure, if this epoch is one to be measured."""
        if epoch not in self.spec.measure:
            return
        self._add_points(self._evaluator.points(epoch, self.noise, self.progress.before, tick))
        if self._average is not None:
            self._add_points(self._evaluator.averaged(epoch, self.noise, self._average.weights))

    def measure_start(self, tick: Tick) -> None:
        """Measure the initial weights, if asked to and at them."""
        if self.progress == Progress():
            self.measure(0, tick)

    def _tell(self, running: Point) -> None:
        """Of an epoch's mean loss, which is kept if it is to be."""
        if self.spec.running:
            self._add_points([running])
        else:
            self._log.add([running])

    def _add_points(self, points: list[Point]) -> None:
        self.progress.points += points
        self._log.add(points)

    def finish(self) -> Record:
        """Leave the last clean weights behind, and the record."""
        if self.progress.diverged_at is None:
            self._keep("clean-at-end")
        diverged_at = self.progress.diverged_at
        status = "ok" if diverged_at is None else "diverged"
        points = tuple(self.progress.points)
        return Record(self.spec, status, diverged_at, None, points, {}, None, None)

    def close(self) -> None:
        """Let go of the noise, so that another training of this process may draw the same."""
        if self.noise is not None:
            let_go(self.noise)


def train(
    spec: Training,
    root: Path | None = None,
    *,
    tick: Tick = lambda epochs: None,
    warn: Callable[[str], None] = lambda message: None,
    log: Log | None = None,
    save_every: float = 60.0,
    threads: int = 1,
    device: str = "cpu",
) -> Record:
    """The record of a training. With `root`, checkpoints, clean weights and a log lie in a folder
    below it, and a training that was interrupted goes on where it was.

    `tick` is told of epochs done, and called after every step; it may raise `StoppedError`. `log`
    hears of points as they are measured. `save_every` are the seconds between checkpoints within
    an epoch. With more `threads` than one the last bits of the result depend on their number, and
    on a `device` other than the CPU on that; `cuda` under torchrun is a GPU for each process.
    """
    device = own_device(device)
    check_device(device)
    with reproducible(threads), memory_advice(spec):
        checkpoints = None if root is None else Checkpoints(root, spec, warn)
        examples = make_examples(spec, device)
        trainer = Trainer(spec, examples, checkpoints, log or Log(), join(device))
        with closing(trainer):
            trainer.resume()
            tick(trainer.progress.epoch)
            trainer.measure_start(tick)
            while not trainer.done:
                trainer.run_epoch(tick, save_every)
                trainer.save(unless_within=min(save_every, _SECONDS))
                tick(1)
            return trainer.finish()
