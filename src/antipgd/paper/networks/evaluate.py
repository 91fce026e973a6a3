"""A network measured: losses, accuracies, trace and norm at w and z, and barriers between minima.

At each, once with the running statistics of BatchNorm and once (`_bn`) with statistics estimated
anew on training images: those gathered along noisy weights do not belong to the clean ones. The
trace is that of the training loss on the first `trace_images`; it is measured at the cleanest
weights there are, and only where the statistics belong to them. Whatever is measured, model,
statistics and random generators are left as found.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from antipgd.flatness import effective_sharpness, hessian_trace, trace_at_equal_loss
from antipgd.flatness.effective import StabilityWarning
from antipgd.flatness.state import evaluating
from antipgd.flatness.temperature import LOSS, UnreachableLossError
from antipgd.paper.networks.examples import Examples
from antipgd.paper.networks.gradients import Batch, norms_of
from antipgd.paper.networks.losses import LOSSES
from antipgd.paper.networks.noising import as_they_are, noisy_weights
from antipgd.paper.networks.spec import EQUAL_LOSSES, MEASURES, Training, trace_at
from antipgd.paper.record import Point
from antipgd.torch import Noise
from antipgd.torch.recalibration import recalibrated

_CHUNK = 500  # images at a time, the same for all runs: results depend on it in the last bits
_BN_IMAGES = 5000  # the first ones of training, for the statistics
_TRACE_CHUNK = 1000
_BARRIER_IMAGES = 1000
_BARRIER_POINTS = 9

Weights = Mapping[str, Tensor]
Tick = Callable[[int], None]
Values = Callable[[int], dict[str, float]]


def _chunks(data: Batch, count: int | None, size: int) -> list[Batch]:
    images, labels = (tensor[:count] for tensor in data)
    return list(zip(images.split(size), labels.split(size), strict=True))


def loss_and_accuracy(
    model: nn.Module,
    data: Batch,
    count: int | None = None,
    *,
    loss: str = "cross_entropy",
    bf16: bool = False,
) -> tuple[float, float]:
    """Mean loss and share of right answers on the first `count` images."""
    summed, right, total = 0.0, 0, 0
    with evaluating(model), torch.inference_mode():
        for images, labels in _chunks(data, count, _CHUNK):
            with torch.autocast(images.device.type, torch.bfloat16, enabled=bf16):
                outputs = model(images)
            summed += float(LOSSES[loss](outputs.float(), labels, reduction="sum"))
            right += int((outputs.argmax(1) == labels).sum())
            total += len(labels)
    return summed / total, right / total


def statistics_batches(spec: Training, train: Batch) -> list[Tensor]:
    """Training images in the portions that BatchNorm sees in training, whole ones only."""
    size = spec.micro or spec.batch
    images = train[0][: max(_BN_IMAGES, size)]
    return list(images[: len(images) // size * size].split(size))


def trace(spec: Training, model: nn.Module, train: Batch) -> dict[str, float]:
    """The Hessian's trace and the scale-normalised one, Σ_l ‖w_l‖² tr_l / n_l, with errors."""

    def loss(batch: Batch) -> Tensor:
        return LOSSES[spec.loss](model(batch[0]), batch[1])

    found = hessian_trace(
        loss, model, _chunks(train, spec.trace_images, _TRACE_CHUNK), method="hutchinson",
        max_probes=spec.trace_probes, seed=spec.seed, batch_norm="eval",
    )  # fmt: skip
    scaled = found.scaled
    return {"trace": found.mean, "trace_sem": found.sem,
            "scaled_trace": scaled.mean, "scaled_trace_sem": scaled.sem}  # fmt: skip


def traces_at_equal_loss(spec: Training, model: nn.Module, train: Batch) -> dict[str, float]:
    """The scaled traces of T·logits where these have the losses that trainings are compared at, and
    the T of 0.01; without those that no T reaches, because an image is classified wrongly."""
    batches, found = _chunks(train, spec.flatness_images, _TRACE_CHUNK), {}
    for loss in EQUAL_LOSSES:
        with suppress(UnreachableLossError):
            at = trace_at_equal_loss(
                model, batches, loss, method="hutchinson", max_probes=spec.trace_probes,
                seed=spec.seed, batch_norm="eval",
            )  # fmt: skip
            found[trace_at(loss)] = at.mean
            if loss == LOSS:
                found["temperature"] = at.temperature
    return found


def effective(spec: Training, model: nn.Module, train: Batch) -> dict[str, float]:
    """Effective sharpness at the training's learning rate; infinite where a step is unstable."""

    def loss(batch: Batch) -> Tensor:
        return LOSSES[spec.loss](model(batch[0]), batch[1])

    batches = _chunks(train, spec.flatness_images, _TRACE_CHUNK)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StabilityWarning)  # the value says it
        found = effective_sharpness(
            loss, model, batches, spec.lr, spec.momentum, seed=spec.seed, batch_norm="eval"
        )
    return {"effective": found.mean}


def flatness(spec: Training, model: nn.Module, train: Batch) -> dict[str, float]:
    """What minima are compared by, for the loss that was trained."""
    if spec.loss == "squared":
        return effective(spec, model, train)
    return traces_at_equal_loss(spec, model, train)


def point(epoch: int, place: str, values: Mapping[str, float]) -> Point:
    """A row of a record; what is not a number is infinite, what was not measured is None."""
    row = [values.get(measure) for measure in MEASURES]
    return (epoch, place, *(math.inf if value != value else value for value in row))


