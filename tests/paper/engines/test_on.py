"""What `--on` says, and what it refuses."""

import subprocess
import sys

import pytest

from antipgd.cli import main
from antipgd.paper.engines.on import On, read_on

SWEEP = "sweep widening_valley --method gd --lr .1 --steps 2 --seeds 2 --no-relax"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("processes", On()),
        ("processes=3", On(count=3)),
        ("ray", On("ray")),
        ("ray=10.0.0.1:6379,gpus=2,memory=8G", On("ray", "10.0.0.1:6379", gpus=2, memory=2**33)),
        ("ray,cpus=4,memory=500M", On("ray", cpus=4, memory=500 * 2**20)),
        ("ray,gpus=0", On("ray", gpus=0)),
        ("slurm,partition=long,time=240", On("slurm", time=240, partition="long")),
        ("slurm=local", On("slurm", "local")),
        ("slurm=debug,memory=1gib", On("slurm", "debug", memory=2**30)),
    ],
)
def test_it_is_read(text, wanted):
    assert read_on(text) == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rya", "unknown engine 'rya'; did you mean 'ray'?"),
        ("ray=", "names nothing after ="),
        ("processes=0", "processes must be a whole number >= 1; got '0'"),
        ("processes=two", "got 'two'"),
        ("processes,gpus=1", "'gpus=1' is not understood; accepted: nothing more"),
        ("ray,time=3", "'time=3' is not understood"),
        ("slurm,gpu=1", "did you mean 'gpus'?"),
        ("slurm,gpus", "'gpus' is not understood"),
        ("ray,memory=8", "memory takes a size such as 8G"),
        ("ray,memory=0G", "memory takes a size such as 8G"),
        ("slurm=lokal", "did you mean 'local'? accepted: local, debug"),
    ],
)
def test_what_it_refuses(text, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*SWEEP.split(), "--on", text]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_number_of_processes_is_not_said_twice(capsys):
    assert main([*SWEEP.split(), "--on", "processes=2", "--threads", "3"]) == 2
    assert "--on processes=2 and --threads 3 differ" in capsys.readouterr().err


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_package_is_named(engine, package, capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    assert main([*SWEEP.split(), "--on", engine, "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"antipgd: --on {engine} needs {package}: pip install {package}, or all")


def test_nothing_of_a_cluster_is_imported_unless_it_is_asked_for(tmp_path):
    code = (
        "import sys; from antipgd.cli import main\n"
        f"assert main({SWEEP.split()} + ['--on', 'processes=1', '--out', {str(tmp_path)!r}]) == 0\n"
        "print(sorted({'ray', 'submitit', 'torch'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
