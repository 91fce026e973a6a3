"""σ of each method by its accuracy on images held out of the training set, at equal budgets.

The seeds are no experiment's. What wins is written to a file beside the store, and experiments at
that scale use it from then on.
"""

import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from antipgd.checks import number
from antipgd.paper.files import make_folder, write
from antipgd.paper.networks.arms import value
from antipgd.paper.networks.scales import TUNED, Scale, scale_named
from antipgd.paper.networks.workers import complete_trainings
from antipgd.paper.record import Record
from antipgd.paper.store import Store

_COLUMNS = ["method", "sigma", "batch", "seed", "status", "accuracy"]


def _path(scale: str, out: Path) -> Path:
    return out / f"tuned-{scale}.json"


def tuning_table(records: Iterable[Record]) -> pd.DataFrame:
    """A row for each tuning run: its σ and the accuracy on the held-out images at the end."""
    rows = [
        (r.run.method, r.run.sigma, r.run.batch, r.run.seed, r.status, value(r, "test_accuracy"))
        for r in records
    ]
    return pd.DataFrame(rows, columns=_COLUMNS)


def winners(table: pd.DataFrame) -> dict[str, float]:
    """The σ with the highest mean accuracy of each method; the smaller of equal ones."""
    means = table.groupby(["method", "sigma"])["accuracy"].mean().sort_index()
    return {method: float(means.loc[method].idxmax()) for method in TUNED if method in means}


def scale_to_use(name: str, out: Path) -> Scale:
    """A scale with the σ that `antipgd tune` found in this folder, else with its own."""
    scale, path = scale_named(name), _path(name, out)
    if not path.is_file():
        return scale
    try:
        there = json.loads(path.read_text("utf-8"))
        found = {method: number(f"sigma of {method}", sd, 0) for method, sd in there.items()}
    except (ValueError, AttributeError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path} is not what `antipgd tune` writes: {error}") from error
    unknown = found.keys() - set(TUNED)
    if unknown:
        raise ValueError(f"{path} names {min(unknown)!r}; accepted: {', '.join(TUNED)}")
    return replace(scale, sigmas={**scale.sigmas, **found})


def tune(
    name: str,
    out: Path,
    threads: int | None = None,
    retry: bool = False,
    device: str = "cpu",
) -> int:
    """Train what is missing, print the table and write the winners; 1 if trainings failed."""
    scale = scale_named(name)
    make_folder(out)
    store = Store(out / "store", lambda message: print(message, file=sys.stderr))
    runs = scale.tuning()
    began = time.perf_counter()
    try:
        outcome = complete_trainings(runs, store, threads, device, retry=retry)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130
    for failure in outcome.failures.values():
        print(f"failed: {failure.run.method} σ={failure.run.sigma}: {failure.reason}")
    if len(outcome.records) < len(runs):
        print(f"{len(runs) - len(outcome.records)} of {len(runs)} missing; --retry tries again")
        return 1
    table = tuning_table(outcome.in_order(runs))
    write(out / f"tuning-{name}.csv", table.to_csv(index=False).encode())
    best = winners(table)
    write(_path(name, out), (json.dumps(best) + "\n").encode())
    print(_shown(table, scale.grid))
    chosen = ", ".join(f"{method} {sigma:g}" for method, sigma in best.items())
    took = time.perf_counter() - began
    print(f"accuracy on held-out images; best: {chosen}")
    ends = (min(scale.grid), max(scale.grid))
    for method in [method for method, sigma in best.items() if sigma in ends]:
        print(f"the best σ of {method} is at the end of the grid: a better one may lie beyond")
    print(f"{len(runs)} trainings, {outcome.found} found stored, in {took:.0f} s")
    print(f"experiments with --out {out} use these from now on: {_path(name, out)}")
    return 0


def _shown(table: pd.DataFrame, grid: Sequence[float]) -> str:
    means = table.pivot_table(index="method", columns="sigma", values="accuracy", sort=False)
    return means.reindex(columns=grid).map(lambda a: f"{100 * a:.1f} %").to_string()
