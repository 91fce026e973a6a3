"""Nothing computed is ever lost, and nothing that is not a result is taken for one."""

import dataclasses
import errno
import hashlib
import json
import os
import platform
import resource
import signal
import subprocess
import sys

import pytest

from antipgd.paper.files import FilesError, write_atomically
from antipgd.paper.pipeline import complete
from antipgd.paper.record import Failure, record_from
from antipgd.paper.simulation import spec as spec_module
from antipgd.paper.simulation.local import run_local
from antipgd.paper.simulation.spec import Run, make_run
from antipgd.paper.simulation.sweep import on_threads
from antipgd.paper.store import NewerStoreError, Store, together


def run(seed=0, **changes):
    values = {"lr": 0.1, "sigma": 0.05, "steps": 20, "relax": False} | changes
    return make_run("quadratic_regression", {}, "anti", seed=seed, **values)


@pytest.fixture(scope="module")
def record():
    return next(run_local([run()], 1))


@pytest.fixture
def said():
    return []


@pytest.fixture
def store(tmp_path, said):
    return Store(tmp_path / "store", said.append)


def file_of(store, spec, kind="record"):
    return store.root / kind / spec.name[:2] / f"{spec.name}.json"


def test_a_record_comes_back_bit_for_bit(store, record):
    assert store.get(run()) is None
    assert store.state(run()) == "missing"
    store.put(record)
    assert store.get(run()) == record
    assert store.get(run()).to_json() == record.to_json()
    assert store.state(run()) == "done"
    assert record_from(json.loads(record.to_json()), Run.from_plain) == record


def test_provenance_lies_beside_the_record(store, record):
    store.put(record)
    made = store.provenance(run())
    assert made["host"] == platform.node()
    assert {"antipgd", "code", "python", "numpy", "numba", "platform", "time"} <= made.keys()
    line = file_of(store, run()).read_text().splitlines()[2]
    assert line == record.to_json()  # nothing of it in the record


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda content: content[: len(content) // 2], "its digest does not match"),
        (lambda content: b"", "its digest does not match"),
        (lambda content: os.urandom(3000), "its digest does not match"),
        (lambda content: b'{"hello": "world"}\n', "its digest does not match"),
        (lambda content: content.replace(b'"ok"', b'"no"'), "its digest does not match"),
    ],
    ids=["truncated", "empty", "garbage", "foreign", "changed"],
)
def test_a_file_that_is_no_record_is_named_moved_aside_and_computed_again(
    store, record, said, damage, reason
):
    store.put(record)
    path = file_of(store, run())
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    outcome = complete([run()], store, on_threads(1))
    assert outcome.records[run().name] == record
    assert store.get(run()) == record
    assert len(said) == 1
    assert str(path) in said[0]
    assert reason in said[0]
    (aside,) = (store.root / "aside").iterdir()
    assert aside.read_bytes() == damaged


def test_a_forged_header_or_a_folder_is_moved_aside_too(store, record, said):
    store.put(record)
    path = file_of(store, run())
    _, header, *rest = path.read_bytes().split(b"\n")
    for forged in (b"{}", b"[]", b"null", header.replace(b'"results": 1', b'"results": "1"')):
        content = b"\n".join([forged, *rest])
        digest = hashlib.sha256(content).hexdigest().encode()
        path.write_bytes(digest + b"\n" + content)
        assert store.get(run()) is None
    path.mkdir()
    assert store.get(run()) is None
    assert len(said) == 5
    store.put(record)
    assert store.get(run()) == record


def test_a_run_whose_problem_is_gone_is_not_touched(store, record, said):
    store.put(record)
    gone = dataclasses.replace(run(), problem="gone:Problem")
    with pytest.raises(FilesError, match="cannot find problem 'gone:Problem'"):
        store.state(gone)
    assert not said


def test_a_record_under_another_name_is_moved_aside(store, record, said):
    store.put(record)
    path = file_of(store, run(seed=1))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(file_of(store, run()).read_bytes())
    assert store.get(run(seed=1)) is None
    assert f"it belongs to the run {run().name}" in said[0]


