"""`antipgd fight`: methods against each other at equal budgets, and one's own among them."""

import argparse
import time
from pathlib import Path
from typing import Any

from antipgd.cli.usage import (
    add_on,
    check_threads,
    duration,
    engine_of,
    say,
    show_failures,
    words,
)


def add_commands(commands: Any) -> None:
    """`antipgd fight`."""
    parser = commands.add_parser(
        "fight",
        help="methods against each other at equal budgets, your own among them",
        description="Tune every method with as many gradients, judge it on other seeds, rank it "
        "with intervals at equal gradients and at equal steps. A budget fixes problems, methods "
        "and seeds. An interrupted command goes on where it stopped.",
    )
    add = parser.add_argument
    add("--budget", default="25m", help="25m, 3h or night, on two cores (default: 25m)")
    add("--method", action="append", default=[], type=Path, metavar="FILE.py",
        help="a method of your own, a file of some twenty lines; may be repeated")  # fmt: skip
    add("--only", action="append", metavar="PROBLEM,...", help="some of the budget's problems")
    add("--methods", action="append", metavar="NAME,...", help="some of the built-in methods")
    add("--threads", type=int, help="bouts at a time (default: one for each processor)")
    add_on(parser)
    add("--retry", action="store_true", help="try failed bouts again")
    add("--dry-run", action="store_true", help="say what would be run, and how long it takes")
    add("--out", type=Path, default=Path("fight"), help="folder of page, table and stored bouts")
    parser.set_defaults(command=_fight)


def _fight(options: argparse.Namespace) -> int:
    from antipgd.paper.networks.extra import check_torch

    check_threads(options.threads)
    on = engine_of(options)
    check_torch()
    from antipgd.paper.fight.carrying_out import forecast
    from antipgd.paper.fight.fighting import enter, fight
    from antipgd.paper.pipeline import cpu_count

    given = [None if texts is None else words(texts) for texts in (options.only, options.methods)]
    entered = enter(options.budget, only=given[0], methods=given[1], strangers=options.method)
    for name, why in {**entered.skipped, **entered.refused}.items():
        say(f"{name} does not take part: {why}")
    bouts, seconds = forecast(entered.plan)
    cores = on.count or options.threads or cpu_count()
    say(f"{bouts:,} bouts, about {duration(seconds / cores)} on {cores} cores like the author's")
    if options.dry_run:
        return 0
    began = time.perf_counter()
    fought = fight(options.budget, entered, options.out, count=options.threads,
                   retry=options.retry, on=on)  # fmt: skip
    _told(fought, options.out, time.perf_counter() - began)
    from antipgd.paper.fight.agreeing import beside_what_ships

    beside = beside_what_ships(options.budget, fought.tables)
    if beside is not None:
        print(beside)
    return 1 if fought.outcome.failures or entered.refused else 0


def _told(fought: Any, out: Path, took: float) -> None:
    from antipgd.paper.fight.writing import paragraphs

    print("\n\n".join(paragraphs(fought.tables)))
    outcome = fought.outcome
    known = len(outcome.records) + len(outcome.failures)
    print(f"\n{known:,} bouts, {outcome.found:,} found stored, in {duration(took)}: "
          f"{out / 'fight.md'}")  # fmt: skip
    show_failures(outcome.failures.values(), say)
    if outcome.failures:
        say(f"{len(outcome.failures)} bouts failed; --retry tries them again")
