"""The command line: `antipgd sweep`, `antipgd status`, `antipgd list`.

Exit codes: 0 done, 1 some runs failed or nothing more could be written, 2 usage, 130 interrupted.
"""

import argparse
import dataclasses
import os
import re
import sys
import textwrap
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from antipgd import __version__

# Formula, settings, and what --leave watches.
_ABOUT = {
    "quadratic_regression": "L(w) = |X(w*w) - y|^2 / 4n; d: weights, n: Gaussian examples, "
    "nonzero: ones in the target, test: held-out examples, init: every weight at the start; "
    "nothing is watched",
    "matrix_sensing": "L(U) = sum_i (<A_i, UU'> - y_i)^2 / 2 measurements; n: U is n x n, rank: of "
    "the target, measurements: to train on, test: held out, label_noise: its standard deviation, "
    "scaling: unit (target of norm 1) or raw; nothing is watched",
    "widening_valley": "L(u, v) = v^2 |u|^2 / 2; d: dimensions of u, D: |u|^2 at the start, "
    "v: v at the start; --leave watches |u|^2 at w",
    "one_hidden_unit": "L(u, v) = sum_i (y_i - v u'x_i)^2 / 2 samples; m: relevant features, "
    "d: spurious ones, samples: how many (0: the population), signal: norm of the target, "
    "D: |u|^2 at the start, v: v at the start; --leave watches |spurious part of u|^2 at w",
}
_EXTRA = "the command line needs more packages: pip install 'antipgd[paper]'"


