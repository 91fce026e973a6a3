"""What a training asks of the machine: the same bits every time, and enough memory."""

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from antipgd.paper.networks.spec import Training

_SIGNS = ("allocate memory", "out of memory", "not enough memory")
_GROUP = Path("/sys/fs/cgroup")


def own_device(device: str) -> str:
    """This process's device: of those that torchrun starts for `cuda`, each has one of the GPUs."""
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if device == "cuda" else device


def devices(device: str) -> list[str]:
    """What `device` stands for: `cuda` for every GPU there is."""
    if device == "cuda":
        return [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return [device]


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


def _advice(spec: Training) -> str:
    return (
        f"give a smaller micro that divides batch={spec.batch}. Results change with it: "
        f"BatchNorm's statistics are those of a micro-batch"
    )


def bytes_for_backward(model: nn.Module, shape: tuple[int, ...], images: int) -> int:
    """What a forward pass keeps for the backward pass: the least memory that a step needs.

    Counted on torch's meta device, where tensors have sizes and no contents.
    """
    twin = copy.deepcopy(model).to("meta")
    kept: dict[int, Tensor] = {}  # by storage, alive so that no other takes its place

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        twin(torch.empty(images, *shape, device="meta"))
    own = {parameter.untyped_storage()._cdata for parameter in twin.parameters()}
    return sum(t.untyped_storage().nbytes() for key, t in kept.items() if key not in own)


def memory_left(device: str) -> int | None:
    """Bytes; None where the system does not say."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    lefts = []
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        lefts += [next(1024 * int(line.split()[1]) for line in lines if "MemAvailable" in line)]
    with suppress(OSError, ValueError):  # a container's own limit; "max" if it has none
        limit, used = (
            int((_GROUP / name).read_text()) for name in ("memory.max", "memory.current")
        )
        stat = dict(line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
        lefts += [limit - used + int(stat.get("inactive_file", 0))]  # cached files make room
    return min(lefts, default=None)


def check_memory(spec: Training, model: nn.Module, shape: tuple[int, ...], device: str) -> None:
    """Refuse batches that cannot fit, before the system ends the process without a word."""
    images = spec.micro or spec.batch
    need, left = bytes_for_backward(model, shape, images), memory_left(device)
    need //= 2 if spec.bf16 else 1
    if left is not None and need > left:
        needed, free = (f"{count / 2**30:.1f} GiB" for count in (need, left))
        raise MemoryError(
            f"{images} images at a time need at least {needed}, and {free} are free; "
            f"{_advice(spec)}"
        )


@contextmanager
def memory_advice(spec: Training) -> Iterator[None]:
    """Around the computation: say what to do when it does not fit into memory after all."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        signs = any(sign in str(error).lower() for sign in _SIGNS)
        if error.args if isinstance(error, MemoryError) else not signs:
            raise  # it says what to do already, or is about something else
        raise MemoryError(
            f"{spec.micro or spec.batch} images at a time do not fit into memory; {_advice(spec)}"
        ) from error
