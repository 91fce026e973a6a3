"""`antipgd paper`, what can be asked of its folder or a sweep's, and the playground."""

import argparse
import dataclasses
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

from antipgd.cli.usage import (
    SCALE_NAMES,
    UsageError,
    add_on,
    check_results,
    check_threads,
    engine_of,
    say,
    show_failures,
    words,
)


def add_commands(commands: Any) -> None:
    """`antipgd paper`, `status`, `report`, `list` and `playground`."""
    _add_paper(commands)
    status = commands.add_parser("status", help="what is done, missing, failed or stale")
    status.add_argument(
        "--out", type=Path, default=Path("results"), help="of a sweep (default: results)"
    )
    status.set_defaults(command=_status)
    report = commands.add_parser("report", help="write the page anew from what is stored")
    report.add_argument("--scale", help="with the networks trained there at this scale")
    report.add_argument("--out", type=Path, default=Path("results"))
    report.set_defaults(command=_report)
    listing = commands.add_parser("list", help="problems with their settings, and methods")
    listing.set_defaults(command=_list)
    play = commands.add_parser("playground", help="write the playground, a page for a browser")
    play.add_argument("--out", type=Path, default=Path("playground.html"), help="the file")
    play.set_defaults(command=_playground)


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
    parser.add_argument(
        "--scale",
        help=f"train the networks, too: {SCALE_NAMES} (default: they are judged from the records "
        "that ship with the package)",
    )
    parser.add_argument("--device", default="cpu", help="of the networks: cpu (default) or cuda")
    parser.add_argument(
        "--threads",
        type=int,
        help="default: all processors; for networks on cuda, one for each GPU",
    )
    add_on(parser)
    parser.add_argument("--retry", action="store_true", help="try failed runs again")
    parser.add_argument("--refresh", action="store_true", help="draw all figures anew")
    parser.add_argument("--dry-run", action="store_true", help="show the plan and its cost")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.set_defaults(command=_paper)


def _report(options: argparse.Namespace) -> int:
    from antipgd.paper.reproduce import reproduce

    check_results(options.out)
    if not (options.out / "store").is_dir():
        raise UsageError(f"{options.out} has no store: nothing has been run there")
    try:
        return reproduce(out=options.out, run=False, scale=options.scale)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _paper(options: argparse.Namespace) -> int:
    from antipgd.paper.reproduce import reproduce, show_plan

    check_threads(options.threads)
    on = engine_of(options)
    names = None if options.only is None else words(options.only)
    try:
        if options.dry_run:
            threads = on.count or options.threads
            return show_plan(names, options.seeds, options.out, threads, options.scale)
        return reproduce(
            names,
            seeds=options.seeds,
            out=options.out,
            threads=options.threads,
            retry=options.retry,
            refresh=options.refresh,
            scale=options.scale,
            device=options.device,
            on=on,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error


def _status(options: argparse.Namespace) -> int:
    from antipgd.paper.reproduce import read_plan
    from antipgd.paper.store import Store

    check_results(options.out)
    runs = read_plan(options.out)
    store = Store(options.out / "store", say)
    found = {run.name: store.state(run) for run in runs}
    states = Counter(found.values())
    for state in ("done", "missing", "failed", "stale"):
        print(f"{state:8} {states[state]:6}")
    failures = [store.failure(run) for run in runs if found[run.name] == "failed"]
    show_failures(failures, print)
    return 0


def _playground(options: argparse.Namespace) -> int:
    from antipgd.paper import files, playground

    files.write(options.out, playground.page().encode())
    print(options.out)
    return 0


def _list(options: argparse.Namespace) -> int:
    from antipgd.paper import METHODS, PROBLEMS
    from antipgd.paper.experiments import EXPERIMENTS, title_of
    from antipgd.paper.networks.scales import SCALES

    print("problems, with their settings:")
    for name, cls in PROBLEMS.items():
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        print(f"  {name}  " + " ".join(f"{field.name}={field.default}" for field in fields))
        print(textwrap.fill(cls.about, 100, initial_indent="    ", subsequent_indent="    "))
    print("methods: " + ", ".join(METHODS))
    print("experiments of the paper:")
    for name in EXPERIMENTS:
        print(f"  {name}  {title_of(name)}")
    print("scales of the experiments on networks:")
    for scale in SCALES.values():
        print(f"  {scale.name}  {scale.about}")
    return 0
