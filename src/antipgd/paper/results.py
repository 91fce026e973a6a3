"""The records of an experiment, looked up by what was varied."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipgd.paper.record import Record

Values = NDArray[np.float64]


def log_ratio(ours: Values, theirs: Values) -> Values:
    """The logarithm of ours/theirs by seed; infinite where one of them diverged, and not a number
    where both did."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(ours / theirs)


def over_mean(ours: Values, theirs: Values) -> Values:
    """Samples by seed whose mean is the ratio of the two means, and whose spread is its error to
    first order, with what both share by seed; not a number where runs diverged."""
    with np.errstate(invalid="ignore"):
        ratio = ours.mean() / theirs.mean()
        return ratio + (ours - ratio * theirs) / theirs.mean()


def slopes(x: Values, table: Values) -> Values:
    """Slopes on logarithmic axes, of the rows of a table by seed."""
    return np.array([np.polyfit(np.log(x), np.log(row), 1)[0] for row in table])


class Results:
    """Records by setting. Seeds come in ascending order, so that methods can be paired."""

    def __init__(self, records: Iterable[Record]) -> None:
        unique = {record.run.name: record for record in records}
        self.records = sorted(unique.values(), key=lambda record: record.run.seed)

    def select(self, **wanted: Any) -> list[Record]:
        """Records whose run has these fields; settings of the problem count as fields.

        Refuses an empty answer: a misspelt setting must not become a claim about nothing.
        """
        chosen = [r for r in self.records if all(_is(r, k, v) for k, v in wanted.items())]
        if not chosen:
            raise LookupError(f"no record with {wanted}")
        return chosen

    def final(self, measure: str, place: str = "w", **wanted: Any) -> Values:
        """The last value of a measure by seed; infinite for runs that diverged."""
        return np.array([_last(record, measure, place) for record in self.select(**wanted)])

    def curves(self, measure: str, place: str = "w", **wanted: Any) -> tuple[Values, Values]:
        """The steps, and the values by seed and step; infinite from where a run diverged, not a
        number where it was not measured at the place.

        For runs that were all measured at the same steps.
        """
        records = self.select(**wanted)
        steps = np.array(records[0].run.measure)
        table = np.full((len(records), len(steps)), np.nan)
        for row, record in zip(table, records, strict=True):
            assert record.run.measure == records[0].run.measure
            measured, values = record.column(measure, place)
            if record.left_at is not None:  # the last row is where it left
                measured, values = measured[:-1], values[:-1]
            there = np.isin(measured, steps)
            row[np.searchsorted(steps, measured[there])] = values[there]
            if record.diverged_at is not None:
                row[steps >= record.diverged_at] = np.inf
        return steps, table

    def diverged(self, **wanted: Any) -> tuple[int, int]:
        """How many runs diverged, and of how many."""
        records = self.select(**wanted)
        return sum(record.status == "diverged" for record in records), len(records)


def _is(record: Record, field: str, value: Any) -> bool:
    run = record.run
    settings = dict(run.settings)
    found = settings[field] if field in settings else getattr(run, field)
    return bool(found == value)


def _last(record: Record, measure: str, place: str) -> float:
    if record.status == "diverged":
        return float("inf")
    _, values = record.column(measure, place)
    if not len(values):
        raise LookupError(f"{record.run.method} has no measurements at {place!r}")
    return float(values[-1])
