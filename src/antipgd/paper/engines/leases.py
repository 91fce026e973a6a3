"""Who may work on a spec: a file in a folder that driver and workers share.

The driver grants each attempt a lease, and a new one ends the one before it: a worker that was
believed dead, or that serves a command which was started anew, sees that within a second and stops
before it disturbs its successor. Beside the lease lies what the worker says, a line each.
"""

import contextlib
import json
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from antipgd.paper.engines.engine import StoppedError
from antipgd.paper.files import write

_SECONDS = 1.0  # between two looks at the lease


@dataclass(frozen=True)
class Lease:
    """The right of one attempt to work on a spec."""

    folder: Path
    name: str
    token: str

    @classmethod
    def grant(cls, folder: Path, name: str) -> "Lease":
        """Give one; any other for this spec ends."""
        lease = cls(folder, name, secrets.token_hex(8))
        write(lease._path, lease.token.encode())
        return lease

    @property
    def _path(self) -> Path:
        return self.folder / f"{self.name}.lease"

    @property
    def letters(self) -> Path:
        """What its worker says."""
        return self.folder / f"{self.name}.{self.token}"

    @property
    def held(self) -> bool:
        """Whether it has not ended."""
        try:
            return self._path.read_text() == self.token
        except FileNotFoundError:
            return False
        except OSError:  # a disk of the net that stumbles: look again
            return True

    def end(self) -> None:
        """End it, if it has not; what was said goes with it. Needs no room on the disk."""
        with contextlib.suppress(OSError):
            if self.held:
                self._path.unlink()
        with contextlib.suppress(OSError):
            self.letters.unlink(missing_ok=True)


class Worker:
    """The worker's side: tells, and stops where the lease has ended."""

    def __init__(self, lease: Lease | None) -> None:
        self._lease, self._looked, self._written, self._steps = lease, -_SECONDS, -_SECONDS, 0
        self.told = False  # anything: who tells hears that he is stopped

    @property
    def stopped(self) -> bool:
        """Whether the lease has ended, at the last look."""
        if self._lease is not None and time.monotonic() - self._looked >= _SECONDS:
            self._looked = time.monotonic()
            if not self._lease.held:
                self._looked = float("inf")  # it does not come back
        return self._looked == float("inf")

    def tell(self, said: int | str) -> None:
        """Of steps done or a warning; steps are added up, for small ones are many."""
        self.told = True
        if self.stopped:
            raise StoppedError
        if isinstance(said, str):
            self._write(said)
        else:
            self._steps += said
            if time.monotonic() - self._written >= _SECONDS:
                self.flush()

    def flush(self) -> None:
        """Tell of all steps up to now."""
        if self._steps:
            self._write(self._steps)
            self._steps, self._written = 0, time.monotonic()

    def _write(self, said: int | str) -> None:
        if self._lease is not None:
            # News is not worth a failure: the disk may be full.
            with contextlib.suppress(OSError), self._lease.letters.open("a") as file:
                file.write(json.dumps(said) + "\n")


def _words(line: bytes) -> list[int | str]:
    """What a line says; nothing if it was torn, as a full disk does."""
    with contextlib.suppress(ValueError, RecursionError):
        said = json.loads(line)
        if isinstance(said, int | str):
            return [said]
    return []


class Listener:
    """The driver's side: whole lines, each once."""

    def __init__(self, lease: Lease | None) -> None:
        self._lease, self._read = lease, 0

    def news(self) -> list[int | str]:
        """What was said since the last time."""
        if self._lease is None:
            return []
        try:
            with self._lease.letters.open("rb") as file:
                file.seek(self._read)
                whole = file.read().rpartition(b"\n")[0]
        except OSError:  # not there yet, or a disk of the net that stumbles: look again
            return []
        self._read += len(whole) + 1 if whole else 0
        return [said for line in whole.splitlines() for said in _words(line)]

    def end(self) -> None:
        """End the lease."""
        if self._lease is not None:
            self._lease.end()
