"""Records of trainings that ship with the package, so that the page needs no training.

One file for each scale, compressed: a line that says which command made them and where, then a line
for each record. Written from a store by `python -m antipgd.paper.verdicts SCALE STORE FILE …`;
`unpack` is the way back, so that another machine goes on where this one ended. `summary` is their
table.
"""

import hashlib
import json
import lzma
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

import pandas as pd

from antipgd.estimate import Estimate
from antipgd.paper.networks.arms import values
from antipgd.paper.networks.scales import EXTENSION
from antipgd.paper.networks.spec import Training
from antipgd.paper.record import Record, record_from
from antipgd.paper.store import Store, together

_MADE = ("antipgd", "code", "python", "torch", "processor", "time")


class Shipped(NamedTuple):
    """Records by the name of their run, what is known of how they were made, and digests of what
    was measured, to the last bit."""

    records: dict[str, Record]
    command: str
    made: dict[str, Any]
    digests: dict[str, str]


@cache
def shipped(scale: str) -> Shipped | None:
    """What ships of a scale, made by code of the present versions; None if nothing does."""
    path = _path(scale)
    if not path.is_file():
        return None
    head, *lines = map(json.loads, lzma.decompress(path.read_bytes()).decode().splitlines())
    digests = [line.pop("digest") for line in lines]
    records = [record_from(line, Training.from_plain) for line in lines]
    made_by = head["versions"].items()
    current = [record for record in records if record.run.versions.items() <= made_by]
    exact = {r.run.name: digest for r, digest in zip(records, digests, strict=True)}
    return Shipped({r.run.name: r for r in current}, head["command"], head["made"], exact)


def unpack(scale: str, store: Store) -> int:
    """Put what ships of a scale into a store that lacks it; how many there were. Their numbers have
    six digits, and they say so; their digests are of what was measured."""
    found = shipped(scale)
    missing = [r for r in found.records.values() if store.get(r.run) is None] if found else []
    for record in missing:
        made = {**found.made, "shipped": "to six digits", "digest": found.digests[record.run.name]}  # type: ignore[union-attr]
        store.put(record, made)
    return len(missing)


def digest_of(record: Record) -> str:
    """Of all that was measured, to the last bit."""
    text = json.dumps([record.status, record.points], separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _path(scale: str) -> Traversable:
    return files("antipgd.paper").joinpath("records", f"{scale}.jsonl.xz")


def records_digest(scale: str) -> str:
    """Of what ships of a scale, for what is made from it."""
    path = _path(scale)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


_SHOWN = {"test_accuracy": "test accuracy, %", "train_loss": "training loss", "trace": "trace",
          "trace_at_0.01": "scaled trace at loss 0.01"}  # fmt: skip


def summary(records: Iterable[Record]) -> pd.DataFrame:
    """A row for each arm: means at the end, with 95 % intervals where there are several seeds.

    Measured at z while there is noise, with BatchNorm's statistics estimated anew; tuning is left
    out.
    """
    arms: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        run = record.run
        if not run.tuned_on:
            noise = f"{run.noise_start + 1}-{run.noise_stop or run.epochs}" if run.sigma else ""
            key = (_network(run), run.method, run.norm, run.batch, run.lr, run.sigma or None, noise,
                   run.epochs)  # fmt: skip
            arms.setdefault(key, []).append(record)
    rows = []
    for key, found in arms.items():
        row = dict(
            zip(
                ("network", "method", "norm", "batch", "η", "σ", "noisy epochs", "of"),
                key,
                strict=True,
            )
        )
        row["seeds"] = len(found)
        if lost := sum(record.status == "diverged" for record in found):
            row["diverged"] = lost
        for measure, title in _SHOWN.items():
            factor = 100 if measure == "test_accuracy" else 1
            row[title] = _estimated(found, measure, factor)
        rows.append(row)
    return pd.DataFrame(rows)


def _network(run: Training) -> str:
    """What is trained on what, in a few words."""
    unusual = [name for name in (run.loss, run.optimizer) if name not in ("cross_entropy", "sgd")]
    fields = {"decay": run.weight_decay, "ema": run.ema, "ended at": run.stop_at_loss}
    unusual += [f"{name} {value:g}" for name, value in fields.items() if value]
    how = f"{run.model} {run.width}, {run.images or 'all'} of {run.data}"
    return ", ".join([how, *unusual])


def _estimated(records: list[Record], measure: str, factor: float) -> str:
    """A mean with its interval; nothing where some have no such measurement."""
    try:
        return str(Estimate.of(factor * values(records, measure))).partition(", n")[0]
    except LookupError:
        return ""


def stored_records(store: Store, runs: Iterable[Training]) -> list[Record]:
    """The records of those trainings that a store has, and of those that went on."""
    unique = {run.name: run for run in runs}
    found = [record for run in unique.values() if (record := store.get(run)) is not None]
    longer = [store.get(r.run.extended(EXTENSION)) for r in found if not r.run.tuned_on]
    more = [record for record in longer if record is not None and record.run.name not in unique]
    return found + more


def lines(
    scale: str, store: Store, runs: Iterable[Training], commits: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The file of a scale, from the records of a store; `commits` are those of the rules by which
    they are judged and of the code that made them."""
    records = stored_records(store, runs)
    if not records:
        raise ValueError(f"{store.root} has no training of scale {scale!r}")
    made = [store.provenance(record.run) or {} for record in records]
    kept = {key: together(one[key] for one in made) for key in _MADE} | dict(commits or {})
    versions = {k: v for record in records for k, v in record.run.versions.items()}
    command = f"antipgd paper --scale {scale}"
    yield json.dumps({"command": command, "made": kept, "versions": versions})
    for record, by in zip(records, made, strict=True):
        plain = asdict(record) | {"run": json.loads(record.run.canonical()),
                                  "digest": by.get("digest", digest_of(record))}  # fmt: skip
        yield json.dumps(_short(plain), sort_keys=True, separators=(",", ":"))


def _short(record: dict[str, Any]) -> dict[str, Any]:
    """Measurements to six digits: a third of the bytes, and more than their errors allow."""
    points = [[_rounded(value) for value in row] for row in record["points"]]
    return record | {"points": points}


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