class _UsageError(Exception):
    """Something the user can put right in the command."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _UsageError(message)


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
                    raise _UsageError(f"--{option}: {number!r} is not a number") from None
        return values

    return read


def _settings(texts: Sequence[str]) -> dict[str, str]:
    settings = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise _UsageError(f"--set takes NAME=VALUE; got {text!r}")
        settings[name.strip()] = value.strip()
    return settings


def _taps(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(tap) for tap in text.split(","))
    except ValueError:
        raise _UsageError(f"--taps takes numbers such as --taps=1,-0.9; got {text!r}") from None


def _whole(text: str) -> int:
    """A whole number, also as 1e4."""
    try:
        number = float(text)
        if number == int(number):
            return int(text) if re.fullmatch(r"[+-]?\d+", text) else int(number)
    except (ValueError, OverflowError):
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")


def _seeds(text: str) -> int | list[int]:
    """A count, "10", or seeds themselves, "3,4" or "0-4" with both ends."""
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    seeds: list[int] = []
    for item in text.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", item.strip())
        several = range(int(found[1]), int(found[2] or found[1]) + 1) if found else ()
        if not several:
            raise _UsageError(
                f"--seeds takes a count (10), a list (3,4) or a range (0-4); got {text!r}"
            )
        seeds += several
    return seeds


def _words(texts: Sequence[str]) -> list[str]:
    return [word.strip() for text in texts for word in text.split(",") if word.strip()]


_MANY: dict[str, Any] = {"action": "append"}
_SWEEP_OPTIONS: dict[str, dict[str, Any]] = {
    "set": _MANY
    | {"default": [], "metavar": "NAME=VALUE", "help": "a setting of the problem; may be repeated"},
    "method": _MANY
    | {"required": True, "metavar": "M,...", "help": "gd, sgd, pgd, anti, antisgd, label, noise"},
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
        "help": "gaussian, rademacher, uniform, laplace, student-t:DF (default: gaussian)",
    },
    "schedule": {
        "help": "factor of sigma over the steps: linear:BEGIN:END[:INITIAL:FINAL] (from 1 to 0 "
        "unless given), cosine:BEGIN:END[:INITIAL:FINAL], or steps:STEP:STEP:...[:gamma=0.1]",
    },
    "start": {"type": _whole, "default": 0, "help": "noise acts after this step (default: 0)"},
    "stop": {"type": _whole, "help": "noise acts up to this step (default: the last)"},
    "leave": {
        "metavar": "LOW,HIGH",
        "help": "end a run when the quantity that its problem watches, measured at w after every "
        "step, is no longer between LOW and HIGH; `antipgd list` says what is watched",
    },
    "steps": {"type": _whole, "required": True, "help": "steps of every run; 1e4 is a number, too"},
    "seeds": {"required": True, "help": "a count (10: seeds 0 to 9), a list (3,4) or range (0-4)"},
    "points": {
        "type": _whole,
        "default": 40,
        "help": "about how many steps are measured, evenly in the logarithm (default: 40)",
    },
    "no-relax": {
        "action": "store_true",
        "help": "do not relax at the end: descent without noise, with the run's own learning rate, "
        "until |g| < 1e-8 (1 + |g at the start|), at most 100,000 steps",
    },
    "threads": {"type": _whole, "help": "how many to use (default: all processors)"},
    "retry": {"action": "store_true", "help": "try failed runs again"},
    "dry-run": {"action": "store_true", "help": "show the plan and its cost, run nothing"},
    "out": {
        "type": Path,
        "default": Path("results"),
        "help": "folder of table, figure and stored runs (default: results)",
    },
}


def _add_sweep(commands: Any) -> None:
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
    parser.set_defaults(command=_sweep)


def _add_paper(commands: Any) -> None:
    parser = commands.add_parser(
        "paper",
        help="reproduce the paper: run what is missing, judge, draw, write the page",
        description="Run what is missing of the paper's small experiments, judge every claim, draw "
        "every figure and write OUT/report.html. An interrupted command goes on where it stopped.",
    )
    parser.add_argument("--only", action="append", metavar="NAME,...", help="see `antipgd list`")
    parser.add_argument(
        "--seeds", type=int, help="fewer or more seeds than planned; said on the page"
    )
    parser.add_argument("--threads", type=int, help="default: all processors")
    parser.add_argument("--retry", action="store_true", help="try failed runs again")
    parser.add_argument("--refresh", action="store_true", help="draw all figures anew")
    parser.add_argument("--dry-run", action="store_true", help="show the plan and its cost")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.set_defaults(command=_paper)


def _report(options: argparse.Namespace) -> int:
    from antipgd.paper.reproduce import reproduce

    return reproduce(out=options.out, run=False)


def _paper(options: argparse.Namespace) -> int:
    from antipgd.paper.reproduce import reproduce, show_plan

    if options.threads is not None and options.threads < 1:
        raise _UsageError(f"--threads must be at least 1; got {options.threads}")
    names = None if options.only is None else _words(options.only)
    try:
        if options.dry_run:
            return show_plan(names, options.seeds, options.out, options.threads)
        return reproduce(
            names,
            seeds=options.seeds,
            out=options.out,
            threads=options.threads,
            retry=options.retry,
            refresh=options.refresh,
        )
    except ValueError as error:
        raise _UsageError(str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="antipgd", description="Anticorrelated noise: experiments.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    _add_paper(commands)
    _add_sweep(commands)
    status = commands.add_parser("status", help="what is done, missing, failed or stale")
    status.add_argument(
        "--out", type=Path, default=Path("results"), help="of a sweep (default: results)"
    )
    status.set_defaults(command=_status)
    report = commands.add_parser("report", help="write the page anew from what is stored")
    report.add_argument("--out", type=Path, default=Path("results"))
    report.set_defaults(command=_report)
    listing = commands.add_parser("list", help="problems with their settings, and methods")
    listing.set_defaults(command=_list)
    return parser


def _plan(options: argparse.Namespace) -> list:
    """The runs asked for; what cannot be run is a mistake in the command."""
    from antipgd.paper.sweep import plan_sweep

    leave = None if options.leave is None else _taps(options.leave)
    if leave is not None and len(leave) != 2:
        raise _UsageError(f"--leave takes LOW,HIGH; got {options.leave!r}")
    wanted: dict[str, Any] = dict(  # noqa: C408  (reads like the call it becomes)
        set=_settings(options.set),
        method=_words(options.method),
        lr=_numbers(float, "lr")(options.lr),
        sigma=None if options.sigma is None else _numbers(float, "sigma")(options.sigma),
        batch=None if options.batch is None else _numbers(int, "batch")(options.batch),
        taps=None if options.taps is None else [_taps(text) for text in options.taps],
        law=_words(options.law) if options.law else "gaussian",
        schedule=options.schedule,
        start=options.start,
        stop=options.stop,
        leave=leave,
        steps=options.steps,
        seeds=_seeds(options.seeds),
        points=options.points,
        relax=not options.no_relax,
    )
    try:
        return plan_sweep(options.problem, **wanted)
    except (ValueError, TypeError) as error:
        raise _UsageError(str(error)) from error


def _say(message: str) -> None:
    print(message, file=sys.stderr)


def _dry_run(runs: list, out: Path, threads: int | None, retry: bool) -> int:
    from antipgd.paper.run.local import cpu_count
    from antipgd.paper.run.timing import cost
    from antipgd.paper.store import Store

    missing, states = runs, Counter(missing=len(runs))
    if (out / "store").is_dir():
        store = Store(out / "store", _say)
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
        _say(f"antipgd: the runs would fail: {error}")
        return 1
    print(f"about {_duration(steps)} on {used} threads")
    if relaxations:
        print(f"relaxations: at most {_duration(relaxations)} more")
    return 0


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def _sweep(options: argparse.Namespace) -> int:
    from antipgd.paper.pipeline import complete
    from antipgd.paper.sweep import open_store, replaced, write_plan

    if options.threads is not None and options.threads < 1:
        raise _UsageError(f"--threads must be at least 1; got {options.threads}")
    runs = _plan(options)
    if options.dry_run:
        return _dry_run(runs, options.out, options.threads, options.retry)
    store = open_store(options.out, _say)
    notice = replaced(options.out, runs)
    if notice is not None:
        _say(notice)
    write_plan(options.out, runs)
    began = time.perf_counter()
    try:
        outcome = complete(runs, store, threads=options.threads, retry=options.retry)
    except KeyboardInterrupt:
        done = sum(store.state(run) == "done" for run in runs)
        _say(f"interrupted: {done} of {len(runs)} runs are stored; the same command goes on")
        return 130
    files = _show_results(options.out, outcome.in_order(runs))
    took = _duration(time.perf_counter() - began)
    print(f"{len(outcome.records)} of {len(runs)} runs done, {outcome.found} found stored and "
          f"{len(runs) - outcome.found} run, in {took}: {', '.join(map(str, files))}")  # fmt: skip
    _show_failures(outcome.failures.values(), _say)
    if outcome.failures:
        _say(f"{len(outcome.failures)} runs failed; --retry tries them again")
    return 1 if outcome.failures else 0


def _show_results(out: Path, records: list) -> list[Path]:
    """Table, summary and figure, in this order: what is sure comes first. Returns the files."""
    from antipgd.paper.sweep import relaxation_notes, write_figure, write_table
    from antipgd.paper.table import summary, summary_text, table

    result = table(records)
    written = write_table(out, result)
    if len(result):
        print(summary_text(summary(result)))
        print("\nat the last step: arithmetic means, Student's 95 % intervals over seeds")
        if any(record.left_at for record in records):
            print("left at: step of the exit, over the runs that left")
        for note in relaxation_notes(records):
            print(note)
    return [written, *write_figure(out, result)]


def _place(traceback: str) -> str:
    """The last line of the user's own code in a traceback, as file:line."""
    package = str(Path(__file__).parent)
    frames = re.findall(r'File "([^"]+)", line (\d+)', traceback)
    own = [f"{file}:{line}" for file, line in frames
           if not file.startswith((package, "<")) and "site-packages" not in file
           and not file.startswith(sys.base_prefix)]  # fmt: skip
    return f" ({own[-1]})" if own else ""


