"""A parcel is opened by the code that packed it alone, and its end is told whatever it is."""

import importlib
import multiprocessing
import os
import pickle
import signal
import sys
import time
from dataclasses import dataclass, replace
from functools import partial

import pytest

from antipgd.paper.engines import parcels, watching
from antipgd.paper.engines.engine import Done, EngineError, Lost, Refused, answer
from antipgd.paper.engines.leases import Lease, Listener
from antipgd.paper.engines.parcels import Code, Parcel, perform
from antipgd.paper.record import Failure


@dataclass(frozen=True)
class Spec:
    name: str = "spec"
    steps: int = 3


def work(spec, *, tell, device, how="well"):
    if how == "badly":
        raise RuntimeError("no luck")
    if how == "refusing":
        raise EngineError("another file")
    if how == "preempted":
        os.kill(os.getpid(), signal.SIGUSR2)
    tell(3)
    return [f"{spec.name} on {device}"]


def parcel(how="well", lease=None, spec=None):
    return Parcel.packed(spec or Spec(), partial(work, how=how), lease, "cpu")


def test_what_was_asked_for_is_done(tmp_path):
    lease = Lease.grant(tmp_path, "spec")
    done = perform(parcel(lease=lease))
    assert done.results == ["spec on cpu"]
    assert done.made["code"] == Code.here().digest
    assert Listener(lease).news() == [3]


def test_an_error_is_a_failure_with_its_traceback():
    (failure,) = perform(parcel("badly")).results
    assert failure == Failure(Spec(), "RuntimeError: no luck", failure.traceback)
    assert "in work" in failure.traceback


def test_who_has_no_lease_any_more_stops_before_he_begins(tmp_path):
    old = Lease.grant(tmp_path, "spec")
    Lease.grant(tmp_path, "spec")
    lost = perform(parcel(lease=old))
    assert isinstance(lost, Lost)
    assert f"it was stopped, or does not see {tmp_path}, which all machines" in lost.reason


QUIET = """
import time
def work(spec, *, tell, device, tells):
    while True:
        time.sleep(0.1)
        if tells:
            tell(0)
"""


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A process that does what is in a parcel, for a lease."""
    (tmp_path / "quiet.py").write_text(QUIET)
    monkeypatch.syspath_prepend(tmp_path)
    quiet = importlib.import_module("quiet")
    begun = []

    def start(tells):
        lease = Lease.grant(tmp_path, "spec")
        sent = Parcel.packed("spec", partial(quiet.work, tells=tells), lease, "cpu")
        begun.append(multiprocessing.get_context("spawn").Process(target=perform, args=(sent,)))
        begun[-1].start()
        return begun[-1], lease

    yield start
    for process in begun:
        process.kill()
        process.join()
    del sys.modules["quiet"]


@pytest.mark.parametrize(("tells", "code"), [(False, 1), (True, 0)])
def test_a_call_ends_with_its_lease_even_if_it_tells_nothing(elsewhere, tells, code):
    """Who tells stops by himself, with a checkpoint; who does not is ended."""
    process, lease = elsewhere(tells)
    process.join(4)
    assert process.is_alive()
    lease.end()
    process.join(6)
    assert process.exitcode == code


def test_the_driver_itself_is_not_ended(tmp_path, monkeypatch):
    """As on slurm=debug, where it does the work."""
    ended = []
    monkeypatch.setattr(watching.os, "_exit", ended.append)
    monkeypatch.setattr(watching, "_SECONDS", 0.01)
    lease = Lease.grant(tmp_path, "spec")

    def silent(spec, *, tell, device):
        lease.end()
        time.sleep(0.5)
        return ["done"]

    monkeypatch.setattr(pickle, "loads", lambda content: (Spec(), silent))
    assert perform(parcel(lease=lease)).results == ["done"]
    assert not ended


def test_what_the_work_itself_refuses_ends_the_command():
    refused = perform(parcel("refusing"))
    assert isinstance(refused, Refused)
    with pytest.raises(EngineError, match=r"\S+: another file"):
        answer(refused)


def test_the_signal_of_the_scheduler_is_a_loss_and_no_failure():
    before = signal.getsignal(signal.SIGUSR2)
    end = perform(parcel("preempted"))
    assert isinstance(end, Lost)
    assert end.reason.startswith("the scheduler took ")
    assert signal.getsignal(signal.SIGUSR2) == before


@pytest.mark.parametrize("change", [{"version": "9.9.9"}, {"digest": "0" * 16}])
def test_another_version_does_not_even_read_it(change, monkeypatch):
    sent = parcel()
    sent = replace(sent, code=replace(sent.code, **change))

    def refuse(content):
        raise AssertionError("opened")

    monkeypatch.setattr(pickle, "loads", refuse)
    refused = perform(sent)
    assert isinstance(refused, Refused)
    theirs = Code.here()
    assert f"{theirs.where} has antipgd {theirs.version} with sources" in refused.reason
    assert next(iter(change.values())) in refused.reason
    assert "install the same on all machines" in refused.reason
    with pytest.raises(EngineError, match="install the same"):
        answer(refused)


def test_the_same_code_elsewhere_is_the_same_code():
    assert Code.here().refuse(replace(Code.here(), where="far away")) is None


def test_answers_are_passed_on():
    assert answer(Done([])) == Done([])
    assert answer(Lost("x")) == Lost("x")


def test_the_folder_of_the_command_is_where_modules_are_looked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(parcels.sys, "path", [])
    monkeypatch.chdir(tmp_path)
    perform(parcel())
    assert parcels.sys.path == [str(tmp_path)]
