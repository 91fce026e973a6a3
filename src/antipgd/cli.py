"""The command line: `antipgd sweep`, `antipgd status`, `antipgd list`.

Exit codes: 0 done, 1 some runs failed or nothing more could be written, 2 usage, 130 interrupted.
"""

import argparse
import dataclasses
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from antipgd import __version__

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


def _words(texts: Sequence[str]) -> list[str]:
    return [word.strip() for text in texts for word in text.split(",") if word.strip()]


def _add_sweep(commands: Any) -> None:
    parser = commands.add_parser(
        "sweep",
        help="many runs of one problem, measured, as table.csv and a figure",
        description="Run methods x learning rates x sigmas x seeds on one problem. Lists are "
        "comma-separated; NAME=VALUES sets a value for one method alone (--lr sgd=0.01). An "
        "interrupted sweep goes on where it stopped.",
    )
    parser.add_argument("problem", help="see `antipgd list`; or module:Class of your own")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--method", action="append", required=True, metavar="M,...")
    parser.add_argument("--lr", action="append", required=True, metavar="[M=]ETA,...")
    parser.add_argument(
        "--sigma",
        action="append",
        metavar="[M=]SIGMA,...",
        help="standard deviation of the noise, for `label` on the labels",
    )
    parser.add_argument("--batch", action="append", metavar="[M=]B,...", help="default 1")
    parser.add_argument("--taps", action="append", metavar="T,...", help="of method `noise`")
    parser.add_argument("--law", action="append", metavar="LAW,...", help="default gaussian")
    parser.add_argument("--schedule", help="of sigma, such as cosine:0:20000")
    parser.add_argument("--start", type=int, default=0, help="noise acts after this step")
    parser.add_argument("--stop", type=int, help="and until this one")
    parser.add_argument(
        "--leave",
        metavar="LOW,HIGH",
        help="end a run when the problem's watched quantity leaves this interval",
    )
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seeds", type=int, required=True, help="how many: 0, 1, ...")
    parser.add_argument("--points", type=int, default=40, help="measured steps (default 40)")
    parser.add_argument("--no-relax", action="store_true", help="do not relax at the end")
    parser.add_argument("--threads", type=int, help="default: all processors")
    parser.add_argument("--retry", action="store_true", help="try failed runs again")
    parser.add_argument("--dry-run", action="store_true", help="show the plan and its cost")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.set_defaults(command=_sweep)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="antipgd", description="Anticorrelated noise: experiments.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    _add_sweep(commands)
    status = commands.add_parser("status", help="what is done, missing, failed or stale")
    status.add_argument("--out", type=Path, default=Path("results"))
    status.set_defaults(command=_status)
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
        seeds=options.seeds,
        points=options.points,
        relax=not options.no_relax,
    )
    try:
        return plan_sweep(options.problem, **wanted)
    except (ValueError, TypeError) as error:
        raise _UsageError(str(error)) from error


def _say(message: str) -> None:
    print(message, file=sys.stderr)


def _dry_run(runs: list, out: Path, threads: int | None) -> int:
    from antipgd.paper.run.local import cpu_count
    from antipgd.paper.run.timing import seconds_needed
    from antipgd.paper.store import Store

    missing = runs
    if (out / "store").is_dir():
        store = Store(out / "store", _say)
        missing = [run for run in runs if store.state(run) in ("missing", "stale")]
    methods = Counter(run.method for run in runs)
    print(
        f"{len(runs)} runs of {runs[0].problem}: "
        + ", ".join(f"{n} {m}" for m, n in methods.items())
    )
    print(f"{len(runs) - len(missing)} done already, {len(missing)} to do")
    print(f"{sum(run.steps for run in missing):,} run-steps to do")
    used = threads or cpu_count()
    seconds = seconds_needed(missing) / used
    print(
        f"about {_duration(seconds)} on {used} threads, and as much as {len(missing)} relaxations"
    )
    return 0


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def _sweep(options: argparse.Namespace) -> int:
    from antipgd.paper.pipeline import complete
    from antipgd.paper.sweep import open_store, summary, write_plan, write_results
    from antipgd.paper.table import table

    if options.threads is not None and options.threads < 1:
        raise _UsageError(f"--threads must be at least 1; got {options.threads}")
    runs = _plan(options)
    if options.dry_run:
        return _dry_run(runs, options.out, options.threads)
    store = open_store(options.out, _say)
    write_plan(options.out, runs)
    began = time.perf_counter()
    try:
        outcome = complete(runs, store, threads=options.threads, retry=options.retry)
    except KeyboardInterrupt:
        done = sum(store.state(run) == "done" for run in runs)
        _say(f"interrupted: {done} of {len(runs)} runs are stored; the same command goes on")
        return 130
    result = table(outcome.in_order(runs))
    write_results(options.out, result)
    if len(result):
        print(summary(result).to_string(index=False, na_rep=""))
        print("means over seeds at the last step with 95 % intervals")
    took = _duration(time.perf_counter() - began)
    print(f"{len(outcome.records)} of {len(runs)} runs in {took}: {options.out / 'table.csv'}, "
          f"{options.out / 'figure.png'}")  # fmt: skip
    for failure in outcome.failures.values():
        _say(f"failed: {failure.run.method} seed {failure.run.seed}: {failure.reason}")
    if outcome.failures:
        _say(f"{len(outcome.failures)} runs failed; --retry tries them again")
    return 1 if outcome.failures else 0


def _status(options: argparse.Namespace) -> int:
    from antipgd.paper.store import Store, StoreError
    from antipgd.paper.sweep import read_plan

    if not options.out.is_dir():
        raise StoreError(f"{options.out} is not a folder with results")
    runs = read_plan(options.out)
    store = Store(options.out / "store", _say)
    states = Counter(store.state(run) for run in runs)
    for state in ("done", "missing", "failed", "stale"):
        print(f"{state:8} {states[state]:6}")
    for run in runs:
        failure = store.failure(run)
        if failure is not None:
            print(f"failed: {run.method} lr={run.lr} sigma={run.sigma} seed={run.seed}: "
                  f"{failure.reason}")  # fmt: skip
    return 0


def _list(options: argparse.Namespace) -> int:
    from antipgd.paper import METHODS, PROBLEMS

    print("problems, with their settings:")
    for name, cls in PROBLEMS.items():
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        print(f"  {name}  " + " ".join(f"{field.name}={field.default}" for field in fields))
    print("methods: " + ", ".join(METHODS))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    try:
        options = _parser().parse_args(arguments)
        try:
            from antipgd.paper.store import NewerStoreError, StoreError
        except ImportError as error:
            _say(f"{_EXTRA} ({error})")
            return 2
        sys.path.insert(0, os.getcwd())  # where module:Class is looked for
        try:
            return int(options.command(options))
        except NewerStoreError as error:
            raise _UsageError(str(error)) from error
        except StoreError as error:
            _say(f"antipgd: {error}")
            return 2 if "must be a folder" in str(error) or "plan.json" in str(error) else 1
    except _UsageError as error:
        _say(f"antipgd: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
