"""Missing → run → store: knows where records are kept, and no kind of run.

The driver alone writes the store, each record as soon as it is there. Finished runs are skipped,
so an interrupted command goes on where it stopped; runs that failed are tried again on request.
"""

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from antipgd.paper.files import make_folder, write
from antipgd.paper.progress import Progress, progress
from antipgd.paper.record import Failure, Record, Spec
from antipgd.paper.store import Store

Tick = Callable[[float], None]


class Made(NamedTuple):
    """A result of another machine, and what that one says of itself."""

    result: Record | Failure
    provenance: dict[str, Any]


Way = Callable[[Sequence, Tick], Generator[Record | Failure | Made]]
"""Specs in, results out as they finish; it is told of steps done, and a result is stored before
the next is asked for."""


def cpu_count() -> int:
    """The processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass
class Outcome:
    """What is known of the runs asked for, by name."""

    records: dict[str, Record] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    found: int = 0  # of them were in the store

    def add(self, result: Record | Failure) -> None:
        """Take a result in."""
        if isinstance(result, Record):
            self.records[result.run.name] = result
        else:
            self.failures[result.run.name] = result

    def absorb(self, other: "Outcome") -> None:
        """Take in what is known of other runs."""
        self.records |= other.records
        self.failures |= other.failures
        self.found += other.found

    def in_order(self, specs: Sequence[Spec]) -> list[Record]:
        """The records there are, in the order of `specs`."""
        return [self.records[spec.name] for spec in specs if spec.name in self.records]

    def missing(self, specs: Sequence[Spec]) -> list[Spec]:
        """The specs of which nothing is known, each once."""
        known = self.records.keys() | self.failures.keys()
        return [one for one in {s.name: s for s in specs}.values() if one.name not in known]


def open_store(out: Path, warn: Callable[[str], None] = lambda message: None) -> Store:
    """The store of an output folder."""
    make_folder(out)
    return Store(out / "store", warn)


def write_plan(out: Path, specs: Sequence[Spec]) -> None:
    """Say which runs the folder is about, for `antipgd status`."""
    lines = [spec.canonical() for spec in specs]
    write(out / "plan.json", ("[\n" + ",\n".join(lines) + "\n]\n").encode())


def stored(specs: Sequence[Spec], store: Store, retry: bool = False) -> Outcome:
    """What the store has of these runs; failures count as missing if they are to be retried."""
    outcome = Outcome()
    for spec in specs:
        found: Record | Failure | None = store.get(spec)
        if found is None and not retry:
            found = store.failure(spec)
        if found is not None:
            outcome.add(found)
    outcome.found = len(outcome.records) + len(outcome.failures)
    return outcome


def steps_of(specs: Sequence[Spec]) -> float:
    """All their steps."""
    return sum(spec.steps for spec in specs)


def complete(
    specs: Sequence[Spec],
    store: Store | None,
    run: Way,
    *,
    retry: bool = False,
    show_progress: bool | None = None,
    stage: str = "runs",
    expect: Callable[[Sequence], float] = steps_of,
    called: Callable[[Spec], str] = lambda spec: "",
) -> Outcome:
    """Run what the store does not have yet, and store it. Without a store, run everything.

    What is shown meanwhile: `expect` is the amount that the way will tick for these specs, by
    default their steps, `called` what a spec belongs to.
    """
    outcome = Outcome() if store is None else stored(specs, store, retry)
    missing = outcome.missing(specs)
    if missing:
        total = expect(missing)
        with (
            progress(stage, total, len(missing), show_progress) as bar,
            closing(run(missing, bar.tick)) as done,
        ):
            for result in done:
                _keep(result, outcome, store, bar, called)
    return outcome


def _keep(
    result: Record | Failure | Made,
    outcome: Outcome,
    store: Store | None,
    bar: Progress,
    called: Callable[[Spec], str],
) -> None:
    """Store a result and take it in."""
    result, made = result if isinstance(result, Made) else (result, None)
    if store is not None and isinstance(result, Record):
        store.put(result, made)
    elif store is not None and isinstance(result, Failure):
        store.put_failure(result, made)
    outcome.add(result)
    bar.finish(called(result.run))
