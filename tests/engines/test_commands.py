"""Commands with `--on`: the same files as without."""

from pathlib import Path

import pandas as pd
import pytest
import torch

from antipgd.cli import main

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
