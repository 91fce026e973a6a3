"""`antipgd sweep`: many runs of one problem, measured, as a table and a figure."""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from antipgd.cli.usage import (
    UsageError,
    add_on,
    check_threads,
    duration,
    engine_of,
    say,
    seeds_of,
    show_failures,
    whole,
    words,
)
from antipgd.extras import needed_by
from antipgd.noise.laws import accepted_laws
from antipgd.paper.methods import SIMULATED


def _numbers(kind: Callable[[str], Any], option: str) -> Callable[[Sequence[str]], dict]:
    """A reader of values for all or for single methods: "0.1,0.2", "sgd=0.01,0.02"."""

    def read(texts: Sequence[str]) -> dict[str, list]:
        values: dict[str, list] = {}
        for text in texts:
            method = "*"
            for item in text.split(","):
                name, equals, number = item.rpartition("=")
                method = name.strip() if equals else method
                try:
                    values.setdefault(method, []).append(kind(number))
                except ValueError:
                    raise UsageError(f"--{option}: {number!r} is not a number") from None
        return values

    return read


def _settings(texts: Sequence[str]) -> dict[str, str]:
    settings = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--set takes NAME=VALUE; got {text!r}")
        settings[name.strip()] = value.strip()
    return settings


def _taps(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(tap) for tap in text.split(","))
    except ValueError:
        raise UsageError(f"--taps takes numbers such as --taps=1,-0.9; got {text!r}") from None


def _wholes(option: str, texts: Sequence[str]) -> list[int]:
    try:
        return [whole(word) for word in words(texts)]
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"--{option}: {error}") from None


_MANY: dict[str, Any] = {"action": "append"}
_SWEEP_OPTIONS: dict[str, dict[str, Any]] = {
    "set": _MANY
    | {"default": [], "metavar": "NAME=VALUE", "help": "a setting of the problem; may be repeated"},
    "method": _MANY | {"required": True, "metavar": "M,...", "help": ", ".join(SIMULATED)},
    "lr": _MANY
    | {"required": True, "metavar": "[M=]ETA,...", "help": "learning rates, all or of method M"},
    "sigma": _MANY
    | {
        "metavar": "[M=]SIGMA,...",
        "help": "standard deviations of the noise on the weights, for `label` on the labels",
    },
    "batch": _MANY
    | {
        "metavar": "[M=]B,...",
        "help": "examples per step, drawn with replacement, of sgd and antisgd (default: 1); for "
        "`noise` only by name",
    },
    "taps": _MANY
    | {
        "metavar": "T,...",
        "help": "colour of method `noise`, such as 1,-0.9 (default: 1,-1); may be repeated",
    },
    "law": _MANY
    | {
        "metavar": "LAW,...",
        "help": f"{accepted_laws()} (default: gaussian)",
    },
    "optimizer": {
        "default": "sgd",
        "metavar": "O",
        "help": "sgd or adam, as torch has them, adam with betas 0.9 and 0.999 (default: sgd)",
    },
    "momentum": _MANY
    | {
        "metavar": "[M=]BETA,...",
        "help": "momentum of optimizer sgd, 0 to less than 1, all or of method M (default: 0)",
    },
    "nesterov": {"action": "store_true", "help": "Nesterov's momentum"},
    "hold": _MANY
    | {"metavar": "K,...", "help": "steps that a draw on the weights stays (default: 1)"},
    "antithetic": {
        "action": "store_true",
        "help": "draws on the weights come in pairs, the second the first negated",
    },
    "schedule": {
        "help": "factor of sigma over the steps: linear:BEGIN:END[:INITIAL:FINAL] (from 1 to 0 "
        "unless given), cosine:BEGIN:END[:INITIAL:FINAL], or steps:STEP:STEP:...[:gamma=0.1]",
    },
    "start": {
        "type": whole,
        "default": 0,
        "help": "noise acts after this step (default: 0)",
    },
    "stop": {"type": whole, "help": "noise acts up to this step (default: the last)"},
    "leave": {
        "metavar": "LOW,HIGH",
        "help": "end a run when the quantity that its problem watches, measured at w after every "
        "step, is no longer between LOW and HIGH; `antipgd list` says what is watched",
    },
    "steps": {
        "type": whole,
        "required": True,
        "help": "steps of every run; 1e4 is a number, too",
    },
    "seeds": {"required": True, "help": "a count (10: seeds 0 to 9), a list (3,4) or range (0-4)"},
    "points": {
        "type": whole,
        "default": 40,
        "help": "about how many steps are measured, evenly in the logarithm (default: 40)",
    },
    "average": {
        "type": whole,
        "metavar": "K",
        "help": "also measure means over the last K steps, at w before each of them: training "
        "loss, norm, and the quantity that the problem watches",
    },
    "no-relax": {
        "action": "store_true",
        "help": "do not relax at the end: descent without noise, with the run's own learning rate, "
        "until |g| < 1e-8 (1 + |g at the start|), at most 100,000 steps",
    },
    "threads": {"type": whole, "help": "how many to use (default: all processors)"},
    "retry": {"action": "store_true", "help": "try failed runs again"},
    "dry-run": {"action": "store_true", "help": "show the plan and its cost, run nothing"},
    "out": {
        "type": Path,
        "default": Path("results"),
        "help": "folder of table, figure and stored runs (default: results)",
    },
}


