"""One's own question: problem × methods × learning rates × σ × seeds, as a table.

`sweep` is what `antipgd sweep` does; see its arguments for the settings. A setting of one method
alone is given by name: lr={"*": 0.1, "sgd": 0.01}.
"""

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from antipgd.estimate import Estimate
from antipgd.noise.taps import as_taps
from antipgd.paper.figures import rendered, sweep_figure
from antipgd.paper.pipeline import Outcome, complete
from antipgd.paper.problems import Problem, Setting, name_of, nearest
from antipgd.paper.spec import METHODS, POINTS, Run, make_run, measured_steps, run_from
from antipgd.paper.store import Store, StoreError, make_folder, write_atomically
from antipgd.paper.table import SETTING, table

EVERY = "*"
Values = float | Sequence[float]
PerMethod = Values | Mapping[str, Values]


def _by_method(name: str, values: Any) -> dict[str, tuple]:
    """A setting as a tuple of values for each method it is given for, or for EVERY."""
    given = values if isinstance(values, Mapping) else {EVERY: values}
    for method in given:
        if method != EVERY and method not in METHODS:
            raise ValueError(
                f"unknown method {method!r} in {name}; {nearest(method, list(METHODS))}"
            )
    many = {k: tuple(v) if isinstance(v, Iterable) else (v,) for k, v in given.items()}
    for method, several in many.items():
        if not several:
            raise ValueError(f"{name} needs at least one value; got none for {method!r}")
    return many


def _values(name: str, table: Mapping[str, tuple], method: str, default: Any = None) -> tuple:
    if method in table:
        return table[method]
    if EVERY in table:
        return table[EVERY]
    if default is None:
        raise ValueError(f"{name} has no value for method {method!r}; got {dict(table)}")
    return (default,)


def _seeds(seeds: int | Iterable[int]) -> list[int]:
    if isinstance(seeds, Iterable):
        chosen = list(seeds)
    else:
        if isinstance(seeds, bool) or int(seeds) != seeds or seeds < 1:
            raise ValueError(f"seeds must be a whole number >= 1; got {seeds!r}")
        chosen = list(range(int(seeds)))
    if not chosen:
        raise ValueError("seeds must name at least one seed; got none")
    return chosen


def plan_sweep(
    problem: str | type[Problem],
    *,
    method: str | Sequence[str],
    lr: PerMethod,
    steps: int,
    seeds: int | Iterable[int],
    sigma: PerMethod | None = None,
    set: Mapping[str, Setting] | None = None,
    taps: Sequence[float] | Sequence[Sequence[float]] | None = None,
    law: str | Sequence[str] = "gaussian",
    batch: PerMethod | None = None,
    schedule: str | None = None,
    start: int = 0,
    stop: int | None = None,
    leave: tuple[float, float] | None = None,
    points: int = POINTS,
    relax: bool = True,
) -> list[Run]:
    """The runs of a sweep, each once. Everything is checked before anything is run."""
    methods = [method] if isinstance(method, str) else list(method)
    for unknown in methods:
        if unknown not in METHODS:
            raise ValueError(f"unknown method {unknown!r}; {nearest(unknown, list(METHODS))}")
    if not methods:
        raise ValueError(f"method must name at least one; accepted: {', '.join(METHODS)}")
    if taps is not None and "noise" not in methods:
        raise ValueError(f"taps are for method 'noise', which is not in {methods}")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps must be a whole number >= 1; got {steps!r}")
    if isinstance(points, bool) or not isinstance(points, int) or points < 1:
        raise ValueError(f"points must be a whole number >= 1; got {points!r}")
    rates, batches = _by_method("lr", lr), _by_method("batch", {} if batch is None else batch)
    sigmas = _by_method("sigma", {} if sigma is None else sigma)
    colours: list[Any] = [None]
    if taps is not None:
        several = isinstance(taps[0], Iterable) if len(taps) else False
        colours = [as_taps(one) for one in (taps if several else [taps])]  # type: ignore[arg-type]
    laws = [law] if isinstance(law, str) else list(law)
    chosen, name = _seeds(seeds), name_of(problem)
    runs: dict[str, Run] = {}
    for one in methods:
        noisy, batched = bool(METHODS[one][0]) or METHODS[one][2], METHODS[one][1]
        options = product(
            _values("lr", rates, one),
            _values("sigma", sigmas, one) if noisy else (0.0,),
            colours if one == "noise" else (None,),
            laws if noisy else laws[:1],
            _values("batch", batches, one, 1) if batched else batches.get(one, (None,)),
            chosen,
        )
        for eta, sd, colour, kind, size, seed in options:
            run = make_run(
                name, set or {}, one, lr=eta, sigma=sd, taps=colour, law=kind, batch=size,
                seed=seed, steps=steps, measure=measured_steps(steps, points),
                schedule=schedule, start=start, stop=stop, leave=leave, relax=relax,
            )  # fmt: skip
            runs[run.name] = run
    return list(runs.values())


