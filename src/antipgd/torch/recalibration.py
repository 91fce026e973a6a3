"""BatchNorm statistics at the weights of the moment, and everything as it was after.

Statistics gathered along noisy weights do not belong to the clean ones.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def recalibrated(model: torch.nn.Module, batches: Iterable[Any]) -> Iterator[None]:
    """Inside, running statistics are the averages over `batches`; modes, momenta, the random
    generator and after it the statistics themselves are left as they were."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    buffers = [(b, b.clone()) for module in norms for b in module.buffers(recurse=False)]
    modes = [(module, module.training) for module in model.modules()]
    momenta = [(module, module.momentum) for module in norms]
    try:
        try:
            with torch.random.fork_rng():
                torch.optim.swa_utils.update_bn(batches, model)
        finally:
            for module, training in modes:
                module.training = training
            for norm, momentum in momenta:
                norm.momentum = momentum
        yield
    finally:
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
