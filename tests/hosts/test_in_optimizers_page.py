"""The blocks of docs/in-optimizers.md run as they stand, and those that train train with noise."""

import re
from pathlib import Path

import pytest
import torch

import antipgd.torch
from explicit_model import loss_of, make

PAGE = Path(__file__).parents[2] / "docs" / "in-optimizers.md"
BLOCKS = {
    section.split("\n")[0]: re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    for section in PAGE.read_text().split("\n## ")[1:]
}


def test_there_are_blocks():
    assert sum(map(len, BLOCKS.values())) == 7


@pytest.mark.parametrize("section", [title for title, blocks in BLOCKS.items() if blocks])
def test_blocks(section, tmp_path):
    model = make(torch.float32)

    def train(*optimizers):
        for n in range(3):
            for optimizer in optimizers:
                if optimizer is not None:
                    optimizer.zero_grad()
            loss_of(model, n).backward()
            for optimizer in optimizers:
                if optimizer is not None:
                    optimizer.step()

    names = {
        "torch": torch, "antipgd": antipgd, "model": model, "train": train,
        "inputs": torch.ones(2, 6), "folder": tmp_path,
    }  # fmt: skip
    for block in BLOCKS[section]:
        exec(block, names)
    if "noise" in names:
        assert names["noise"].step_count == 3
        assert names["noise"].injected(model[0].weight).any()
