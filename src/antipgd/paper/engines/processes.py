"""Processes of this machine, side by side: one that dies takes only its own work with it.

That is a failure, which names the signal, and is not tried again: the machine that was short of
memory is still the same one. Workers may start processes of their own, and end with the driver.
"""

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Event
from typing import Any

from antipgd.paper.engines.engine import (
    Done,
    EngineError,
    Future,
    Lost,
    Refused,
    Said,
    StoppedError,
    Work,
    answer,
    called,
    failures,
)
from antipgd.paper.engines.watching import PATIENCE, watched
from antipgd.paper.progress import say

_START = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
_SOON = 1.0  # seconds: between looks whether a process lives, and until a wait is worth a word


def _orphaned() -> bool:
    """Whether the driver is gone."""
    parent = multiprocessing.parent_process()
    return parent is None or os.getppid() != parent.pid


class _Serving:
    """A worker's life: work from the pipe, until there is no more or it is stopped."""

    def __init__(self, jobs: Connection, stop: Event, device: str) -> None:
        self._jobs, self._stop, self._device, self.told = jobs, stop, device, False

    @property
    def _stopped(self) -> bool:
        return self._stop.is_set() or _orphaned()

    def _tell(self, said: int | str) -> None:
        self.told = True
        if self._stopped:
            raise StoppedError
        if said != 0:
            self._jobs.send(said)

    def _end_of(self, spec: Any, work: Work) -> Done | Refused | None:
        """What comes of it; None if nobody wants to know."""
        self.told = False
        try:
            return Done(work(spec, tell=self._tell, device=self._device))
        except EngineError as error:
            return Refused(str(error))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            end = Done(failures(spec, reason, traceback.format_exc()))
            return None if self._stopped else end

    def serve(self) -> None:
        """Until the end."""
        with contextlib.suppress(EOFError, OSError):  # the driver is gone
            self._jobs.send(None)  # here I am
            while (job := self._jobs.recv()) is not None and not self._stopped:
                end = self._end_of(*job)
                if end is None:
                    return
                self._jobs.send(end)


def _serve(jobs: Connection, stop: Event, device: str) -> None:
    for name in ("SIGINT", "SIGHUP"):  # the driver has them, too, and stops workers through `stop`
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    serving = _Serving(jobs, stop, device)
    with watched(_orphaned, lambda: serving.told):
        serving.serve()


class _Worker:
    """A process and what it is doing."""

    def __init__(self, stop: Event, device: str) -> None:
        self.jobs, theirs = _START.Pipe()
        self.device, self.busy, self.begun = device, False, False
        # A daemon could have no children, and a DataLoader has some.
        self.process = _START.Process(target=_serve, args=(theirs, stop, device), daemon=False)
        self.process.start()
        theirs.close()  # so that reading ends when the process does

    def give(self, spec: Any, work: Work) -> None:
        self.busy = True
        with contextlib.suppress(OSError):  # dead already: that is heard
            self.jobs.send((spec, work))

    def hear(self) -> list[Said]:
        """What there is to hear; its end makes it free, and its death is an end."""
        if not self.jobs.poll():
            # Processes that it started may hold its pipe open.
            return [] if self.process.is_alive() or self.jobs.poll() else [self._lost()]
        try:
            said = self.jobs.recv()
        except (EOFError, OSError):  # also in the middle of a word
            return [self._lost()]
        if said is None:
            self.begun = True
            return []
        self.busy = not isinstance(said, Done)
        return [answer(said) if isinstance(said, Refused) else said]

    def _lost(self) -> Lost:
        self.process.join()
        self.busy, ending = False, _ending(self.process.exitcode)
        if self.begun:
            return Lost(ending)
        raise EngineError(
            f"a worker never began: {ending}; what it said is above. Nothing is stored of its work"
        )

    def last(self) -> list[Done | Lost]:
        """Its end, if it has come; the rest is not worth a word."""
        try:
            return [said for said in self.hear() if isinstance(said, Done | Lost)]
        except EngineError as error:
            return [Lost(str(error))]

    def dismiss(self) -> None:
        """Let it end after what it is doing."""
        with contextlib.suppress(OSError):
            self.jobs.send(None)

    def end(self, patience: float) -> None:
        """Wait for it to end, and then end it."""
        self.process.join(max(0.0, patience))
        for end in (self.process.terminate, self.process.kill):
            if self.process.is_alive():
                end()
                self.process.join(_SOON)
        self.jobs.close()


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        why = " (short of memory? a smaller micro needs less)" if name == "SIGKILL" else ""
        return f"the process was ended by {name}{why}"
    why = " (was sys.exit or os._exit called?)" if code == 0 else ""
    return f"the process ended with exit code {code}{why}"


class _Future:
    """What a worker is doing."""

    def __init__(self, spec: Any, worker: _Worker) -> None:
        self.spec, self.worker = spec, worker

    def heard(self) -> list[Said]:
        return self.worker.hear()


def _last_words(futures: Sequence[_Future], until: float) -> list[tuple[Future, Done]]:
    """What is done by then; the rest of what is said is lost, but no checkpoint."""
    left = [*futures]
    done: list[tuple[Future, Done]] = []
    quiet = until - PATIENCE + _SOON  # most have ended by then
    while left and time.monotonic() < until:
        wait([one.worker.jobs for one in left], 0.2)
        for one in [*left]:
            for end in one.worker.last():
                left.remove(one)
                if isinstance(end, Done):
                    done.append((one, end))
        if left and time.monotonic() > quiet:
            quiet = until
            _say_waiting([one.spec for one in left])
    return done


def _say_waiting(specs: Sequence[Any]) -> None:
    others = f" and {len(specs) - 1} more" if len(specs) > 1 else ""
    say(f"waiting up to {PATIENCE:g} s for {called(specs[0])}{others}; Ctrl-C ends them at once")


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
        """Wait until somebody speaks, or for a second: death is not always heard."""
        wait([future.worker.jobs for future in futures], _SOON)  # type: ignore[attr-defined]

    def stop(self, futures: Sequence[Future]) -> Sequence[tuple[Future, Done]]:
        """End all processes, by force if need be; checkpoints stay, and what is done by then."""
        workers, self._workers = self._workers, []
        until = time.monotonic() + PATIENCE
        try:
            self._stop.set()
            for worker in workers:
                worker.dismiss()
            mine = [one for one in futures if isinstance(one, _Future) and one.worker in workers]
            return _last_words(mine, until)
        except BaseException:
            until = 0.0  # a second Ctrl-C
            raise
        finally:
            self._stop = _START.Event()
            for worker in workers:
                worker.end(until - time.monotonic())

    def close(self) -> None:
        """Nothing is left once they have been stopped."""
        self.stop(())
