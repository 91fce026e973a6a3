"""Processes of this machine, side by side: one that dies takes only its own work with it.

That is a failure, which names the signal, and is not tried again: the machine that was short of
memory is still the same one.
"""

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Event
from typing import Any

from antipgd.paper.engines.engine import Done, Future, Lost, Said, StoppedError, Work, failures

_START = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork


def _serve(jobs: Connection, stop: Event, device: str) -> None:
    """A worker's life: work from the pipe, until there is no more or it is stopped."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops workers, through `stop`
    parent = os.getppid()

    def stopped() -> bool:
        return stop.is_set() or os.getppid() != parent

    def tell(said: int | str) -> None:
        if stopped():
            raise StoppedError
        if said != 0:
            jobs.send(said)

    while (job := jobs.recv()) is not None:
        spec, work = job
        try:
            end = Done(work(spec, tell=tell, device=device))
        except Exception as error:
            if stopped():
                return
            reason = f"{type(error).__name__}: {error}"
            end = Done(failures(spec, reason, traceback.format_exc()))
        jobs.send(end)


class _Worker:
    """A process and what it is doing."""

    def __init__(self, stop: Event, device: str) -> None:
        self.jobs, theirs = _START.Pipe()
        self.device, self.busy = device, False
        self.process = _START.Process(target=_serve, args=(theirs, stop, device), daemon=True)
        self.process.start()
        theirs.close()  # so that reading ends when the process does

    def give(self, spec: Any, work: Work) -> None:
        self.busy = True
        self.jobs.send((spec, work))

    def hear(self) -> Said:
        """Wait for a word; its end makes it free, and its death is an end."""
        try:
            said: Said = self.jobs.recv()
        except (EOFError, OSError):  # also in the middle of a word
            self.process.join()
            said = Lost(_ending(self.process.exitcode))
        if isinstance(said, Done | Lost):
            self.busy = False
        return said

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


class _Future:
    """What a worker is doing."""

    def __init__(self, spec: Any, worker: _Worker) -> None:
        self.spec, self.worker = spec, worker

    def heard(self) -> list[Said]:
        return [self.worker.hear()] if self.worker.jobs.poll() else []


class Processes:
    """An engine of so many processes, dealt to devices."""

    tries = 1

    def __init__(self, count: int, devices: Sequence[str] = ("cpu",)) -> None:
        self.slots, self._devices = count, list(devices)
        self._stop = _START.Event()
        self._workers: list[_Worker] = []

    def submit(self, spec: Any, work: Work) -> Future:
        """Give work to a free process, which is started if need be."""
        worker = self._free()
        worker.give(spec, work)
        return _Future(spec, worker)

    def _free(self) -> _Worker:
        # A dead one that is busy is still to be heard: that is a loss.
        self._workers = [one for one in self._workers if one.busy or one.process.is_alive()]
        for worker in self._workers:
            if not worker.busy:
                return worker
        taken = [worker.device for worker in self._workers]
        self._workers.append(_Worker(self._stop, min(self._devices, key=taken.count)))
        return self._workers[-1]

    def wait(self, futures: Sequence[Future]) -> None:
        """Wait until somebody speaks or dies."""
        wait([future.worker.jobs for future in futures])  # type: ignore[attr-defined]

    def stop(self, futures: Sequence[Future]) -> None:
        """End all processes; checkpoints stay."""
        self._stop.set()
        for worker in self._workers:
            worker.end()
        self._workers, self._stop = [], _START.Event()

    def close(self) -> None:
        """Nothing is left once they have been stopped."""
        self.stop(())
