"""Run what is missing of a plan of trials, on any engine, and write its tables."""

import json
import multiprocessing
import warnings
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from antipgd.paper.engines.engine import Result
from antipgd.paper.engines.hearing import Line, results
from antipgd.paper.engines.on import HERE, On, read_on
from antipgd.paper.engines.opening import opened
from antipgd.paper.engines.processes import Processes
from antipgd.paper.engines.watching import ended_like_ctrl_c
from antipgd.paper.files import alone, make_folder, write
from antipgd.paper.pipeline import (
    Made,
    Outcome,
    Tick,
    complete,
    cpu_count,
    open_store,
    stored,
    write_plan,
)
from antipgd.paper.progress import say
from antipgd.paper.record import Failure, Record
from antipgd.paper.store import Store
from antipgd.paper.trials.running import try_one
from antipgd.paper.trials.spec import Trial, plan_trials
from antipgd.paper.trials.table import summary, table


class Tried(NamedTuple):
    """A plan that has been carried out."""

    outcome: Outcome
    records: list[Record]
    failures: list[Failure]
    table: pd.DataFrame
    summary: pd.DataFrame


_SOURCES = "sources.json"  # which file each function had, the last time


def _said_last(out: Path) -> dict[str, str]:
    try:
        there = json.loads((out / _SOURCES).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return there if isinstance(there, dict) else {}


def changed(out: Path, trials: Sequence[Trial], store: Store, retry: bool) -> str | None:
    """Whether trials are missing since the function's file has changed; its digest is kept."""
    new, last = trials[0], _said_last(out)
    before = last.get(new.function)
    write(out / _SOURCES, json.dumps(last | {new.function: new.source}, indent=1).encode() + b"\n")
    if before in (None, new.source):
        return None
    missing = len(trials) - stored(trials, store, retry).found
    if not missing:
        return None
    return (
        f"the file of {new.function} has changed since the last time: {missing} of {len(trials)} "
        f"trials are run anew; what is stored in {out} stays"
    )


def carry_out(
    trials: Sequence[Trial],
    out: Path,
    count: int | None = None,
    retry: bool = False,
    warn: Callable[[str], Any] = lambda message: None,
    on: On = HERE,
    show_progress: bool | None = None,
) -> Tried:
    """Run what is missing; records, plan, table.csv and summary.csv are written into the folder.

    An interrupted command goes on where it stopped. Each trial that takes a `folder` has its own in
    OUT/checkpoints, the same when it is tried again; what it writes there stays.
    """
    make_folder(out)
    with alone(out.absolute() / "checkpoints"):
        store = open_store(out, warn)
        notice = changed(out, trials, store, retry)
        if notice is not None:
            warn(notice)
        write_plan(out, trials)
        way = partial(_run, out=out, on=on, count=on.count or count, warn=warn)
        outcome = complete(
            trials, store, way, retry=retry, show_progress=show_progress, stage="trials"
        )
        return _tried(trials, outcome, out)


def _run(
    missing: Sequence[Trial], tick: Tick, *, out: Path, on: On, count: int | None, warn: Callable
) -> Generator[Result | Made]:
    """Results of what is missing as they finish."""
    work = partial(try_one, root=out.absolute() / "checkpoints", threads=on.cpus)
    with opened(on, count, out / "jobs", warn=warn) as engine:
        where = engine or Processes(count or cpu_count())
        yield from results(Line(missing), where, work, tick, say)


def _tried(trials: Sequence[Trial], outcome: Outcome, out: Path) -> Tried:
    """What came out, and its tables as files."""
    records = outcome.in_order(trials)
    found, means = table(records), summary(records)
    for name, frame in (("table.csv", found), ("summary.csv", means)):
        write(out / name, frame.to_csv(index=False, lineterminator="\n").encode())
    failed = [outcome.failures[one.name] for one in trials if one.name in outcome.failures]
    return Tried(outcome, records, failed, found, means)


def _refuse_unguarded() -> None:
    """A worker that is being started imports the driver's script: it must not begin all again."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(
            "try_function was called by a worker that imports your script as it starts: put the "
            'call below `if __name__ == "__main__":`'
        )


def try_function(
    function: str | Callable,
    *,
    out: str | Path = "trials",
    on: str = "processes",
    threads: int | None = None,
    retry: bool = False,
    show_progress: bool | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Call a function for every combination of settings and return the means over seeds.

    `function` is "module:function", or a function of a module. It takes keyword arguments and
    returns a dictionary of numbers. Settings: `seeds` (how many, or which), `sigma`, `lr`, each a
    value or a list, and `set={"width": [32, 64]}` for any other argument. If it takes `folder`, it
    is given one of its own for checkpoints, the same when it is tried again after its machine died.
    Records are kept in `out`, where a later call finds them; `on` and `threads` are as `--on` and
    `--threads` of `antipgd try`. A call that fails is warned about and missing in the means.

    In a script, call it below `if __name__ == "__main__":`, for worker processes import the script.
    """
    _refuse_unguarded()
    trials = plan_trials(function, **settings)
    with ended_like_ctrl_c():
        tried = carry_out(
            trials, Path(out), threads, retry, warnings.warn, read_on(on), show_progress
        )
    for failure in tried.failures[:1]:
        warnings.warn(
            f"{len(tried.failures)} of {len(trials)} trials failed; the first: "
            f"{failure.run.label}: {failure.reason}",
            stacklevel=2,
        )
    return tried.summary
