"""The examples that need torch alone: what they print is so, what they leave is clean, kills too.

Those that need a host are in tests/hosts/test_examples.py.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from examples_page import EXAMPLES, PAGE, command, installed, sentence

KILLED = """
import os, runpy, signal, sys, torch

save, left = torch.save, int(sys.argv[2])

def fatal(state, path):
    global left
    left -= 1
    if left < 0:
        with open(path, "wb") as file:
            file.write(b"half a checkpoint")
        os.kill(os.getpid(), signal.SIGKILL)
    save(state, path)

torch.save = fatal
runpy.run_path(sys.argv[1], run_name="__main__")
"""
"""Runs the script of its first argument and kills it in the save after so many whole ones."""


def run(folder, *words, **environment):
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=600,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )  # fmt: skip


def successful(done):
    assert done.returncode == 0, done.stderr
    return done.stdout


def same_weights(a, b):
    a, b = torch.load(a), torch.load(b)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


CLASSIFIER = str(EXAMPLES / "classifier.py")
SIZE = {"EPOCHS": "60", "SEEDS": "1"}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, successful(run(folder, CLASSIFIER, **SIZE))


def test_the_classifier_prints_what_came_out(uninterrupted):
    folder, printed = uninterrupted
    row = r" *0  (\d\.\d{3}) +(\d+\.\d)%  (\S+) \[(\S+), (\S+)\], n=\d+"
    rows = [[float(word) for word in found] for found in re.findall(row, printed)]
    assert len(rows) == 2
    assert rows[0][0] == 0 < 0.01 < rows[1][0] < 1
    for _, _, mean, low, high in rows:
        assert 0 < low < mean < high
    pixels, digits = map(torch.tensor, load_digits(return_X_y=True))
    test = torch.randperm(1797, generator=torch.Generator().manual_seed(0))[600:]
    for name, (_, accuracy, *_) in zip(("plain", "noise"), rows, strict=True):
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        model.load_state_dict(torch.load(folder / "runs" / f"{name}-0.pt"))
        right = (model(pixels[test].float() / 16).argmax(1) == digits[test]).double().mean()
        assert f"{float(right):.1%}" == f"{accuracy}%"
    assert not same_weights(folder / "runs" / "plain-0.pt", folder / "runs" / "noise-0.pt")


@pytest.mark.slow
def test_a_killed_classifier_goes_on_bit_for_bit(uninterrupted, tmp_path):
    whole, printed = uninterrupted
    killed = run(tmp_path, "-c", KILLED, CLASSIFIER, "90", **SIZE)  # 61 at most are without noise
    assert killed.returncode < 0
    assert not (tmp_path / "runs" / "noise-0.pt").exists()
    done = torch.load(tmp_path / "runs" / "noise-0.checkpoint")["epoch"]
    assert 25 < done < 60
    last = torch.load(whole / "runs" / "noise-0.checkpoint")["epoch"]
    # The saves that are left, and none more: two exports, and the epochs that are missing.
    again = run(tmp_path, "-c", KILLED, CLASSIFIER, str(2 + last - done), **SIZE)
    assert successful(again) == printed
    for name in ("plain-0.pt", "noise-0.pt"):
        assert same_weights(tmp_path / "runs" / name, whole / "runs" / name)


def torchrun(folder):
    words = ["-m", "torch.distributed.run", "--nproc_per_node=2", str(EXAMPLES / "fsdp2.py")]
    return successful(run(folder, *words, STEPS="100"))


@pytest.mark.slow
def test_fsdp2_resumes_bit_for_bit_and_exports_what_it_evaluated(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    printed = torchrun(whole)
    assert "100 steps of noise on 2 ranks" in printed
    sharded, exported = re.findall(r"(\d+\.\d)%", printed)
    assert sharded == exported
    # Killed in the second save: the first is whole, of the second the last file is missing.
    (cut / "runs-fsdp2").mkdir(parents=True)
    for step in ("000050", "000100"):
        (whole / "runs-fsdp2" / step).rename(cut / "runs-fsdp2" / step)
    (cut / "runs-fsdp2" / "000100" / ".metadata").unlink()
    assert torchrun(cut) == printed
    assert same_weights(cut / "runs-fsdp2" / "weights.pt", whole / "runs-fsdp2" / "weights.pt")


# The page


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_is_on_the_page_as_it_is_now(path):
    assert len(path.read_text().splitlines()) <= 80
    page = PAGE.read_text()
    part = page[
        page.index(f"<!-- {path.name} begins -->") : page.index(f"<!-- {path.name} ends -->")
    ]
    assert sentence(path) in part
    assert f"    $ {command(path)}\n" in part
    assert len(part.split(f"    $ {command(path)}\n")[1].strip()) > 50  # what it printed


def test_extras_that_are_there():
    extras, packages = installed(sorted(EXAMPLES.glob("*.py")))
    project = (Path(EXAMPLES).parent / "pyproject.toml").read_text()
    assert {"torch", "flatness", "optax", "lightning", "transformers"} <= extras
    assert all(re.search(rf"^{extra} = ", project, re.M) for extra in extras)
    assert {"scikit-learn", "transformers", "peft", "flax"} <= packages
