"""The objective set up and checked, and everything put back in the end."""

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from antipgd.flatness.inputs import Parameters, named_tensors
from antipgd.flatness.objective import MEMORY, Loss, Objective
from antipgd.flatness.state import undisturbed

BATCH_NORMS = ("eval", "train", "estimated")


def _batch_norms(modules: Iterable[nn.Module]) -> list[_BatchNorm]:
    return [module for module in modules if isinstance(module, _BatchNorm)]


def _mode_of(norms: Sequence[_BatchNorm]) -> str:
    """What the batch norms do as they are found."""
    batch_statistics = {norm.training or norm.running_mean is None for norm in norms}
    if not batch_statistics:
        return "none"
    if len(batch_statistics) == 2:
        return "mixed"
    return "train" if batch_statistics == {True} else "eval"


@torch.no_grad()
def _estimate_statistics(objective: Objective, norms: Sequence[_BatchNorm]) -> None:
    """Running statistics as plain averages over the batches, at the present weights."""
    momenta = [norm.momentum for norm in norms]
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # torch's word for a cumulative average
            norm.train()
        for _, batch in objective.batches():
            objective.loss(batch)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            norm.eval()


def _set_batch_norm(objective: Objective, norms: Sequence[_BatchNorm], wanted: str | None) -> None:
    if wanted is not None:
        for norm in norms:
            norm.train(wanted == "train")
    objective.batch_norm = _mode_of(norms)
    if wanted == "estimated" and norms:
        _estimate_statistics(objective, [n for n in norms if n.running_mean is not None])
        objective.batch_norm = "estimated" if objective.batch_norm == "eval" else "mixed"


def _generators(batches: Any) -> list[torch.Generator]:
    """Those that a DataLoader and its sampler draw from, if not from the global one."""
    owners = [batches, *(getattr(batches, name, None) for name in ("sampler", "batch_sampler"))]
    found = [getattr(owner, "generator", None) for owner in owners]
    return [generator for generator in found if isinstance(generator, torch.Generator)]


def _check_options(
    batch_norm: str | None, module: nn.Module | None, memory: float, distributed: bool
) -> None:
    if batch_norm is not None and batch_norm not in BATCH_NORMS:
        raise ValueError(
            f"batch_norm must be None (as found) or one of {', '.join(BATCH_NORMS)}; "
            f"got {batch_norm!r}"
        )
    if batch_norm is not None and module is None:
        raise ValueError("batch_norm needs params to be a module; got tensors")
    if not (isinstance(memory, int | float) and 0 < memory < math.inf):
        raise ValueError(f"memory must be a number of bytes > 0; got {memory!r}")
    if distributed and not (dist.is_available() and dist.is_initialized()):
        raise ValueError(
            "distributed=True needs a process group; call torch.distributed.init_process_group"
        )


@contextmanager
def measuring(
    loss: Loss,
    params: Parameters,
    batches: Iterable[Any] | None,
    *,
    batch_norm: str | None = None,
    float64: bool = False,
    memory: float = MEMORY,
    distributed: bool = False,
) -> Generator[Objective]:
    """The objective, with model and data checked and set up; all is put back at the end.

    `batch_norm` is None (as found), "eval", "train", or "estimated" (statistics averaged anew over
    the batches, then held fixed). An iterator, which can be gone through once, is kept as a list.
    """
    if not callable(loss):
        raise TypeError(f"loss must be a function of a batch; got {type(loss).__name__}")
    module = params if isinstance(params, nn.Module) else None
    _check_options(batch_norm, module, memory, distributed)
    named = named_tensors(params)
    tensors, generators = list(named.values()), _generators(batches)
    with undisturbed(module, tensors, float64, generators) as called:
        if isinstance(batches, Iterator):
            batches = list(batches)
        objective = Objective(
            loss, named, batches, float64=float64, memory=int(memory), ranks=distributed
        )
        if module is not None:
            _set_batch_norm(objective, _batch_norms(module.modules()), batch_norm)
        objective.check_deterministic()
        if module is None:
            objective.batch_norm = _mode_of(_batch_norms(called))
        yield objective
