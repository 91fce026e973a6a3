"""A training killed at any moment ends as if nothing had happened, bit for bit."""

import subprocess
import sys
import textwrap

import pytest
import torch

from antipgd.paper.networks.checkpoint import Checkpoints
from antipgd.paper.networks.spec import make_training
from antipgd.paper.networks.train import StoppedError, train


def spec(method="anti", **changes):
    values = {"batch": 20, "epochs": 4, "seed": 0, "images": 200, "width": 4, "sigma": 0.02,
              "noise_start": 1, "noise_stop": 3, "measure": (2,), "barriers": True}  # fmt: skip
    values |= changes
    return make_training("digits", values.pop("model", "cnn"), method, **values)


def files(root, run):
    folder = root / run.name
    states = {p.name: torch.load(p, weights_only=True) for p in folder.glob("clean-*.pt")}
    return states, (folder / "log.csv").read_text()


def assert_same(root, other, run):
    (states, log), (expected, expected_log) = files(root, run), files(other, run)
    assert log == expected_log
    assert states.keys() == expected.keys()
    for name, state in states.items():
        for key, value in state.items():
            assert torch.equal(value, expected[name][key]), (name, key)


def stop_after(steps):
    """A tick that stops a training after so many calls."""
    left = [steps]

    def tick(epochs):
        left[0] -= 1
        if left[0] < 0:
            raise StoppedError

    return tick


@pytest.mark.parametrize("method", ["gd", "pgd", "anti", "label", "sam"])
def test_stopped_again_and_again_it_goes_on_with_the_same_bits(method, tmp_path):
    run = spec(method)
    whole = train(run, tmp_path / "whole")
    record, stops = None, 0
    while record is None:
        try:
            record = train(run, tmp_path / "parts", tick=stop_after(13))
        except StoppedError:
            stops += 1
        assert stops < 20
    assert stops >= 3
    assert record == whole
    assert_same(tmp_path / "parts", tmp_path / "whole", run)


def test_what_is_finished_is_not_trained_again(tmp_path):
    whole = train(spec(noise_stop=None), tmp_path)
    assert train(spec(noise_stop=None), tmp_path, tick=stop_after(1)) == whole


HARNESS = """
    import json, os, random, signal, sys, time
    from pathlib import Path
    from antipgd.paper.networks.train import train
    from antipgd.paper.networks.spec import Training

    run, root = Training.from_plain(json.loads(sys.argv[1])), Path(sys.argv[2])
    whole = train(run, root / "whole")
    checkpoint = root / "killed" / run.name / "checkpoint.pt"

    def written():
        return checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0

    def ends_before_it_is_killed(child, seconds):
        before, deadline = written(), None
        while deadline is None or time.monotonic() < deadline:
            if deadline is None and written() > before:  # so that every life gets further
                deadline = time.monotonic() + seconds
            if os.waitpid(child, os.WNOHANG)[0]:
                return True
            time.sleep(0.001)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return False

    moments, kills = random.Random(0), 0
    while True:
        child = os.fork()
        if child == 0:
            record = train(run, root / "killed", save_every=0)
            (root / "same").write_text(str(record == whole))
            os._exit(0)
        if ends_before_it_is_killed(child, moments.uniform(0, 0.2) if kills < 6 else 1e9):
            break
        kills += 1
    print(kills)
"""


