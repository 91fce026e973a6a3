"""States that are not quite right, in one process and on two ranks: two thousand of them slowly."""

import pytest

from mutations import try_all
from test_distributed import torchrun


@pytest.mark.parametrize("states", [400, pytest.param(2000, marks=pytest.mark.slow)])
def test_one_process(states):
    found = try_all(states, seed=1)
    assert found["load", "refused"] > states / 2
    for way in ("load", "attach", "clean"):
        assert found[way, "works"] > states / 100, found  # what is merely different is taken
        assert sum(count for (other, _), count in found.items() if other == way) == states


@pytest.mark.slow
def test_two_ranks_of_which_one_has_it(tmp_path):
    torchrun(2, tmp_path, "mutated_300")


@pytest.mark.slow
def test_two_ranks_all(tmp_path):
    torchrun(2, tmp_path, "mutated_2000")
