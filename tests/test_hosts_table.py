"""The table of hosts that `make test-hosts` fills: nothing is lost between a test and the page."""

from pathlib import Path

import pytest

import matrix
from matrix import EXPLAINED, HOSTS, QUALITIES, Table, cell


def filled(table):
    for host in HOSTS:
        mark = cell(host, *QUALITIES).mark.args
        table.take(mark, "passed", "test_it", [])
    return table


def row(table, host):
    title = HOSTS[host].title
    return next(line for line in table.page().splitlines() if line.startswith(f"| {title} |"))


def test_all_answered_nothing_missing():
    table = filled(Table())
    assert table.missing() == []
    assert row(table, "nnx").count("| tested ") == len(QUALITIES)


def test_what_no_test_answers_is_missing_unless_explained(monkeypatch):
    monkeypatch.setattr(matrix, "EXPLAINED", {("skorch", "resume"): "it has no such thing"})
    missing = Table().missing()
    assert ("skorch", "resume") not in missing
    assert len(missing) == len(HOSTS) * len(QUALITIES) - 1
    page = Table().page()
    assert page.count("**untested**") == len(missing)
    assert page.rstrip().endswith("1. it has no such thing")


def test_one_failure_is_the_cell():
    table = filled(Table())
    table.take(cell("peft", "averages").mark.args, "failed", "test_ema", [])
    table.take(cell("peft", "averages").mark.args, "passed", "test_swa", [])
    assert "| **fails** [1] |" in row(table, "peft")
    assert table.page().rstrip().endswith("1. test_ema")


def test_a_skipped_test_answers_nothing():
    table = filled(Table())
    table.take(cell("trl", "resume").mark.args, "skipped", "test_it", [])
    assert "**fails**" in row(table, "trl")


def test_refusals_and_forms():
    table = Table()
    mark = cell("deepspeed", "resume").mark.args
    for _ in range(2):
        table.take(mark, "passed", "test_it", ["flat parameters are refused"])
    assert "| refused [1] |" in row(table, "deepspeed")
    table.take(cell("lightning", "resume").mark.args, "passed", "a", [])
    assert "| tested |" in row(table, "lightning")
    table.take(cell("lightning", "resume", form="weights").mark.args, "passed", "b", [])
    assert "| tested, both forms |" in row(table, "lightning")


@pytest.mark.parametrize(
    "arguments", [("lightening", "resume"), ("trl",), ("trl", "resumes")]
)  # fmt: skip
def test_cells_that_are_none(arguments):
    with pytest.raises(ValueError, match="no cells"):
        cell(*arguments)


def test_only_cells_are_explained():
    assert set(EXPLAINED) <= set(Table().cells)
    assert all(len(reason) > 20 for reason in EXPLAINED.values())


def test_the_page_is_of_a_whole_run_in_which_nothing_failed():
    """If it fails: make test-hosts"""
    page = (Path(__file__).parents[1] / "docs" / "hosts.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == [
        host.title for host in HOSTS.values()
    ]
    assert all(row.count(" | ") == len(QUALITIES) + 1 for row in rows)
    assert "**untested**" not in page
    assert "**fails**" not in page
