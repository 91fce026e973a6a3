"""What a run leaves behind: measurements at its places over the steps, and its last weights.

Plain values that survive JSON unchanged. Nothing in a record depends on when, where or beside
which other runs it was made; that is its provenance, kept apart. Knows no kind of run: a `Spec` is
whatever can be named, kept and tabulated.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

Point = tuple[Any, ...]  # step, place, the spec's measures; None where there is no such measure


class Spec(Protocol):
    """What bookkeeping asks of a run, of whatever kind: plain values with a name."""

    @property
    def name(self) -> str:
        """The hash of its canonical JSON."""

    @property
    def method(self) -> str:
        """A name of `methods.METHODS`."""

    @property
    def seed(self) -> int:
        """Runs that are compared share it."""

    @property
    def steps(self) -> int:
        """How long it is, in what its record counts in."""

    @property
    def measure(self) -> tuple[int, ...]:
        """The steps after which it is measured."""

    @property
    def measures(self) -> tuple[str, ...]:
        """What is measured there."""

    @property
    def settings(self) -> tuple[tuple[str, Any], ...]:
        """What can be varied beside its fields."""

    @property
    def versions(self) -> dict[str, int]:
        """The versions of the code that its result depends on."""

    def canonical(self) -> str:
        """As JSON with one spelling."""

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Self:
        """From its parsed JSON."""


def canonical(spec: Any) -> str:
    """A dataclass as JSON with one spelling, the text its name is the hash of.

    Fields at their default are left out, so a new one will not rename the runs of today.
    """
    defaults = {one.name: one.default for one in dataclasses.fields(spec)}
    values = {k: v for k, v in dataclasses.asdict(spec).items() if v != defaults[k]}
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)


def name_of(text: str) -> str:
    """32 hexadecimal digits for a canonical JSON."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Record:
    """The result of one run.

    `points` has one row per measured step and place. A run that left
    the finite numbers has status "diverged" and no rows from then on; one that left its interval
    has "left low" or "left high" and a last row at that step. `weights` are the last ones at
    each place; `relax_steps` is the length of the relaxation.
    """

    run: Any  # a `Spec`: who reads a record knows which kind, and reads fields of that one
    status: str
    diverged_at: int | None
    left_at: int | None
    points: tuple[Point, ...]
    weights: Mapping[str, tuple[float, ...]]
    relax_steps: int | None
    relaxation_converged: bool | None

    def to_json(self) -> str:
        """One line; floats are written so that they come back bit for bit."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))

    def column(self, measure: str, place: str) -> tuple[np.ndarray, np.ndarray]:
        """The measured steps at a place and the values there."""
        index = 2 + self.run.measures.index(measure)
        rows = [(row[0], row[index]) for row in self.points if row[1] == place]
        steps, values = zip(*rows, strict=True) if rows else ((), ())
        return np.array(steps, np.int64), np.array(values, np.float64)  # None becomes nan


@dataclass(frozen=True)
class Failure:
    """A run that raised an error: kept apart from results, tried again on request only."""

    run: Any
    reason: str
    traceback: str

    def to_json(self) -> str:
        """One line."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))


Reader = Callable[[Mapping[str, Any]], Spec]


def failure_from(values: Mapping[str, Any], read: Reader) -> Failure:
    """A failure from its parsed JSON; `read` makes the kind of spec that it is of."""
    return Failure(read(values["run"]), values["reason"], values["traceback"])


def record_from(values: Mapping[str, Any], read: Reader) -> Record:
    """A record from its parsed JSON; `read` makes the kind of spec that it is of."""
    fixed = dict(values)
    fixed["run"] = read(fixed["run"])
    fixed["points"] = tuple(tuple(row) for row in fixed["points"])
    fixed["weights"] = {place: tuple(w) for place, w in fixed["weights"].items()}
    record = Record(**fixed)
    _check(record)
    return record


_STATUSES = ("ok", "diverged", "left low", "left high")
_NUMBERS = {float, int, type(None)}


def _check(record: Record) -> None:
    """Refuse values that no run can have left: whoever reads a record relies on their kinds."""
    if record.status not in _STATUSES:
        raise ValueError(f"status is {record.status!r}; accepted: {', '.join(_STATUSES)}")
    for name in ("diverged_at", "left_at", "relax_steps"):
        value = getattr(record, name)
        if type(value) not in (int, type(None)):
            raise ValueError(f"{name} must be a whole number or null; got {value!r}")
    if type(record.relaxation_converged) not in (bool, type(None)):
        raise ValueError(f"relaxation_converged is {record.relaxation_converged!r}")
    width = 2 + len(record.run.measures)
    for row in record.points:
        step, place, *values = row
        fits = type(step) is int and type(place) is str and len(row) == width
        if not fits or not {*map(type, values)} <= _NUMBERS:
            raise ValueError(f"a point must be a step, a place and {width - 2} numbers; got {row}")
    for place, weights in record.weights.items():
        if not {*map(type, weights)} <= {float}:
            raise ValueError(f"the weights at {place} must be numbers")
