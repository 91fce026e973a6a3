"""Missing → run → store: knows where records are kept, and no kind of run.

The driver alone writes the store, each record as soon as it is there. Finished runs are skipped,
so an interrupted command goes on where it stopped; runs that failed are tried again on request.
"""

import os
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from antipgd.paper.files import make_folder, write
from antipgd.paper.record import Failure, Record, Spec
from antipgd.paper.store import Store

Tick = Callable[[int], None]
Way = Callable[[Sequence, Tick], Generator[Record | Failure]]
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


_UNTIMED = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}]"


@contextmanager
def _progress(specs: Sequence[Spec], show: bool | None, unit: str = "steps") -> Generator[Tick]:
    """A bar over steps; by default only on a terminal. The first steps compile, so the time
    that remains is estimated once a hundredth is done."""
    lock = threading.Lock()
    total = sum(spec.steps for spec in specs)
    quiet = None if show is None else not show
    style = {"unit": f" {unit}", "unit_scale": True, "smoothing": 0.1, "bar_format": _UNTIMED}
    with tqdm(total=total, disable=quiet, leave=False, **style) as bar:

        def tick(steps: int) -> None:
            with lock:
                if bar.n + steps >= total / 100:
                    bar.bar_format = None
                bar.update(steps)

        yield tick


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


def complete(
    specs: Sequence[Spec],
    store: Store | None,
    run: Way,
    *,
    retry: bool = False,
    show_progress: bool | None = None,
    unit: str = "run-steps",
) -> Outcome:
    """Run what the store does not have yet, and store it. Without a store, run everything."""
    outcome = Outcome() if store is None else stored(specs, store, retry)
    missing = outcome.missing(specs)
    if missing:
        with _progress(missing, show_progress, unit) as tick, closing(run(missing, tick)) as done:
            for result in done:
                _keep(result, outcome, store)
    return outcome


def _keep(result: Record | Failure, outcome: Outcome, store: Store | None) -> None:
    """Store a result and take it in."""
    if store is not None and isinstance(result, Record):
        store.put(result)
    elif store is not None and isinstance(result, Failure):
        store.put_failure(result)
    outcome.add(result)
