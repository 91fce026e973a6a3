"""What cannot be used is refused by name, before anything runs and without losing anything."""

import contextlib
import errno
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

import antipgd
import rigs
from antipgd.cli import main
from antipgd.paper import files
from antipgd.paper.engines import on_ray
from antipgd.paper.engines.engine import EngineError
from antipgd.paper.engines.on import read_on
from antipgd.paper.engines.opening import opened
from antipgd.paper.files import FilesError
from antipgd.paper.networks.workers import complete_trainings
from antipgd.paper.store import Store

SWEEP = "sweep widening_valley --set d=2 --method gd --lr 0.1 --steps 2 --seeds 16 --no-relax"


@pytest.fixture
def silent_port():
    """A port where somebody listens who is no Ray."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server.getsockname()[1]


def test_an_address_where_nobody_is(tmp_path, capsys):
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    assert main([*SWEEP.split(), "--on", f"ray=127.0.0.1:{port}", "--out", str(tmp_path)]) == 2
    said = f"no Ray at 127.0.0.1:{port}: Connection refused; is `ray start --head` running?"
    assert said in capsys.readouterr().err


def test_an_address_where_somebody_else_is(silent_port, monkeypatch):
    monkeypatch.setattr(on_ray, "_REACHED", 2.0)
    with pytest.raises(EngineError, match=r"is no Ray: it says nothing|is not to be used by Ray"):
        on_ray.check_address(f"127.0.0.1:{silent_port}")


def test_what_ray_says_of_an_address_is_passed_on(silent_port, monkeypatch):
    """Such as a cluster with tokens, of which this command has none."""

    def refuse(command, **settings):
        assert command[-1] == f"127.0.0.1:{silent_port}"
        raise subprocess.CalledProcessError(
            1, command, "", "trace\nAuthenticationError: no token\n"
        )

    monkeypatch.setattr(subprocess, "run", refuse)
    with pytest.raises(EngineError, match=r"is not to be used by Ray .*Authent.*: no token"):
        on_ray.check_address(f"127.0.0.1:{silent_port}")


@pytest.mark.parametrize("address", ["head", "ray://head:10001", "head:", ":6379"])
def test_what_is_no_address(address):
    with pytest.raises(EngineError, match="an address is HOST:PORT"):
        on_ray.check_address(address)


def test_a_machine_without_slurm(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([*SWEEP.split(), "--on", "slurm", "--out", str(tmp_path / "out")]) == 2
    assert 'Could not detect "srun"' in capsys.readouterr().err


def other_version(folder):
    """A copy of the package with one line more."""
    source = Path(antipgd.__file__).parent
    shutil.copytree(source, folder / "antipgd", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "antipgd" / "checks.py").open("a") as file:
        file.write("# another\n")
    return folder


def test_a_cluster_with_another_version(tmp_path, capsys):
    """Of three nodes one has another antipgd: the command is refused, and nothing has run."""
    theirs, before = other_version(tmp_path / "theirs"), os.environ.get("PYTHONPATH", "")
    with rigs.cluster(2) as cluster:
        os.environ["PYTHONPATH"] = f"{theirs}{os.pathsep}{before}"
        try:
            cluster.add_node(num_cpus=1, object_store_memory=rigs.MEMORY)
        finally:
            os.environ["PYTHONPATH"] = before
        out = tmp_path / "out"
        code = main([*SWEEP.split(), "--on", f"ray={cluster.address}", "--out", str(out)])
    said = capsys.readouterr().err
    assert code == 2, said
    assert f"has antipgd {antipgd.__version__} with sources" in said
    assert "install the same on all machines" in said
    assert not list((out / "store").rglob("record/*/*.json"))
    assert not rigs.stray()


def test_a_job_with_another_version(tmp_path, capsys, monkeypatch):
    theirs = other_version(tmp_path / "theirs")
    monkeypatch.setenv("PYTHONPATH", f"{theirs}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    out = tmp_path / "out"
    assert main([*SWEEP.split(), "--on", "slurm=local", "--threads", "1", "--out", str(out)]) == 2
    assert "install the same on all machines" in capsys.readouterr().err
    assert not list((out / "store").rglob("record/*/*.json"))


def test_needs_that_no_node_meets_are_warned_of():
    """Ray waits for a node that has them: one may come."""
    warnings = []
    with opened(read_on("ray,gpus=3,memory=900T"), 1, warn=warnings.append):
        pass
    wanted = f"no node of the cluster has what a job needs (CPU 1, GPU 3, memory {900 * 2**40:g})"
    assert warnings == [f"{wanted}; waiting for one"]


def test_two_commands_do_not_take_each_others_leases(tmp_path):
    with files.alone(tmp_path / "jobs"), pytest.raises(FilesError, match="another command"):  # noqa: SIM117
        with opened(read_on("slurm=debug"), folder=tmp_path / "jobs"):
            pass


@pytest.mark.parametrize("engine", ["ray", "slurm=local"])
def test_a_worker_without_memory(engine, tmp_path, monkeypatch):
    """One training is killed whenever it is tried: a failure with its reason, the other is done."""
    from antipgd.paper.networks import workers

    here = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(here))  # where workers find rigs
    monkeypatch.setattr(workers, "train_one", rigs.train_unless_greedy)
    good, greedy = rigs.training(epochs=1), rigs.training(epochs=1, seed=rigs.GREEDY)
    store = Store(tmp_path / "store")
    with opened(read_on(engine), 2, tmp_path / "jobs") as found:
        outcome = complete_trainings([greedy, good], store, engine=found, show_progress=False)
    assert outcome.records.keys() == {good.name}
    reason = store.failure(greedy).reason
    assert "memory" in reason
    assert "(3 times in a row, without a step of progress)" in reason


def test_a_full_disk_on_the_driver(tmp_path, monkeypatch):
    """The first record cannot be stored: said, workers stopped; afterwards the same goes on."""
    specs, store = [rigs.training(epochs=3, seed=seed) for seed in range(2)], Store(tmp_path / "s")
    whole = files.write_atomically

    def full(path, content):
        if "record" in path.parts:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole(path, content)

    monkeypatch.setattr(files, "write_atomically", full)
    with opened(read_on("slurm=local"), 2, tmp_path / "jobs") as engine:
        with pytest.raises(FilesError, match="No space left on device; make room and run the same"):
            complete_trainings(specs, store, engine=engine, show_progress=False)
        monkeypatch.undo()
        assert (tmp_path / "checkpoints").is_dir()
        assert not list((tmp_path / "jobs").glob("*.lease"))
        outcome = complete_trainings(specs, store, engine=engine, show_progress=False)
    assert outcome.records.keys() == {spec.name for spec in specs}


def test_a_disk_that_is_full_when_a_job_is_submitted(tmp_path, capsys, monkeypatch):
    """Submitit's own file cannot be written, and its error names none."""
    from submitit.core.utils import DelayedSubmission

    def full(*given):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(DelayedSubmission, "dump", full)
    assert main([*SWEEP.split(), "--on", "slurm=local", "--out", str(tmp_path)]) == 1
    said = f"cannot submit a job from {tmp_path / 'jobs'}: No space left on device; make room"
    assert said in capsys.readouterr().err
    assert not list((tmp_path / "jobs").glob("*.lease"))
