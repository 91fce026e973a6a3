"""The command line: `antipgd paper`, `sweep`, `status`, `report`, `list`, `data`, `tune`, `train`.

Exit codes: 0 done, 1 some runs failed or nothing more could be written, 2 usage, 130 interrupted.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence

from antipgd import __version__
from antipgd.cli import networks, paper, sweep
from antipgd.cli.usage import Parser, UsageError, say

_EXTRA = "the command line needs more packages: pip install 'antipgd[paper]'"


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="antipgd", description="Anticorrelated noise: experiments.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    for group in (paper, sweep, networks):
        group.add_commands(commands)
    return parser


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
            from antipgd.paper.files import FilesError, FilesUsageError
            from antipgd.paper.networks.extra import ExtraError
        except ImportError as error:
            say(f"{_EXTRA} ({error})")
            return 2
        sys.path.insert(0, os.getcwd())  # where module:Class is looked for
        try:
            return int(options.command(options))
        except (FilesUsageError, ExtraError) as error:
            raise UsageError(str(error)) from error
        except (FilesError, MemoryError) as error:
            say(f"antipgd: {error}")
            return 1
    except UsageError as error:
        say(f"antipgd: {error}")
        return 2
