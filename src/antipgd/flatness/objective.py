"""The loss as a function of its parameters: L(w) = mean of loss(batch) over the batches.

Values, and products of the Hessian with many vectors at once. Batches are streamed: the graph of a
batch lives while its products are taken. Each batch counts by its number of examples (the first
axis of the first tensor in it), so that unequal batches of a mean loss give the mean over all
examples; where no tensor is found all count alike, which is warned of.
"""

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from antipgd.flatness.inputs import converted, differentiable, double, examples_in
from antipgd.flatness.probes import FAR, Probes

Loss = Callable[..., Tensor]
MEMORY = 2 * 2**30
_VECTORISED = 10_000  # parameters up to which one vectorised product beats a loop (ran)
_ROWS = 64
_NOT_GIVEN = object()  # in place of a batch, for a loss without argument
FIXED = (
    "switch off shuffling and augmentation (shuffle=False), or pass list(batches) to measure on "
    "one fixed draw of them"
)
_INDEPENDENT = "loss does not depend on any of params"
_TWO_MEANS = f"the mean loss over the batches was {{!r}} and then {{!r}}: {FIXED}"
_SAME_LOSS = {torch.float32: 1e-5, torch.float64: 1e-12}  # kernels may add in another order


class NotDeterministicError(ValueError):
    """Model or data do not give the same loss twice, so there is no Hessian to speak of."""


