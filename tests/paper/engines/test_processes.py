"""Processes of this machine: how they end, and how their end is heard."""

import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
import time

import pytest

from antipgd.paper.engines import processes
from antipgd.paper.engines.engine import EngineError, Lost
from antipgd.paper.engines.processes import Processes

MODULE = """
import os, signal, time
from antipgd.paper.engines.engine import EngineError


def deaf(spec, *, tell, device):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tell(1)
    time.sleep(600)


def leaves_a_child(spec, *, tell, device):
    child = os.fork()
    if child:
        tell(child)
        time.sleep(1)
        os._exit(3)
    time.sleep(600)


def refuses(spec, *, tell, device):
    raise EngineError("another file")


def dies(spec, *, tell, device):
    os._exit(0)
"""


@pytest.fixture
def works(tmp_path, monkeypatch):
    (tmp_path / "works.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("works")
    del sys.modules["works"]


@pytest.fixture
def engine():
    engine = Processes(1)
    with contextlib.closing(engine):
        yield engine


def heard(engine, future, seconds=30):
    """The next word."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        engine.wait([future])
        if said := future.heard():
            return said[0]
    raise AssertionError("nothing was said")


def test_who_does_not_end_is_killed(works, engine, monkeypatch, capsys):
    monkeypatch.setattr(processes, "PATIENCE", 2.0)
    future = engine.submit("spec", works.deaf)
    assert heard(engine, future) == 1
    began = time.monotonic()
    future.spec = type("Spec", (), {"label": "a deaf one"})
    assert not engine.stop([future])
    assert 2 < time.monotonic() - began < 15
    assert not multiprocessing.active_children()
    assert "waiting up to 2 s for a deaf one; Ctrl-C ends them at once" in capsys.readouterr().err


def test_a_death_is_heard_though_a_child_holds_the_pipe(works, engine):
    future = engine.submit("spec", works.leaves_a_child)
    child = heard(engine, future)
    try:
        assert heard(engine, future) == Lost("the process ended with exit code 3")
    finally:
        os.kill(child, signal.SIGKILL)


def test_an_end_without_a_word_is_asked_about(works, engine):
    lost = heard(engine, engine.submit("spec", works.dies))
    assert lost.reason == "the process ended with exit code 0 (was sys.exit or os._exit called?)"


def test_what_the_work_refuses_ends_the_command(works, engine):
    future = engine.submit("spec", works.refuses)
    with pytest.raises(EngineError, match="another file"):
        heard(engine, future)


def test_a_worker_that_never_began_ends_the_command(works, engine, monkeypatch):
    monkeypatch.setattr(processes, "_serve", works.dies)
    future = engine.submit("spec", works.dies)
    with pytest.raises(EngineError, match="a worker never began: the process ended with exit co"):
        heard(engine, future)