class Evaluator:
    """Measures one training's network."""

    def __init__(self, spec: Training, model: nn.Module, examples: Examples) -> None:
        self._spec, self._model, self._examples = spec, model, examples
        self._normed = bool(norms_of(model))

    def _losses(self, epoch: int) -> dict[str, float]:
        spec, model = self._spec, self._model
        count = None if spec.measured_fully(epoch) else spec.test_images
        how: dict[str, Any] = {"loss": spec.loss, "bf16": spec.bf16}
        train = loss_and_accuracy(model, self._examples.train, count, **how)
        test = loss_and_accuracy(model, self._examples.test, count, **how)
        return {"train_loss": train[0], "train_accuracy": train[1],
                "test_loss": test[0], "test_accuracy": test[1], "norm": norm(model)}  # fmt: skip

    def _cleanest(
        self, epoch: int, barrier: Mapping[str, float], average: bool = False
    ) -> dict[str, float]:
        """What is measured only at the cleanest weights, or their average, and the statistics of
        these."""
        spec, model, train = self._spec, self._model, self._examples.train
        found = {**self._losses(epoch), **barrier}
        if not self._traced(epoch, found["train_loss"], average):
            return found
        if spec.trace_probes:
            found |= trace(spec, model, train)
        if spec.flatness_images and spec.measured_fully(epoch):
            found |= flatness(spec, model, train)
        return found

    def _traced(self, epoch: int, loss: float, average: bool) -> bool:
        """Whether traces are measured: if the training may end at a loss, only where it ends."""
        spec = self._spec
        if spec.stop_at_loss is None:
            return True
        if average != spec.averaged:
            return False
        return epoch == spec.epochs or (epoch > 0 and loss <= spec.stop_at_loss)

    def _rows(self, epoch: int, place: str, last: Values, tick: Tick) -> list[Point]:
        """At the present weights with both statistics; `last` measures at their own."""
        tick(0)
        if not self._normed:
            return [point(epoch, place, last(epoch))]
        rows = [point(epoch, place, self._losses(epoch))]
        with recalibrated(self._model, statistics_batches(self._spec, self._examples.train)):
            tick(0)
            return [*rows, point(epoch, f"{place}_bn", last(epoch))]

    def points(
        self, epoch: int, noise: Noise | None, before: Weights | None, tick: Tick
    ) -> list[Point]:
        """Rows for w, and for z where there is noise that can be taken out.

        `before` are weights to which there may be a barrier.
        """
        barrier = {} if before is None else {"barrier": self._barrier(before, noise)}
        cleanest = partial(self._cleanest, barrier=barrier)
        if noise is None or not noise.removable:
            return self._rows(epoch, "w", cleanest, tick)
        with noisy_weights(noise):
            rows = self._rows(epoch, "w", self._losses, tick)
        with noise.clean():
            return rows + self._rows(epoch, "z", cleanest, tick)

    def averaged(self, epoch: int, noise: Noise | None, average: Weights) -> list[Point]:
        """The row of the averaged weights, with statistics of their own."""
        batches = statistics_batches(self._spec, self._examples.train)
        estimated = recalibrated(self._model, batches) if self._normed else nullcontext()
        with as_they_are(noise), _placed(self._model, average), estimated:
            return [point(epoch, "ema", self._cleanest(epoch, {}, average=True))]

    def _barrier(self, before: Weights, noise: Noise | None) -> float:
        now = clean_weights(self._model, noise)
        images, labels = self._examples.train
        few = images[:_BARRIER_IMAGES], labels[:_BARRIER_IMAGES]
        spec = self._spec
        return barrier(self._model, before, now, few, loss=spec.loss, bf16=spec.bf16)


def clean(noise: Noise | None) -> AbstractContextManager[None]:
    """Inside, the weights are z, or w where there is no z."""
    return noise.clean() if noise is not None and noise.removable else nullcontext()


def clean_weights(model: nn.Module, noise: Noise | None) -> dict[str, Tensor]:
    """A copy of z, or of w where there is no z, by name."""
    with clean(noise):
        return weights_of(model)


def saved_weights(
    spec: Training, model: nn.Module, train: Batch, noise: Noise | None
) -> dict[str, Tensor]:
    """A copy of the state at z, or at w where there is no z, with the statistics that belong to it:
    what the cleanest row of an epoch was measured with."""
    batches = statistics_batches(spec, train)
    with clean(noise), recalibrated(model, batches) if norms_of(model) else nullcontext():
        return {name: value.clone() for name, value in model.state_dict().items()}


def norm(model: nn.Module) -> float:
    """The Euclidean norm of all weights."""
    norms = torch.stack([p.detach().norm() for p in model.parameters()])
    return float(torch.linalg.vector_norm(norms))


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the parameters by name."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def _set_weights(model: nn.Module, weights: Weights) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])


@contextmanager
def _placed(model: nn.Module, weights: Weights) -> Iterator[None]:
    """Inside, the model has these weights."""
    kept = weights_of(model)
    try:
        _set_weights(model, weights)
        yield
    finally:
        _set_weights(model, kept)


def barrier(
    model: nn.Module,
    start: Weights,
    end: Weights,
    data: Batch,
    *,
    points: int = _BARRIER_POINTS,
    loss: str = "cross_entropy",
    bf16: bool = False,
) -> float:
    """How far the loss on `data` rises along the line from `start` to `end` above its larger end.

    BatchNorm's statistics are estimated anew at each of the points; the model is left as found.
    """
    kept = weights_of(model)
    losses = []
    try:
        for t in torch.linspace(0, 1, points).tolist():
            _set_weights(model, {name: (1 - t) * start[name] + t * end[name] for name in kept})
            with recalibrated(model, [data[0]]) if norms_of(model) else nullcontext():
                losses.append(loss_and_accuracy(model, data, loss=loss, bf16=bf16)[0])
    finally:
        _set_weights(model, kept)
    return max(losses) - max(losses[0], losses[-1])
