"""Fills the table of hosts while the tests run, and writes docs/hosts.md with --page."""

import os
from pathlib import Path

import pytest

from matrix import Table


def pytest_addoption(parser):
    parser.addoption("--page", type=Path, help="write the table of hosts there")


def pytest_configure(config):
    config.stash[TABLE] = Table()
    # torch.distributed.optim, on import of its own parts; ignite does
    config.addinivalue_line("filterwarnings", "ignore:.torch.jit.interface:DeprecationWarning")


TABLE = pytest.StashKey[Table]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call" or report.outcome == "failed":
        said = [value for name, value in report.user_properties if name == "refusal"]
        for mark in item.iter_markers("cell"):
            item.config.stash[TABLE].take(mark.args, report.outcome, item.name, said)
    return report


def pytest_sessionfinish(session):
    """A page is written of whole runs alone: half a run would say that cells are untested."""
    page, table = session.config.getoption("--page"), session.config.stash[TABLE]
    if page is None:
        return
    temporary = page.with_suffix(".tmp")
    temporary.write_text(table.page())
    os.replace(temporary, page)
    if table.missing():
        print("\nneither tested nor explained:", *(" × ".join(key) for key in table.missing()))
        session.exitstatus = 1
