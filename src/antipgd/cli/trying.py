"""`antipgd try`: one's own training function over a grid, as a table of means."""

import argparse
import time
from collections.abc import Sequence
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
    words,
)


def add_commands(commands: Any) -> None:
    """`antipgd try`."""
    parser = commands.add_parser(
        "try",
        help="a training function of your own over sigma, learning rates and seeds",
        description="Call a function for every combination of settings and print the means of what "
        "it returns, a dictionary of numbers, over seeds. It is given keyword arguments: seed, and "
        "sigma, lr and others as asked; folder, too, if it takes one. An interrupted command goes "
        "on where it stopped.",
    )
    add = parser.add_argument
    add("function", metavar="MODULE:FUNCTION", help="found in this folder or where Python looks")
    add("--sigma", action="append", metavar="SIGMA,...", help="values of its argument sigma")
    add("--lr", action="append", metavar="ETA,...", help="values of its argument lr")
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=V,...",
        help="values of any other argument; may be repeated",
    )
    add("--seeds", required=True, help="a count (5: seeds 0 to 4), a list (3,4) or range (0-4)")
    add("--threads", type=int, help="calls at a time (default: one for each processor)")
    add_on(parser)
    add("--retry", action="store_true", help="try failed calls again")
    add("--out", type=Path, default=Path("trials"), help="folder of tables and stored calls")
    parser.set_defaults(command=_try)


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--{option}: {text!r} is not a number") from None


def _value(text: str) -> int | float | str | bool:
    """A number or a truth value where it reads as one, else the word."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _settings(texts: Sequence[str]) -> dict[str, list]:
    settings: dict[str, list] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name.strip() or not words([values]):
            raise UsageError(f"--set takes NAME=VALUE,...; got {text!r}")
        settings.setdefault(name.strip(), []).extend(map(_value, words([values])))
    return settings


def _try(options: argparse.Namespace) -> int:
    from antipgd.paper.trials.spec import plan_trials
    from antipgd.paper.trials.table import summary_text
    from antipgd.paper.trials.trying import carry_out

    check_threads(options.threads)
    on = engine_of(options)
    grid = {
        name: None if given is None else [_number(name, word) for word in words(given)]
        for name, given in (("sigma", options.sigma), ("lr", options.lr))
    }
    try:
        trials = plan_trials(
            options.function, seeds=seeds_of(options.seeds), set=_settings(options.set), **grid
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    began = time.perf_counter()
    tried = carry_out(trials, options.out, options.threads, options.retry, say, on)
    outcome, took = tried.outcome, duration(time.perf_counter() - began)
    if tried.records:
        print(summary_text(tried.summary))
        print("\narithmetic means, Student's 95 % intervals over seeds")
    files = ", ".join(str(options.out / name) for name in ("table.csv", "summary.csv"))
    print(f"{len(outcome.records)} of {len(trials)} trials done, {outcome.found} found stored and "
          f"{len(trials) - outcome.found} run, in {took}: {files}")  # fmt: skip
    show_failures(tried.failures, say)
    if tried.failures:
        say(f"{len(tried.failures)} trials failed; --retry tries them again")
    return 1 if tried.failures else 0
