"""Every hint about a missing package is made in one place and names an extra that exists.

What the extras bring is read off pyproject.toml, what the code needs off its syntax trees.
"""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

from antipgd.extras import MissingPackageError, how_to_install, needed_by

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "antipgd"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
MODULES = sorted(SOURCE.rglob("*.py"))
DISTRIBUTIONS = {
    "PIL": "pillow", "llvmlite": "numba", "sklearn": "scikit-learn",
    "rich_argparse": "rich-argparse",
}  # fmt: skip
GUARDS = {"needed_by", "network_extra"}


def brings(extra):
    """The distributions of an extra, with those of the extras it names."""
    found = set()
    for requirement in EXTRAS[extra]:
        name, others = re.match(r"([\w-]+)(?:\[([\w,]+)\])?", requirement).groups()
        found |= set().union(*map(brings, others.split(","))) if others else {name}
    return found


def distributions(statement):
    """Whom an import needs that neither Python nor this package nor its one requirement brings."""
    if isinstance(statement, ast.Import):
        names = [alias.name for alias in statement.names]
    else:
        names = [statement.module or ""]
    tops = {name.partition(".")[0] for name in names}
    tops -= {*sys.stdlib_module_names, "antipgd", "numpy"}
    return {DISTRIBUTIONS.get(top, top) for top in tops}


def called(node):
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def imports(node, guard=None):
    """All imports below a node, each with the call that guards it, or None."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node, guard
    if isinstance(node, ast.With) and called(node.items[0].context_expr) in GUARDS:
        guard = node.items[0].context_expr
    for child in ast.iter_child_nodes(node):
        yield from imports(child, guard)


def extra_of(call):
    """The extra that a guard or a sentence names."""
    place = {"needed_by": 1, "how_to_install": 2}.get(called(call))
    if place is None:
        return "network"
    return call.args[place].value if len(call.args) > place else None


def documented(path):
    """The extras that a module's docstring names, or that of a room it lies in."""
    rooms = [
        folder / "__init__.py" for folder in path.parents if SOURCE in (folder, *folder.parents)
    ]
    texts = [ast.get_docstring(ast.parse(one.read_text())) or "" for one in (path, *rooms)]
    return set(re.findall(r"the `(\w+)`\s+extra", " ".join(texts)))


def test_what_an_extra_brings():
    assert brings("numba") == {"numba"}
    assert brings("flatness") == {"torch", "numba", "scipy", "tqdm"}
    assert brings("network") > brings("paper") | brings("flatness")


def test_the_words_of_an_install_stand_in_one_module():
    saying = [path.name for path in MODULES if "pip install" in path.read_text()]
    assert saying == ["extras.py"]
    naming = [path.name for path in MODULES if re.search(r"antipgd\[|`cpu`", path.read_text())]
    assert naming == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_package_that_is_imported_comes_with_an_extra_that_is_named(path):
    for statement, guard in imports(ast.parse(path.read_text())):
        needed = distributions(statement)
        if guard is None:
            there = set().union(*map(brings, documented(path)))
            assert needed <= there, f"line {statement.lineno}: {needed - there} in no extra named"
        elif (extra := extra_of(guard)) is not None:
            assert needed <= brings(extra), f"line {statement.lineno}: not in {extra}"
        else:
            assert len(needed) == 1, f"line {statement.lineno}: one hint names one package"


def test_every_sentence_names_an_extra_that_exists():
    calls = [
        node
        for path in MODULES
        if path.name != "extras.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if called(node) in {"needed_by", "how_to_install"}
    ]
    assert len(calls) > 10
    assert {extra_of(call) for call in calls} - {None} <= set(EXTRAS)
    assert {"torch", "optax", "flatness", "paper", "network"} <= {extra_of(call) for call in calls}


def test_pages_name_extras_that_exist():
    pages = [ROOT / "README.md", ROOT / "Makefile", *(ROOT / "docs").glob("*.md")]
    named = {
        extra
        for page in pages
        for words in re.findall(r"'(?:\.|antipgd)\[([\w,]+)\]'", page.read_text("utf-8"))
        for extra in words.split(",")
    }
    assert named == set(EXTRAS)  # each is in README, and none that is gone


def test_a_sentence_names_the_package_as_it_is_installed():
    assert how_to_install("this", "PIL.Image") == "this needs pillow: pip install pillow"
    said = how_to_install("this", "llvmlite", "numba")
    assert said.startswith("this needs numba: pip install numba, or all it needs in a clone")
    assert said.endswith("pip install '.[numba]'")


def test_a_guard_names_what_is_missing_and_nothing_else():
    with (
        pytest.raises(MissingPackageError, match=r"^this needs no_such: pip install no_such$") as e,
        needed_by("this"),
    ):
        import no_such.part  # noqa: F401
    assert e.value.name in {"no_such", "no_such.part"}
    with pytest.raises(ImportError, match="cannot import name 'nothing'") as e, needed_by("this"):
        from math import nothing  # noqa: F401
    assert not isinstance(e.value, MissingPackageError)  # there, but broken: its own words