class Objective:
    """The loss over all batches at the parameters' present values. Made by `measuring`."""

    def __init__(
        self,
        loss: Loss,
        named: dict[str, Tensor],
        batches: Iterable[Any] | None,
        *,
        float64: bool = False,
        memory: int = MEMORY,
        ranks: bool = False,
    ) -> None:
        self._loss, self._batches, self._float64 = loss, batches, float64
        self.names = list(named)
        self.tensors = list(named.values())
        self.sizes = [tensor.numel() for tensor in self.tensors]
        self.size = sum(self.sizes)
        self.memory, self.ranks = memory, ranks
        self.products_taken = 0
        self.batch_norm = "none"
        self._mean: float | None = None  # of the loss, in the pass before
        self.graph_bytes = 0  # that a graph keeps; this and the next are found by the first look
        self.operations: set[str] = set()
        self._one_by_one = False
        self.before_products: Callable[[], None] | None = None
        """Is called once, before the first product."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters, and so of the products."""
        return self.tensors[0].dtype

    @property
    def device(self) -> torch.device:
        """Of the parameters."""
        return self.tensors[0].device

    def probes(self, seed: int, law: str = "rademacher") -> Probes:
        """Probe vectors for these parameters."""
        return Probes(seed, self.names, self.sizes, self.dtype, self.device, law)

    @property
    def has_batches(self) -> bool:
        """Whether the loss is of batches."""
        return self._batches is not None

    def batches(self) -> Generator[tuple[float, Any]]:
        """Each batch with the weight it has in the mean."""
        if self._batches is None:
            yield 1.0, _NOT_GIVEN
            return
        for batch in self._batches:
            convert = double if self._float64 else differentiable
            yield float(examples_in(batch)), converted(batch, convert)

    def loss(self, batch: Any, *, finite: bool = True) -> Tensor:
        """The loss of one batch, checked; also for being finite, unless told not to."""
        # A loss under autocast would cast the weights once only: we are in an outer autocast, so
        # that leaving the loss's own does not clear what it keeps, and the weights move meanwhile.
        torch.clear_autocast_cache()
        value = self._loss() if batch is _NOT_GIVEN else self._loss(batch)
        if not isinstance(value, Tensor) or value.numel() != 1:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"loss must return a tensor with one element; got {shape}")
        if finite and not bool(torch.isfinite(value)):
            raise ValueError(f"loss is {value.item()}; a Hessian needs a finite one")
        return value.reshape(())

    @torch.no_grad()
    def value(self) -> float:
        """L(w)."""
        total, weights = 0.0, 0.0
        for weight, batch in self.batches():
            total += weight * float(self.loss(batch))
            weights += weight
        return total / weights

    def steady_value(self) -> float:
        """L(w), refused where a second pass over the data gives another."""
        value, again = self.value(), self.value()
        if self.differ(value, again):
            raise NotDeterministicError(_TWO_MEANS.format(value, again))
        return value

    @torch.no_grad()
    def flat(self) -> Tensor:
        """A copy of the parameters, laid end to end."""
        return torch.cat([tensor.detach().reshape(-1) for tensor in self.tensors])

    def pieces(self, flat: Tensor) -> list[Tensor]:
        """The last axis of `flat` cut into the parameters' shapes; leading axes stay."""
        lead = flat.shape[:-1]
        cut = flat.split(self.sizes, dim=-1)
        return [part.reshape((*lead, *t.shape)) for part, t in zip(cut, self.tensors, strict=True)]

    @contextmanager
    def moved(self, displacement: Tensor) -> Generator[None]:
        """The parameters displaced by a flat vector; their own bits come back after."""
        kept, mean = [tensor.detach().clone() for tensor in self.tensors], self._mean
        self._mean = None
        try:
            with torch.no_grad():
                for tensor, part in zip(self.tensors, self.pieces(displacement), strict=True):
                    tensor.add_(part)
            yield
        finally:
            with torch.no_grad():
                for tensor, own in zip(self.tensors, kept, strict=True):
                    tensor.copy_(own)
            self._mean = mean

    @torch.no_grad()
    def values_at(self, directions: Tensor, factors: Sequence[float]) -> NDArray[np.float64]:
        """L(w + f·v) for each row v and factor f, infinite where it is not finite.

        The data are gone through once. With `ranks`, each rank takes its share of the rows.
        """
        own, stride = 0, 1
        if self.ranks:
            own, stride = dist.get_rank(), dist.get_world_size()
        total, weights = np.zeros((len(directions), len(factors))), 0.0
        for weight, batch in self.batches():
            for row in range(own, len(directions), stride):
                for column, factor in enumerate(factors):
                    with self.moved(factor * directions[row]):
                        value = float(self.loss(batch, finite=False))
                    total[row, column] += weight * value if math.isfinite(value) else math.inf
            weights += weight
        if self.ranks:
            shared = torch.from_numpy(total).to(self.device)
            dist.all_reduce(shared)
            total = shared.cpu().numpy()
        return total / weights

    def check_depends(self, value: float) -> None:
        """Refuse a loss that is L(w) far away from w, too."""
        flat = self.flat()
        size = float(flat.double().square().mean().sqrt()) or 1.0
        far = self.probes(0, "gaussian").rows(FAR, 0, 3).mul_(10 * size)
        if bool((self.values_at(torch.cat([-flat[None], far]), [1.0]) == value).all()):
            raise ValueError(_INDEPENDENT)

    def gradient_at(self, displacement: Tensor) -> Tensor:
        """∇L at the parameters displaced by a flat vector, laid end to end."""
        total, weights = torch.zeros_like(displacement), 0.0
        with self.moved(displacement):
            for weight, batch in self.batches():
                value = self.loss(batch, finite=False)
                found = torch.autograd.grad(value, self.tensors, materialize_grads=True)
                total += weight * torch.cat([part.reshape(-1) for part in found])
                weights += weight
        return total.div_(weights)

    def judged_by(self, loss: Loss) -> "Objective":
        """The same parameters and batches under another loss."""
        other = copy(self)
        other._loss, other._mean = loss, None
        return other

    def products(self, vectors: Tensor) -> Tensor:
        """H·v for each row v; with `ranks`, each rank takes its share of the rows."""
        if any(name.endswith("::Error") for name in self.operations):
            raise ValueError(
                "loss has an operation that can be differentiated only once, which would leave "
                "its part of the Hessian out; write it with torch operations"
            )
        look, self.before_products = self.before_products, None
        if look is not None:
            look()
        self.products_taken += len(vectors)
        found = self._shared_products(vectors) if self.ranks else self._own_products(vectors)
        finite = bool(torch.isfinite(found.sum())) or bool(torch.isfinite(found).all())
        if not finite:  # the sum is quickly had and tells in all but a strange case
            raise ValueError(
                "a product with the Hessian is not finite though the loss is: it has no second "
                "derivative here (a root or a norm at zero?) or it overflows (float64=True?)"
            )
        return found

    def derivatives_of(self, batch: Any, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient of one batch's loss, laid end to end, and H·v, which is not counted."""
        gradient, total = self.gradient_graph(batch), torch.zeros_like(vectors)
        self._add_products(total, gradient, vectors, 1.0)
        return torch.cat([part.detach().reshape(-1) for part in gradient]), total

    def rows_at_once(self, matrices: int) -> int:
        """How many vectors fit into memory if each is there in so many copies."""
        fitting = self.memory // (matrices * self.size * self.tensors[0].element_size())
        return int(min(_ROWS, max(1, fitting)))

    def _shared_products(self, vectors: Tensor) -> Tensor:
        """Row k is rank k mod world's: the same products as on one rank, whatever their number."""
        world, rank = dist.get_world_size(), dist.get_rank()
        result = torch.zeros_like(vectors)
        result[rank::world] = self._own_products(vectors[rank::world])
        dist.all_reduce(result)  # every element has one non-zero term, so nothing is rounded
        return result

    def _own_products(self, vectors: Tensor) -> Tensor:
        rows = self.rows_at_once(matrices=2)
        parts = [self._products(part) for part in vectors.split(rows) if len(part)]
        return torch.cat(parts) if len(parts) > 1 else parts[0] if parts else vectors

    def _products(self, vectors: Tensor) -> Tensor:
        total, mean, weights = torch.zeros_like(vectors), 0.0, 0.0
        for weight, batch in self.batches():
            value = self.loss(batch)
            self._add_products(total, self._gradient(value), vectors, weight)
            mean, weights = mean + weight * value.item(), weights + weight
            del value  # lest its graph outlive the next one's beginning
        self._check_pass(mean / weights)
        return total.div_(weights)

    def _check_pass(self, mean: float) -> None:
        """Every pass over the data must have the same loss; looking at it costs nothing."""
        if self._mean is not None and self.differ(mean, self._mean):
            raise NotDeterministicError(_TWO_MEANS.format(self._mean, mean))
        self._mean = mean

    def differ(self, one: float, other: float) -> bool:
        """Whether two losses are further apart than kernels that add in another order explain."""
        return abs(one - other) > _SAME_LOSS[self.dtype] * max(abs(one), abs(other))

    def gradient_graph(self, batch: Any) -> list[Tensor]:
        """The gradient of one batch's loss, with the graph that gives it its own derivatives."""
        return self._gradient(self.loss(batch))

    def _gradient(self, value: Tensor) -> list[Tensor]:
        if not value.requires_grad:
            raise ValueError(
                "loss has no graph: it must be computed from params by torch operations, without "
                "no_grad(), detach() or item()"
            )
        found = torch.autograd.grad(value, self.tensors, create_graph=True, allow_unused=True)
        if all(part is None for part in found):
            raise ValueError(_INDEPENDENT)
        return [torch.zeros_like(t) if g is None else g
                for g, t in zip(found, self.tensors, strict=True)]  # fmt: skip

    def _add_products(
        self, total: Tensor, gradient: Sequence[Tensor], vectors: Tensor, weight: float
    ) -> None:
        """total += weight · Hv of one batch for each row v, all through one graph.

        That saves the forward and the first backward pass for all rows but the first.
        """
        curved = [index for index, part in enumerate(gradient) if part.requires_grad]
        if not curved:  # the loss is linear
            return
        rows = self._rows_through_a_graph()
        for sums, part in zip(total.split(rows), vectors.split(rows), strict=True):
            self._add_rows(sums, gradient, curved, part, weight)

    def _rows_through_a_graph(self) -> int:
        """How many vectors at once; each makes the graph's tensors anew."""
        small = self.size <= _VECTORISED or self.device.type == "cuda"
        convolves = any("Convolution" in name for name in self.operations)
        if self._one_by_one or not small or convolves:  # convolutions vectorise badly
            return 1
        return max(1, min(_ROWS, self.memory // max(1, self.graph_bytes)))

    def _add_rows(
        self, sums: Tensor, gradient: Sequence[Tensor], curved: list[int], rows: Tensor,
        weight: float,
    ) -> None:  # fmt: skip
        """sums += weight · Hv for each row v, at once if that can be."""
        if len(rows) > 1:
            try:
                return self._add_derivative(sums, gradient, curved, rows, weight)
            except RuntimeError:  # some operations cannot be vectorised; one by one tells others
                self._one_by_one = True
        for row, vector in zip(sums, rows, strict=True):
            self._add_derivative(row, gradient, curved, vector, weight)

    def _add_derivative(
        self, sums: Tensor, gradient: Sequence[Tensor], curved: list[int], vectors: Tensor,
        weight: float,
    ) -> None:  # fmt: skip
        """Of one vector, or of all rows at once."""
        pieces, lead = self.pieces(vectors), vectors.shape[:-1]
        found = torch.autograd.grad(
            [gradient[i] for i in curved], self.tensors, [pieces[i] for i in curved],
            retain_graph=True, allow_unused=True, is_grads_batched=bool(lead),
        )  # fmt: skip
        for place, part in zip(sums.split(self.sizes, dim=-1), found, strict=True):
            if part is not None:
                place.add_(part.reshape(place.shape), alpha=weight)
