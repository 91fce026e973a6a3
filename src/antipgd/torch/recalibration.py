"""BatchNorm statistics at the weights of the moment, and everything as it was after.

Statistics gathered along noisy weights do not belong to the clean ones.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def averaging(norms: Sequence[_BatchNorm]) -> Iterator[None]:
    """Inside, running statistics begin anew, as the plain averages over all that passes through.

    They stay; modes and momenta are as before after it.
    """
    found = [(norm, norm.training, norm.momentum) for norm in norms]
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # torch's word for a cumulative average
            norm.train()
        yield
    finally:
        for norm, training, momentum in found:
            norm.training, norm.momentum = training, momentum


@contextmanager
def recalibrated(model: torch.nn.Module, batches: Iterable[Any]) -> Iterator[None]:
    """Inside, running statistics are the averages over `batches`; modes, momenta, the random
    generator and after it the statistics themselves are left as they were.

    As torch's update_bn has it: of all norms that `model.train()` puts in training mode. Those that
    a `train()` of the model's own leaves in eval mode keep theirs.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    buffers = [(b, b.clone()) for module in norms for b in module.buffers(recurse=False)]
    modes = [(module, module.training) for module in model.modules()]
    try:
        try:
            model.train()
            _estimate(model, [norm for norm in norms if norm.training], batches)
        finally:
            for module, training in modes:
                module.training = training
        yield
    finally:
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)


def _estimate(model: torch.nn.Module, norms: Sequence[_BatchNorm], batches: Iterable[Any]) -> None:
    """Let all batches pass through the model, for these norms."""
    found = False
    with torch.random.fork_rng(), torch.no_grad(), averaging(norms):
        for batch in batches if norms else ():
            found = True
            model(batch[0] if isinstance(batch, list | tuple) else batch)
    if norms and not found:
        raise ValueError(
            f"recalibrate needs at least one batch; got none from {type(batches).__name__}, which "
            f"is empty or, if it is an iterator, used up"
        )
