"""Records as a tidy table, one row per run × measured step × place, and its summary over seeds."""

import math
from collections.abc import Iterable

import pandas as pd

from antipgd.estimate import Estimate
from antipgd.paper.methods import SIMULATED
from antipgd.paper.record import Record
from antipgd.paper.simulation.spec import AVERAGED, MEASURES, PLACES

SETTING = (
    "problem", "method", "lr", "sigma", "taps", "law", "batch", "optimizer", "momentum", "nesterov",
    "hold", "antithetic",
)  # fmt: skip  # what seeds repeat
COLUMNS = (*SETTING, "seed", "step", "place", *MEASURES, "status", "diverged_at")
USUAL = {"law": ("", "gaussian"), "optimizer": ("sgd",), "momentum": (0.0,), "nesterov": (False,),
         "hold": (1,), "antithetic": (False,)}  # fmt: skip  # not worth a column that says it


def number(value: float) -> str:
    """The shortest decimal that reads back as the same number, without a needless .0."""
    return repr(float(value)).removesuffix(".0")


def written_taps(taps: Iterable[float]) -> str:
    """Taps as the command line takes them, such as 1,-0.9; empty without noise on the weights."""
    return ",".join(map(number, taps))


def _first(values: dict[tuple[int, str], tuple[float, ...]]) -> tuple[float, ...]:
    """Those at the beginning, where every run is measured."""
    return next(iter(values.values()), (0.0,) * len(MEASURES))


def _lost(first: tuple[float, ...], place: str) -> tuple[float, ...]:
    """Infinite, but for what is not measured there."""
    return tuple(
        math.nan if math.isnan(value) or (place == "average" and name not in AVERAGED) else math.inf
        for name, value in zip(MEASURES, first, strict=True)
    )


def _values(record: Record) -> dict[tuple[int, str], tuple[float, ...]]:
    """Measured values by step and place; from where the run diverged infinite, but for measures
    that its problem does not have."""
    run = record.run
    values: dict[tuple[int, str], tuple[float, ...]] = {
        (step, place): tuple(math.nan if number is None else number for number in numbers)
        for step, place, *numbers in record.points
    }
    if record.diverged_at is not None:
        first = _first(values)
        for place in filter(run.measured_at, PLACES):
            for step in run.measure if place in ("w", "z") else run.measure[-1:]:
                values.setdefault((step, place), _lost(first, place))
    return values


def table(records: Iterable[Record]) -> pd.DataFrame:
    """All measurements. A run that diverged has infinite values from then on, so that no mean can
    leave it out unnoticed."""
    rows = []
    for record in records:
        run = record.run
        fixed = {name: getattr(run, name) for name in SETTING} | {"taps": written_taps(run.taps)}
        setting = (*fixed.values(), run.seed)
        values = _values(record)
        for place in PLACES:
            for step in sorted(step for step, where in values if where == place):
                rows.append((*setting, step, place, *values[step, place], record.status,
                             record.diverged_at))  # fmt: skip
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.astype({"batch": "Int64", "diverged_at": "Int64"})


def _shown(values: pd.Series, form: str = ".3g") -> str:
    """Mean and 95 % interval over seeds; no interval if a run of the group diverged."""
    if values.isna().all():  # also if there are none
        return ""
    estimate = Estimate.of(values)
    low, high = estimate.interval()
    around = "" if math.isnan(low) else f" [{low:{form}}, {high:{form}}]"
    return f"{estimate.mean:{form}}{around}"


# The summary's measures; the training loss only where it is averaged.
SHOWN = {"test_loss": "test", "trace": "trace", "watched": "watched", "train_loss": "train"}
UNSHOWN = {("train", "w"), ("train", "z"), ("train", "relaxed")}


def _counts(ends: pd.DataFrame, sides: Iterable[str]) -> dict[str, object]:
    """How many runs there are, diverged and left, and when those that left did so."""
    lost = int((ends["status"] == "diverged").sum())
    row: dict[str, object] = {"n": len(ends), "diverged": f"{lost}/{len(ends)}" if lost else "0"}
    for side in sides:
        row[side] = int((ends["status"] == side).sum())
    row["left at"] = _shown(ends.loc[ends["status"].str.startswith("left"), "step"], ".0f")
    return row


def summary(result: pd.DataFrame) -> pd.DataFrame:
    """One row per setting at the last step: means with 95 % intervals over seeds, at each place.

    A setting of which a run diverged has an infinite mean: no survivors are averaged. The columns
    of z are blank for methods without noise on the weights, where z is w.
    """
    rows = []
    sides = [side for side in ("left low", "left high") if (result["status"] == side).any()]
    for key, group in result.groupby(list(SETTING), sort=False, dropna=False):
        setting = dict(zip(SETTING, key, strict=True))
        last = group.loc[group.groupby(["seed", "place"])["step"].idxmax()]
        row = {k: "" if pd.isna(v) else v for k, v in setting.items() if k != "problem"}
        row |= _counts(last[last["place"] == "w"], sides)
        for measure, short in SHOWN.items():
            for place in PLACES:
                shown = (place != "z" or row["taps"] != "") and (short, place) not in UNSHOWN
                values = last.loc[last["place"] == place, measure]
                row[f"{short} {place}"] = _shown(values) if shown else ""
        rows.append(row)
    frame = pd.DataFrame(rows)
    return frame.loc[:, [(frame[name] != "").any() for name in frame]]


def _keys(frame: pd.DataFrame) -> pd.DataFrame:
    """The settings of a summary as text, without those that the method's name says already."""
    keys = frame[[name for name in SETTING if name in frame]].copy()
    noisy = keys["method"].map(lambda method: SIMULATED[method].has_sigma)
    keys["lr"] = keys["lr"].map(number)
    keys["sigma"] = keys["sigma"].map(number).where(noisy, "")
    if "taps" in keys and not (keys["method"] == "noise").any():
        keys = keys.drop(columns="taps")
    keys = keys.drop(columns=[n for n in USUAL if n in keys and keys[n].isin(USUAL[n]).all()])
    if "momentum" in keys:
        keys["momentum"] = keys["momentum"].map(number)
    return keys.loc[:, [(keys[name] != "").any() for name in keys]]


def summary_text(frame: pd.DataFrame) -> str:
    """A summary to print: a table for each measure, to fit a screen."""
    keys = _keys(frame)
    counts = [name for name in ("n", "diverged") if name in frame]
    left = [name for name in frame if name.startswith("left ")]
    tables = [[n for n in frame if n.startswith(f"{short} ")] for short in SHOWN.values()]
    tables = [names for names in tables if names]
    if left:
        tables.insert(0, left)
    if tables:
        tables[0] = counts + tables[0]
    parts = [keys.join(frame[names]) for names in tables or [counts]]
    return "\n\n".join(part.to_string(index=False) for part in parts)
