"""Two thousand states that are not quite right, in one process and on two ranks."""

import pytest

from mutations import try_all
from test_distributed import torchrun


def test_one_process():
    found = try_all(2000, seed=1)
    assert found["load", "refused"] > 1000
    for way in ("load", "attach", "clean"):
        assert found[way, "works"] > 20, found  # what is merely different is taken
        assert sum(count for (other, _), count in found.items() if other == way) == 2000


@pytest.mark.slow
def test_two_ranks_of_which_one_has_it(tmp_path):
    torchrun(2, tmp_path, "mutated_300")


@pytest.mark.slow
def test_two_ranks_all(tmp_path):
    torchrun(2, tmp_path, "mutated_2000")
