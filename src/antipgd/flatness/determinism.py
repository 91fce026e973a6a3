"""A first look at loss and data: do they give the same twice, and the same on every rank?

What it learns on the way, the operations in the graph and the bytes that it keeps, the objective is
told.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from antipgd.flatness.inputs import same_tensors, tensors_in
from antipgd.flatness.objective import FIXED, NotDeterministicError, Objective
from antipgd.flatness.samples import tell
from antipgd.flatness.state import generator_states

_RANDOM = "switch off dropout and other randomness of the model, for instance by model.eval()"


def check_deterministic(objective: Objective) -> None:
    """Refuse a loss or data that change from one look to the next."""
    first, again = (next(objective.batches(), None) for _ in range(2))
    if first is None:
        raise ValueError("batches is empty; there must be at least one batch")
    if again is None:
        raise ValueError("batches can be gone through only once; pass list(batches)")
    if not same_tensors(first[1], again[1]):
        raise NotDeterministicError(
            f"the first batch is another one when batches is gone through again: {FIXED}"
        )
    _tell_unseen(objective, first[1])
    before = generator_states()
    (one, gradient), (other, gradient_again) = (_look(objective, first[1]) for _ in range(2))
    if objective.differ(one, other):
        raise NotDeterministicError(
            f"the same batch has loss {one!r} and then {other!r}: {_RANDOM}"
        )
    if before != generator_states() and not same_tensors(gradient, gradient_again):
        raise NotDeterministicError(
            f"the same batch has two gradients, and random numbers were drawn: {_RANDOM}"
        )
    if objective.ranks:
        _check_ranks(objective, one)


def _tell_unseen(objective: Objective, batch: Any) -> None:
    """Warn of several batches whose examples cannot be counted."""
    if not objective.has_batches or next(tensors_in(batch), None) is not None:
        return
    if len(list(islice(objective.batches(), 2))) > 1:
        tell(
            f"no tensors are seen in the batches ({type(batch).__name__}): they all count alike, "
            f"whatever they hold, and are not compared when they are gone through again; tensors "
            f"and arrays are seen in lists, tuples, dictionaries and dataclasses",
            UserWarning,
        )


def _look(objective: Objective, batch: Any) -> tuple[float, list[Tensor]]:
    """Loss and gradient of a batch; counts the bytes that its graph keeps."""
    known = {t.data_ptr() for t in (*tensors_in(batch), *objective.tensors)}
    objective.graph_bytes = 0

    def count(tensor: Tensor) -> Tensor:
        objective.graph_bytes += 0 if tensor.data_ptr() in known else tensor.nbytes
        known.add(tensor.data_ptr())
        return tensor.detach()  # itself, it would keep its own graph alive

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        value = objective.loss(batch)
        if not value.requires_grad:  # a rate of errors, say, which has values and no Hessian
            return value.item(), []
        found = torch.autograd.grad(value, objective.tensors, create_graph=True, allow_unused=True)
        objective.operations = _operations(part for part in found if part is not None)
        return value.item(), [part.detach() for part in found if part is not None]


def _operations(outputs: Iterable[Tensor]) -> set[str]:
    """Names of the operations in the graph behind some tensors."""
    waiting: list[Any] = [tensor.grad_fn for tensor in outputs]
    seen: set[Any] = {None}
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return {node.name() for node in seen - {None}}


def _check_ranks(objective: Objective, loss: float) -> None:
    """Refuse ranks that hold other models or other data."""
    norm = float(objective.flat().double().norm())
    own = torch.tensor([objective.size, norm, loss], dtype=torch.float64, device=objective.device)
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    for what, values in zip(
        ("number of parameters", "norm of the parameters", "loss of the first batch"),
        torch.stack(every, 1).tolist(), strict=True,
    ):  # fmt: skip
        if any(objective.differ(value, values[0]) for value in values):
            raise ValueError(
                f"the ranks disagree on the {what}: {values}; with distributed=True every rank "
                f"needs the whole model and all of the data (no DistributedSampler)"
            )