def _show_failures(failures: Iterable[Any], say: Callable[[str], None]) -> None:
    """Failures with the same reason at the same place together."""
    alike: dict[str, list] = defaultdict(list)
    for failure in failures:
        alike[f"{failure.reason}{_place(failure.traceback)}"].append(failure.run)
    for reason, runs in alike.items():
        first = runs[0]
        which = f"{first.method} lr={first.lr} sigma={first.sigma} seed={first.seed}"
        others = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        say(f"failed: {which}{others}: {reason}")


def _status(options: argparse.Namespace) -> int:
    from antipgd.paper.store import Store, StoreUsageError
    from antipgd.paper.sweep import read_plan

    if not options.out.is_dir():
        raise StoreUsageError(f"{options.out} is not a folder with results")
    runs = read_plan(options.out)
    store = Store(options.out / "store", _say)
    found = {run.name: store.state(run) for run in runs}
    states = Counter(found.values())
    for state in ("done", "missing", "failed", "stale"):
        print(f"{state:8} {states[state]:6}")
    failures = [store.failure(run) for run in runs if found[run.name] == "failed"]
    _show_failures(failures, print)
    return 0


def _list(options: argparse.Namespace) -> int:
    from antipgd.paper import METHODS, PROBLEMS
    from antipgd.paper.experiments import EXPERIMENTS, title_of

    print("problems, with their settings:")
    for name, cls in PROBLEMS.items():
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        print(f"  {name}  " + " ".join(f"{field.name}={field.default}" for field in fields))
        print(textwrap.fill(_ABOUT[name], 100, initial_indent="    ", subsequent_indent="    "))
    print("methods: " + ", ".join(METHODS))
    print("experiments of the paper:")
    for name in EXPERIMENTS:
        print(f"  {name}  {title_of(name)}")
    return 0


def _joined(arguments: Sequence[str]) -> list[str]:
    """`--taps -1,1` as `--taps=-1,1`: argparse takes a list that begins with − for an option."""
    joined: list[str] = []
    for argument in arguments:
        if joined and re.match(r"-[\d.]", argument) and re.fullmatch(r"--[a-z]+", joined[-1]):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    try:
        options = _parser().parse_args(_joined(sys.argv[1:] if arguments is None else arguments))
        try:
            from antipgd.paper.store import StoreError, StoreUsageError
        except ImportError as error:
            _say(f"{_EXTRA} ({error})")
            return 2
        sys.path.insert(0, os.getcwd())  # where module:Class is looked for
        try:
            return int(options.command(options))
        except StoreUsageError as error:
            raise _UsageError(str(error)) from error
        except StoreError as error:
            _say(f"antipgd: {error}")
            return 1
    except _UsageError as error:
        _say(f"antipgd: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
