"""Batches for a DataLoader: once an epoch, the simulator's orders, exact resume, ranks."""

from itertools import chain

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from antipgd.noise.orders import permutation
from antipgd.paper.simulation.orders import visited_rows
from antipgd.torch import AnticorrelatedBatches

ORDERS = ["shuffled", "mirrored"]
FIRST = [6, 1, 9, 2, 7, 8, 0, 4, 5, 3]
SECOND = [4, 7, 6, 8, 3, 5, 1, 2, 9, 0]
# no fork beside JAX, whose threads other tests of this process may have started
PREFETCH = {0: {}, 2: {"prefetch_factor": 4, "multiprocessing_context": "forkserver",
                       "persistent_workers": True}}  # fmt: skip


def epochs(count, *arguments, **settings):
    batches = AnticorrelatedBatches(*arguments, **settings)
    return [list(batches) for _ in range(count)]


def loader_of(batches, workers=0, **settings):
    data = TensorDataset(torch.arange(batches.examples))
    return DataLoader(data, batch_sampler=batches, num_workers=workers, **settings)


@pytest.mark.parametrize("order", ORDERS)
def test_the_simulators_orders(order):
    found = np.array(epochs(5, 40, 4, order=order, seed=3))
    wanted = visited_rows(order, 3, 40, 4, 0, 50)
    np.testing.assert_array_equal(found.reshape(50, 4), wanted)


