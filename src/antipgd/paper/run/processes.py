"""Trainings side by side: specs in, records out as they finish, on processes of one thread each.

A worker that dies takes only its own training with it: that one is a failure, which names the
signal. Whoever stops listening stops the workers, which leave their checkpoints behind. What is
yielded does not depend on the number of processes, only its order does. Knows torch only inside
the workers.
"""

import contextlib
import importlib.util
import logging
import multiprocessing
import os
import signal
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Event
from pathlib import Path

from antipgd.paper.record import Failure, Record
from antipgd.paper.run.local import cpu_count
from antipgd.paper.training import Training

Tick = Callable[[int], None]
_START = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork


class ExtraError(ImportError):
    """A package is missing; says which extra has it."""


def check_torch() -> None:
    """Say what to install where torch is missing."""
    if importlib.util.find_spec("torch") is None:
        raise ExtraError("training networks needs torch: pip install 'antipgd[network]'")


def check_start(specs: Iterable[Training], device: str) -> None:
    """Refuse what would make every training fail: no torch, no such device, data not there."""
    check_torch()
    from antipgd.paper.datasets import load
    from antipgd.paper.run.machine import check_device

    check_device(device)
    for name in sorted({spec.data for spec in specs}):
        load(name)


def _serve(jobs: Connection, stop: Event, root: Path | None, device: str) -> None:
    """A worker's life: trainings from the pipe, until there are no more or it is stopped."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops workers, through `stop`
    logging.getLogger("antipgd").setLevel(logging.ERROR)  # σ was tuned: advice would be noise
    warnings.filterwarnings("ignore", "sigma is .* the noise drowns")
    parent = os.getppid()

    def stopped() -> bool:
        return stop.is_set() or os.getppid() != parent

    while (spec := jobs.recv()) is not None:
        result = _attempt(spec, jobs, stopped, root, device)
        if result is None:
            return
        jobs.send(result)


def _attempt(
    spec: Training,
    jobs: Connection,
    stopped: Callable[[], bool],
    root: Path | None,
    device: str,
) -> Record | Failure | None:
    """A training's record or failure; None if it was stopped."""

    def tick(epochs: int) -> None:
        if stopped():
            raise StoppedError
        if epochs:
            jobs.send(epochs)

    try:
        from antipgd.paper.run.train import StoppedError, train

        return train(spec, root, tick=tick, warn=jobs.send, device=device)
    except Exception as error:
        if stopped():
            return None
        return Failure(spec, f"{type(error).__name__}: {error}", traceback.format_exc())


class _Worker:
    """A process and what it is training."""

    def __init__(self, stop: Event, root: Path | None, device: str) -> None:
        self.jobs, theirs = _START.Pipe()
        self.device = device
        arguments = (theirs, stop, root, device)
        self.process = _START.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        theirs.close()  # so that reading ends when the process does
        self.spec: Training | None = None

    def give(self, spec: Training) -> None:
        self.spec = spec
        self.jobs.send(spec)

    def hear(self) -> tuple[str, int | str | Record | Failure]:
        """Of its training by name: epochs done, a warning, or a result, which makes it free.

        Its death is a result.
        """
        assert self.spec is not None
        name = self.spec.name
        try:
            said = self.jobs.recv()
        except (EOFError, OSError):  # also in the middle of a word
            self.process.join()
            said = Failure(self.spec, _ending(self.process.exitcode), "")
        if isinstance(said, Record | Failure):
            self.spec = None
        return name, said

    def end(self) -> None:
        """Wait for it to stop; what it still says is lost, but not its checkpoint."""
        with contextlib.suppress(OSError, EOFError):
            self.jobs.send(None)
            while True:
                self.jobs.recv()  # else a worker with much to say would wait for ever
        self.process.join()
        self.jobs.close()


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        why = " (short of memory? a smaller micro needs less)" if name == "SIGKILL" else ""
        return f"the process was ended by {name}{why}"
    return f"the process ended with exit code {code}"


