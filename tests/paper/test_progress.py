"""Shares, counts and the time that is left; lines in a log, a bar on a terminal."""

import io
import sys

import pytest

from antipgd.paper import progress as module
from antipgd.paper.progress import Progress, progress, say


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_time_left_is_that_of_the_weighted_rest():
    clock = Clock()
    it = Progress("runs", 50.0, 4, clock)
    clock.now += 3
    it.tick(0.4)
    assert it.left is None  # less than a hundredth
    clock.now += 7
    it.tick(19.6)
    it.finish("valley")
    assert it.share == 0.4
    assert it.left == pytest.approx(10 * 30 / 20)
    assert it.line() == "runs: 40%, 1 of 4, valley, 10 s, about 15 s left"
    it.tick(31)  # what was expected is only expected
    assert (it.share, it.left) == (1.0, 0.0)


def test_an_estimate_with_weights_is_right_where_steps_would_mislead():
    """A tenth of the way on: 90 fast things and 10 that take a hundred times as long."""
    weights = [1.0] * 90 + [100.0] * 10
    clock = Clock()
    it = Progress("runs", sum(weights), len(weights), clock)
    all_of_it = sum(weights) / 2  # seconds, two at a time
    for weight in weights:
        clock.now += weight / 2
        it.tick(weight)
        it.finish()
        if it.share >= 0.1:
            assert it.took + it.left == pytest.approx(all_of_it)


def test_a_log_has_a_line_for_tenths_that_take_long(monkeypatch, capsys):
    clock = Clock()
    monkeypatch.setattr(module, "Progress", lambda *args: Progress(*args, clock))
    with progress("runs", 100, 100) as it:
        for _ in range(100):
            clock.now += 2.5
            it.tick(1)
            it.finish()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"runs: {n}0%" for n in range(1, 11)]
    assert lines[4] == "runs: 50%, 49 of 100, 2 min, about 2 min left"
    with progress("runs", 100, 100) as it:
        for _ in range(100):
            clock.now += 0.1
            it.tick(1)
    assert capsys.readouterr().err == ""


def test_a_terminal_has_a_bar_and_messages_above_it(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress("judging", 2, 2) as it:
        it.tick(1)
        it.finish("regression")
        say("a warning [with brackets]")
    shown = terminal.getvalue()
    assert "judging" in shown
    assert "1 of 2, regression" in shown
    assert "a warning [with brackets]" in shown
    assert not module._shown


def test_nothing_is_shown_if_asked_so(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress("runs", 2, 2, show=False) as it:
        it.tick(2)
    assert terminal.getvalue() == ""


def test_without_a_bar_messages_go_to_stderr(capsys):
    say("that is so")
    assert capsys.readouterr().err == "that is so\n"
