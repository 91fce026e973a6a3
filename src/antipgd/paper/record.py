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

from antipgd.checks import one_of, whole

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
    def places(self) -> tuple[str, ...]:
        """Where it can be measured; empty where only its results say."""

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
    for name in ("reason", "traceback"):
        _of(str, name, values[name]).encode()  # half a character cannot be printed
    return Failure(read(values["run"]), values["reason"], values["traceback"])


def record_from(values: Mapping[str, Any], read: Reader) -> Record:
    """A record from its parsed JSON; `read` makes the kind of spec that it is of."""
    fixed = dict(values)
    fixed["run"] = read(fixed["run"])
    points, weights = _of(list, "points", fixed["points"]), _of(dict, "weights", fixed["weights"])
    fixed["points"] = tuple(tuple(_of(list, "a point", row)) for row in points)
    fixed["weights"] = {place: tuple(_of(list, "weights", w)) for place, w in weights.items()}
    record = Record(**fixed)
    _check(record)
    return record


_STATUSES = ("ok", "diverged", "left low", "left high")


def _of(kind: type, name: str, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{name} must be a {kind.__name__}; got {value!r}")
    return value


def _check(record: Record) -> None:
    """Refuse values that no run can have left: whoever reads a record relies on their kinds."""
    run, status = record.run, one_of("status", record.status, _STATUSES)
    for name, there in (("diverged_at", status == "diverged"), ("left_at", "left" in status)):
        step = getattr(record, name)
        if there != (step is not None):
            raise ValueError(f"status is {status!r} and {name} is {step!r}")
        if there:
            whole(name, step, 0, run.steps)
    if record.relax_steps is not None:
        whole("relax_steps", record.relax_steps, 0)
    if type(record.relaxation_converged) not in (bool, type(None)):
        raise ValueError(f"relaxation_converged is {record.relaxation_converged!r}")
    if not record.points:
        raise ValueError("points must have at least one row: a start can always be measured")
    for row in record.points:
        _check_point(row, run)
    for place, weights in record.weights.items():
        _check_place(place, run)
        if not {*map(type, weights)} <= {float}:
            raise ValueError(f"the weights at {place} must be numbers")


def _check_place(place: object, run: Spec) -> None:
    if run.places:
        one_of("place", place, run.places)
    else:
        _of(str, "a place", place)


def _check_point(row: Point, run: Spec) -> None:
    step, place, *values = row
    whole("step", step, 0, run.steps)
    _check_place(place, run)
    if len(values) != len(run.measures) or not {*map(type, values)} <= {float, type(None)}:
        raise ValueError(f"a point must have {len(run.measures)} numbers; got {values}")
