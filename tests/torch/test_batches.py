"""Batches for a DataLoader: once an epoch, the simulator's orders, exact resume, ranks."""

import pickle
from itertools import chain, islice

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset
from tqdm import tqdm

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


# Ways of going through a loader of three batches, and how many of them each takes.


def asked_for_each(loader):
    asked = iter(loader)
    return [next(asked) for _ in range(len(loader))]  # and never for the end


def beside_a_range(loader):
    return [batch for _, batch in zip(range(3), loader, strict=False)]


def limited(loader):
    return list(islice(loader, 2))


def broken_off(loader):
    for batch in loader:
        return [batch]


def not_asked(loader):
    iter(loader)
    return []


WAYS = [asked_for_each, limited, list, not_asked, broken_off, beside_a_range]


def taken(way, loader):
    return [rows.tolist() for (rows,) in way(loader)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("order", ORDERS)
def test_every_loop_goes_through_an_epoch_of_its_own(order, way):
    """Whether or not it asks for the end, as Lightning's does not."""
    wanted = epochs(4, 11, 4, order=order, seed=4)
    batches = AnticorrelatedBatches(11, 4, order=order, seed=4)
    loader = loader_of(batches)
    for number, epoch in enumerate(wanted):
        assert batches.epoch == number
        found = taken(way, loader)
        assert found == epoch[: len(found)]
    assert batches.epoch == 4
    with pytest.raises(RuntimeError, match="nobody counted"):
        batches.state_dict()


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_do_not_change_what_comes(persistent):
    workers = PREFETCH[2] | {"persistent_workers": persistent}
    alone, helped = (AnticorrelatedBatches(11, 4, order="mirrored", seed=4) for _ in range(2))
    alone_loader, helped_loader = loader_of(alone), loader_of(helped, 2, **workers)
    for way in WAYS if persistent else WAYS[:2]:
        assert taken(way, helped_loader) == taken(way, alone_loader)
        assert helped.epoch == alone.epoch


def test_two_loops_at_once_have_two_epochs():
    first, second = epochs(2, 12, 4, seed=4)
    loader = loader_of(AnticorrelatedBatches(12, 4, seed=4))
    one, other = iter(loader), iter(loader)
    for k in range(3):  # the one begun last asks first
        assert next(other)[0].tolist() == second[k]
        assert next(one)[0].tolist() == first[k]


def test_what_is_left_of_a_counted_epoch_then_whole_ones():
    wanted = epochs(3, 40, 4, seed=2)
    batches = AnticorrelatedBatches(40, 4, seed=2)
    assert list(islice(batches.counted(batches), 3)) == wanted[0][:3]
    assert list(batches) == wanted[0][3:]
    assert list(islice(batches, 2)) == wanted[1][:2]
    assert list(batches.counted(batches)) == wanted[2]


class Ahead:
    """Holds a batch back to know which one is the last, as Accelerate's DataLoaderShard does."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        asked = iter(self.loader)
        held = next(asked)
        for batch in asked:
            yield held
            held = batch
        yield held


def lazily(loader):
    yield from loader


LAZY = {"tqdm": lambda loader: tqdm(loader, disable=None), "generator": lazily, "ahead": Ahead}


@pytest.mark.parametrize(
    ("wrapper", "workers"), [*((name, 0) for name in LAZY), ("tqdm", 2), ("ahead", 2)]
)
def test_what_wraps_a_loader_and_begins_late_is_counted(wrapper, workers):
    wanted = epochs(2, 12, 4, order="mirrored", seed=2)
    batches = AnticorrelatedBatches(12, 4, order="mirrored", seed=2)
    loader = loader_of(batches, workers, **PREFETCH[workers])
    done = []
    for epoch in wanted:
        for (rows,), expected in zip(batches.counted(LAZY[wrapper](loader)), epoch, strict=True):
            assert rows.tolist() == expected
            done.append(batches.state_dict()["done"])
    assert done == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("wrapper", [lazily, Ahead])
def test_a_counted_loop_over_many_epochs(wrapper):
    def forever(loader):
        while True:
            yield from wrapper(loader)

    batches = AnticorrelatedBatches(12, 4, order="mirrored", seed=2)
    counted = batches.counted(wrapper(forever(loader_of(batches))))
    found = []
    for number, (rows,) in enumerate(islice(counted, 10), 1):
        found.append(rows.tolist())
        assert batches.state_dict()["done"] == number
    assert found == [*chain(*epochs(4, 12, 4, order="mirrored", seed=2))][:10]


EARLY = {
    "iterator": iter,
    "begun": lambda loader: chain(islice(iter(loader), 1)),
    "generator": lambda loader: (batch for batch in loader),
    "enumerate": enumerate,
    "map": lambda loader: map(tuple, loader),
    "another": lambda _: loader_of(AnticorrelatedBatches(12, 4)).batch_sampler,
}


@pytest.mark.parametrize(("wrapper", "workers"), [*((name, 0) for name in EARLY), ("generator", 2)])
def test_what_was_begun_before_is_not_counted(wrapper, workers):
    batches = AnticorrelatedBatches(12, 4, seed=2)
    wrapped = EARLY[wrapper](loader_of(batches, workers, **PREFETCH[workers]))
    kind = type(wrapped).__name__
    with pytest.raises(RuntimeError, match=f"not asked for inside it.*got {kind}"):
        next(batches.counted(wrapped))
    for (_rows,) in batches.counted(loader_of(batches)):  # from a new epoch on, or from the first
        pass
    assert batches.state_dict()["done"] % 3 == 0


def test_counted_batches_are_not_counted_again():
    batches = AnticorrelatedBatches(12, 4)
    with pytest.raises(RuntimeError, match=r"counted\(…\) inside counted"):
        next(batches.counted(batches.counted(batches)))
    assert batches.state_dict()["done"] == 0


def test_batches_that_come_twice_are_not_counted():
    def twice(loader):
        for batch in loader:
            yield batch
            yield batch

    batches = AnticorrelatedBatches(12, 4)
    with pytest.raises(RuntimeError, match="not asked for inside it"):
        list(batches.counted(twice(batches)))
    assert batches.state_dict()["done"] == 1


def test_a_loop_begun_meanwhile_ends_the_counted_one():
    def evaluated(batches):
        list(batches)

    def moved(batches):
        batches.set_epoch(2)

    def loaded(batches):
        batches.load_state_dict(batches.state_dict())

    def counted(batches):
        next(batches.counted(batches))

    for meanwhile in (evaluated, moved, loaded, counted):
        batches = AnticorrelatedBatches(12, 4)
        loop = batches.counted(batches)
        next(loop)
        meanwhile(batches)
        with pytest.raises(RuntimeError, match="began, moved or loaded these batches"):
            next(loop)


@pytest.mark.parametrize("given", ["batch_sampler", "in_order", "another"])
def test_loaders_whose_batches_are_others_are_not_counted(given):
    batches = AnticorrelatedBatches(12, 4)
    if given == "in_order":
        loader = loader_of(batches, 2, in_order=False)
    elif given == "another":
        loader = loader_of(AnticorrelatedBatches(12, 4))
    else:
        loader = DataLoader(range(12), batch_sampler=BatchSamplerShard(batches, 0))
    with pytest.raises(ValueError, match=r"needs a loader of these batches.*in their order"):
        next(batches.counted(loader))
    assert batches.state_dict()["done"] == 0


@pytest.mark.parametrize("there", [39, 41])
def test_a_loader_of_other_data_than_the_batches_are_of_is_not_counted(there):
    batches = AnticorrelatedBatches(40, 4)
    loader = DataLoader(TensorDataset(torch.arange(there)), batch_sampler=batches)
    refused = f"examples is 40, the loader's dataset has {there}"
    with pytest.raises(ValueError, match=refused):
        next(batches.counted(loader))
    assert batches.done == 0


def test_a_dataset_that_does_not_know_its_length_is_counted():
    class Numbers:
        def __getitem__(self, row):
            return row

    batches = AnticorrelatedBatches(40, 4)
    assert len(list(batches.counted(DataLoader(Numbers(), batch_sampler=batches)))) == 10


def test_a_loader_that_takes_the_batches_as_a_sampler_is_counted():
    batches = AnticorrelatedBatches(12, 4)
    data = torch.arange(12)
    for rows in batches.counted(DataLoader(data, sampler=batches, batch_size=None)):
        assert len(rows) == 4
    assert batches.state_dict()["done"] == 3


class BatchSamplerShard:
    """Accelerate's: deals whole batches out to processes, those of one size."""

    def __init__(self, batch_sampler, process_index):
        self.batch_sampler, self.process_index = batch_sampler, process_index

    def __iter__(self):
        for number, batch in enumerate(self.batch_sampler):
            if number % 2 == self.process_index and len(batch) == self.batch_sampler.batch_size:
                yield batch


@pytest.mark.parametrize("drop_last", [False, True])
def test_accelerates_shards_are_refused(drop_last):
    """With two ranks they would leave out half of the examples, or all."""
    for rank in range(2):
        batches = AnticorrelatedBatches(100, 20, drop_last=drop_last, rank=rank, ranks=2)
        loader = DataLoader(range(100), batch_sampler=BatchSamplerShard(batches, rank))
        with pytest.raises(RuntimeError, match=r"BatchSamplerShard deals batches out.*prepare"):
            next(iter(loader))
        assert batches.state_dict()["done"] == 0


def test_accelerates_shards_of_batches_for_one_rank_are_not_counted():
    batches = AnticorrelatedBatches(80, 20, seed=1)
    (whole,) = epochs(1, 80, 20, seed=1)
    with pytest.raises(RuntimeError, match="BatchSamplerShard deals batches out"):
        next(batches.counted(lazily(BatchSamplerShard(batches, 0))))
    assert list(BatchSamplerShard(batches, 1)) == whole[1::2]


def test_the_size_is_that_of_a_batch_on_this_rank():
    batches = AnticorrelatedBatches(28, 8, rank=1, ranks=2)
    assert (batches.batch_size, batches.total_batch_size) == (4, 8)
    assert [len(batch) for batch in batches] == [4, 4, 4, 2]
    batches.set_epoch(0)
    assert batches.state_dict()["batch_size"] == 8  # the same on any number of ranks


def test_a_process_group_that_came_later_is_noticed(tmp_path):
    """As where a loader is made before Lightning starts its processes."""
    early, told = AnticorrelatedBatches(8, 4), AnticorrelatedBatches(8, 4, rank=0, ranks=1)
    early.rank, early.ranks = 1, 2  # a group of one process cannot differ otherwise
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with pytest.raises(RuntimeError, match=r"made for rank 1 of 2.* has rank 0 of 1"):
            iter(early)
        assert len(list(told)) == 2
    finally:
        torch.distributed.destroy_process_group()


def test_a_host_that_sets_another_epoch_inside_a_counted_loop_is_refused():
    class Hosted:  # Accelerate's loader on one process: counts epochs for itself
        epoch = 0

        def __iter__(self):
            batches.set_epoch(self.epoch)
            yield from batches
            self.epoch += 1

    batches, hosted = AnticorrelatedBatches(12, 4), Hosted()
    for _ in range(2):
        assert len(list(batches.counted(hosted))) == 3
    later, hosted = AnticorrelatedBatches(12, 4), Hosted()
    later.load_state_dict(batches.state_dict())
    batches = later
    with pytest.raises(RuntimeError, match=r"sets epoch 0 inside counted.*at epoch 2"):
        next(batches.counted(hosted))
    assert batches.state_dict()["done"] == 6
    hosted.epoch = 2
    assert len(list(batches.counted(hosted))) == 3


def test_batches_are_pickled_in_the_middle_of_a_loop():
    batches = AnticorrelatedBatches(40, 4, seed=2)
    (wanted,) = epochs(1, 40, 4, seed=2)
    counted = batches.counted(loader_of(batches))
    next(counted)
    copied = pickle.loads(pickle.dumps(batches))
    assert list(copied) == wanted[1:]
    assert len(list(counted)) == 9


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
        (
            {"examples": SequentialSampler(range(40))},
            r"a data set or its length; got a SequentialSampler.*use_distributed_sampler=False",
        ),
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
    with pytest.raises((TypeError, ValueError), match=message):
        AnticorrelatedBatches(**({"examples": 40, "batch_size": 4} | arguments))


def test_a_state_of_before_is_read():
    state = {"examples": 24, "batch_size": 4, "order": "shuffled", "seed": 2}
    batches = AnticorrelatedBatches(24, 4, seed=2, rank=1, ranks=2)
    batches.load_state_dict(state | {"drop_last": False, "done": 3})
    assert batches.state_dict() == state | {"drop_last": False, "done": 3}


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
