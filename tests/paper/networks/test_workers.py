"""Trainings side by side: the same records as one by one, whatever happens to the workers."""

import fcntl
import importlib.util
import multiprocessing
import os
import signal
import subprocess
import sys

import pytest
import torch

from antipgd.cli import main
from antipgd.paper.engines import processes
from antipgd.paper.files import FilesError
from antipgd.paper.networks import machine
from antipgd.paper.networks.checkpoint import Checkpoints
from antipgd.paper.networks.spec import make_training
from antipgd.paper.networks.train import train
from antipgd.paper.networks.workers import complete_trainings, forget_all, run_processes
from antipgd.paper.record import Failure
from antipgd.paper.store import Store


def spec(method="anti", **changes):
    values = {"batch": 50, "epochs": 3, "seed": 0, "images": 200, "width": 4, "sigma": 0.02}
    return make_training("digits", "cnn", method, **(values | changes))


def recovering(method, sigma):
    return spec(method, epochs=4, noise_start=2, sigma=sigma)


def test_a_store_is_completed_with_trainings(tmp_path):
    """Also those that share their beginning, and one that cannot be trained."""
    bad = spec(batch=170, validation=True)
    runs = [spec("gd"), recovering("anti", 0.02), recovering("pgd", 0.01), bad]
    store = Store(tmp_path / "store")
    outcome = complete_trainings(runs, store, 1, show_progress=False)
    assert [store.get(run) for run in runs[:3]] == [train(run) for run in runs[:3]]
    assert store.failure(bad).reason.startswith("ExamplesError: batch=170 exceeds the 160 images")
    assert "make_examples" in store.failure(bad).traceback
    assert outcome.failures.keys() == {bad.name}
    assert not list((tmp_path / "checkpoints").rglob("checkpoint.pt"))
    assert (tmp_path / "checkpoints" / runs[1].prefix().name / "log.csv").exists()
    again = complete_trainings(runs, store, 1, show_progress=False)
    assert (again.found, len(again.records)) == (4, 3)


def checkpoints(tmp_path):
    return {path.parent.name for path in (tmp_path / "checkpoints").rglob("checkpoint.pt")}


def test_kept_checkpoints_are_gone_on_from_and_then_forgotten(tmp_path):
    store = Store(tmp_path / "store")
    runs = [spec(epochs=4, noise_start=1, noise_stop=2), spec("gd")]
    complete_trainings(runs, store, 1, keep=True, show_progress=False)
    assert checkpoints(tmp_path) == {run.name for run in runs}
    longer = [run.extended(2) for run in runs]
    for path in (tmp_path / "checkpoints").rglob("log.csv"):
        path.unlink()  # written with every checkpoint, so by those who train
    complete_trainings(longer, store, 1, keep=True, show_progress=False)
    assert [store.get(run) for run in longer] == [train(run) for run in longer]
    written = {p.parent.name for p in (tmp_path / "checkpoints").rglob("log.csv")}
    assert written == {run.name for run in longer}
    forget_all(store, [spec("sgd", epochs=1), *longer[:1]])  # what has no record is left alone
    assert checkpoints(tmp_path) == {runs[1].name, longer[1].name}
    forget_all(store, [*runs, *longer])
    assert not checkpoints(tmp_path)


def test_a_checkpoint_without_a_record_is_not_forgotten(tmp_path):
    store, run = Store(tmp_path / "store"), spec("gd", epochs=1)
    train(run, tmp_path / "checkpoints")
    forget_all(store, [run])
    assert checkpoints(tmp_path) == {run.name}