class _Queue:
    """Trainings in an order in which one that others begin with is trained before them."""

    def __init__(self, specs: Iterable[Training], share: bool) -> None:
        asked = {spec.name: spec for spec in specs}
        begins = {name: spec.prefix() if share else None for name, spec in asked.items()}
        uses = Counter(prefix.name for prefix in begins.values() if prefix is not None)
        self.asked = set(asked)
        self._ready: deque[Training] = deque()
        self._waiting: dict[str, list[Training]] = {}
        for name, spec in asked.items():
            prefix = begins[name]
            if prefix is None or (uses[prefix.name] == 1 and prefix.name not in asked):
                self._ready.append(spec)
                continue
            if prefix.name not in asked and prefix.name not in self._waiting:
                self._ready.appendleft(prefix)
            self._waiting.setdefault(prefix.name, []).append(spec)

    def next(self) -> Training | None:
        return self._ready.popleft() if self._ready else None

    def waiting(self, name: str) -> list[Training]:
        """Those that begin with a training."""
        return self._waiting.get(name, [])

    def done(self, name: str) -> None:
        """Those that begin with a training can go on from it (or, if it failed, by themselves)."""
        self._ready.extend(self._waiting.pop(name, []))


def _counted(name: str, epochs: int, queue: _Queue, ahead: Counter[str]) -> int:
    """Epochs to tell of: shared ones count for each training that begins with them, as they are
    trained, and not again (`ahead`) when it goes on from there.
    """
    again = min(epochs, ahead[name])
    ahead[name] -= again
    sharing = queue.waiting(name)
    ahead.update({spec.name: epochs for spec in sharing})
    return epochs * len(sharing) + (epochs - again if name in queue.asked else 0)


def run_processes(
    specs: Iterable[Training],
    processes: int | None = None,
    root: Path | None = None,
    tick: Tick = lambda epochs: None,
    warn: Callable[[str], None] = lambda message: None,
    device: str = "cpu",
) -> Generator[Record | Failure]:
    """Records and failures as they finish; `root` is the folder for checkpoints.

    Trainings whose noise begins later share the noise-free epochs before it, through a checkpoint.
    By default there are as many processes as processors or, with `cuda`, as GPUs, one on each.
    """
    check_torch()
    from antipgd.paper.run.machine import devices

    places = devices(device)
    count = processes or (cpu_count() if device == "cpu" else len(places))
    queue, stop = _Queue(specs, share=root is not None), _START.Event()
    ahead: Counter[str] = Counter()
    workers: list[_Worker] = []
    try:
        while True:
            # A dead one with a training is still to be heard: that is a failure.
            workers = [w for w in workers if w.spec is not None or w.process.is_alive()]
            idle = [worker for worker in workers if worker.spec is None]
            while (idle or len(workers) < count) and (spec := queue.next()):
                if not idle:
                    taken = [worker.device for worker in workers]
                    place = min(places, key=taken.count)
                    workers.append(worker := _Worker(stop, root, place))
                    idle.append(worker)
                idle.pop().give(spec)
            busy = {worker.jobs: worker for worker in workers if worker.spec is not None}
            if not busy:
                return
            for jobs in wait(list(busy)):
                name, said = busy[jobs].hear()  # type: ignore[index]
                if isinstance(said, int):
                    tick(_counted(name, said, queue, ahead))
                elif isinstance(said, str):
                    warn(said)
                else:
                    queue.done(name)
                    if name in queue.asked:
                        yield said
    finally:
        stop.set()
        for worker in workers:
            worker.end()


def forget_checkpoints(root: Path, spec: Training, left: Iterable[Training]) -> None:
    """Remove the checkpoints of a training whose record is safe, and of what it began with, unless
    one of those left begins with them.
    """
    from antipgd.paper.run.checkpoint import Checkpoints

    needed = {prefix.name for one in left if (prefix := one.prefix()) is not None}
    for done in (spec, spec.prefix()):
        if done is not None and done.name not in needed:
            Checkpoints(root, done).forget()
