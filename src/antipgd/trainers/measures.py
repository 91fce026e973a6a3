"""What the callbacks that measure share: losses, batches, σ found at an end, readings on the way.

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
Move = Callable[[Any], Any]


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


def _as_it_is(batch: Any) -> Any:
    return batch


class Searching:
    """Finds σ at the weights of a model, in evaluation mode: `sigma` and `found`."""

    def __init__(self, batches: int | Iterable[Any], loss: Loss, options: dict[str, Any]) -> None:
        check_batches(batches)
        self._batches, self._loss, self._options = batches, loss, options
        self.found: FoundSigma | None = None

    @property
    def sigma(self) -> float | None:
        """The σ found, None before."""
        return None if self.found is None else self.found.sigma

    def search(
        self, model: torch.nn.Module, loader: Iterable[Any], move: Move = _as_it_is
    ) -> "FoundSigma":
        """Find it, on batches of our own or so many of the loader's, moved to their device."""
        from antipgd.flatness import find_sigma
        from antipgd.flatness.state import evaluating

        taken = self._batches
        batches = islice(loader, taken) if isinstance(taken, int) else taken
        moved = [move(batch) for batch in batches]  # a list: the same each time
        with evaluating(model):
            self.found = find_sigma(
                lambda batch: self._loss(model, batch), model, moved, **self._options
            )
        return self.found


class Watching:
    """Measures what a noise does, every so many steps: `readings`."""

    def __init__(
        self, batches: Iterable[Any], every: int, loss: Loss, options: dict[str, Any]
    ) -> None:
        check_batches(batches)
        self._batches, self._loss = batches, loss
        self._options = options | {"every": whole("every", every, 1)}
        self._monitor: Monitor | None = None
        self._logged = 0
        self.readings: list[Reading] = []

    @property
    def watches(self) -> bool:
        """Whether it has begun and not ended."""
        return self._monitor is not None

    def watch(self, noise: "Noise", model: torch.nn.Module, move: Move = _as_it_is) -> None:
        """Begin, on our batches moved to their device."""
        from antipgd.flatness import monitor

        batches = [move(batch) for batch in self._batches]
        self._monitor = monitor(
            noise, lambda batch: self._loss(model, batch), model, batches,
            callback=self.readings.append, **self._options,
        )  # fmt: skip

    def unlogged(self) -> "list[Reading]":
        """The readings since this was asked last."""
        new = self.readings[self._logged :]
        self._logged = len(self.readings)
        return new

    def end(self) -> None:
        """Measure no more."""
        if self._monitor is not None:
            self._monitor.stop()
        self._monitor = None


def labelled(prefix: str, metrics: dict[str, float]) -> dict[str, float]:
    """Metrics under a name of their own."""
    return {f"{prefix}/{name}": value for name, value in metrics.items()}
