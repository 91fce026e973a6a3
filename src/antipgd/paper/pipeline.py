"""Missing → run → store: the only room that knows both how runs are made and where they are kept.

The driver alone writes the store, each record as soon as it is there. Finished runs are skipped,
so an interrupted command goes on where it stopped; runs that failed are tried again on request.
"""

import os
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from antipgd.paper.record import Failure, Record, Spec
from antipgd.paper.run.local import run_local
from antipgd.paper.run.processes import check_start, forget_checkpoints, run_processes
from antipgd.paper.run.stepping import Tick
from antipgd.paper.spec import Run
from antipgd.paper.store import Store, StoreError, make_folder
from antipgd.paper.training import Training


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

    def in_order(self, runs: Sequence[Spec]) -> list[Record]:
        """The records there are, in the order of `runs`."""
        return [self.records[run.name] for run in runs if run.name in self.records]


_UNTIMED = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}]"


@contextmanager
def _progress(runs: Sequence[Spec], show: bool | None, unit: str = "run-steps") -> Generator[Tick]:
    """A bar over steps; by default only on a terminal. The first steps compile, so the time
    that remains is estimated once a hundredth is done."""
    lock = threading.Lock()
    total = sum(run.steps for run in runs)
    quiet = None if show is None else not show
    style = {"unit": f" {unit}", "unit_scale": True, "smoothing": 0.1, "bar_format": _UNTIMED}
    with tqdm(total=total, disable=quiet, leave=False, **style) as bar:

        def tick(run_steps: int) -> None:
            with lock:
                if bar.n + run_steps >= total / 100:
                    bar.bar_format = None
                bar.update(run_steps)

        yield tick


def stored(runs: Sequence[Spec], store: Store, retry: bool = False) -> Outcome:
    """What the store has of these runs; failures count as missing if they are to be retried."""
    outcome = Outcome()
    for run in runs:
        found: Record | Failure | None = store.get(run)
        if found is None and not retry:
            found = store.failure(run)
        if found is not None:
            outcome.add(found)
    outcome.found = len(outcome.records) + len(outcome.failures)
    return outcome


def complete(
    runs: Sequence[Spec],
    store: Store | None = None,
    *,
    threads: int | None = None,
    retry: bool = False,
    show_progress: bool | None = None,
    device: str = "cpu",
) -> Outcome:
    """Run what the store does not have yet, and store it. Without a store, run everything.

    Small runs go on `threads`, trainings of networks on as many processes, with checkpoints in
    the folder `checkpoints` beside the store, on `device`.
    """
    outcome = Outcome() if store is None else stored(runs, store, retry)
    known = outcome.records.keys() | outcome.failures.keys()
    missing = [run for run in {run.name: run for run in runs}.values() if run.name not in known]
    small, trainings = _kinds(missing)
    if trainings:
        check_start(trainings, device)
    if small:
        with (
            _progress(small, show_progress) as tick,
            closing(run_local(small, threads, tick)) as results,
        ):
            for result in results:
                _keep(result, outcome, store)
    if trainings:
        root = None if store is None else store.root.parent / "checkpoints"
        with (
            _alone(root),
            _progress(trainings, show_progress, "epochs") as tick,
            closing(run_processes(trainings, threads, root, tick, tqdm.write, device)) as results,
        ):
            for result in results:
                _keep(result, outcome, store)
                if root is not None and isinstance(result, Record):
                    left = [one for one in trainings if one.name not in outcome.records]
                    forget_checkpoints(root, result.run, left)
    return outcome


@contextmanager
def _alone(root: Path | None) -> Generator[None]:
    """Inside, no other command trains with these checkpoints."""
    if root is None or os.name == "nt":
        yield
        return
    import fcntl

    make_folder(root)
    with (root / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(
                f"another command is training in {root.parent}; wait for it, or use another --out"
            ) from None
        yield


def _kinds(specs: Iterable[Spec]) -> tuple[list[Run], list[Training]]:
    kinds: tuple[list[Run], list[Training]] = [], []
    for spec in specs:
        if isinstance(spec, Training):
            kinds[1].append(spec)
        else:
            kinds[0].append(spec)
    return kinds


def _keep(result: Record | Failure, outcome: Outcome, store: Store | None) -> None:
    """Store a result and take it in."""
    if store is not None and isinstance(result, Record):
        store.put(result)
    elif store is not None and isinstance(result, Failure):
        store.put_failure(result)
    outcome.add(result)
