"""One's own question: problem × methods × learning rates × σ × seeds, as a table.

`sweep` is what `antipgd sweep` does; see its arguments for the settings. A setting of one method
alone is given by name: lr={"*": 0.1, "sgd": 0.01}.
"""

import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from antipgd.checks import nearest, one_of, whole
from antipgd.noise.taps import as_taps
from antipgd.paper.engines.engine import Engine
from antipgd.paper.engines.on import HERE, On, read_on
from antipgd.paper.engines.opening import opened
from antipgd.paper.methods import SIMULATED
from antipgd.paper.pipeline import (
    Made,
    Outcome,
    Tick,
    Way,
    complete,
    open_store,
    steps_of,
    write_plan,
)
from antipgd.paper.progress import say
from antipgd.paper.record import Failure, Record
from antipgd.paper.simulation.blocks import Block
from antipgd.paper.simulation.folder import write_figure, write_table
from antipgd.paper.simulation.local import compile_for, run_local, run_on
from antipgd.paper.simulation.problems import Problem, Setting, name_of
from antipgd.paper.simulation.spec import POINTS, Run, make_run, measured_steps
from antipgd.paper.simulation.stepping import RELAX_STEPS
from antipgd.paper.simulation.table import table
from antipgd.paper.store import Store

EVERY = "*"
Values = float | Sequence[float]
PerMethod = Values | Mapping[str, Values]


def _by_method(name: str, values: Any) -> dict[str, tuple]:
    """A setting as a tuple of values for each method it is given for, or for EVERY."""
    given = values if isinstance(values, Mapping) else {EVERY: values}
    for method in given:
        if method != EVERY and method not in SIMULATED:
            raise ValueError(f"unknown method {method!r} in {name}; {nearest(method, SIMULATED)}")
    many = {k: tuple(v) if isinstance(v, Iterable) else (v,) for k, v in given.items()}
    for method, several in many.items():
        if not several:
            raise ValueError(f"{name} needs at least one value; got none for {method!r}")
    return many


def _one_for_all(name: str, values: Any) -> tuple:
    """A setting's values, which no method has of its own."""
    given = _by_method(name, values)
    if given.keys() != {EVERY}:
        raise ValueError(f"{name} is the same for all methods; got {values!r}")
    return given[EVERY]


def _values(name: str, table: Mapping[str, tuple], method: str, default: Any = None) -> tuple:
    if method in table:
        return table[method]
    if EVERY in table:
        return table[EVERY]
    if default is None:
        raise ValueError(
            f"{name} has no value for method {method!r}; give --{name} (in Python {name}=…)"
        )
    return (default,)


def _sizes(batches: Mapping[str, tuple], method: str) -> tuple:
    """Sizes of mini-batches; only by name for methods that usually have none."""
    if SIMULATED[method].batches:
        return _values("batch", batches, method, 1)
    return batches.get(method, (None,))


def _seeds(seeds: int | Iterable[int]) -> list[int]:
    if isinstance(seeds, Iterable):
        chosen = list(seeds)
    else:
        chosen = list(range(whole("seeds", seeds, 1)))
    if not chosen:
        raise ValueError("seeds must name at least one seed; got none")
    return chosen


def _problem_name(problem: str | type[Problem]) -> str:
    """The problem's name, with a hint for the two mistakes that are easily made."""
    if isinstance(problem, Problem):
        name = type(problem).__name__
        raise TypeError(f"give the class {name}, not an instance; its settings go into set={{…}}")
    if isinstance(problem, str):
        module, _, cls = problem.partition(":")
        if cls and module.endswith(".py"):
            dotted = module.removesuffix(".py").replace("/", ".")
            raise ValueError(f"{problem!r} is a file: drop .py and write {dotted}:{cls}")
    return name_of(problem)


def _methods(method: str | Sequence[str]) -> list[str]:
    methods = [method] if isinstance(method, str) else list(method)
    for unknown in methods:
        one_of("method", unknown, SIMULATED)
    if not methods:
        raise ValueError(f"method must name at least one; accepted: {', '.join(SIMULATED)}")
    return methods


