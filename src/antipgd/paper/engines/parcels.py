"""What travels to another machine, and what is done with it there.

A parcel is opened only by the very code that packed it: the version and a digest of the sources
are compared before anything in it is read.
"""

import contextlib
import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import antipgd
from antipgd.paper.engines.engine import Done, EngineError, Lost, StoppedError, Work, failures
from antipgd.paper.engines.leases import Lease, Worker
from antipgd.paper.store import code_digest, provenance


@dataclass(frozen=True)
class Code:
    """Which antipgd somebody has, and where."""

    version: str
    digest: str
    where: str = field(compare=False)

    @classmethod
    def here(cls) -> "Code":
        """The one that runs this."""
        return cls(antipgd.__version__, code_digest(), socket.gethostname())

    def __str__(self) -> str:
        return f"antipgd {self.version} with sources {self.digest}"

    def refuse(self, other: "Code") -> str | None:
        """Why the other one cannot work for this one, if it cannot."""
        if self == other:
            return None
        return f"{other.where} has {other}, this command {self}: install the same on all machines"


@dataclass(frozen=True)
class Parcel:
    """A spec and what is to be done with it."""

    code: Code
    content: bytes
    lease: Lease | None
    device: str
    folder: str  # where the command runs: a user's module may lie there

    @classmethod
    def packed(cls, spec: Any, work: Work, lease: Lease | None, device: str) -> "Parcel":
        """One to send."""
        return cls(Code.here(), pickle.dumps((spec, work)), lease, device, _folder())


@dataclass(frozen=True)
class Refused:
    """A parcel that was not opened."""

    reason: str


def answer(heard: "Done | Lost | Refused") -> Done | Lost:
    """What an answer means to the driver; a refusal ends the command."""
    if isinstance(heard, Refused):
        raise EngineError(heard.reason)
    return heard


def _folder() -> str:
    with contextlib.suppress(FileNotFoundError):
        return os.getcwd()
    return ""


class _PreemptedError(BaseException):
    """The scheduler wants the machine back."""


@contextlib.contextmanager
def _heeding_the_scheduler() -> Iterator[None]:
    """Inside, the signal by which SLURM says that the time is up ends the work, checkpoint kept."""

    def end(number: int, frame: Any) -> None:
        raise _PreemptedError

    try:
        before = signal.signal(signal.SIGUSR2, end)
    except (AttributeError, ValueError):  # not on this system, or not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR2, before)


def perform(parcel: Parcel) -> Done | Lost | Refused:
    """Open a parcel and do what is in it; its end is returned, whatever it is."""
    reason = parcel.code.refuse(Code.here())
    if reason is not None:
        return Refused(reason)
    if parcel.folder and parcel.folder not in sys.path and Path(parcel.folder).is_dir():
        sys.path.insert(0, parcel.folder)
    worker = Worker(parcel.lease)
    spec, work = pickle.loads(parcel.content)
    try:
        with _heeding_the_scheduler():
            results = work(spec, tell=worker.tell, device=parcel.device)
        worker.flush()
        return Done(results, provenance())
    except _PreemptedError:
        return Lost(f"the scheduler took {socket.gethostname()} back")
    except StoppedError:
        return Lost("it was stopped")
    except Exception as error:
        if worker.stopped:
            return Lost("it was stopped")
        reason = f"{type(error).__name__}: {error}"
        return Done(failures(spec, reason, traceback.format_exc()), provenance())
