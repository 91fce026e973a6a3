"""What all commands share: messages, mistakes in a command, and how values are written."""

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from antipgd.checks import nearest
from antipgd.cli.helping import examples_of, filled, formatter
from antipgd.paper.engines.on import ACCEPTED, On, read_on

SCALE_NAMES = (
    "smoke, digits, small, medium or paper"  # written out: a parser imports no experiments
)


class UsageError(Exception):
    """Something the user can put right in the command."""


class Parser(argparse.ArgumentParser):
    """Mistakes in the command are raised, not printed over a page of usage."""

    def __init__(self, prog: str, description: str | None = None, **others: Any) -> None:
        command = prog.partition(" ")[2]
        super().__init__(
            prog=prog,
            description=filled(description),
            epilog=examples_of(command) if command else None,
            formatter_class=formatter,
            **others,
        )

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def check_options(self, arguments: Iterable[str]) -> None:
        """Name an option that there is not, before a missing one is: it may be the misspelt one."""
        known = list(self._option_string_actions)
        for argument in arguments:
            option = argument.partition("=")[0]
            if re.match("--[a-zA-Z]", option) and not any(k.startswith(option) for k in known):
                raise UsageError(f"unrecognized arguments: {option}; {nearest(option, known)}")


def say(message: str) -> None:
    """To the user, beside the results."""
    print(message, file=sys.stderr)


def whole(text: str) -> int:
    """A whole number, also as 1e4."""
    try:
        number = float(text)
        if number == int(number):
            return int(text) if re.fullmatch(r"[+-]?\d+", text) else int(number)
    except (ValueError, OverflowError):
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")


def seeds_of(text: str) -> int | list[int]:
    """A count, "10", or seeds themselves, "3,4" or "0-4" with both ends."""
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    seeds: list[int] = []
    for item in text.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", item.strip())
        several = range(int(found[1]), int(found[2] or found[1]) + 1) if found else ()
        if not several:
            raise UsageError(
                f"--seeds takes a count (10), a list (3,4) or a range (0-4); got {text!r}"
            )
        seeds += several
    return seeds


def words(texts: Sequence[str]) -> list[str]:
    """Comma-separated names, of an option that may be repeated."""
    return [word.strip() for text in texts for word in text.split(",") if word.strip()]


def duration(seconds: float) -> str:
    """In the unit in which one thinks of it."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def check_results(out: Path) -> None:
    """Refuse a folder in which nothing has been run."""
    if not out.is_dir():
        raise UsageError(f"{out} is not a folder with results")


def add_on(parser: argparse.ArgumentParser) -> None:
    """`--on`, of the commands that run."""
    parser.add_argument(
        "--on",
        default="processes",
        metavar="ENGINE",
        help=f"where to run: {ACCEPTED} (default: this machine)",
    )


def engine_of(options: argparse.Namespace) -> On:
    """What `--on` says; `--threads` is the most jobs at a time, and not said twice."""
    try:
        on = read_on(options.on)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if on.count is not None and options.threads not in (None, on.count):
        raise UsageError(f"--on processes={on.count} and --threads {options.threads} differ")
    return on


def check_threads(threads: int | None) -> None:
    """Refuse what is no number of threads or processes."""
    if threads is not None and threads < 1:
        raise UsageError(f"--threads must be at least 1; got {threads}")


def _place(traceback: str) -> str:
    """The last line of the user's own code in a traceback, as file:line."""
    package = str(Path(__file__).parents[1])
    frames = re.findall(r'File "([^"]+)", line (\d+)', traceback)
    own = [f"{file}:{line}" for file, line in frames
           if not file.startswith((package, "<")) and "site-packages" not in file
           and not file.startswith(sys.base_prefix)]  # fmt: skip
    return f" ({own[-1]})" if own else ""


def show_failures(failures: Iterable[Any], say: Callable[[str], None]) -> None:
    """Failures with the same reason at the same place together."""
    alike: dict[str, list] = defaultdict(list)
    for failure in failures:
        alike[f"{failure.reason}{_place(failure.traceback)}"].append(failure.run)
    for reason, runs in alike.items():
        first = runs[0]
        which = getattr(first, "label", None) or (
            f"{first.method} lr={first.lr} sigma={first.sigma} seed={first.seed}"
        )
        others = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        say(f"failed: {which}{others}: {reason}")
