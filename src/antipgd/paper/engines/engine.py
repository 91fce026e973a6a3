"""What an engine is: `submit(spec, work)` gives a future, which is asked what it has heard.

A spec here is whatever is done in one piece: a training with its folder, a trial, or a bundle of
small runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from antipgd.paper.record import Failure, Record

Result = Record | Failure
Tell = Callable[[int | str], None]


class EngineError(Exception):
    """An engine cannot be used as asked: unreachable, of another version, or misspelt."""


class NoRoomError(EngineError):
    """An engine takes no more work at the moment; it may later."""


class StoppedError(Exception):
    """Raised where work is told of, to end it at its next step with its checkpoint kept."""


class Work(Protocol):
    """What is done with a spec, in whatever process: a function of a module, or a partial of one.

    It calls `tell` often, with steps done (also 0) and with warnings; that raises `StoppedError`
    when nobody wants the result any more. Work that never tells is ended with its process then.
    What it raises is a failure, but for `EngineError`, which ends the command.
    """

    def __call__(self, spec: Any, /, *, tell: Tell, device: str) -> list[Result]: ...


@dataclass(frozen=True)
class Done:
    """The end of a spec: results of its runs, and who made them if it was another machine."""

    results: Sequence[Result]
    made: dict[str, Any] | None = None


@dataclass(frozen=True)
class Lost:
    """The end of an attempt that left no result: its process or node is gone."""

    reason: str


@dataclass(frozen=True)
class Refused:
    """Work that was not begun, since it would not be what the command asked for."""

    reason: str


def answer(heard: Done | Lost | Refused) -> Done | Lost:
    """What an answer means to the driver; a refusal ends the command."""
    if isinstance(heard, Refused):
        raise EngineError(heard.reason)
    return heard


Said = int | str | Done | Lost


class Future(Protocol):
    """An attempt that is under way somewhere."""

    spec: Any

    def heard(self) -> list[Said]:
        """What was said since the last time; at its end `Done` or `Lost`, once."""


class Engine(Protocol):
    """Something that does work. It is open until it is closed, and may be used more than once."""

    tries: int
    """How often in a row an attempt may be lost before it is a failure."""

    @property
    def slots(self) -> int:
        """How many attempts are worth having under way."""

    def submit(self, spec: Any, work: Work) -> Future:
        """Begin an attempt."""

    def wait(self, futures: Sequence[Future]) -> None:
        """Return when one of them may have said something."""

    def stop(self, futures: Sequence[Future]) -> "Sequence[tuple[Future, Done]]":
        """End attempts that are still under way; they leave their checkpoints. Those that were done
        meanwhile are returned."""

    def close(self) -> None:
        """Let go of everything."""


def runs_in(spec: Any) -> Sequence[Any]:
    """The runs that a spec stands for: itself, unless it is a bundle."""
    return getattr(spec, "runs", (spec,))


def called(spec: Any) -> str:
    """A spec in a message."""
    own = getattr(spec, "label", None)
    return own or f"{type(spec).__name__.lower()} {spec.name[:8]}"


def failures(spec: Any, reason: str, traceback: str = "") -> list[Result]:
    """A failure for every run in a spec."""
    return [Failure(run, reason, traceback) for run in runs_in(spec)]
