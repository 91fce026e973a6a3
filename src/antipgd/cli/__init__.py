"""The command line: `antipgd` with one of the commands that `antipgd --help` lists.

Needs the `paper` extra, for trainings the `network` extra.

Exit codes: 0 done, 1 some runs failed or nothing more could be written, 2 usage, 130 interrupted,
141 nobody reads any more. Whatever ends a command is said in a line; what is stored stays.
"""

import contextlib
import errno
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from antipgd import __version__
from antipgd.checks import nearest
from antipgd.cli.helping import add_completion, overview
from antipgd.cli.usage import Parser, UsageError, say
from antipgd.extras import MissingPackageError, how_to_install
from antipgd.paper.engines.engine import EngineError
from antipgd.paper.engines.watching import ended_like_ctrl_c
from antipgd.paper.files import FilesError, FilesUsageError

_PACKAGES = ("matplotlib", "numba", "pandas", "scipy", "sklearn", "threadpoolctl", "tqdm")
_INTERRUPTED, _NOBODY_READS = 130, 141  # 128 and the number of the signal, as shells count


def _parser() -> tuple[Parser, Any]:
    """The parser, and those of its commands by name."""
    from antipgd.cli import fighting, networks, paper, sweep, training, trying

    parser = Parser(prog="antipgd", description="Anticorrelated noise: experiments.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    for group in (paper, sweep, trying, fighting, networks, training):
        group.add_commands(commands)
    add_completion(commands, parser)
    parser.format_help = lambda: overview(parser, commands)  # type: ignore[method-assign]

    def show_help(options: Any) -> int:
        parser.print_help()
        return 0

    parser.set_defaults(command=show_help)
    return parser, commands.choices


def _joined(arguments: Sequence[str]) -> list[str]:
    """`--taps -1,1` as `--taps=-1,1`: argparse takes a list that begins with − for an option."""
    joined: list[str] = []
    for argument in arguments:
        if joined and re.match(r"-[\d.]", argument) and re.fullmatch(r"--[a-z]+", joined[-1]):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def _command(arguments: Sequence[str]) -> int:
    """Run a command; what the user can put right is a `UsageError`."""
    parser, commands = _parser()
    words = _joined(arguments)
    if words and words[0] in commands:
        commands[words[0]].check_options(words[1:])
    elif words and not words[0].startswith("-"):
        raise UsageError(f"unknown command {words[0]!r}; {nearest(words[0], commands)}")
    options = parser.parse_args(words)
    with contextlib.suppress(FileNotFoundError):  # the folder we are in was deleted
        sys.path.insert(0, os.getcwd())  # where module:Class is looked for
    try:
        return int(options.command(options))
    except (EngineError, FilesUsageError, MissingPackageError) as error:
        raise UsageError(str(error)) from error
    except (FilesError, MemoryError) as error:
        say(f"antipgd: {error}")
        return 1
    except ModuleNotFoundError as error:
        raise _missing(error) from error


def _missing(error: ModuleNotFoundError) -> Exception:
    """What to install where a package of an extra is not there; other errors are ours."""
    name = error.name or ""
    if name.partition(".")[0] in _PACKAGES:
        return UsageError(how_to_install("the command line", name, "paper"))
    return error


def _drop_output() -> None:
    """Let nobody write to an output that failed again, as Python does when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say_error(error: OSError) -> int:
    """Something that the disk or the system refuses, and its exit code."""
    name = "standard output" if error.filename is None else str(error.filename)
    if error.filename is None:  # files have names, and who talks to the network says where
        _drop_output()
    short = name if len(name) < 80 else f"{name[:60]}… ({len(name)} characters)"
    say(f"antipgd: {short}: {error.strerror}")
    return 2 if error.errno == errno.ENAMETOOLONG else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    try:
        with ended_like_ctrl_c():
            code = _command(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
        return code
    except UsageError as error:
        say(f"antipgd: {error}")
        return 2
    except KeyboardInterrupt:
        say("interrupted; the same command goes on")
        return _INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return _NOBODY_READS
    except OSError as error:
        return _say_error(error)
