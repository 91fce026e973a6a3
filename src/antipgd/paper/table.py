"""Records as a tidy table: one row per run × measured step × place."""

import math
from collections.abc import Iterable

import pandas as pd

from antipgd.paper.record import PLACES, Record
from antipgd.paper.spec import Run

COLUMNS = (
    "problem", "method", "lr", "sigma", "taps", "law", "batch", "seed", "step", "place",
    "train_loss", "test_loss", "trace", "status", "diverged_at",
)  # fmt: skip
SETTING = ("problem", "method", "lr", "sigma", "taps", "law", "batch")  # what seeds repeat


def number(value: float) -> str:
    """The shortest decimal that reads back as the same number, without a needless .0."""
    return repr(float(value)).removesuffix(".0")


def written_taps(taps: Iterable[float]) -> str:
    """Taps as the command line takes them, such as 1,-0.9; empty without noise on the weights."""
    return ",".join(map(number, taps))


def _values(record: Record) -> dict[tuple[int, str], tuple[float, ...]]:
    """Measured values by step and place, infinite from where the run diverged."""
    run = record.run
    values: dict[tuple[int, str], tuple[float, ...]] = {
        (step, place): tuple(math.nan if number is None else number for number in numbers[:3])
        for step, place, *numbers in record.points
    }
    if record.diverged_at is not None:
        places = [place for place in PLACES if _measured_at(run, place)]
        for place in places:
            for step in run.measure if place != "relaxed" else run.measure[-1:]:
                values.setdefault((step, place), (float("inf"),) * 3)
    return values


def _measured_at(run: Run, place: str) -> bool:
    return place == "w" or (run.has_clean_weights if place == "z" else run.relax)


def table(records: Iterable[Record]) -> pd.DataFrame:
    """All measurements. A run that diverged has infinite values from then on, so that no mean can
    leave it out unnoticed."""
    rows = []
    for record in records:
        run = record.run
        setting = (run.problem, run.method, run.lr, run.sigma, written_taps(run.taps), run.law,
                   run.batch, run.seed)  # fmt: skip
        values = _values(record)
        for place in PLACES:
            for step in sorted(step for step, where in values if where == place):
                rows.append((*setting, step, place, *values[step, place], record.status,
                             record.diverged_at))  # fmt: skip
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.astype({"batch": "Int64", "diverged_at": "Int64"})
