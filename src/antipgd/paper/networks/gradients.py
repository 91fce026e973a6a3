"""The gradient of one step: a batch in micro-batches, on one process or several; SAM's and its kin.

Each micro-batch has BatchNorm statistics of its own. The gradient is the mean over them, summed in
their order; several ranks (torchrun) are dealt the micro-batches in turn and add up their sums, so
their result is that of one process up to rounding.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from antipgd.paper.networks.losses import LOSSES
from antipgd.paper.networks.ranks import Ranks

Batch = tuple[Tensor, Tensor]
Drawn = Sequence[tuple[str, Tensor]]  # ξ by name


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


def two_point_backward(
    model: nn.Module,
    parts: Sequence[Batch],
    sigma: float,
    ranks: Ranks,
    *,
    draw: Callable[[], Drawn],
    **how: Any,
) -> tuple[float, int]:
    """The mean of the gradients at w + σξ and w − σξ, and of their losses and right answers.

    BatchNorm's running statistics are those at w + σξ, so that a step counts once.
    """
    weights = dict(model.named_parameters())
    kept = {name: p.detach().clone() for name, p in weights.items()}
    drawn = draw()

    def at(sign: float) -> tuple[float, int]:
        with torch.no_grad():
            for name, xi in drawn:
                weights[name].copy_(kept[name]).add_(xi, alpha=sign * sigma)
        return backward(model, parts, ranks, **how)

    loss, right = at(+1.0)
    first = {name: p.grad for name, p in weights.items()}
    with standing_statistics(model):
        other, other_right = at(-1.0)
    with torch.no_grad():
        for name, p in weights.items():
            p.copy_(kept[name])
            if p.grad is not None and (g := first[name]) is not None:
                p.grad.add_(g).mul_(0.5)
    return (loss + other) / 2, (right + other_right) // 2


def _along(values: Mapping[str, Tensor], drawn: Drawn) -> Tensor:
    return torch.stack([(values[name] * v).sum() for name, v in drawn]).sum()


def _derivative(value: Tensor, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One that can be derived again."""
    found = torch.autograd.grad(
        value, list(weights.values()), create_graph=True, materialize_grads=True
    )
    return dict(zip(weights, found, strict=True))


def trace_penalty_backward(
    model: nn.Module,
    parts: Sequence[Batch],
    sigma: float,
    ranks: Ranks,
    *,
    draw: Callable[[], Drawn],
    loss: str = "cross_entropy",
    bf16: bool = False,
) -> tuple[float, int]:
    """The gradient of L + σ²/2 · vᵀHv, whose mean over signs v has the trace; returns L alone."""
    model.zero_grad()
    weights, v = dict(model.named_parameters()), draw()
    loss_sum, right = 0.0, 0
    for images, labels in ranks.own(model, parts):
        with torch.autocast(images.device.type, torch.bfloat16, enabled=bf16):
            outputs = model(images)
        part = LOSSES[loss](outputs.float(), labels) / len(parts)
        product = _derivative(_along(_derivative(part, weights), v), weights)
        (part + sigma**2 / 2 * _along(product, v)).backward()
        loss_sum += part.item()
        right += int((outputs.detach().argmax(1) == labels).sum())
    return ranks.add_up(model, loss_sum, right)


# as `methods` names them
GRADIENTS: dict[str, Callable[..., tuple[float, int]]] = {
    "plain": _plain_backward,
    "sam": sam_backward,
    "two_point": two_point_backward,
    "trace_penalty": trace_penalty_backward,
}
