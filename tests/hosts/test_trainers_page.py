"""The examples of docs/trainers.md run as they stand there."""

import re
from pathlib import Path

import lightning.pytorch
import pytest
import torch
import transformers

import test_hf_trainer as hf
import test_lightning as pl

PAGE = Path(__file__).parents[2] / "docs" / "trainers.md"
pytestmark = [
    *pl.pytestmark,
    pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the log"),
    pytest.mark.filterwarnings("ignore:Starting from v1.9.0, `tensorboardX` has been removed"),
]


def test_the_examples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where Lightning writes by default
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    assert len(blocks) == 3
    names = {
        "module": pl.Network(), "new_module": pl.Network(), "train_loader": pl.loader(),
        "val_loader": pl.loader(), "few_batches": list(pl.loader())[:2],
        "transformers": transformers, "model": hf.Network(), "examples": hf.Examples(),
        "args": hf.arguments(tmp_path),
    }  # fmt: skip
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    assert names["finder"].sigma > 0
    assert names["noise"].noise.step_count == 10 * pl.BATCHES
    assert [reading.step for reading in names["monitor"].readings] == [20, 40, 60, 80]
    assert isinstance(names["trainer"], transformers.Trainer)
    assert names["pl"] is lightning.pytorch
    assert torch.isfinite(names["model"].net[0].weight).all()
