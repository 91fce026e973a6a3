"""`make test-versions`: the page is what was run, for the ranges that pyproject.toml has now."""

import json

import pytest

import versions

RESULTS = json.loads(versions.RESULTS.read_text("utf-8"))


def test_the_page_is_what_was_written():
    assert versions.PAGE.read_text("utf-8") == versions.page(RESULTS)
    assert set(RESULTS) <= set(versions.ROWS)
    assert versions.page({}).count("| not run yet |") == len(versions.ROWS)  # none is left out


def test_the_lowest_of_the_run_are_those_of_the_ranges():
    for constraint in versions.lowest():
        name, lowest = constraint.split("==")
        found = RESULTS["lowest"][name].split("+")[0]
        assert found == lowest or found.startswith(f"{lowest}.0"), constraint


def test_every_requirement_of_the_library_is_shown_and_every_test_is_there():
    assert {one.split("==")[0] for one in versions.lowest()} == set(versions.SHOWN)
    for path in versions.TESTS:
        assert (versions.ROOT / path).exists(), path


def test_what_failed_is_said():
    one = versions.outcome("FAILED t.py::a - x\nERROR t.py::b\n1 failed, 5 passed, 1 error in 2.0s")
    assert (one["passed"], one["failed"], one["failures"]) == (5, 2, ["t.py::a", "t.py::b"])
    row = {"refused": {"3.11": "ERROR: none"}, "python": "3.12.1", **one}
    page = versions.page({"lowest": row})
    assert "5 passed, 2 failed" in page
    assert "- lowest, Python 3.11: ERROR: none" in page
    assert "- lowest: `t.py::b` fails" in page
    assert "unfinished" in versions.outcome("Fatal Python error: Aborted")
    assert "not installed" in versions.page({"lowest": {"refused": {"3.11": "no"}}})


@pytest.mark.parametrize("version", ["3.5", "2.7"])
def test_an_interpreter_that_is_not_there_or_does_not_start_is_none(version, tmp_path, monkeypatch):
    stand_in = tmp_path / f"python{version}"
    stand_in.write_text("#!/bin/sh\nexit 127\n")
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert versions.interpreter(version) is None
