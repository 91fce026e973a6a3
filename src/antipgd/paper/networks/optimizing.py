"""The optimizer of a training, and its learning rate at every step."""

import torch
from torch import nn

from antipgd.paper.networks.rates import rate_factor
from antipgd.paper.networks.spec import Training


def make_optimizer(spec: Training, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a training, by names, so that the noise knows the parameters."""
    parameters = model.named_parameters()
    if spec.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=spec.lr, weight_decay=spec.weight_decay, fused=True)
    return torch.optim.SGD(
        parameters, lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay, fused=True
    )


def set_rate(optimizer: torch.optim.Optimizer, spec: Training, step: int, per_epoch: int) -> None:
    """The rate of `step`, counted from 0 over the whole training: a function of it alone, so that
    a training that is resumed has the same."""
    factor = rate_factor(spec.schedule, spec.warmup, spec.epochs, step, per_epoch)
    for group in optimizer.param_groups:
        group["lr"] = spec.lr * factor