def test_records_of_other_code_are_stale_and_computed_again(store, record, monkeypatch):
    store.put(record)
    monkeypatch.setattr(spec_module, "RESULTS_VERSION", 2)
    assert store.state(run()) == "stale"
    assert store.get(run()) is None
    complete([run()], store, on_threads(1))
    assert store.state(run()) == "done"
    monkeypatch.setattr(spec_module, "RESULTS_VERSION", 1)
    with pytest.raises(NewerStoreError, match=r"newer than .*use a newer version"):
        store.get(run())


def test_a_newer_store_is_refused(store, tmp_path):
    (store.root / "format.json").write_text('{"antipgd": "store", "format": 2}')
    with pytest.raises(NewerStoreError, match="has format 2, this version of antipgd knows 1"):
        Store(store.root)


def test_failures_are_kept_apart_and_retried_on_request(store, record):
    store.put_failure(Failure(run(), "ValueError: no", "Traceback"))
    assert store.state(run()) == "failed"
    assert store.failure(run()).reason == "ValueError: no"
    outcome = complete([run()], store, on_threads(1))
    assert not outcome.records
    assert outcome.failures[run().name].reason == "ValueError: no"
    outcome = complete([run()], store, on_threads(1), retry=True)
    assert outcome.records[run().name] == record
    assert store.failure(run()) is None
    assert store.state(run()) == "done"


def test_finished_runs_are_skipped(store, monkeypatch):
    runs = [run(seed) for seed in range(4)]
    complete(runs[:2], store, on_threads(1))
    asked = []
    real = Store.put

    def put(self, record, by):
        asked.append(record.run.seed)
        real(self, record, by)

    monkeypatch.setattr(Store, "put", put)
    outcome = complete(runs, store, on_threads(1))
    assert sorted(asked) == [2, 3]
    assert [r.run.seed for r in outcome.in_order(runs)] == [0, 1, 2, 3]


def test_no_space_is_said_and_leaves_the_store_readable(store, record, monkeypatch):
    store.put(record)

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FilesError, match="No space left on device; make room and run the same"):
        complete([run(), run(seed=1)], store, on_threads(1))
    monkeypatch.undo()
    assert store.get(run()) == record
    assert not list(store.root.rglob(".writing-*"))
    assert store.state(run(seed=1)) == "missing"


def test_a_limit_on_file_sizes_is_said(tmp_path):
    """RLIMIT_FSIZE in a process of its own: the write fails half-way."""
    code = f"""
import resource
from pathlib import Path
from antipgd.paper.files import FilesError
from antipgd.paper.store import Store
from antipgd.paper.simulation.local import run_local
from antipgd.paper.pipeline import complete
from antipgd.paper.simulation import spec as spec_module
from antipgd.paper.simulation.spec import Run, make_run
from antipgd.paper.simulation.sweep import on_threads
run = make_run("widening_valley", {{"d": 500}}, "anti", lr=.1, sigma=.1, steps=2, seed=0)
record = next(run_local([run], 1))
store = Store(Path({str(tmp_path)!r}) / "store")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    store.put(record)
except FilesError as error:
    print(error)
print(store.get(run))
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "File too large; make room" in result.stdout
    assert result.stdout.strip().endswith("None")
    assert not list(tmp_path.rglob(".writing-*"))
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FilesError, match="must be a folder, but a file is in the way"):
        Store(tmp_path / "file")
    with pytest.raises(FilesError, match="must be a folder"):
        Store(tmp_path / "file" / "store")
    assert (tmp_path / "file").read_text() == "mine"


def test_writing_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "a"
    write_atomically(path, b"old")

    def fail(*arguments):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="Input/output"):
        write_atomically(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_killed_writers_left_is_removed_when_old(store):
    fresh, old = store.root / ".writing-fresh", store.root / ".writing-old"
    for path in (fresh, old):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    Store(store.root)
    assert fresh.exists()
    assert not old.exists()


def test_how_records_were_made_is_told_in_short():
    assert together(["b", "a", "b"]) == "a, b"
    assert together("dacb") == "a to d (4 different)"
    assert together(["a to d (4 different)", "f", "e"]) == "a to d (4 different), e, f"
