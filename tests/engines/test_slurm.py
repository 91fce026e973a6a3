"""SLURM's queue, played by four small commands: what is asked of it, and what becomes of jobs."""

import os
import signal

import pytest

import fake_slurm
import rigs
from antipgd.cli import main
from antipgd.paper.engines import hearing, on_slurm
from antipgd.paper.engines.engine import EngineError
from antipgd.paper.engines.on import read_on
from antipgd.paper.engines.opening import opened
from antipgd.paper.networks import workers
from antipgd.paper.networks.train import train
from antipgd.paper.simulation import local


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    folder = fake_slurm.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(on_slurm, "_POLL", {"": 0.2})
    monkeypatch.setattr(on_slurm, "_GRACE", {"": 0.2})
    return folder


def test_runs_come_back_from_the_queue_and_leave_nothing(slurm, tmp_path):
    runs = rigs.small_runs(5)
    asked = "slurm,partition=long,time=90,memory=2G,cpus=3,gpus=1"
    with opened(read_on(asked), 1, tmp_path / "jobs") as engine:
        found = [one.result for one in local.run_on(engine, runs)]
    here = {record.run.name: record for record in local.run_local(runs, 1)}
    assert {record.run.name: record for record in found} == here
    (script,) = fake_slurm.scripts(slurm)
    for wanted in ("--partition=long", "--time=90", "--mem=2GB", "--cpus-per-task=3",
                   "--gpus-per-node=1", "--job-name=antipgd", "--signal=USR2@"):  # fmt: skip
        assert f"#SBATCH {wanted}" in script
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["lock"]


def test_a_job_that_slurm_does_not_take(slurm, tmp_path, capsys):
    words = "sweep widening_valley --set d=2 --method gd --lr 0.1 --steps 2 --seeds 2 --no-relax"
    out = ["--out", str(tmp_path / "out")]
    assert main([*words.split(), "--on", "slurm,partition=none", *out]) == 2
    assert (
        "SLURM does not take the job: sbatch: error: invalid partition" in capsys.readouterr().err
    )


def test_a_job_that_is_refused_while_others_run_is_submitted_later(
    slurm, tmp_path, capsys, monkeypatch
):
    """As where a socket timed out, or the limit of submitted jobs is reached."""
    command, once = slurm / "sbatch", tmp_path / "once"
    first, real = command.read_text().splitlines()
    refuse = f"if [ -e {slurm}/2.job ] && [ ! -e {once} ]; then touch {once}; "
    refuse += 'echo "sbatch: error: Socket timed out" >&2; exit 1; fi'
    command.write_text(f"{first}\n{refuse}\n{real}\n")
    monkeypatch.setattr(hearing, "_PAUSE", 0.1)
    (tmp_path / "waits.py").write_text(
        "import time\ndef f(seed):\n    time.sleep(1 if seed == 0 else 6)\n    return {'x': seed}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main("try waits:f --seeds 3 --threads 2 --on slurm --out out".split()) == 0
    said = capsys.readouterr()
    assert "3 of 3 trials done" in said.out
    assert once.exists()
    assert "SLURM does not take the job: sbatch: error: Socket timed out; it is asked" in said.err
    assert len(fake_slurm.scripts(slurm)) == 3


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR2])
def test_a_training_goes_on_after_its_job_was_killed_or_preempted(number, slurm, tmp_path):
    """USR2 is how SLURM says that the time is up; the second job goes on from the checkpoint."""
    spec, warnings, told = rigs.training(epochs=400), [], []

    def tick(epochs):
        if sum(told) < 3 <= sum(told) + epochs:
            shell = int((slurm / "1.pid").read_text())
            (command,) = rigs.children(shell)
            (task,) = rigs.children(command)
            os.kill(task, number)
        told.append(epochs)

    with opened(read_on("slurm"), 1, tmp_path / "jobs") as engine:
        root = tmp_path / "root"
        (one,) = workers.run_on(engine, [spec], root, tick, warnings.append)
    assert one.result == train(spec)
    assert sum(told) == 400
    assert len(fake_slurm.scripts(slurm)) == 2, warnings
    (said,) = warnings
    why = "OUT_OF_MEMORY" if number == signal.SIGKILL else "the scheduler took"
    assert why in said


def test_what_is_stopped_leaves_no_job_behind(slurm, tmp_path):
    spec, root = rigs.training(epochs=100_000), tmp_path / "root"

    def stop(epochs):
        raise KeyboardInterrupt

    with opened(read_on("slurm"), 1, tmp_path / "jobs") as engine:
        heard = workers.run_on(engine, [spec], root, stop)
        with pytest.raises(KeyboardInterrupt):
            next(heard)
    assert not fake_slurm.alive(slurm, 1)
    assert (root / spec.name / "checkpoint.pt").exists()
    assert not list((tmp_path / "jobs").glob("*.lease"))


def test_without_a_folder_it_is_refused():
    with pytest.raises(EngineError, match="--on slurm needs a folder"), opened(read_on("slurm")):
        pass
