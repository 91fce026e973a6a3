"""Records of trainings that ship with the package, so that the page needs no training.

One file for each scale: a line that says which command made them, then a line for each record with
its provenance. Written from a store by `python -m antipgd.paper.shipped SCALE STORE > FILE`.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from antipgd.paper.experiments import network_runs
from antipgd.paper.record import Record, record_from
from antipgd.paper.store import Store
from antipgd.paper.training import Training


class Shipped(NamedTuple):
    """Records by the name of their run, and what is known of how they were made."""

    records: dict[str, Record]
    command: str
    made: dict[str, Any]


@cache
def shipped(scale: str) -> Shipped | None:
    """What ships of a scale; None if nothing does."""
    path = files("antipgd.paper").joinpath("records", f"{scale}.jsonl")
    if not path.is_file():
        return None
    head, *lines = map(json.loads, path.read_text("utf-8").splitlines())
    current = [record_from(line) for line in lines]
    return Shipped({r.run.name: r for r in current}, head["command"], head["made"])


def lines(scale: str, store: Store, runs: Iterable[Training]) -> Iterator[str]:
    """The file of a scale, from the records of a store."""
    runs = list({run.name: run for run in runs}.values())
    records = [record for run in runs if (record := store.get(run)) is not None]
    if not records:
        raise ValueError(f"{store.root} has no training of scale {scale!r}")
    made = store.provenance(records[0].run) or {}
    kept = {key: made[key] for key in ("antipgd", "code", "python", "torch", "processor", "time")}
    yield json.dumps({"command": f"antipgd paper --scale {scale}", "made": kept})
    for record in records:
        yield json.dumps(_short(asdict(record)), sort_keys=True, separators=(",", ":"))


def _short(record: dict[str, Any]) -> dict[str, Any]:
    """Measurements to six digits: a third of the bytes, and more than their errors allow."""
    points = [[_rounded(value) for value in row] for row in record["points"]]
    return record | {"points": points}


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


if __name__ == "__main__":
    name, root = sys.argv[1], Path(sys.argv[2])
    for text in lines(name, Store(root), network_runs(name)):
        print(text)