def test_two_commands_do_not_train_in_one_folder(tmp_path):
    store = Store(tmp_path / "store")
    (tmp_path / "checkpoints").mkdir()
    with (tmp_path / "checkpoints" / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(FilesError, match="another command is running in"):
            complete_trainings([spec("gd")], store, 1, show_progress=False)
    done = complete_trainings([spec("gd", epochs=1)], store, 1, show_progress=False)
    assert len(done.records) == 1


def test_shared_epochs_count_as_they_are_trained_and_once(tmp_path):
    runs, told = [recovering("anti", 0.02), recovering("pgd", 0.01)], []
    assert len(list(run_processes(runs, 1, tmp_path, told.append))) == 2
    shared, rest = runs[0].prefix().epochs, runs[0].epochs - runs[0].prefix().epochs
    assert [count for count in told if count] == [2] * shared + [1] * (2 * rest)


def test_workers_give_no_advice_about_sigma(capfd):
    drowning = spec(epochs=1, sigma=2.0)
    assert len(list(run_processes([drowning], 1))) == 1
    assert "drowns" not in capfd.readouterr().err
    with pytest.warns(UserWarning, match="the noise drowns its weights"):
        train(drowning)


def test_workers_that_die_and_workers_that_are_stopped(tmp_path):
    """A death is a failure of that training alone; who stops listening leaves checkpoints."""
    first, second, epochs = spec(epochs=10_000), spec("gd", epochs=10_000), []

    def tick(count):
        epochs.append(count)
        if sum(epochs) == 2:  # the first training is on its way
            (child,) = multiprocessing.active_children()
            os.kill(child.pid, signal.SIGKILL)
            child.join()  # dead before it is looked at again
            epochs.append(1000)
        if sum(epochs) > 1010:
            raise KeyboardInterrupt

    results = run_processes([first, second], 1, tmp_path, tick)
    reason = "the process was ended by SIGKILL (short of memory? a smaller micro needs less)"
    assert next(results) == Failure(first, reason, "")
    with pytest.raises(KeyboardInterrupt):
        next(results)
    assert not multiprocessing.active_children()
    for run in (first, second):
        assert Checkpoints(tmp_path, run).load()["epoch"] >= 1


def test_without_torch_the_extra_is_named(monkeypatch, tmp_path, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "torch" else find(n))
    with pytest.raises(ImportError, match=r"pip install '\.\[network\]'"):
        next(run_processes([spec()]))
    monkeypatch.chdir(tmp_path)
    for command in ("train --data digits --method gd --batch 10 --epochs 1", "tune --scale smoke",
                    "rehearse --scale smoke", "paper --only cifar --scale smoke",
                    "paper --only cifar --scale smoke --dry-run"):  # fmt: skip
        assert main(command.split()) == 2, command
        assert capsys.readouterr().err.startswith("antipgd: training networks needs torch")


def test_processes_are_dealt_to_the_devices(monkeypatch):
    made = []

    class Worker(processes._Worker):
        def __init__(self, stop, device):
            made.append(device)
            super().__init__(stop, device)

    monkeypatch.setattr(processes, "_Worker", Worker)
    monkeypatch.setattr(machine, "devices", lambda device: ["cpu", "cpu:0"])
    runs = [spec(epochs=1, seed=seed) for seed in range(2)]
    assert len(list(run_processes(runs, 2))) == 2
    assert made == ["cpu", "cpu:0"]


def test_cuda_is_a_gpu_for_each_process(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert machine.devices("cuda") == ["cuda:0", "cuda:1"]
    assert machine.devices("cuda:1") == ["cuda:1"]
    assert machine.own_device("cuda") == "cuda:0"
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert [machine.own_device(d) for d in ("cuda", "cuda:0", "cpu")] == ["cuda:1", "cuda:0", "cpu"]


def test_small_runs_load_no_torch():
    code = (
        "import sys, antipgd.paper.reproduce, antipgd.paper.networks.spec\n"
        "from antipgd.paper.simulation.sweep import carry_out\n"
        "from antipgd.paper.simulation.spec import make_run\n"
        "run = make_run('widening_valley', {}, 'gd', lr=.01, steps=5, seed=0)\n"
        "done = carry_out([run], None).records\n"
        "print(len(done), 'torch' in sys.modules, 'sklearn' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "1 False False\n", done.stderr
