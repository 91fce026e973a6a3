"""What travels to another machine, and what is done with it there.

A parcel is opened only by the very code that packed it: the version and a digest of the sources
are compared before anything in it is read.
"""

import contextlib
import os
import pickle
import secrets
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import antipgd
from antipgd.paper.engines.engine import (
    Done,
    EngineError,
    Lost,
    Refused,
    StoppedError,
    Work,
    failures,
)
from antipgd.paper.engines.leases import Lease, Worker
from antipgd.paper.engines.watching import watched
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


_PROCESS = secrets.token_hex(8)  # this one


@dataclass(frozen=True)
class Parcel:
    """A spec and what is to be done with it."""

    code: Code
    content: bytes
    lease: Lease | None
    device: str
    folder: str  # where the command runs: a user's module may lie there
    process: str = _PROCESS  # that packed it

    @classmethod
    def packed(cls, spec: Any, work: Work, lease: Lease | None, device: str) -> "Parcel":
        """One to send."""
        return cls(Code.here(), pickle.dumps((spec, work)), lease, device, _folder())


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


def _watched(parcel: Parcel, worker: Worker) -> contextlib.AbstractContextManager[None]:
    """Inside, this process ends with the lease, unless it is the driver's own."""
    lease = parcel.lease
    if lease is None or parcel.process == _PROCESS:
        return contextlib.nullcontext()
    return watched(lambda: not lease.held, lambda: worker.told)


def perform(parcel: Parcel) -> Done | Lost | Refused:
    """Open a parcel and do what is in it; its end is returned, whatever it is."""
    reason = parcel.code.refuse(Code.here())
    if reason is not None:
        return Refused(reason)
    if parcel.folder and parcel.folder not in sys.path and Path(parcel.folder).is_dir():
        sys.path.insert(0, parcel.folder)
    worker = Worker(parcel.lease)
    if parcel.lease is not None and worker.stopped:
        return Lost(
            f"{socket.gethostname()} was not to begin: it was stopped, or does not see "
            f"{parcel.lease.folder}, which all machines must share"
        )
    spec, work = pickle.loads(parcel.content)
    try:
        with _watched(parcel, worker), _heeding_the_scheduler():
            results = work(spec, tell=worker.tell, device=parcel.device)
        worker.flush()
        return Done(results, provenance())
    except _PreemptedError:
        return Lost(f"the scheduler took {socket.gethostname()} back")
    except StoppedError:
        return Lost("it was stopped")
    except EngineError as error:
        return Refused(f"{socket.gethostname()}: {error}")
    except Exception as error:
        if worker.stopped:
            return Lost("it was stopped")
        reason = f"{type(error).__name__}: {error}"
        return Done(failures(spec, reason, traceback.format_exc()), provenance())
