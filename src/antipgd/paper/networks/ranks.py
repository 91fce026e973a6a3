"""Several processes on one training: who computes which micro-batch, and how they add up.

Started by torchrun, a process finds the others through its environment; otherwise there is one
rank, which has everything and adds nothing up.
"""

import atexit
import os
from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Part = TypeVar("Part")


class RanksError(ValueError):
    """A training cannot be dealt to so many processes."""


def join(device: str = "cpu") -> "Ranks":
    """Meet the other processes that torchrun started, if it did.

    Once for the life of the process: to part and meet again fails now and then (ran).
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        if device.startswith("cuda"):
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
        atexit.register(dist.destroy_process_group)
    return Ranks()


def _tracking(model: nn.Module) -> list[_BatchNorm]:
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]


def _statistics(norms: Sequence[_BatchNorm]) -> list[Tensor]:
    found = [s for norm in norms for s in (norm.running_mean, norm.running_var)]
    return [s for s in found if s is not None]


class Ranks:
    """This process among those that train together."""

    def __init__(self) -> None:
        there = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if there else 0
        self.count = dist.get_world_size() if there else 1

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and shows."""
        return self.rank == 0

    def check(self, parts: int) -> None:
        """Refuse a number of micro-batches that leaves a rank without work."""
        if parts < self.count:
            raise RanksError(
                f"{self.count} processes need at least as many micro-batches; a batch has {parts}: "
                f"give a smaller micro, which also changes BatchNorm's statistics"
            )

    def own(self, model: nn.Module, parts: Sequence[Part]) -> Iterator[Part]:
        """The micro-batches of this rank, every count-th. After the last one BatchNorm's running
        statistics are on all ranks those of a single process that went through all of them:
        r_K = (1−m)^K r_0 + Σ_i m (1−m)^{K−1−i} s_i, with s_i of micro-batch i."""
        if self.count == 1:
            yield from parts
            return
        norms, K = _tracking(model), len(parts)
        momenta = [float(norm.momentum or 0) for norm in norms]
        running = _statistics(norms)
        m = [momentum for momentum in momenta for _ in range(2)]
        total = [(1 - a) ** K * r for a, r in zip(m, running, strict=True)]
        total = total if self.first else [torch.zeros_like(r) for r in running]
        for norm in norms:
            norm.momentum = 1.0  # so that after a micro-batch the running statistics are its own
        for i in range(self.rank, K, self.count):
            yield parts[i]
            for t, a, s in zip(total, m, running, strict=True):
                t += a * (1 - a) ** (K - 1 - i) * s
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked += K - len(range(self.rank, K, self.count))
        self._sum(total)
        for s, t in zip(running, total, strict=True):
            s.copy_(t)

    def _sum(self, tensors: Sequence[Tensor]) -> None:
        """Each tensor becomes its sum over the ranks, in one message."""
        if not tensors:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat)
        for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view(tensor.shape))

    def add_up(self, model: nn.Module, loss: float, right: int) -> tuple[float, int]:
        """Gradients, loss and count of all ranks, each the sum of their parts."""
        if self.count == 1:
            return loss, right
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self._sum([p.grad for p in model.parameters() if p.grad is not None])
        device = next(model.parameters()).device
        numbers = torch.tensor([loss, right], dtype=torch.float64, device=device)
        self._sum([numbers])
        return float(numbers[0]), int(numbers[1])
