"""The trace of a classifier at equal loss, its logits multiplied by a temperature.

Once a network fits its training data, longer training mostly scales its logits up: the
cross-entropy falls, and with it the trace of its Hessian, though the network is no flatter. So T is
chosen to give the loss of T·logits a fixed value, and the trace of that loss is taken, each
parameter scaled by its mean square (`Trace.scaled`). T stands behind the network: its parameters
stay as they are. If the last layer, weight and bias, is multiplied by c, T is divided by c and
nothing else changes; so it is for any layer without bias of a network that is homogeneous in it.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from scipy.optimize import brentq
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from antipgd.checks import number
from antipgd.flatness.measuring import Setting
from antipgd.flatness.objective import MEMORY, Objective
from antipgd.flatness.place import at
from antipgd.flatness.samples import Measured
from antipgd.flatness.trace import Trace

LOSS = 0.01
_DOUBLINGS = 200  # of T at most
_EXACT = 1e-12  # relative error of T


class UnreachableLossError(ValueError):
    """No temperature gives the loss that was asked for: examples are classified wrongly."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class TraceAtEqualLoss(Measured):
    """Σ_l ‖w_l‖² tr_l / n_l of the loss of T·logits, at the T that gives it the value asked for.

    `loss` is what was reached, `own_loss` that at T = 1; `trace` is the whole `Trace`. A tolerance,
    and so `converged`, is that of the plain trace.
    """

    temperature: float
    loss: float
    own_loss: float
    trace: Trace

    def check_comparable(self, other: Measured) -> None:
        loss = other.loss if isinstance(other, TraceAtEqualLoss) else math.nan
        if not math.isclose(self.loss, loss, rel_tol=0.01):
            raise ValueError(f"the two are at different losses, {self.loss:.3g} and {loss:.3g}")

    def __repr__(self) -> str:
        return (
            f"TraceAtEqualLoss({self.estimate} scaled, at loss {self.loss:.3g} by temperature "
            f"{self.temperature:.4g} (own loss {self.own_loss:.3g});\n  trace {self.trace}, "
            f"{self.trace.products} products)"
        )

    def metrics(self) -> dict[str, float]:
        """For a log: every single number."""
        return self._named("scaled_trace") | {
            "temperature": self.temperature, "loss": self.loss, "own_loss": self.own_loss,
            "trace": self.trace.mean, "trace_sem": self.trace.sem,
            "products": float(self.trace.products),
        }  # fmt: skip


@dataclass(frozen=True)
class Logits:
    """Of all examples, (examples, classes) in float64, with labels and weights in the mean."""

    scores: Tensor
    labels: Tensor
    weights: Tensor

    @property
    def classes(self) -> int:
        """How many there are."""
        return self.scores.shape[1]

    def loss(self, temperature: float) -> float:
        """The mean cross-entropy of T·logits."""
        losses = cross_entropy(temperature * self.scores, self.labels, reduction="none")
        return float(losses @ self.weights)

    def slope(self, temperature: float) -> float:
        """Its derivative by T: the mean of E_p z − z_label."""
        chances = torch.softmax(temperature * self.scores, dim=1)
        own = self.scores.gather(1, self.labels[:, None])[:, 0]
        return float(((chances * self.scores).sum(dim=1) - own) @ self.weights)

    @property
    def wrong(self) -> int:
        """How many examples have no larger logit at their label than everywhere else."""
        own = self.scores.gather(1, self.labels[:, None])
        others = self.scores.scatter(1, self.labels[:, None], -math.inf)
        return int((others.max(dim=1, keepdim=True).values >= own).sum())

    def temperature(self, loss: float) -> float:
        """The smallest T > 0 at which the loss, which is convex in T, has this value."""
        chance = math.log(self.classes)
        if loss >= chance:
            raise ValueError(
                f"loss must be below ln {self.classes} = {chance:.4g}, which equal logits have; "
                f"got {loss:g}"
            )
        high = 1 / max(float(self.scores.abs().max()), 1e-300)
        low, tries = 0.0, 0
        while self.loss(high) > loss:
            if self.slope(high) >= 0 or tries == _DOUBLINGS:
                high = self._bottom(low, high)
                if self.loss(high) > loss:
                    self._refuse(loss, high)
                break
            low, high, tries = high, 2 * high, tries + 1
        return float(brentq(lambda t: self.loss(t) - loss, low, high, rtol=_EXACT, xtol=1e-300))

    def _bottom(self, low: float, high: float) -> float:
        """Where the loss is least: the slope changes its sign there."""
        if self.slope(low) >= 0 or self.slope(high) <= 0:
            return low if self.slope(low) >= 0 else high
        return float(brentq(self.slope, low, high, rtol=_EXACT, xtol=1e-300))

    def _refuse(self, loss: float, at_best: float) -> None:
        raise UnreachableLossError(
            f"no temperature brings the loss to {loss:g}: {self.wrong} of {len(self.labels)} "
            f"examples are classified wrongly, and the least is {self.loss(at_best):.4g} at "
            f"temperature {at_best:.3g}; train on, or compare at a larger loss"
        )