def _draws(method: str) -> bool:
    """Whether a method has noise, on the weights or on the labels."""
    return SIMULATED[method].draws


def _check_use(name: str, given: Mapping[str, tuple], methods: Sequence[str], *takers: str) -> None:
    """Refuse values for a method that is not run, or that does not take them."""
    for method in given.keys() - {EVERY}:
        if method not in methods:
            raise ValueError(f"{name} is given for {method!r}, which is not in {methods}")
        if method not in takers and not (name == "batch" and method == "noise"):
            raise ValueError(f"{name} is given for {method!r}, which takes no {name}")
    if EVERY in given and not set(takers) & set(methods):
        by_name = " (for noise by name: noise=4)" if name == "batch" else ""
        raise ValueError(f"{name} is for {', '.join(takers)}{by_name}; none is in {methods}")


def _check_noise(methods: Sequence[str], where: str = "", **given: bool) -> None:
    """Refuse settings of the noise where no method has any, or none on the weights."""
    has = [SIMULATED[one].taps if where else _draws(one) for one in methods]
    for name, there in given.items():
        if there and not any(has):
            raise ValueError(f"{name} is for methods with noise{where}; none is in {methods}")


def _check_held(runs: Iterable[Run]) -> None:
    """Refuse runs whose draws are held so long that none comes while the noise acts."""
    for run in runs:
        first = run.draws_by(run.start) * run.hold + 1
        last = run.steps if run.stop is None else min(run.stop, run.steps)
        if run.taps and first > last:
            raise ValueError(
                f"no noise acts with hold={run.hold} and start={run.start}: the first draw would "
                f"come at step {first}, the last step with noise is {last}"
            )


def _check_start(runs: Iterable[Run]) -> None:
    """Refuse runs that have left their interval before they begin."""
    for run in {(run.seed, run.settings): run for run in runs}.values():
        if run.leave is not None:
            problem = run.make_problem()
            W = np.asarray(run.make_start(problem), np.float64)[None]
            watched = float(np.ravel(problem.watch(W))[0])
            if not run.leave[0] < watched < run.leave[1]:
                raise ValueError(
                    f"leave: {run.problem} starts with its watched quantity at {watched:.6g}, "
                    f"which is not inside {run.leave}"
                )


