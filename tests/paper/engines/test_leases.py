"""Leases: one worker at a time on a spec, and what it says is heard once."""

import errno
import os
from pathlib import Path

import pytest

from antipgd.paper.engines import leases
from antipgd.paper.engines.engine import StoppedError
from antipgd.paper.engines.leases import Lease, Listener, Worker


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    now = [100.0]
    monkeypatch.setattr(leases.time, "monotonic", lambda: now[0])
    return now


def test_a_new_lease_ends_the_one_before_it(tmp_path, clock):
    first = Lease.grant(tmp_path, "spec")
    worker = Worker(first)
    worker.tell(0)
    second = Lease.grant(tmp_path, "spec")
    worker.tell(0)  # within the same second it does not look
    clock[0] += 1.0
    assert (first.held, second.held) == (False, True)
    for _ in range(2):
        with pytest.raises(StoppedError):
            worker.tell(0)
    first.end()
    assert second.held  # not his to end
    second.end()
    assert not second.held


def test_leases_of_other_specs_are_their_own(tmp_path):
    one, other = Lease.grant(tmp_path, "one"), Lease.grant(tmp_path, "other")
    one.end()
    assert other.held


def test_what_is_said_is_heard_once_and_steps_are_added_up(tmp_path, clock):
    lease = Lease.grant(tmp_path, "spec")
    worker, listener = Worker(lease), Listener(lease)
    assert listener.news() == []
    worker.tell(1)
    assert listener.news() == [1]
    worker.tell(2)
    worker.tell(3)
    worker.tell("careful\nthere")
    assert listener.news() == ["careful\nthere"]
    clock[0] += 1.0
    worker.tell(0)
    assert listener.news() == [5]
    worker.tell(7)
    worker.flush()
    worker.flush()
    assert listener.news() == [7]
    assert listener.news() == []


def test_half_a_line_waits_for_its_other_half(tmp_path):
    lease = Lease.grant(tmp_path, "spec")
    listener = Listener(lease)
    lease.letters.write_text("1\n2")
    assert listener.news() == [1]
    lease.letters.write_text("1\n23\n")
    assert listener.news() == [23]


def test_a_full_disk_silences_the_worker_and_does_not_keep_a_lease_from_ending(
    tmp_path, monkeypatch
):
    lease = Lease.grant(tmp_path, "spec")
    worker = Worker(lease)

    opened = Path.open

    def full(path, mode="r", *arguments, **settings):
        if mode in "rb":
            return opened(path, mode, *arguments, **settings)
        raise OSError(errno.ENOSPC, "No space left on device")

    def refuse(*arguments, **settings):
        raise OSError(errno.ENOSPC, "No space left on device")

    worker.tell("before")
    monkeypatch.setattr(Path, "open", full)
    monkeypatch.setattr(leases, "write", refuse)
    monkeypatch.setattr(os, "replace", refuse)
    worker.tell(3)
    worker.flush()
    assert Listener(lease).news() == ["before"]
    lease.end()
    assert not lease.held
    assert not lease.letters.exists()


def test_without_a_folder_nobody_is_stopped_and_nothing_is_said():
    worker = Worker(None)
    worker.tell(5)
    worker.tell("x")
    assert not worker.stopped
    assert Listener(None).news() == []


def test_the_look_costs_no_more_than_one_a_second(tmp_path, clock, monkeypatch):
    lease, looks = Lease.grant(tmp_path, "spec"), []
    monkeypatch.setattr(Lease, "held", property(lambda lease: looks.append(1) or True))
    worker = Worker(lease)
    for _ in range(1000):
        worker.tell(0)
        clock[0] += 1 / 128
    assert len(looks) == 8


def test_a_torn_line_is_no_news_and_the_next_ones_are_heard(tmp_path):
    lease = Lease.grant(tmp_path, "spec")
    listener = Listener(lease)
    lease.letters.write_bytes(b'1\n"care\n\xff\n[1]\nnull\n2\n')
    assert listener.news() == [1, 2]


def test_a_disk_that_stumbles_has_no_news(tmp_path, monkeypatch):
    lease = Lease.grant(tmp_path, "spec")
    worker, listener = Worker(lease), Listener(lease)
    worker.tell(3)

    def stumble(*arguments, **settings):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as stumbling:
        stumbling.setattr(Path, "open", stumble)
        assert listener.news() == []
    assert listener.news() == [3]
