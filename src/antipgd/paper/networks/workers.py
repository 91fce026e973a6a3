"""Trainings side by side: specs in, records out as they finish, on processes of one thread each.

A worker that dies takes only its own training with it: that one is a failure, which names the
signal. Whoever stops listening stops the workers, which leave their checkpoints behind. What is
yielded does not depend on the number of processes, only its order does. Knows torch only inside
the workers.
"""

import contextlib
import logging
import multiprocessing
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Event
from pathlib import Path

from tqdm import tqdm

from antipgd.paper.files import FilesError, make_folder
from antipgd.paper.networks.extra import check_torch
from antipgd.paper.networks.queue import Queue
from antipgd.paper.networks.spec import Training
from antipgd.paper.pipeline import Outcome, Tick, complete, cpu_count
from antipgd.paper.record import Failure, Record
from antipgd.paper.store import Store

_START = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork


def check_start(specs: Iterable[Training], device: str) -> None:
    """Refuse what would make every training fail: no torch, no such device, data not there."""
    check_torch()
    from antipgd.paper.networks.data import load
    from antipgd.paper.networks.machine import check_device

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
        from antipgd.paper.networks.train import StoppedError, train

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


class _Pool:
    """Workers that are given trainings as they become free, and heard as they speak."""

    def __init__(self, count: int, places: list[str], root: Path | None) -> None:
        self._count, self._places, self._root = count, places, root
        self._stop = _START.Event()
        self._workers: list[_Worker] = []

    def _free(self) -> _Worker | None:
        """One without a training, started if there may be another; None if all are busy."""
        # A dead one with a training is still to be heard: that is a failure.
        self._workers = [w for w in self._workers if w.spec is not None or w.process.is_alive()]
        for worker in self._workers:
            if worker.spec is None:
                return worker
        if len(self._workers) == self._count:
            return None
        taken = [worker.device for worker in self._workers]
        place = min(self._places, key=taken.count)
        self._workers.append(_Worker(self._stop, self._root, place))
        return self._workers[-1]

    def give(self, queue: Queue) -> bool:
        """Trainings to those that are free; whether anybody is training now."""
        while queue.ready and (worker := self._free()):
            worker.give(queue.next())
        return any(worker.spec is not None for worker in self._workers)

    def hear(self) -> Iterator[tuple[str, int | str | Record | Failure]]:
        """Wait until somebody speaks; what they say, by the name of their training."""
        busy = {worker.jobs: worker for worker in self._workers if worker.spec is not None}
        for jobs in wait(list(busy)):
            yield busy[jobs].hear()  # type: ignore[index]

    def end(self) -> None:
        """Stop them all; their checkpoints stay."""
        self._stop.set()
        for worker in self._workers:
            worker.end()


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
    from antipgd.paper.networks.machine import devices

    places = devices(device)
    count = processes or (cpu_count() if device == "cpu" else len(places))
    queue, pool = Queue(specs, share=root is not None), _Pool(count, places, root)
    try:
        while pool.give(queue):
            for name, said in pool.hear():
                if isinstance(said, int):
                    tick(queue.counted(name, said))
                elif isinstance(said, str):
                    warn(said)
                else:
                    queue.done(name)
                    if name in queue.asked:
                        yield said
    finally:
        pool.end()


def complete_trainings(
    specs: Sequence[Training],
    store: Store,
    processes: int | None = None,
    device: str = "cpu",
    *,
    retry: bool = False,
    keep: bool = False,
    show_progress: bool | None = None,
) -> Outcome:
    """Train what the store does not have yet, with checkpoints in a folder beside it; those of a
    training are removed when its record is stored, unless they are to be kept for others that may
    go on from them."""
    root = _checkpoints_of(store)

    def run(missing: Sequence[Training], tick: Tick) -> Generator[Record | Failure]:
        check_start(missing, device)
        left = {spec.name: spec for spec in missing}
        training = run_processes(missing, processes, root, tick, tqdm.write, device)
        with _alone(root), closing(training) as results:
            for result in results:
                yield result
                if isinstance(result, Record) and not keep:  # it is stored by now
                    del left[result.run.name]
                    forget_checkpoints(root, result.run, left.values())

    return complete(specs, store, run, retry=retry, show_progress=show_progress, unit="epochs")


@contextmanager
def _alone(root: Path) -> Generator[None]:
    """Inside, no other command trains with these checkpoints."""
    if os.name == "nt":
        yield
        return
    import fcntl

    make_folder(root)
    with (root / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FilesError(
                f"another command is training in {root.parent}; wait for it, or use another --out"
            ) from None
        yield


def _checkpoints_of(store: Store) -> Path:
    return store.root.parent / "checkpoints"


def forget_all(store: Store, specs: Iterable[Training]) -> None:
    """Remove what checkpoints are left of trainings, and of what they began with, if their records
    are safe."""
    for spec in specs:
        if store.state(spec) == "done":
            forget_checkpoints(_checkpoints_of(store), spec, ())


def forget_checkpoints(root: Path, spec: Training, left: Iterable[Training]) -> None:
    """Remove the checkpoints of a training whose record is safe, and of what it began with, unless
    one of those left begins with them.
    """
    from antipgd.paper.networks.checkpoint import Checkpoints

    needed = {prefix.name for one in left if (prefix := one.prefix()) is not None}
    for done in (spec, spec.prefix()):
        if done is not None and done.name not in needed:
            Checkpoints(root, done).forget()
