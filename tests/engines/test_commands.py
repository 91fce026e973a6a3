"""Commands with `--on`: the same files as without."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch

from antipgd.cli import main
from antipgd.paper import try_function

TRAIN = "train --data digits --model mlp --method anti --sigma 0.02 --batch 50 --images 200"


def run(capsys, words):
    code = main(words.split())
    said = capsys.readouterr()
    assert code == 0, said.err
    return said.out


def test_one_training(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here = run(capsys, f"{TRAIN} --epochs 3 --out here").replace("here", "there")
    there = run(capsys, f"{TRAIN} --epochs 3 --out there --on slurm=debug")
    assert here == there
    (mine,), (theirs,) = (list(Path(p).rglob("clean-at-end.pt")) for p in ("here", "there"))
    one, other = (torch.load(path, weights_only=True) for path in (mine, theirs))
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_one_training_has_no_tensorboard_elsewhere(tmp_path, capsys):
    words = f"{TRAIN} --epochs 1 --tensorboard --on slurm=debug --out {tmp_path}"
    assert main(words.split()) == 2
    assert "--tensorboard is for trainings of this process" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["ray", "slurm=local", "slurm=debug"])
def test_a_function_of_ones_own(engine, tmp_path, capsys, monkeypatch):
    """Found in the folder where the command is given, on one thread, with a folder of its own."""
    (tmp_path / "mine.py").write_text(
        "import os\n"
        "def train(sigma, seed, folder):\n"
        "    (folder / 'there').touch()\n"
        "    return {'sum': sigma + seed, 'threads': int(os.environ['OMP_NUM_THREADS'])}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    out = run(capsys, f"try mine:train --sigma 1,2 --seeds 2 --threads 1 --on {engine}")
    assert "4 of 4 trials done" in out
    table = pd.read_csv("trials/table.csv")
    assert table["sum"].tolist() == [1, 2, 2, 3]
    assert table["threads"].tolist() == [1] * 4
    assert len(list(Path("trials/checkpoints").rglob("there"))) == 4
    assert [path.name for path in Path("trials/jobs").iterdir()] == ["lock"]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Writes a module of one's own, in the folder where the command is given."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    yield (tmp_path / "mine.py").write_text
    sys.modules.pop("mine", None)


def test_a_file_that_changed_is_run_as_it_is_where_the_driver_works_itself(mine):
    for value in (1.0, 2000.0):
        mine(f"def f(seed): return {{'x': {value}}}\n")
        how = {"on": "slurm=debug", "out": str(value), "show_progress": False}
        means = try_function("mine:f", seeds=1, **how)
        assert means["x mean"].tolist() == [value]


def test_a_file_that_is_saved_while_jobs_wait_ends_the_command(mine, capsys):
    """Nothing of the other file is stored."""
    mine("def f(seed):\n    open(__file__, 'a').write('#')\n    return {'x': 1.0}\n")
    assert main("try mine:f --seeds 3 --threads 1 --on slurm=local".split()) == 2
    assert "the file of mine:f is not the one that the command began" in capsys.readouterr().err
    assert len(list(Path("trials/store").rglob("record/*/*.json"))) == 1
    assert not list(Path("trials/store").rglob("failure/*/*.json"))
    assert not list(Path("trials/jobs").glob("*.lease"))


@pytest.mark.parametrize("engine", ["ray", "slurm=local", "slurm=debug"])
def test_a_function_that_calls_exit_fails_and_the_command_goes_on(engine, mine, capsys):
    mine("import sys\ndef f(seed): return {'x': 1.0} if seed else sys.exit(0)\n")
    assert main(f"try mine:f --seeds 2 --threads 1 --on {engine}".split()) == 1
    said = capsys.readouterr()
    assert "1 of 2 trials done" in said.out
    assert "seed=0: RuntimeError: mine:f called sys.exit(0)" in said.err


def test_a_command_that_was_killed_and_begins_again_works_alone(mine):
    """The job of the first ends before that of the second has been there for long."""
    mine(
        "import os, time\n"
        "def f(seed, folder):\n"
        "    with open(folder / 'log', 'a') as file:\n"
        "        for _ in range(80):\n"
        "            file.write(f'{os.getpid()}\\n')\n"
        "            file.flush()\n"
        "            time.sleep(0.1)\n"
        "    return {'x': 1.0}\n"
    )
    command = [sys.executable, *"-m antipgd try mine:f --seeds 1 --on slurm=local".split()]
    first = subprocess.Popen(command, start_new_session=True)
    until = time.monotonic() + 60
    while not list(Path("trials").rglob("log")):
        assert time.monotonic() < until, "nothing was begun"
        time.sleep(0.1)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    subprocess.run(command, check=True, timeout=100)
    (log,) = Path("trials").rglob("log")
    lines = log.read_text().split()
    old, new = lines[0], lines[-1]
    assert old != new
    both = lines[lines.index(new) :].count(old)
    assert both <= 25  # a look each second; a call lasts for eight