def sweep(
    problem: str | type[Problem],
    *,
    out: str | Path | None = None,
    threads: int | None = None,
    retry: bool = False,
    show_progress: bool | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Run a sweep and return its table: one row per run × measured step × place.

    `problem` is a name or a class of your own; the other settings are those of `plan_sweep`.
    With `out`, records are kept in that folder, where a later call finds them, and the table and
    a figure are written beside them. A run that fails is warned about and missing in the table.

    >>> t = sweep("widening_valley", set={"d": 5}, method=["gd", "anti"], lr=0.1, sigma=0.1,
    ...           steps=100, seeds=2, points=3)
    >>> sorted(t["place"].unique()), t["step"].unique().tolist()
    (['relaxed', 'w', 'z'], [0, 1, 10, 100])
    """
    runs = plan_sweep(problem, **settings)
    store = None if out is None else open_store(Path(out), warnings.warn)
    if out is not None:
        write_plan(Path(out), runs)
    outcome = complete(runs, store, threads=threads, retry=retry, show_progress=show_progress)
    for failure in list(outcome.failures.values())[:1]:
        warnings.warn(
            f"{len(outcome.failures)} of {len(runs)} runs failed; the first: {failure.reason}",
            stacklevel=2,
        )
    result = table(outcome.in_order(runs))
    if out is not None:
        write_results(Path(out), result)
    return result


def open_store(out: Path, warn: Any = lambda message: None) -> Store:
    """The store of an output folder."""
    make_folder(out)
    return Store(out / "store", warn)


def write_plan(out: Path, runs: Sequence[Run]) -> None:
    """Say which runs the folder is about, for `antipgd status`."""
    lines = [run.canonical() for run in runs]
    _write(out / "plan.json", ("[\n" + ",\n".join(lines) + "\n]\n").encode())


def read_plan(out: Path) -> list[Run]:
    """The runs a folder is about."""
    try:
        return [run_from(values) for values in json.loads((out / "plan.json").read_bytes())]
    except FileNotFoundError:
        raise StoreError(f"{out} has no plan.json: no sweep was started there") from None
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{out / 'plan.json'} cannot be understood: {error}") from error


def _write(path: Path, content: bytes) -> None:
    try:
        write_atomically(path, content)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error


def write_results(out: Path, result: pd.DataFrame) -> None:
    """table.csv, and a figure if there is anything to draw."""
    _write(out / "table.csv", result.to_csv(index=False, lineterminator="\n").encode())
    if len(result):
        figure = sweep_figure(result, title=result["problem"].iloc[0])
        for kind in ("png", "svg"):
            _write(out / f"figure.{kind}", rendered(figure, kind))


def _shown(values: pd.Series) -> str:
    """Mean and 95 % interval over seeds; no interval if a run of the group diverged."""
    if values.isna().all():  # also if there are none
        return ""
    estimate = Estimate.of(values)
    if not math.isfinite(estimate.mean):
        return "inf"
    low, high = estimate.interval()
    return f"{estimate.mean:.3g}" + ("" if math.isnan(low) else f" [{low:.3g}, {high:.3g}]")


def summary(result: pd.DataFrame) -> pd.DataFrame:
    """One row per setting at the last step: means with 95 % intervals over seeds, at each place.

    A setting of which a run diverged has an infinite mean: no survivors are averaged.
    """
    rows = []
    for key, group in result.groupby(list(SETTING), sort=False, dropna=False):
        setting = dict(zip(SETTING, key, strict=True))
        last = group.loc[group.groupby(["seed", "place"])["step"].idxmax()]
        row = {name: setting[name] for name in SETTING if name != "problem"}
        ends = last[last["place"] == "w"]
        row["n"] = len(ends)
        row["diverged"] = int((ends["status"] == "diverged").sum())
        for side in ("left low", "left high"):
            if (result["status"] == side).any():
                row[side] = int((ends["status"] == side).sum())
        for place in ("w", "z", "relaxed"):
            for measure, short in (("test_loss", "test"), ("trace", "trace")):
                row[f"{short} {place}"] = _shown(last[last["place"] == place][measure])
        rows.append(row)
    frame = pd.DataFrame(rows)
    return frame.loc[:, [(frame[name].notna() & (frame[name] != "")).any() for name in frame]]


__all__ = ["Outcome", "plan_sweep", "summary", "sweep"]
