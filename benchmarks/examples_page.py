"""Runs each example as a stranger would, and writes what it printed into docs/examples.md.

A wheel of this clone and what the examples say they need go into a new environment in a temporary
folder; they are copied there and run there, so nothing of the clone is imported. What is on the
page is what came out, without what hosts write to stderr.

    python benchmarks/examples_page.py               all of them, or those that are named
    python benchmarks/examples_page.py --wheel FILE  from that wheel; the page stays as it is
"""

import argparse
import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "examples.md"


def _lines(path: Path) -> list[str]:
    """Those of the docstring."""
    return (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").splitlines()


def sentence(path: Path) -> str:
    """What the example says it is."""
    return _lines(path)[0]


def command(path: Path) -> str:
    """How it is run, from the folder above."""
    (found,) = [line for line in _lines(path) if f"examples/{path.name}" in line]
    return found.split("#")[0].strip()


def installed(paths: Sequence[Path]) -> tuple[set[str], set[str]]:
    """The extras and packages that the examples name, in their line `pip install '.[…]' …`."""
    extras, packages = set(), set()
    for path in paths:
        (line,) = [line for line in _lines(path) if line.strip().startswith("pip install")]
        own, *others = shlex.split(line)[2:]
        extras |= set(own.removeprefix(".[").removesuffix("]").split(","))
        packages |= set(others)
    return extras, packages


def _pinned(packages: set[str]) -> list[str]:
    """With the version that the tests of hosts run with, where there is one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    hosts = {re.split("[=>]", one)[0]: one for one in project["dependency-groups"]["hosts"]}
    return [hosts.get(package, package) for package in sorted(packages)]


def _wheel(folder: Path, pip: Sequence[str | Path]) -> Path:
    """Built of a copy, since setuptools takes up what earlier builds have left in a clone."""
    clone, left = folder / "clone", shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", clone / "src", ignore=left)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", folder, clone], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def environment(folder: Path, paths: Sequence[Path], wheel: Path | None = None) -> Path:
    """The `bin` of a new environment with a wheel, of this clone, and what the examples need."""
    extras, packages = installed(paths)
    venv.create(folder / "venv", with_pip=True)
    pip = [folder / "venv" / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
    wheel = wheel or _wheel(folder, pip)
    subprocess.run(
        [*pip, "install", "-q", "-c", ROOT / "constraints.txt",
         f"{wheel}[{','.join(sorted(extras))}]", *_pinned(packages)],
        check=True,
    )  # fmt: skip
    return folder / "venv" / "bin"


def output(path: Path, folder: Path, binaries: Path) -> str:
    """What the example prints, run in a folder of its own."""
    here = folder / path.stem
    (here / "examples").mkdir(parents=True)
    shutil.copy(path, here / "examples")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env |= {"PATH": f"{binaries}:{env['PATH']}", "OMP_NUM_THREADS": "1"}
    words = shlex.split(command(path))
    return subprocess.run(words, cwd=here, env=env, check=True, stdout=-1, text=True).stdout


def section(path: Path, printed: str) -> str:
    """The example's part of the page."""
    shown = "".join(f"    {line}\n" for line in [f"$ {command(path)}", *printed.splitlines()])
    return f"<!-- {path.name} begins -->\n{sentence(path)}\n\n{shown}<!-- {path.name} ends -->"


def write(path: Path, printed: str) -> None:
    """Put what the example printed into its part of the page."""
    begin, end = (f"<!-- {path.name} {word} -->" for word in ("begins", "ends"))
    page = PAGE.read_text("utf-8")
    before, after = page.split(begin)[0], page.split(end)[1]
    PAGE.write_text(before + section(path, printed) + after, "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="such as classifier; all if none is named")
    parser.add_argument("--wheel", type=Path, metavar="FILE",
                        help="run them from this wheel, and leave the page as it is")  # fmt: skip
    options = parser.parse_args()
    paths = sorted(EXAMPLES / f"{name}.py" for name in options.names)
    paths = paths or sorted(EXAMPLES.glob("*.py"))
    with tempfile.TemporaryDirectory() as name:
        binaries = environment(Path(name), paths, options.wheel and options.wheel.resolve())
        for path in paths:
            print(f"running {path.name}", file=sys.stderr, flush=True)
            printed = output(path, Path(name), binaries)
            if options.wheel:
                print(printed, end="", flush=True)
            else:
                write(path, printed)


if __name__ == "__main__":
    main()
