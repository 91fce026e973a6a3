"""What a run leaves behind: measurements at w and z over the steps, and relaxed at the end.

Plain values that survive JSON unchanged. Nothing in a record depends on when, where or beside
which other runs it was made; that is its provenance, kept apart.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from antipgd.paper.spec import Run, run_from
from antipgd.paper.training import Training, training_from

MEASURES = ("train_loss", "test_loss", "trace", "norm", "watched")
PLACES = ("w", "z", "relaxed")
Point = tuple[Any, ...]  # step, place, MEASURES; None where a problem has no such measure


Spec = Run | Training


def measures_of(spec: Spec) -> tuple[str, ...]:
    """What is measured at each point of a run, or of the training of a network."""
    return spec.measures if isinstance(spec, Training) else MEASURES


def spec_from(values: Mapping[str, Any]) -> Spec:
    """A run or a training from its parsed JSON; only the latter names its data."""
    return training_from(values) if "data" in values else run_from(values)


@dataclass(frozen=True)
class Record:
    """The result of one run.

    `points` has one row per measured step and place. A run that left
    the finite numbers has status "diverged" and no rows from then on; one that left its interval
    has "left low" or "left high" and a last row at that step. `weights` are the last ones at
    each place; `relax_steps` is the length of the relaxation.
    """

    run: Any  # a Run or a Training: who reads a record knows which, and reads fields of that one
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
        index = 2 + measures_of(self.run).index(measure)
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


def failure_from(values: Mapping[str, Any]) -> Failure:
    """A failure from its parsed JSON."""
    return Failure(spec_from(values["run"]), values["reason"], values["traceback"])


def record_from(values: Mapping[str, Any]) -> Record:
    """A record from its parsed JSON."""
    fixed = dict(values)
    fixed["run"] = spec_from(fixed["run"])
    fixed["points"] = tuple(tuple(row) for row in fixed["points"])
    fixed["weights"] = {place: tuple(w) for place, w in fixed["weights"].items()}
    return Record(**fixed)