def test_orders_stay_what_they_are():
    """A checkpoint of today is resumed by another NumPy: its permutations must be these."""
    assert permutation(0, 0, 10).tolist() == FIRST
    assert permutation(0, 1, 10).tolist() == SECOND


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_every_example_once_in_an_epoch(order, drop_last):
    first, second, third = epochs(3, 11, 4, order=order, seed=1, drop_last=drop_last)
    for batches in (first, second, third):
        seen = [*chain(*batches)]
        assert len(set(seen)) == len(seen) == (8 if drop_last else 11)
        assert len(batches) == len(AnticorrelatedBatches(11, 4, drop_last=drop_last))
    assert ([batch[::-1] for batch in second[::-1]] == first) == (order == "mirrored")
    assert first not in (second, third)
    assert [len(batch) for batch in first] == ([4, 4] if drop_last else [4, 4, 3])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_share_the_batches_of_one(order, ranks):
    settings = {"order": order, "seed": 5}
    whole = epochs(2, 28, 8, **settings)  # the last batch has 4
    parts = [epochs(2, 28, 8, rank=rank, ranks=ranks, **settings) for rank in range(ranks)]
    for e in range(2):
        for k, batch in enumerate(whole[e]):
            shares = [part[e][k] for part in parts]
            assert {len(share) for share in shares} == {len(batch) // ranks}
            assert [*chain(*shares)] == batch


def test_rank_and_number_are_those_of_the_process_group(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        batches = AnticorrelatedBatches(8, 4)
    finally:
        torch.distributed.destroy_process_group()
    assert (batches.rank, batches.ranks) == (0, 1)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [1, 3, 8, 9, 10, 17])
def test_resumed_in_mid_epoch_with_whatever_was_fetched_before(workers, stop):
    """Ten batches an epoch, of which two workers have fetched up to eight ahead."""
    settings = {"order": "mirrored", "seed": 2}
    wanted = [*chain(*epochs(3, 40, 4, **settings))]
    batches = AnticorrelatedBatches(40, 4, **settings)
    loader, seen, state = loader_of(batches, workers, **PREFETCH[workers]), [], None
    while state is None:
        for (rows,) in batches.counted(loader):
            seen.append(rows.tolist())
            if len(seen) == stop:
                state = batches.state_dict()
                break
    assert state["done"] == stop
    later = AnticorrelatedBatches(40, 4, **settings)
    later.load_state_dict(state)
    loader = loader_of(later, workers, **PREFETCH[workers])
    while len(seen) < 30:
        later.set_epoch(later.epoch)  # as a loop does that calls it; nothing is skipped
        seen += [rows.tolist() for (rows,) in later.counted(loader)]
    assert seen == wanted


def test_a_loop_that_is_broken_off_goes_on_with_the_next_batch():
    batches = AnticorrelatedBatches(40, 4, seed=2)
    (wanted,) = epochs(1, 40, 4, seed=2)
    found = []
    for rows in batches.counted(batches):
        found.append(rows)
        if len(found) == 3:
            break
    assert found + list(batches.counted(batches)) == wanted
    assert batches.epoch == 1


def test_resumed_on_another_number_of_ranks():
    two = [AnticorrelatedBatches(24, 4, seed=2, rank=r, ranks=2) for r in range(2)]
    for batches in two:
        for _, _rows in zip(range(2), batches.counted(batches), strict=False):
            pass
    states = [batches.state_dict() for batches in two]
    assert states[0] == states[1]
    one = AnticorrelatedBatches(24, 4, seed=2)
    one.load_state_dict(states[0])
    assert list(one) == epochs(1, 24, 4, seed=2)[0][states[0]["done"] :]


def test_what_nobody_counted_is_not_saved():
    batches = AnticorrelatedBatches(40, 4)
    assert batches.state_dict()["done"] == 0
    asked = iter(batches)
    next(asked)
    with pytest.raises(RuntimeError, match=r"batches were asked for that nobody counted.*counted"):
        batches.state_dict()
    list(asked)
    with pytest.raises(RuntimeError, match="nobody counted"):  # workers may still hold some
        batches.state_dict()
    batches.set_epoch(1)
    assert batches.state_dict()["done"] == 10


def test_set_epoch_goes_to_a_beginning_and_back():
    whole = epochs(3, 40, 4, seed=2)
    batches = AnticorrelatedBatches(40, 4, seed=2)
    for epoch in (2, 0, 1, 1):
        batches.set_epoch(epoch)
        assert list(batches) == whole[epoch]
    next(iter(batches.counted(batches)))
    batches.set_epoch(batches.epoch)
    assert list(batches.counted(batches)) == epochs(3, 40, 4, seed=2)[2][1:]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number >= 1; got 0"),
        ({"batch_size": 2.5}, "batch_size must be a whole number >= 1; got 2.5"),
        ({"examples": 0}, "examples must be a whole number >= 1; got 0"),
        ({"examples": []}, "examples must be a whole number >= 1; got 0"),
        ({"order": "balanced"}, "unknown order 'balanced'; accepted: shuffled, mirrored"),
        ({"order": "mirored"}, "did you mean 'mirrored'"),
        ({"seed": -1}, "seed must be a whole number >= 0"),
        ({"drop_last": 1}, "drop_last must be True or False; got 1"),
        ({"rank": 1}, "rank and ranks go together; got rank=1, ranks=None"),
        ({"rank": 2, "ranks": 2}, "rank must be a whole number >= 0 and <= 1; got 2"),
        ({"rank": 0, "ranks": 3}, "so 3 ranks must divide it; got batch_size=4"),
        (
            {"examples": 41, "rank": 0, "ranks": 2},
            "the last batch has 1 examples, which 2 ranks cannot share equally; drop_last=True",
        ),
        (
            {"examples": 3, "drop_last": True},
            "drop_last leaves no batch of 4 of 3 examples",
        ),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        AnticorrelatedBatches(**({"examples": 40, "batch_size": 4} | arguments))


def test_states_that_do_not_fit_are_refused():
    state = AnticorrelatedBatches(40, 4, seed=1).state_dict()
    other = AnticorrelatedBatches(40, 8, seed=1)
    with pytest.raises(ValueError, match="of batches with batch_size=4; here it is 8"):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="of batches with seed=1; here it is 2"):
        AnticorrelatedBatches(40, 4, seed=2).load_state_dict(state)
    with pytest.raises(ValueError, match="not the state of these batches: it has no 'done'"):
        other.load_state_dict({key: state[key] for key in state if key != "done"})
    with pytest.raises(ValueError, match="done must be a whole number >= 0; got -1"):
        AnticorrelatedBatches(40, 4, seed=1).load_state_dict(state | {"done": -1})
    assert other.done == 0