def add_commands(commands: Any) -> None:
    """`antipgd sweep`."""
    parser = commands.add_parser(
        "sweep",
        help="many runs of one problem, measured, as table.csv and a figure",
        description="Run methods x learning rates x sigmas x seeds on one problem. Lists are "
        "comma-separated; NAME=VALUES sets a value for one method alone (--lr sgd=0.01). An "
        "interrupted sweep goes on where it stopped.",
    )
    add = parser.add_argument
    add("problem", help="a name (see `antipgd list`), or module:Class of your own")
    for name, settings in _SWEEP_OPTIONS.items():
        add(f"--{name}", **settings)
    add_on(parser)
    parser.set_defaults(command=_sweep)


def _plan(options: argparse.Namespace) -> list:
    """The runs asked for; what cannot be run is a mistake in the command."""
    from antipgd.paper.simulation.sweep import plan_sweep

    leave = None if options.leave is None else _taps(options.leave)
    if leave is not None and len(leave) != 2:
        raise UsageError(f"--leave takes LOW,HIGH; got {options.leave!r}")
    wanted: dict[str, Any] = dict(  # noqa: C408  (reads like the call it becomes)
        set=_settings(options.set),
        method=words(options.method),
        lr=_numbers(float, "lr")(options.lr),
        sigma=None if options.sigma is None else _numbers(float, "sigma")(options.sigma),
        batch=None if options.batch is None else _numbers(int, "batch")(options.batch),
        taps=None if options.taps is None else [_taps(text) for text in options.taps],
        law=words(options.law) if options.law else "gaussian",
        schedule=options.schedule,
        start=options.start,
        stop=options.stop,
        leave=leave,
        steps=options.steps,
        seeds=seeds_of(options.seeds),
        points=options.points,
        relax=not options.no_relax,
        optimizer=options.optimizer,
        momentum=_numbers(float, "momentum")(options.momentum or ["0"]),
        nesterov=options.nesterov,
        hold=_wholes("hold", options.hold or ["1"]),
        antithetic=options.antithetic,
        average=options.average,
    )
    try:
        return plan_sweep(options.problem, **wanted)
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error


def _dry_run(runs: list, out: Path, threads: int | None, retry: bool) -> int:
    from antipgd.paper.pipeline import cpu_count
    from antipgd.paper.simulation.cost import cost
    from antipgd.paper.store import Store

    missing, states = runs, Counter(missing=len(runs))
    if (out / "store").is_dir():
        store = Store(out / "store", say)
        found = {run.name: store.state(run) for run in runs}
        wanted = ("missing", "stale", *(["failed"] if retry else []))
        missing, states = [r for r in runs if found[r.name] in wanted], Counter(found.values())
    methods = Counter(run.method for run in runs)
    print(
        f"{len(runs)} runs of {runs[0].problem}: "
        + ", ".join(f"{n} {m}" for m, n in methods.items())
    )
    failed = f", {states['failed']} failed" if states["failed"] else ""
    print(f"{states['done']} done already{failed}, {len(missing)} to do")
    print(f"{sum(run.steps for run in missing):,} run-steps to do")
    used = threads or cpu_count()
    try:
        steps, relaxations = (seconds / used for seconds in cost(missing))
    except ValueError as error:  # from a problem of the user's own
        say(f"antipgd: the runs would fail: {error}")
        return 1
    print(f"about {duration(steps)} on {used} threads")
    if relaxations:
        print(f"relaxations: at most {duration(relaxations)} more")
    return 0


def _sweep(options: argparse.Namespace) -> int:
    with needed_by("antipgd sweep", "paper"):  # for its intervals, which come after all the work
        import scipy.special  # noqa: F401

    from antipgd.paper.simulation.folder import replaced
    from antipgd.paper.simulation.sweep import carry_out

    check_threads(options.threads)
    on = engine_of(options)
    runs = _plan(options)
    if options.dry_run:
        return _dry_run(runs, options.out, on.count or options.threads, options.retry)
    notice = replaced(options.out, runs)
    if notice is not None:
        say(notice)
    began = time.perf_counter()
    try:
        swept = carry_out(runs, options.out, options.threads, options.retry, warn=say, on=on)
    except KeyboardInterrupt:
        say(f"interrupted: {_stored(options.out, runs)} of {len(runs)} runs are stored; the same "
            "command goes on")  # fmt: skip
        return 130
    outcome = swept.outcome
    files = _show_results(options.out, swept)
    took = duration(time.perf_counter() - began)
    print(f"{len(outcome.records)} of {len(runs)} runs done, {outcome.found} found stored and "
          f"{len(runs) - outcome.found} run, in {took}: {', '.join(map(str, files))}")  # fmt: skip
    show_failures(outcome.failures.values(), say)
    if outcome.failures:
        say(f"{len(outcome.failures)} runs failed; --retry tries them again")
    return 1 if outcome.failures else 0


def _stored(out: Path, runs: list) -> int:
    from antipgd.paper.store import Store

    store = Store(out / "store", say)
    return sum(store.state(run) == "done" for run in runs)


def _show_results(out: Path, swept: Any) -> list[Path]:
    """Summary and figure, the table being written already: what is sure comes first."""
    from antipgd.paper.simulation.folder import write_figure
    from antipgd.paper.simulation.sweep import relaxation_notes
    from antipgd.paper.simulation.table import summary, summary_text

    if len(swept.table):
        print(summary_text(summary(swept.table)))
        print("\nat the last step: arithmetic means, Student's 95 % intervals over seeds")
        average = swept.records[0].run.average
        if average is not None:
            print(f"average: at w, over the last {average:,} steps")
        if any(record.left_at for record in swept.records):
            print("left at: step of the exit, over the runs that left")
        for note in relaxation_notes(swept.records):
            print(note)
    return [out / "table.csv", *write_figure(out, swept.table)]
