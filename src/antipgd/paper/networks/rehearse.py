"""A few steps of every method of a scale, on this machine: seconds, memory, and what noise costs.

For a look before hours of training, and at the price of each method beside plain SGD. Every method
has a process of its own, so that its peak memory is its own, and they take turns.
"""

import resource
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import torch
from tqdm import tqdm

from antipgd.checks import one_of, whole
from antipgd.paper.methods import TRAINED
from antipgd.paper.networks.examples import make_examples
from antipgd.paper.networks.logs import Log
from antipgd.paper.networks.machine import check_device, memory_advice, reproducible
from antipgd.paper.networks.ranks import join
from antipgd.paper.networks.scales import TUNING_SEED, Scale
from antipgd.paper.networks.spec import Training
from antipgd.paper.networks.train import Trainer

REHEARSED = ("sgd", *(name for name in TRAINED if name != "sgd"))  # the first is compared with


@dataclass(frozen=True)
class Turn:
    """What one turn of a method took: seconds by the clock and of the processor, peak MiB so far,
    and the loss of its last step.
    """

    steps: int
    seconds: float
    cpu_seconds: float
    memory: float
    loss: float
    on_cpu: bool = True


def _steps(trainer: Trainer) -> Iterator[float]:
    """The first epoch again and again, without measuring; the noise goes on."""
    while trainer.progress.diverged_at is None:
        yield from trainer.steps()
        trainer.progress.step = 0
    raise RuntimeError("the loss is not finite any more")


def _peak(device: str) -> float:
    """MiB."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    with suppress(OSError, StopIteration):  # what Linux counts of this program alone, in KiB
        lines = Path("/proc/self/status").read_text("ascii").splitlines()
        return next(int(line.split()[1]) / 2**10 for line in lines if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # macOS counts bytes


class _Method:
    """A training under way, in the process that first asks for a turn of it."""

    def __init__(self, spec: Training, threads: int, device: str) -> None:
        self.spec, self.threads, self.device = spec, threads, device

    @cached_property
    def trainer(self) -> Trainer:
        examples = make_examples(self.spec, self.device)
        return Trainer(self.spec, examples, None, Log(), join(self.device))

    @cached_property
    def steps(self) -> Iterator[float]:
        return _steps(self.trainer)

    def turn(self, steps: int | None) -> Turn:
        count = steps or self.trainer.steps_per_epoch
        with reproducible(self.threads), memory_advice(self.spec):
            clock, cpu = time.perf_counter(), time.process_time()
            for _ in range(count):
                loss = next(self.steps)
            on_cpu = torch.device(self.device).type == "cpu"
            if not on_cpu:
                torch.cuda.synchronize(self.device)
            took = time.perf_counter() - clock, time.process_time() - cpu
        return Turn(count, *took, _peak(self.device), loss, on_cpu)


class _Process:
    """A process with one method in it, which it is given when it starts. Nothing is made then: what
    fails to be made is said by the first turn, as an error of its own kind."""

    def __init__(self, method: _Method) -> None:
        self._pool = ProcessPoolExecutor(
            1, mp_context=get_context("spawn"), initializer=_enter, initargs=(method,)
        )

    def steps_per_epoch(self) -> int:
        return self._pool.submit(_steps_per_epoch).result()

    def turn(self, steps: int | None) -> Turn:
        return self._pool.submit(_turn, steps).result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


_inside: _Method  # of a process, from its start


def _enter(method: _Method) -> None:
    global _inside
    _inside = method


def _steps_per_epoch() -> int:
    return _inside.trainer.steps_per_epoch


def _turn(steps: int | None) -> Turn:
    return _inside.turn(steps)


def rehearse(
    scale: Scale,
    methods: Sequence[str] = REHEARSED,
    *,
    steps: int | None = None,
    rounds: int = 1,
    threads: int = 1,
    device: str = "cpu",
) -> dict[str, tuple[int, list[Turn]]]:
    """Steps in an epoch and the turns of each method: `rounds` of `steps`, by default an epoch.

    With more rounds than one, all processes live side by side, and one untimed step warms up. A
    method that cannot go on, also for want of memory, is named in a `RuntimeError`.
    """
    methods = list(dict.fromkeys(methods))
    for method in methods:
        one_of("method", method, REHEARSED)
    for name, count in (("steps", steps), ("rounds", rounds)):
        if count is not None:
            whole(name, count, 1)
    check_device(device)
    turns: dict[str, tuple[int, list[Turn]]] = {}
    processes: dict[str, _Process] = {}
    order = [(number, method) for number in range(rounds) for method in methods]
    try:
        for number, method in tqdm(order, unit=" turns", disable=None, leave=False):
            if number == 0:
                spec = scale.training(method, TUNING_SEED)
                processes[method] = _Process(_Method(spec, threads, device))
                turns[method] = processes[method].steps_per_epoch(), []
                if rounds > 1:
                    processes[method].turn(1)
            turns[method][1].append(processes[method].turn(steps))
            if number == rounds - 1:
                processes.pop(method).close()
    except BrokenProcessPool as error:
        raise RuntimeError(f"{method}: its process was ended (short of memory?)") from error
    except (MemoryError, RuntimeError) as error:
        raise RuntimeError(f"{method}: {error}") from error
    finally:
        for process in processes.values():
            process.close()
    return turns


def show(scale: Scale, turns: dict[str, tuple[int, list[Turn]]]) -> str:
    """A table. Ratios are medians over rounds, of seconds per epoch in the same round: of the
    processor's, which other programs disturb less, or by the clock on another device. There are
    none of a single round, in which everything is done for the first time.
    """

    def per_epoch(method: str, number: int) -> float:
        in_epoch, found = turns[method]
        turn = found[number]
        return (turn.cpu_seconds if turn.on_cpu else turn.seconds) / turn.steps * in_epoch

    head = (
        f"{'method':8}{'batch':>12}{'s/step':>9}{'s/epoch':>10}{'to SGD':>8}{'MiB':>8}{'loss':>8}"
    )
    lines = [head]
    for method, (in_epoch, found) in turns.items():
        spec = scale.training(method, TUNING_SEED)
        parts = f"{spec.batch // spec.micro} x {spec.micro}" if spec.micro else f"{spec.batch}"
        step = median(turn.seconds / turn.steps for turn in found)
        ratio = ""
        rounds = range(len(found))
        if "sgd" in turns and len(rounds) > 1:
            ratio = f"{median(per_epoch(method, n) / per_epoch('sgd', n) for n in rounds):.3f}"
        memory = max(turn.memory for turn in found)
        lines.append(
            f"{method:8}{parts:>12}{step:9.3f}{step * in_epoch:10.2f}{ratio:>8}{memory:8.0f}"
            f"{found[-1].loss:8.3f}"
        )
    return "\n".join(lines)