def test_killed_at_random_moments_it_ends_with_the_same_bits(tmp_path):
    run = spec(epochs=6, noise_stop=5, measure=(2, 4))
    command = [sys.executable, "-c", textwrap.dedent(HARNESS), run.canonical(), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 2
    assert not list((tmp_path / "killed").rglob(".writing-*"))
    assert (tmp_path / "same").read_text() == "True"
    assert_same(tmp_path / "killed", tmp_path / "whole", run)


def interrupted(root, run):
    with pytest.raises(StoppedError):
        train(run, root, tick=stop_after(25), save_every=0)
    return root / run.name


@pytest.mark.parametrize("damage", ["truncated", "empty", "changed"])
@pytest.mark.parametrize("names", [["checkpoint.pt"], ["checkpoint.pt", "previous.pt"]])
def test_a_damaged_checkpoint_is_named_moved_aside_and_not_used(damage, names, tmp_path):
    run, said = spec(), []
    whole = train(run, tmp_path / "whole")
    folder = interrupted(tmp_path / "damaged", run)
    for name in names:
        content = (folder / name).read_bytes()
        middle = len(content) // 2
        changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        (folder / name).write_bytes(
            {"truncated": content[:middle], "empty": b"", "changed": changed}[damage]
        )
    assert train(run, tmp_path / "damaged", warn=said.append) == whole
    assert len(said) == len(list(folder.glob("aside-*"))) == len(names)
    assert str(folder / "checkpoint.pt") in said[0]
    assert "its digest does not match" in said[0]


def test_a_checkpoint_of_another_version_is_not_used(tmp_path, monkeypatch):
    run, said = spec(), []
    interrupted(tmp_path, run)
    monkeypatch.setattr("antipgd.paper.networks.spec.TRAINING_VERSION", 99)
    assert Checkpoints(tmp_path, run, said.append).load() is None
    assert "made by another version" in said[0]


def test_a_checkpoint_of_another_training_is_not_used(tmp_path):
    run, other, said = spec(), spec(seed=1), []
    interrupted(tmp_path, run).rename(tmp_path / other.name)
    assert Checkpoints(tmp_path, other, said.append).load() is None
    assert "belongs to another training" in said[0]


def test_trainings_begin_from_the_end_of_a_shared_beginning(tmp_path):
    """The noise-free epochs are trained once; the result is the same as without sharing."""
    run = spec(measure=(1, 2))
    alone = train(run, tmp_path / "alone")
    train(run.prefix(), tmp_path / "shared")
    epochs = []
    assert train(run, tmp_path / "shared", tick=epochs.append) == alone
    assert epochs[0] == 1
    assert_same(tmp_path / "shared", tmp_path / "alone", run)


def rows_of(record, last):
    return [row for row in record.points if row[0] <= last]


@pytest.mark.parametrize(("method", "window"), [
    ("gd", {}), ("anti", {"noise_start": 0, "noise_stop": 2}), ("anti", {"noise_stop": 2}),
    ("antisgd", {"noise_start": 0, "noise_stop": 3, "model": "mlp"}),
])  # fmt: skip
def test_an_extension_from_a_checkpoint_is_the_training_to_the_end_at_once(
    method, window, tmp_path
):
    """Also measured where the first one ended: fully, though 30 images are used on the way."""
    run = spec(
        method, test_images=30, trace_images=40, trace_probes=32, flatness_images=40, **window
    )
    longer = run.extended(2)
    alone = train(longer, tmp_path / "alone")
    short = train(run, tmp_path / "shared")
    epochs = []
    assert train(longer, tmp_path / "shared", tick=epochs.append) == alone
    assert epochs[0] == run.epochs
    (states, log), (expected, expected_log) = (
        files(tmp_path / name, longer) for name in ("shared", "alone")
    )
    states |= {"clean-at-stop.pt": files(tmp_path / "shared", run)[0].get("clean-at-stop.pt", {})}
    assert log == expected_log
    for name, state in expected.items():
        assert state.keys() == states[name].keys()
        assert all(torch.equal(value, states[name][key]) for key, value in state.items()), name
    assert rows_of(alone, run.epochs) == list(short.points)
    assert alone.points[-1][0] == run.epochs + 2


def test_an_extension_does_not_go_on_from_the_middle_of_what_it_extends(tmp_path):
    run = spec(noise_stop=2)
    interrupted(tmp_path, run)
    epochs = []
    longer = train(run.extended(1), tmp_path, tick=epochs.append)
    assert epochs[0] == 0
    assert longer == train(run.extended(1))
