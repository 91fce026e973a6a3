"""What the callbacks that measure share: losses to begin with, batches, σ found at an end.

`antipgd.flatness` is imported when something is measured: it needs an extra of its own. Knows no
host.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from antipgd.checks import whole

if TYPE_CHECKING:
    from antipgd.flatness import FoundSigma, Monitor, Reading
    from antipgd.torch import Noise

Loss = Callable[[torch.nn.Module, Any], Tensor]


def classification(model: torch.nn.Module, batch: Any) -> Tensor:
    """Cross-entropy of `model(x)` for a batch (x, y) of inputs and labels."""
    pair = isinstance(batch, list | tuple) and len(batch) == 2
    labels = batch[1] if pair else None
    if not isinstance(labels, Tensor) or labels.is_floating_point():
        raise ValueError(
            "the loss to measure is not known: batches are not pairs (inputs, labels); give "
            "loss= a function of (model, batch)"
        )
    return torch.nn.functional.cross_entropy(model(batch[0]), labels)


def own_loss(model: torch.nn.Module, batch: Any) -> Tensor:
    """The `loss` of what a model gives for the keyword arguments in a batch."""
    loss = getattr(model(**batch), "loss", None)
    if not isinstance(loss, Tensor):
        raise ValueError(
            f"{type(model).__name__} gives no loss for these batches, which may lack labels; give "
            f"loss= a function of (model, batch)"
        )
    return loss


def check_batches(batches: object) -> None:
    """Refuse what is neither a number of batches nor several of them that can be read twice."""
    if isinstance(batches, int):
        whole("batches", batches, 1)
    elif isinstance(batches, Iterator) or not isinstance(batches, Iterable):
        raise ValueError(
            f"batches must be a number of training batches, or a list or loader of batches; "
            f"got {batches!r}"
        )


def as_batches(batches: int | Iterable[Any], loader: Iterable[Any]) -> Iterable[Any]:
    """The batches, or so many of a loader's: a list, so that they are the same each time."""
    return list(islice(loader, batches)) if isinstance(batches, int) else batches


def found_sigma(
    loss: Loss, model: torch.nn.Module, batches: Iterable[Any], options: dict[str, Any]
) -> "FoundSigma":
    """The σ found at the model's weights, in evaluation mode."""
    from antipgd.flatness import find_sigma
    from antipgd.flatness.state import evaluating

    with evaluating(model):
        return find_sigma(lambda batch: loss(model, batch), model, batches, **options)


def begun_monitor(
    noise: "Noise",
    loss: Loss,
    model: torch.nn.Module,
    batches: Iterable[Any],
    callback: "Callable[[Reading], object]",
    options: dict[str, Any],
) -> "Monitor":
    """A monitor of the noise."""
    from antipgd.flatness import monitor

    return monitor(
        noise, lambda batch: loss(model, batch), model, batches, callback=callback, **options
    )


def labelled(prefix: str, metrics: dict[str, float]) -> dict[str, float]:
    """Metrics under a name of their own."""
    return {f"{prefix}/{name}": value for name, value in metrics.items()}
