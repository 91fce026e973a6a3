"""Two to four gloo ranks under torchrun: the noise is that of a single process."""

from functools import partial
from pathlib import Path

import pytest

import job

torchrun = partial(job.torchrun, Path(__file__).with_name("ranks.py"))


def test_two_ranks(tmp_path):
    torchrun(2, tmp_path, "ddp", "fsdp", "fsdp_options", "fsdp_other_dim", "relative",
             "shaped", "elements", "replaced", "save_plain_sgd", "disagree", "part")  # fmt: skip


@pytest.mark.slow
def test_saved_on_two_ranks_goes_on_with_one_and_three(tmp_path):
    torchrun(2, tmp_path, "save")
    torchrun(1, tmp_path, "load")
    torchrun(3, tmp_path, "load", "fsdp", "ddp", "part")


@pytest.mark.slow
def test_four_ranks(tmp_path):
    torchrun(4, tmp_path, "ddp", "fsdp", "fsdp_options", "fsdp_other_dim", "disagree")


@pytest.mark.slow
def test_tensor_parallel(tmp_path):
    torchrun(2, tmp_path, "tensor_parallel")
    torchrun(4, tmp_path, "tensor_parallel", "nested")


@pytest.mark.slow
def test_saved_on_two_ranks_goes_on_with_four_and_back(tmp_path):
    torchrun(2, tmp_path, "save")
    torchrun(4, tmp_path, "load", "save")
    torchrun(2, tmp_path, "load")
