"""What a training asks of the machine: the same bits every time, and enough memory."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from antipgd.paper.training import Training

_SIGNS = ("allocate memory", "out of memory", "not enough memory")


def check_device(device: str) -> None:
    """Refuse a device that is not there."""
    try:
        kind = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device must be cpu, cuda or cuda:INDEX; got {device!r}") from None
    if kind.type == "cuda" and (kind.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device {device!r} is not there: torch sees {torch.cuda.device_count()} GPUs"
        )


@contextmanager
def reproducible(threads: int) -> Iterator[None]:
    """Inside, torch computes the same bits every time; sums depend on the number of threads."""
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what CUDA asks for that
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])


@contextmanager
def memory_advice(spec: Training) -> Iterator[None]:
    """Around the computation: say what to do when it does not fit into memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = str(error).lower()
        if not isinstance(error, MemoryError) and not any(sign in text for sign in _SIGNS):
            raise
        size = spec.micro or spec.batch
        raise MemoryError(
            f"{size} images at a time do not fit into memory; give a smaller micro that divides "
            f"batch={spec.batch}. Results change with it: BatchNorm's statistics are those of a "
            f"micro-batch"
        ) from error