def _colours(taps: Sequence[float] | Sequence[Sequence[float]] | None, methods: list) -> list:
    """The taps of method `noise`, each one a colour; None for its usual one."""
    if taps is None:
        return [None]
    if "noise" not in methods:
        raise ValueError(f"taps are for method 'noise', which is not in {methods}")
    several = isinstance(taps[0], Iterable) if len(taps) else False
    return [as_taps(one) for one in (taps if several else [taps])]  # type: ignore[arg-type]


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
    optimizer: str = "sgd",
    momentum: PerMethod = 0.0,
    nesterov: bool = False,
    hold: int | Sequence[int] = 1,
    antithetic: bool = False,
    average: int | None = None,
) -> list[Run]:
    """The runs of a sweep, each once. Everything is checked before anything is run.

    See `sweep` for what the settings mean.
    """
    name, methods = _problem_name(problem), _methods(method)
    steps, points = whole("steps", steps, 1), whole("points", points, 1)
    rates, batches = _by_method("lr", lr), _by_method("batch", {} if batch is None else batch)
    sigmas = _by_method("sigma", {} if sigma is None else sigma)
    betas, holds = _by_method("momentum", momentum), _one_for_all("hold", hold)
    colours, laws = _colours(taps, methods), [law] if isinstance(law, str) else list(law)
    _check_use("lr", rates, methods, *SIMULATED)
    _check_use("momentum", betas, methods, *SIMULATED)
    _check_use("sigma", sigmas, methods, *(one for one in SIMULATED if SIMULATED[one].has_sigma))
    _check_use("batch", batches, methods, *(one for one in SIMULATED if SIMULATED[one].batches))
    _check_noise(methods, law=laws != ["gaussian"], schedule=schedule is not None,
                 start=start != 0, stop=stop is not None)  # fmt: skip
    _check_noise(methods, " on the weights", hold=holds != (1,), antithetic=antithetic)
    if start >= steps:
        raise ValueError(f"start must be less than steps={steps}, else no noise acts; got {start}")
    chosen = _seeds(seeds)
    runs: dict[str, Run] = {}
    for one in methods:
        options = product(
            _values("lr", rates, one),
            _values("sigma", sigmas, one) if SIMULATED[one].has_sigma else (0.0,),
            colours if one == "noise" else (None,),
            laws if _draws(one) else laws[:1],
            _sizes(batches, one),
            _values("momentum", betas, one, 0.0),
            holds,
            chosen,
        )
        for eta, sd, colour, kind, size, beta, held, seed in options:
            run = make_run(
                name, set or {}, one, lr=eta, sigma=sd, taps=colour, law=kind, batch=size,
                seed=seed, steps=steps, measure=measured_steps(steps, points),
                schedule=schedule, start=start, stop=stop, leave=leave, relax=relax,
                optimizer=optimizer, momentum=beta, nesterov=nesterov, hold=held,
                antithetic=antithetic, average=average,
            )  # fmt: skip
            runs[run.name] = run
    _check_held(runs.values())
    _check_start(runs.values())
    return list(runs.values())


def _check_names(settings: Mapping[str, Any]) -> None:
    known = [*inspect.signature(plan_sweep).parameters][1:]
    for name in settings:
        if name not in known:
            raise TypeError(
                f"sweep has no setting {name!r}; settings of the problem go into set={{…}}, such "
                f"as set={{{name!r}: {settings[name]!r}}}; {nearest(name, known)}"
            )