def _checked(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """The logits and labels of a batch."""
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise ValueError(
            f"batches must be pairs of inputs and labels; got {type(batch).__name__}"
            + (f" of {len(batch)}" if isinstance(batch, list | tuple) else "")
        )
    inputs, labels = batch
    logits = model(inputs)
    if not isinstance(logits, Tensor) or logits.dim() < 2 or logits.shape[1] < 2:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(
            f"model must give logits of shape (examples, classes, …) with two classes at least; "
            f"got {shape}"
        )
    _check_labels(labels, logits)
    return logits, labels


def _check_labels(labels: Any, logits: Tensor) -> None:
    if not isinstance(labels, Tensor) or labels.dtype not in (torch.int64, torch.uint8):
        kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise ValueError(f"labels must be class numbers, a tensor of int64; got {kind}")
    wanted = logits.shape[:1] + logits.shape[2:]
    if labels.shape != wanted:
        raise ValueError(f"labels must have the shape {tuple(wanted)}; got {tuple(labels.shape)}")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= logits.shape[1]:
        raise ValueError(
            f"labels must be from 0 to {logits.shape[1] - 1}; got {low if low < 0 else high} "
            f"(labels to be ignored are not offered: leave those examples out)"
        )


@torch.no_grad()
def _logits(model: nn.Module, objective: Objective) -> Logits:
    """One pass over the data."""
    scores, labels, weights = [], [], []
    for weight, batch in objective.batches():
        found, own = _checked(model, batch)
        flat = found.double().movedim(1, -1).reshape(-1, found.shape[1])
        scores.append(flat)
        labels.append(own.reshape(-1).long())
        weights.append(flat.new_full((len(flat),), weight / len(flat)))
    every = torch.cat(weights)
    return Logits(torch.cat(scores), torch.cat(labels), every / every.sum())


def trace_at_equal_loss(
    model: nn.Module,
    batches: Iterable[Any],
    loss: float = LOSS,
    *,
    method: str = "auto",
    tolerance: float | None = None,
    max_probes: int | None = None,
    seed: int = 0,
    batch_norm: str | None = None,
    float64: bool = False,
    memory: float = MEMORY,
    distributed: bool = False,
) -> TraceAtEqualLoss:
    """The scaled trace of a classifier's cross-entropy where T·logits have this mean `loss`.

    `model` gives logits, `batches` are pairs of inputs and labels, over all training data. Refused
    where no T reaches the loss, with the number of examples that are classified wrongly. See
    `Place.trace` for `method`, `tolerance` and `max_probes`, `at` for the others.

    >>> import torch
    >>> model = torch.nn.Linear(2, 2, bias=False).double()
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    >>> with torch.no_grad():
    ...     _ = model.weight.copy_(3 * torch.eye(2))
    >>> found = trace_at_equal_loss(model, [(x, torch.tensor([0, 1]))], loss=0.01)
    >>> print(round(3 * found.temperature, 4), round(found.loss, 6), round(found.mean, 4))
    4.6002 0.01 0.2085
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a module that gives logits; got {type(model).__name__}")
    number("loss", loss, 0, above=True)
    if isinstance(batches, Iterator):
        batches = list(batches)
    options: dict[str, Any] = {"batch_norm": batch_norm, "float64": float64, "memory": memory,
                               "distributed": distributed}  # fmt: skip
    factor = 1.0

    def scaled(batch: Any) -> Tensor:
        logits, labels = _checked(model, batch)
        return cross_entropy(factor * logits, labels.long())

    with Setting(scaled, model, batches, **options).entered() as objective:
        logits = _logits(model, objective)
    factor = logits.temperature(loss)
    trace = at(scaled, model, batches, **options).trace(
        method=method, tolerance=tolerance, max_probes=max_probes, seed=seed
    )
    return TraceAtEqualLoss(
        estimate=trace.scaled, batch_norm=trace.batch_norm, converged=trace.converged, seed=seed,
        temperature=factor, loss=logits.loss(factor), own_loss=logits.loss(1.0), trace=trace,
    )  # fmt: skip
