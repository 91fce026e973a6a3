"""`antipgd --help`: commands by what one wants, each with examples; completion for shells.

Colours and columns are rich's where it is there and somebody looks at a terminal.
"""

import argparse
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from antipgd.extras import needed_by

WIDTH = 96
GROUPS: Mapping[str, Sequence[str]] = {
    "the paper": ("paper", "report", "status", "list", "playground"),
    "your own experiments": ("sweep", "try", "fight"),
    "networks": ("train", "tune", "rehearse", "records", "data"),
    "this command line": ("completion",),
}
"""Every command, in the order in which help shows them."""
EXAMPLES: Mapping[str, Sequence[str]] = {
    "": ("antipgd paper", "antipgd sweep quadratic_regression --method gd,anti --lr 0.1 "
         "--sigma 0.05 --steps 20000 --seeds 10"),
    "paper": ("antipgd paper", "antipgd paper --only regression,sensing",
              "antipgd paper --scale small --dry-run"),
    "report": ("antipgd report --out results",),
    "status": ("antipgd status --out results",),
    "list": ("antipgd list",),
    "playground": ("antipgd playground --out playground.html",),
    "sweep": ("antipgd sweep quadratic_regression --method gd,pgd,anti,sgd --lr 0.1 "
              "--lr sgd=0.01 --sigma 0.05 --steps 20000 --seeds 10",
              "antipgd sweep widening_valley --set d=10 --method anti --lr 0.25 --sigma 0.07 "
              "--steps 12000 --seeds 20 --dry-run"),
    "try": ("antipgd try mine:train --sigma 0,0.01,0.03 --seeds 5",
            "antipgd try mine:train --sigma 0.01 --lr 0.1,0.3 --seeds 5 --on ray"),
    "fight": ("antipgd fight --dry-run", "antipgd fight --budget 25m --method mine.py",
              "antipgd fight --only regression --methods gd,anti_pgd,sam"),
    "train": ("antipgd train --data digits --method anti --sigma 0.04 --batch 100 --epochs 60",),
    "tune": ("antipgd tune --scale digits",),
    "rehearse": ("antipgd rehearse --scale small --rounds 12",),
    "records": ("antipgd records small",),
    "data": ("antipgd data", "antipgd data cifar10"),
    "completion": ("antipgd completion bash > ~/.local/share/bash-completion/completions/antipgd",),
}  # fmt: skip
SHELLS = ("bash", "zsh", "tcsh")


def formatter(prog: str) -> argparse.HelpFormatter:
    """Rich's where it is installed. Brackets and percent signs of ours are text, not its markup."""
    try:
        from rich_argparse import RawDescriptionRichHelpFormatter
    except ImportError:
        return argparse.RawDescriptionHelpFormatter(prog, width=WIDTH)

    class Coloured(RawDescriptionRichHelpFormatter):
        text_markup = False
        help_markup = False

    Coloured.group_name_formatter = _capital

    return Coloured(prog, width=WIDTH)


def _capital(title: str) -> str:
    return title[:1].upper() + title[1:]


def filled(text: str | None) -> str | None:
    """A description, in lines that fit."""
    return None if text is None else textwrap.fill(text, WIDTH)


def examples_of(command: str) -> str | None:
    """The end of a command's help."""
    lines = EXAMPLES.get(command)
    return None if lines is None else "\n  ".join(["Examples:", *map(_folded, lines)])


def _folded(line: str) -> str:
    """A long line as one types it, with a backslash at the end."""
    parts = textwrap.wrap(line, WIDTH - 4, break_long_words=False, break_on_hyphens=False)
    return " \\\n      ".join(parts)


def overview(parser: argparse.ArgumentParser, commands: Any) -> str:
    """The help of `antipgd` itself: commands in groups."""
    page = parser._get_formatter()
    page.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups)
    page.add_text(parser.description)
    lines = {action.dest: action for action in commands._choices_actions}
    for title, names in GROUPS.items():
        page.start_section(title)
        page.add_arguments([lines[name] for name in names])
        page.end_section()
    page.start_section("options")
    page.add_arguments([one for one in parser._actions if one.option_strings])
    page.end_section()
    page.add_text(examples_of(""))
    page.add_text("antipgd COMMAND --help says more.")
    return page.format_help()


def add_completion(commands: Any, parser: argparse.ArgumentParser) -> None:
    """`antipgd completion`."""
    own = commands.add_parser(
        "completion",
        help="what your shell needs to complete commands and options",
        description="Print a script for your shell; where it goes is that shell's affair.",
    )
    own.add_argument("shell", choices=SHELLS)

    def complete(options: argparse.Namespace) -> int:
        with needed_by("antipgd completion", "paper"):
            import shtab
        sys.stdout.write(shtab.complete(parser, options.shell) + "\n")
        return 0

    own.set_defaults(command=complete)
