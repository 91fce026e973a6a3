"""A job of `torchrun --nproc-per-node=2` with gloo: DDP and FSDP2; its ranks are in on_ranks.py.

Ranks take half a minute to begin, so one job goes through all scenarios.
"""

import os
from pathlib import Path

import pytest

from job import check_done, launched
from matrix import cell

HERE = Path(__file__).parent


class Jobs:
    """One on two ranks for everything, and one on three that loads what two have saved."""

    def __init__(self, folder):
        self.folder = folder
        self._script = HERE / "on_ranks.py"
        scenarios = ("save", "resume", "evaluate", "export", "accumulate", "average", "refuse")
        self._two = launched(self._script, 2, folder, *scenarios, "accelerated", "dealt")
        self._three = launched(self._script, 3, folder, "resume")

    def check(self, *scenarios, ranks=2):
        check_done(self._two if ranks == 2 else self._three, ranks, *scenarios)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        paths = [str(HERE.parent / "torch" / "forward"), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        return Jobs(tmp_path_factory.mktemp("ranks"))


@cell("torchrun", "resume")
def test_saved_by_two_ranks_goes_on_with_two_and_three(jobs):
    jobs.check("save", "resume")
    jobs.check("resume", ranks=3)


@cell("torchrun", "evaluation")
def test_evaluation_is_at_the_clean_weights(jobs):
    jobs.check("evaluate")


@cell("torchrun", "weights")
def test_exported_weights_are_clean(jobs):
    jobs.check("export")


@cell("torchrun", "accumulation")
def test_accumulated_batches_are_one_step(jobs):
    jobs.check("accumulate")


@cell("torchrun", "averages")
def test_averages_are_those_of_clean_weights(jobs):
    jobs.check("average")


@cell("torchrun", "bad_input")
def test_what_is_refused_is_refused_on_all_ranks(jobs, record_property):
    jobs.check("refuse")
    for said in (jobs.folder / "said").read_text().splitlines():
        record_property("refusal", said)


@cell("accelerate", "weights")
def test_accelerate_on_ranks(jobs):
    jobs.check("accelerated")


def test_batches_that_accelerate_would_deal_out_again(jobs):
    jobs.check("dealt")
