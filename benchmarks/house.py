"""How the tree is built, in numbers: `make house`; beside a commit: `make house BEFORE=REV`.

Reads the Python files of the working tree or of a commit, runs none of them and needs git alone.
What is measured and how is said in `house_measures`. `--touched BASE BRANCH` lists instead what a
branch had to change under src: how many files a new data set, law or method takes.
"""

import argparse
import json
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from house_measures import READ, House, Module, measure, row

# Reading.


def git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, check=True).stdout.decode()


def _wanted(names: str) -> list[str]:
    return sorted(n for n in names.split("\0") if n.startswith(READ) and n.endswith(".py"))


def committed(root: Path, rev: str) -> list[Module]:
    names = _wanted(git(root, "ls-tree", "-r", "-z", "--name-only", "--full-tree", rev))
    return [Module(name, git(root, "show", f"{rev}:{name}")) for name in names]


def working(root: Path) -> list[Module]:
    """What a commit of everything would hold: new files too, ignored and deleted ones not."""
    listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    there = [name for name in _wanted(listed) if (root / name).is_file()]
    return [Module(name, (root / name).read_bytes().decode()) for name in there]


def touched(root: Path, base: str, branch: str) -> list[str]:
    """Files under src that the branch changed since it left its base."""
    return git(root, "diff", "--name-only", f"{base}...{branch}", "--", "src").splitlines()


def house(root: Path, rev: str | None = None) -> House:
    """The tree of a commit, or the working tree."""
    return measure(rev, committed(root, rev)) if rev else measure("working tree", working(root))


# Printing.


def _rows(houses: list[House]) -> Iterator[list[str]]:
    yield ["lines", *(one.of for one in houses)]
    for room in sorted({room for one in houses for room in one.rooms}, key=row):
        yield [_shown(room), *(_lines(one, room) for one in houses)]
    yield ["", *("" for _ in houses)]
    for title in houses[0].measures:
        yield [title, *(str(one.measures[title].number) for one in houses)]


def _lines(one: House, room: str) -> str:
    return f"{one.rooms[room]:,}" if room in one.rooms else "–"


def _shown(room: str) -> str:
    """A room inside the paper stands indented, by its own name."""
    inside = room.removeprefix("paper/")
    return "  " + inside if inside != room and inside else room


def table(houses: list[House]) -> str:
    width = max(12, *(len(one.of) + 2 for one in houses))
    lines = (f"{title:34}" + "".join(f"{v:>{width}}" for v in vs) for title, *vs in _rows(houses))
    return "\n".join(line.rstrip() for line in lines)


def places(houses: list[House]) -> str:
    said = []
    for title in houses[0].measures:
        for one in houses:
            found = one.measures[title].places
            said += ["", f"{title}, {one.of}:", *(f"  {place}" for place in found or ["none"])]
    return "\n".join(said)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="How the tree is built, in numbers.")
    add = parser.add_argument
    add("rev", nargs="?", help="a commit (default: the working tree)")
    add("--before", metavar="REV", help="another commit, in a column before")
    add("--json", type=Path, metavar="FILE", help="also write the numbers and places here")
    add("--touched", nargs=2, metavar=("BASE", "BRANCH"),
        help="print only the files under src that a branch changed since it left BASE")  # fmt: skip
    add("--root", type=Path, default=Path(__file__).parents[1], help="the repository")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = parsed(arguments)
    try:
        report(options)
    except subprocess.CalledProcessError as error:
        raise SystemExit(error.stderr.decode().strip()) from None


def report(options: argparse.Namespace) -> None:
    if options.touched:
        files = touched(options.root, *options.touched)
        print(f"files under src: {len(files)}", *files, sep="\n  ")
        return
    columns = [options.before, options.rev] if options.before else [options.rev]
    houses = [house(options.root, rev) for rev in columns]
    print(table(houses), places(houses), sep="\n")
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in houses], indent=2) + "\n")


if __name__ == "__main__":
    main()
