"""Mini-batches whose noise is anticorrelated, for a `DataLoader`: every example once an epoch.

Which examples a batch has is a function of seed and number of the batch; the only state is how many
batches are done. Knows neither data nor noise.
"""

from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

import torch.distributed as dist
from torch.utils.data import Sampler

from antipgd import checks
from antipgd.noise.orders import EPOCH_ORDERS, drawn_order

T = TypeVar("T")
_SETTINGS = ("examples", "batch_size", "order", "seed", "drop_last")


def _count(examples: Sized | int) -> int:
    """How many examples there are: a number, or what has a length."""
    if isinstance(examples, Sized):
        return checks.whole("examples", len(examples), 1)
    return checks.whole("examples", examples, 1)


def _true_or_false(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False; got {value!r}")
    return value


def _ranks(rank: int | None, ranks: int | None) -> tuple[int, int]:
    """As given, or as the process group has them."""
    if (rank is None) != (ranks is None):
        raise ValueError(f"rank and ranks go together; got rank={rank!r}, ranks={ranks!r}")
    if rank is None or ranks is None:
        there = dist.is_available() and dist.is_initialized()
        return (dist.get_rank(), dist.get_world_size()) if there else (0, 1)
    ranks = checks.whole("ranks", ranks, 1)
    return checks.whole("rank", rank, 0, ranks - 1), ranks


class AnticorrelatedBatches(Sampler[list[int]]):
    """A batch sampler: `DataLoader(data, batch_sampler=AnticorrelatedBatches(data, 128, seed=0))`.

    With `order` "shuffled" every epoch has an order of its own; that is anticorrelated already,
    because the batches of an epoch sum to the whole. With "mirrored" every second epoch goes
    through the batches of the one before from the last to the first. `examples` is the data set or
    its length. A last batch that is smaller is left out with `drop_last`.

    `batch_size` is that of all `ranks` together, which have disjoint, equally large parts of every
    batch: what a step sees does not depend on their number. Rank and number are those of the
    process group unless given.

    Epochs follow each other by themselves; `set_epoch` is there for loops that call it. To save in
    mid-epoch, loop over `batches.counted(loader)` instead of `loader`: a loader with workers asks
    for batches long before they are trained on. `state_dict()` then has the number of those handed
    out, and a loop after `load_state_dict` goes on with the next one, on any number of ranks.

    >>> batches = AnticorrelatedBatches(6, 2, order="mirrored", seed=0)
    >>> first, second = list(batches), list(batches)
    >>> [batch[::-1] for batch in second[::-1]] == first
    True
    """

    def __init__(
        self,
        examples: Sized | int,
        batch_size: int,
        *,
        order: str = "shuffled",
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        ranks: int | None = None,
    ) -> None:
        self.examples = _count(examples)
        self.order = checks.one_of("order", order, EPOCH_ORDERS)
        self.seed = checks.whole("seed", seed, 0, 2**64 - 1)
        self.drop_last = _true_or_false("drop_last", drop_last)
        self.rank, self.ranks = _ranks(rank, ranks)
        self.batch_size = checks.whole("batch_size", batch_size, 1)
        self._check_parts()
        self.done = 0
        self._asked = False  # whether batches were asked for that nobody counted
        self._counting = False

    def _check_parts(self) -> None:
        """Refuse batches that ranks cannot share equally, and epochs without any."""
        if len(self) == 0:
            raise ValueError(
                f"drop_last leaves no batch of {self.batch_size} of {self.examples} examples"
            )
        if self.batch_size % self.ranks:
            raise ValueError(
                f"batch_size is that of all ranks together, so {self.ranks} ranks must divide it; "
                f"got batch_size={self.batch_size}"
            )
        rest = self.examples % self.batch_size
        if not self.drop_last and rest % self.ranks:
            raise ValueError(
                f"the last batch has {rest} examples, which {self.ranks} ranks cannot share "
                f"equally; drop_last=True leaves it out"
            )

    def __len__(self) -> int:
        """Batches of an epoch, the same on all ranks."""
        whole, rest = divmod(self.examples, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0 on."""
        return self.done // len(self)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; in mid-epoch its own number changes nothing."""
        epoch = checks.whole("epoch", epoch, 0)
        if self._asked or epoch != self.epoch:
            self.done = epoch * len(self)
            self._asked = False

    def __iter__(self) -> Iterator[list[int]]:
        """The batches of this rank that are left of the epoch."""
        epoch, first = divmod(self.done, len(self))
        self._asked = self._asked or not self._counting
        return self._batches(epoch, first, self._counting)

    def _batches(self, epoch: int, first: int, counting: bool) -> Iterator[list[int]]:
        drawn, backwards = drawn_order(self.order, self.seed, epoch, self.examples)
        for number in range(first, len(self)):
            place = len(self) - 1 - number if backwards else number
            rows = drawn[place * self.batch_size : (place + 1) * self.batch_size]
            part = len(rows) // self.ranks
            whole = rows[::-1] if backwards else rows
            yield whole[self.rank * part : (self.rank + 1) * part].tolist()
        if not counting:
            self.done = (epoch + 1) * len(self)

    def counted(self, loader: Iterable[T]) -> Iterator[T]:
        """What the loader of these batches hands out in what is left of the epoch, each counted as
        done when it is handed out: save after its step.

        A loop that is broken off goes on with the next batch.
        """
        self._counting, self._asked = True, False
        try:
            batches = iter(loader)
        finally:
            self._counting = False
        for batch in batches:
            self.done += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """How many batches are done, and of what; the same on every rank."""
        if self._asked:
            raise RuntimeError(
                "batches were asked for that nobody counted, and a loader with workers asks for "
                "more than were trained on; loop over counted(loader), or call set_epoch(…) where "
                "an epoch begins and save there"
            )
        return {name: getattr(self, name) for name in (*_SETTINGS, "done")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a sampler like this one was saved, on any number of ranks."""
        for name in (*_SETTINGS, "done"):
            if name not in state:
                raise ValueError(f"not the state of these batches: it has no {name!r}")
        for name in _SETTINGS:
            if state[name] != getattr(self, name):
                raise ValueError(
                    f"the state is of batches with {name}={state[name]!r}; "
                    f"here it is {getattr(self, name)!r}"
                )
        self.done = checks.whole("done", state["done"], 0)
        self._asked = False
