"""The gradient of one step: a batch in micro-batches, on one process or several, and SAM's.

Each micro-batch has BatchNorm statistics of its own. The gradient is the mean over them, summed in
their order; several ranks (torchrun) are dealt the micro-batches in turn and add up their sums, so
their result is that of one process up to rounding.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from antipgd.paper.networks.losses import LOSSES
from antipgd.paper.networks.ranks import Ranks

Batch = tuple[Tensor, Tensor]


def norms_of(model: nn.Module) -> list[_BatchNorm]:
    """The BatchNorm layers of a model."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def micro_batches(batch: Batch, size: int | None) -> list[Batch]:
    """A batch in parts of one size."""
    images, labels = batch
    size = size or len(labels)
    return list(zip(images.split(size), labels.split(size), strict=True))


@contextmanager
def standing_statistics(model: nn.Module) -> Iterator[None]:
    """Inside, BatchNorm still normalises by the batch but does not keep its statistics."""
    norms = norms_of(model)
    kept = [(norm, norm.track_running_stats) for norm in norms]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm, tracking in kept:
            norm.track_running_stats = tracking


def backward(
    model: nn.Module,
    parts: Sequence[Batch],
    ranks: Ranks,
    *,
    loss: str = "cross_entropy",
    bf16: bool = False,
) -> tuple[float, int]:
    """Leave the gradient of the mean loss in `.grad`; returns that loss and how many were right."""
    model.zero_grad()
    loss_sum, right = 0.0, 0
    for images, labels in ranks.own(model, parts):
        with torch.autocast(images.device.type, torch.bfloat16, enabled=bf16):
            outputs = model(images)
        part = LOSSES[loss](outputs.float(), labels) / len(parts)
        part.backward()
        loss_sum += part.item()
        right += int((outputs.detach().argmax(1) == labels).sum())
    return ranks.add_up(model, loss_sum, right)


def sam_backward(
    model: nn.Module, parts: Sequence[Batch], radius: float, ranks: Ranks, **how: Any
) -> tuple[float, int]:
    """SAM's gradient (Foret et al., 2021): that at w + ρ g/‖g‖, with the loss at w.

    The ascent uses the same micro-batches; BatchNorm's running statistics are those at w.
    """
    result = backward(model, parts, ranks, **how)
    weights = [p for p in model.parameters() if p.grad is not None]
    kept = [p.detach().clone() for p in weights]
    ascents = [p.grad for p in weights if p.grad is not None]
    length = float(torch.linalg.vector_norm(torch.stack([g.norm() for g in ascents])))
    with torch.no_grad():
        for p, g in zip(weights, ascents, strict=True):
            p.add_(g, alpha=radius / (length + 1e-12))
    with standing_statistics(model):
        backward(model, parts, ranks, **how)
    with torch.no_grad():
        for p, w in zip(weights, kept, strict=True):
            p.copy_(w)
    return result


def _plain_backward(
    model: nn.Module, parts: Sequence[Batch], sigma: float, ranks: Ranks, **how: Any
) -> tuple[float, int]:
    return backward(model, parts, ranks, **how)


# as `methods` names them
GRADIENTS: dict[str, Callable[..., tuple[float, int]]] = {
    "plain": _plain_backward,
    "sam": sam_backward,
}
