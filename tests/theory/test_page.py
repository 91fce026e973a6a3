"""docs/theory.md names every public function of the theory and only derivations that exist."""

import inspect
import re
from pathlib import Path

import pytest

from antipgd.theory import (
    batches,
    equivalences,
    finder,
    finite_rate,
    linear,
    pac_bayes,
    regularisation,
    valley,
)
from proofs.__main__ import derivations

PAGE = (Path(__file__).parents[2] / "docs" / "theory.md").read_text("utf-8")
ROWS = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
NAMED = set(re.findall(r"`(proofs/\w+\.py::\w+)`", PAGE))
HELPERS = {"require"}


def public(module):
    """Functions of the module's own that have no underscore."""
    found = inspect.getmembers(module, inspect.isfunction)
    own = {name for name, one in found if one.__module__.startswith(module.__name__)}
    return {name for name in own if not name.startswith("_")} - HELPERS


@pytest.mark.parametrize(
    "module",
    [batches, equivalences, finder, finite_rate, linear, pac_bayes, regularisation, valley],
)
def test_every_public_function_has_its_row(module):
    first = {name for row in ROWS for name in re.findall(r"`(\w+)`", row[0])}
    assert public(module)
    assert public(module) <= first


def test_every_derivation_that_is_named_exists_and_every_one_is_named():
    assert {name for name, _ in derivations()} == NAMED


def test_every_row_of_a_formula_names_a_derivation():
    without = [row[0] for row in ROWS if not re.search(r"proofs/|the table above", row[-1])]
    assert without == ["| `check_grid`, `first_below`, `too_little`, `too_much`"]


def test_every_file_of_the_proofs_is_on_the_page():
    files = {f"proofs/{path.name}" for path in (Path(__file__).parents[2] / "proofs").glob("*.py")}
    apart = {"proofs/__init__.py", "proofs/__main__.py", "proofs/comparing.py"}
    assert files - apart == {name.split("::")[0] for name in NAMED}
