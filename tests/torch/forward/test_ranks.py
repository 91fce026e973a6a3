"""One to four gloo ranks under torchrun: w is one process's, z that of the explicit z-form."""

from functools import partial
from pathlib import Path

import pytest

import job

HERE = Path(__file__).parent
torchrun = partial(job.torchrun, HERE / "ranks.py")
checkpoints = partial(job.torchrun, HERE / "checkpoints.py")


def test_two_ranks(tmp_path):
    torchrun(2, tmp_path, "fsdp", "rounded", "tensor_parallel", "replicas",
             "rank_draws", "unused", "accumulated", "uneven", "disagree", "disagree_at_load",
             "refused", "audit", "audit_of_mixed", "part")  # fmt: skip


@pytest.mark.slow
def test_saved_on_two_ranks_goes_on_with_three_and_two(tmp_path):
    checkpoints(2, tmp_path, "save", "resume", "from_rank_0", "lost", "other_form")
    checkpoints(3, tmp_path, "resume")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_all_kinds(tmp_path, ranks):
    torchrun(ranks, tmp_path, "all_kinds", "fsdp_text", "tensor_parallel", "replicas", "rank_draws",
             "fsdp_rank_draws", "unused", "accumulated", "uneven", "disagree", "disagree_at_load",
             "refused", "audit", "audit_of_mixed", "random_models")  # fmt: skip


@pytest.mark.slow
def test_meshes_of_two_dimensions(tmp_path):
    torchrun(4, tmp_path, "two_ways", "hybrid", "audit_two_ways")


@pytest.mark.slow
def test_checkpoints_from_any_number_of_ranks_to_any(tmp_path):
    for ranks in (2, 3, 4, 1):
        checkpoints(ranks, tmp_path, "save")
    for ranks in (1, 2, 3, 4):
        checkpoints(ranks, tmp_path, "resume")
