"""Run what is missing of a plan of trials, on any engine, and write its tables."""

import json
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
from antipgd.paper.files import alone, write
from antipgd.paper.pipeline import Made, Outcome, Tick, complete, cpu_count, open_store, write_plan
from antipgd.paper.progress import say
from antipgd.paper.record import Failure, Record
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


def changed(out: Path, trials: Sequence[Trial]) -> str | None:
    """Whether the folder has trials of this function from a file that has changed since."""
    try:
        there = [Trial.from_plain(one) for one in json.loads((out / "plan.json").read_bytes())]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    new = trials[0]
    old = [one for one in there if (one.function, one.source) != (new.function, new.source)]
    if not any(one.function == new.function for one in old):
        return None
    return (
        f"the file of {new.function} has changed since the last time: all is run anew; what is "
        f"stored in {out} stays"
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
    store, count, root = open_store(out, warn), on.count or count, out.absolute() / "checkpoints"
    notice = changed(out, trials)
    if notice is not None:
        warn(notice)
    write_plan(out, trials)

    def way(missing: Sequence, tick: Tick) -> Generator[Result | Made]:
        work = partial(try_one, root=root, threads=on.cpus)
        with alone(root), opened(on, count, out / "jobs", warn=warn) as engine:
            where = engine or Processes(count or cpu_count())
            yield from results(Line(missing), where, work, tick, say)

    outcome = complete(trials, store, way, retry=retry, show_progress=show_progress, stage="trials")
    records = outcome.in_order(trials)
    found, means = table(records), summary(records)
    for name, frame in (("table.csv", found), ("summary.csv", means)):
        write(out / name, frame.to_csv(index=False, lineterminator="\n").encode())
    failed = [outcome.failures[one.name] for one in trials if one.name in outcome.failures]
    return Tried(outcome, records, failed, found, means)


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
    """
    trials = plan_trials(function, **settings)
    tried = carry_out(trials, Path(out), threads, retry, warnings.warn, read_on(on), show_progress)
    for failure in tried.failures[:1]:
        warnings.warn(
            f"{len(tried.failures)} of {len(trials)} trials failed; the first: "
            f"{failure.run.label}: {failure.reason}",
            stacklevel=2,
        )
    return tried.summary