def sweep(
    problem: str | type[Problem],
    *,
    out: str | Path | None = None,
    threads: int | None = None,
    on: str = "processes",
    retry: bool = False,
    show_progress: bool | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Run a sweep and return its table: one row per run × measured step × place.

    `problem` is a name or a class of your own. With `out`, records are kept in that folder, where
    a later call finds them; table, figure and plan are written beside them and replace those of
    another sweep. A run that fails is warned about and missing in the table. `on` is as `--on` of
    the command line: "ray=HOST:PORT" runs them on a cluster.

    What is run is every combination of these settings. Those marked * take one value, a list, or
    either by method: lr={"*": 0.1, "sgd": [0.01, 0.02]}.

    - `method`: a name or a list of them: gd, sgd, pgd, anti, antisgd, label, noise.
    - `lr`*: learning rates. `sigma`*: standard deviations of the noise on the weights, for `label`
      on the labels. `batch`*: examples per step, drawn with replacement, for sgd and antisgd
      (default 1) and by name for noise.
    - `steps`: how many. `seeds`: how many, 0, 1, …, or a list of them: seeds=[3, 4].
    - `set`: settings of the problem, such as set={"d": 60}.
    - `taps`: of method noise, such as (1, -0.9), or a list of such. `law`: gaussian, rademacher,
      uniform, laplace, student-t:DF, or a list. `schedule`: a factor of sigma over the steps,
      "linear:BEGIN:END[:INITIAL:FINAL]", "cosine:…" likewise, "steps:M1:M2:…[:gamma=0.1]".
      `start`, `stop`: the noise acts at steps start < n ≤ stop.
    - `leave`: (low, high); a run ends when the quantity that its problem watches, at w and looked
      at after every step, is outside.
    - `points`: about how many steps are measured, equally far apart in the logarithm (default 40).
    - `relax`: whether to descend without noise at the end, with the run's own learning rate until
      |g| < 1e-8 (1 + |g at the start|), at most 100,000 steps (default True).
    - `optimizer`: "sgd" or "adam", torch's, with its usual betas. `momentum`*: of SGD, in [0, 1);
      `nesterov`: whether it is Nesterov's. The noise never passes through them.
    - `hold`: how many steps a draw on the weights stays, or a list; `antithetic`: whether draws
      come in pairs +ξ, −ξ. Both as in `antipgd.torch`.
    - `average`: over how many of the last steps means are taken, at w and at every step: rows of
      place "average" have training loss, norm (of the mean square) and watched quantity.

    >>> t = sweep("widening_valley", set={"d": 5}, method=["gd", "anti"], lr=0.1, sigma=0.1,
    ...           steps=100, seeds=2, points=3)
    >>> sorted(t["place"].unique()), t["step"].unique().tolist()
    (['relaxed', 'w', 'z'], [0, 1, 10, 100])
    """
    _check_names(settings)
    runs = plan_sweep(problem, **settings)
    folder = None if out is None else Path(out)
    swept = carry_out(runs, folder, threads, retry, show_progress, warnings.warn, read_on(on))
    for failure in list(swept.outcome.failures.values())[:1]:
        warnings.warn(
            f"{len(swept.outcome.failures)} of {len(runs)} runs failed; the first: "
            f"{failure.reason}",
            stacklevel=2,
        )
    if folder is not None:
        write_figure(folder, swept.table)
    return swept.table


class Swept(NamedTuple):
    """A sweep that has been carried out."""

    outcome: Outcome
    records: list[Record]
    table: pd.DataFrame


def on_threads(
    threads: int | None,
    engine: Engine | None = None,
    weigh: Callable[[Block], float] = lambda block: 1.0,
) -> Way:
    """The way small runs are run, for `pipeline.complete`: on an engine if there is one.

    On threads, the run-steps of a block are told of times what `weigh` says of it.
    """
    if engine is not None:
        return lambda runs, tick: run_on(engine, runs, tick, say)
    return lambda runs, tick: run_local(runs, threads, tick, weigh)


def carry_out(
    runs: Sequence[Run],
    out: Path | None,
    threads: int | None = None,
    retry: bool = False,
    show_progress: bool | None = None,
    warn: Callable[[str], Any] = lambda message: None,
    on: On = HERE,
) -> Swept:
    """Run what is missing; with a folder, records, plan and table.csv are written into it.

    `warn` is told of damaged records. An interrupted sweep goes on where it stopped.
    """
    threads = on.count or threads
    store: Store | None = None
    if out is not None:
        store = open_store(out, warn)
        write_plan(out, runs)

    def way(missing: Sequence, tick: Tick) -> Generator[Record | Failure | Made]:
        with opened(on, threads, None if out is None else out / "jobs", warn=warn) as engine:
            yield from on_threads(threads, engine)(missing, tick)

    def expect(missing: Sequence) -> float:
        if on.engine == HERE.engine:
            compile_for(missing)
        return steps_of(missing)

    outcome = complete(runs, store, way, retry=retry, show_progress=show_progress, expect=expect)
    records = outcome.in_order(runs)
    result = table(records)
    if out is not None:
        write_table(out, result)
    return Swept(outcome, records, result)


def relaxation_notes(records: Iterable[Record]) -> list[str]:
    """A line for each method of which relaxations did not get to a minimum."""
    relaxed = [record for record in records if record.relaxation_converged is not None]
    methods = Counter(record.run.method for record in relaxed)
    stopped, lost = Counter[str](), Counter[str]()
    for record in relaxed:
        if not record.relaxation_converged:
            (stopped if record.relax_steps == RELAX_STEPS else lost)[record.run.method] += 1
    ends = (
        (stopped, f"stopped at {RELAX_STEPS:,} steps before converging"),
        (lost, "left the finite numbers"),
    )
    return [
        f"{count[method]} of {n} relaxations of {method} {end}"
        for count, end in ends
        for method, n in methods.items()
        if count[method]
    ]
