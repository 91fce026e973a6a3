"""Ranks that part are found, and those that are only behind are not: two ranks in one process."""

import pytest
import torch.distributed as dist

from antipgd.torch import parting


class Store(dict):
    def set(self, key, value):
        self[key] = value

    def check(self, keys):
        return all(key in self for key in keys)

    def get(self, key):
        return self[key]


@pytest.fixture
def ranks(monkeypatch):
    """Two ranks' lookers, and how one of them looks."""
    store = Store()
    monkeypatch.setattr(parting, "is_distributed", lambda: True)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    lookers = [parting.Parting(alone=False) for _ in range(2)]
    lookers[1]._number = lookers[0]._number

    def look(rank, step):
        monkeypatch.setattr(dist, "get_rank", lambda: rank)
        lookers[rank].look(lambda: {"step": step})

    return lookers, look


def test_a_rank_that_has_loaded_is_ahead_of_one_that_has_not(ranks):
    lookers, look = ranks
    look(0, 0)
    look(1, 0)
    lookers[1].resumed()
    look(1, 3)  # rank 0 has what it had before its own load
    lookers[0].resumed()
    look(0, 3)


def test_ranks_that_loaded_other_steps_have_parted(ranks):
    lookers, look = ranks
    for looker in lookers:
        looker.resumed()
    look(0, 2)
    with pytest.raises(RuntimeError, match="step is 3 on rank 1, 2 on rank 0"):
        look(1, 3)
