"""`antipgd train`: one network of one's own, every field of a training an option."""

import argparse
import inspect
import os
from pathlib import Path
from typing import Any

from antipgd.cli.usage import UsageError, add_on, check_threads, engine_of, say
from antipgd.noise.laws import accepted_laws
from antipgd.paper.engines.on import On
from antipgd.paper.methods import TRAINABLE


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
    "stop-at-loss": (float, "ends after the first measured epoch with at most this loss"),
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


def add_commands(commands: Any) -> None:
    """`antipgd train`."""
    parser = commands.add_parser(
        "train",
        help="train one network, measured at w and z, resumable",
        description="Train one network. Everything lies in OUT: log.csv with every measurement, "
        "checkpoints, and the clean weights. An interrupted training goes on where it was.",
    )
    add = parser.add_argument
    add("--data", required=True, help="a data set; `antipgd data` lists them")
    add("--model", default="cnn", help="resnet18, cnn, lenet or mlp (default: cnn)")
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
    add_on(parser)
    add("--device", default="cpu", help="cpu (default), cuda or cuda:INDEX")
    add("--tensorboard", action="store_true", help="also write OUT/tensorboard")
    add("--out", type=Path, default=Path("training"))
    parser.set_defaults(command=_train)


def _spec(options: argparse.Namespace) -> Any:
    if options.measure_every < 1:
        raise ValueError(f"--measure-every must be at least 1; got {options.measure_every}")
    names = [name.replace("-", "_") for name in (*_NUMBERS, *_WORDS)]
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if "taps" in given:
        given["taps"] = _taps(given["taps"])
    if options.relative:
        given["relative"] = True
    spec = _training(options, given)
    for name in sorted(_NOT_ALWAYS & given.keys()):
        if given[name] != _defaults()[name] and not _matters(name, options, given, spec):
            raise ValueError(
                f"--{name.replace('_', '-')} changes nothing with --method {options.method} "
                f"--optimizer {options.optimizer}: leave it out"
            )
    return spec


def _matters(name: str, options: argparse.Namespace, given: dict[str, Any], spec: Any) -> bool:
    """Whether the training would be another, or none, without this option."""
    try:
        return _training(options, {k: v for k, v in given.items() if k != name}) != spec
    except (ValueError, TypeError):
        return True


# What some methods or optimizers have no use for.
_NOT_ALWAYS = {"sigma", "law", "noise_start", "noisy", "form", "relative", "momentum"}


def _defaults() -> dict[str, Any]:
    from antipgd.paper.networks.spec import make_training

    parameters = inspect.signature(make_training).parameters
    return {name: parameter.default for name, parameter in parameters.items()}


def _training(options: argparse.Namespace, given: dict[str, Any]) -> Any:
    from antipgd.paper.networks.spec import make_training

    return make_training(
        options.data, options.model, options.method, batch=options.batch, epochs=options.epochs,
        seed=options.seed, optimizer=options.optimizer, validation=options.validation,
        channels_last=not options.contiguous, bf16=options.bf16,
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
    on = engine_of(options)
    if on.engine != "processes":
        return _train_elsewhere(spec, on, options)
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


def _train_elsewhere(spec: Any, on: On, options: argparse.Namespace) -> int:
    """The same on an engine; its folder is on a disk that all machines share."""
    from tqdm import tqdm

    from antipgd.paper.engines.opening import opened
    from antipgd.paper.networks.workers import check_start, train_on
    from antipgd.paper.record import Failure

    if options.tensorboard:
        raise UsageError("--tensorboard is for trainings of this process: leave out --on")
    check_start([spec], "cpu")
    with (
        opened(on, 1, options.out / "jobs", options.device, say) as engine,
        tqdm(total=spec.epochs, unit=" epochs", disable=None, leave=False) as bar,
    ):
        assert engine is not None
        result = train_on(engine, spec, options.out, bar.update, say, options.threads)
    if isinstance(result, Failure):
        say(f"antipgd: {result.reason}")
        return 1
    _show(result)
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
