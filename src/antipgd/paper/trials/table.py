"""Trials as a table, one row each, and its means over seeds with their intervals."""

import json
from collections.abc import Iterable

import pandas as pd

from antipgd.estimate import Estimate
from antipgd.paper.record import Record


def table(records: Iterable[Record]) -> pd.DataFrame:
    """One row a trial: its arguments, and what came back."""
    rows = [
        {**dict(record.run.arguments), **{name: value for _, name, value in record.points}}
        for record in records
    ]
    return pd.DataFrame(rows)


def _measures(records: Iterable[Record]) -> list[str]:
    return [*dict.fromkeys(name for record in records for _, name, _ in record.points)]


def summary(records: Iterable[Record]) -> pd.DataFrame:
    """One row for each setting: mean, both ends of Student's 95 % interval over seeds, and n."""
    records = list(records)
    groups: dict[str, list[Record]] = {}
    for record in records:  # as names do, JSON tells True, 1 and 1.0 apart; Python does not
        groups.setdefault(json.dumps(record.run.settings), []).append(record)
    rows = []
    for group in groups.values():
        row = dict(group[0].run.settings)
        for measure in _measures(records):
            values = [value for one in group for _, name, value in one.points if name == measure]
            if values:
                found = Estimate.of(values)
                low, high = found.interval()
                row |= {f"{measure} mean": found.mean, f"{measure} low": low,
                        f"{measure} high": high, f"{measure} n": found.n}  # fmt: skip
        rows.append(row)
    return pd.DataFrame(rows)


def summary_text(frame: pd.DataFrame) -> str:
    """A summary to print: an estimate in a column."""
    shown = frame.copy()
    for name in [name for name in frame if name.endswith(" mean")]:
        measure = name.removesuffix(" mean")
        parts = [f"{measure} {part}" for part in ("mean", "low", "high", "n")]
        texts = [_text(*row) for row in frame[parts].itertuples(index=False)]
        shown = shown.drop(columns=parts).assign(**{measure: texts})
    return shown.to_string(index=False, na_rep="")


def _text(mean: float, low: float, high: float, n: float) -> str:
    if pd.isna(n):
        return ""
    around = "" if pd.isna(low) else f" [{low:.4g}, {high:.4g}]"
    return f"{mean:.4g}{around}, n={int(n)}"
