"""Mini-batches whose noise is anticorrelated, for a `DataLoader`: every example once an epoch.

Which examples a batch has is a function of seed and number of the batch; the only state is how many
batches are done. Knows neither data nor noise.
"""

import sys
import weakref
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

import torch.distributed as dist
from torch.utils.data import DataLoader, Sampler

from antipgd import checks
from antipgd.noise.orders import EPOCH_ORDERS, drawn_order

T = TypeVar("T")
# As they are saved, and as they are called here; what is saved is the same on any number of ranks.
_SETTINGS = {name: name for name in ("examples", "batch_size", "order", "seed", "drop_last")}
_SETTINGS["batch_size"] = "total_batch_size"
# Of Accelerate, once `prepare` had a loader and there are several processes.
_DEALERS = ("BatchSamplerShard", "DataLoaderDispatcher")


def _count(examples: Sized | int) -> int:
    """How many examples there are: a number, or what has a length."""
    if isinstance(examples, Sampler):
        raise TypeError(
            f"examples must be a data set or its length; got a {type(examples).__name__}. If "
            f"Lightning puts it there: Trainer(use_distributed_sampler=False)"
        )
    if isinstance(examples, Sized):
        return checks.whole("examples", len(examples), 1)
    return checks.whole("examples", examples, 1)


def _true_or_false(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False; got {value!r}")
    return value


def _ranks_of_group() -> tuple[int, int] | None:
    """Rank and number of ranks of the process group, if there is one."""
    there = dist.is_available() and dist.is_initialized()
    return (dist.get_rank(), dist.get_world_size()) if there else None


def _ranks(rank: int | None, ranks: int | None) -> tuple[int, int]:
    """As given, or as the process group has them."""
    if (rank is None) != (ranks is None):
        raise ValueError(f"rank and ranks go together; got rank={rank!r}, ranks={ranks!r}")
    if rank is None or ranks is None:
        return _ranks_of_group() or (0, 1)
    ranks = checks.whole("ranks", ranks, 1)
    return checks.whole("rank", rank, 0, ranks - 1), ranks


def _dealer(frame: FrameType | None) -> str | None:
    """The class of Accelerate's that asks for batches, if one does."""
    while frame is not None:
        name = frame.f_code.co_qualname.partition(".")[0]
        if name in _DEALERS:
            return name
        frame = frame.f_back
    return None


def _asker(frame: FrameType) -> object:
    """The object whose method asks for batches, if there is one."""
    method = frame.f_code.co_varnames[:1] == ("self",)
    return frame.f_locals.get("self") if method else None


def _lazily(loader: Iterable[T]) -> Iterator[T]:
    """The same, begun when the first is asked for."""
    for batch in loader:  # noqa: UP028  `yield from` would close an iterator that is not ours
        yield batch


class _Loop:
    """A counted loop: where its next epoch begins; batches that were asked for in it, and came."""

    def __init__(self, begins: int) -> None:
        self.begins = begins
        self.asked = self.came = 0


class _Epoch:
    """What is left of an epoch, for one who asks for its batches, in a counted loop or in none.

    A loader with workers calls `iter` twice, for the same iterator of its own, before it asks for
    anything: that is one epoch.
    """

    def __init__(self, first: int, asker: object, loop: _Loop | None) -> None:
        self.first, self.loop, self.used = first, loop, False
        self._asker: weakref.ref[object] | None = None
        with suppress(TypeError):  # what has no weak references is taken for another each time
            self._asker = weakref.ref(asker)

    def is_for(self, asker: object, loop: _Loop | None) -> bool:
        """Whether the same one asks again, having used nothing."""
        same = self._asker is not None and self._asker() is asker
        return same and self.loop is loop and not self.used


class AnticorrelatedBatches(Sampler[list[int]]):
    """A batch sampler: `DataLoader(data, batch_sampler=AnticorrelatedBatches(data, 128, seed=0))`.

    With `order` "shuffled" every epoch has an order of its own; that is anticorrelated already,
    because the batches of an epoch sum to the whole. With "mirrored" every second epoch goes
    through the batches of the one before from the last to the first. `examples` is the data set or
    its length. A last batch that is smaller is left out with `drop_last`.

    The argument `batch_size` is that of all `ranks` together, which have disjoint, equally large
    parts of every batch: what a step sees does not depend on their number. It is kept as
    `total_batch_size`; the attribute `batch_size` is the part of this rank. Rank and number are
    those of the process group unless given. A host must not deal the batches out once more.

    Every loop is an epoch: `iter(loader)` begins the next one, however much of the one before was
    taken, and whether or not its end was asked for. So a loop that is broken off loses what was
    left, and none sees an epoch twice, with workers or without. `set_epoch` is there for loops that
    call it.

    To lose nothing, and to save in mid-epoch, loop over `batches.counted(loader)` instead of
    `loader`: a loader with workers asks for batches long before they are trained on.
    `state_dict()` then has the number of those handed out. The next loop, counted or not, goes on
    with the one after, and so does the first after `load_state_dict`, on any number of ranks.

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
        self._of_group = rank is None
        self.total_batch_size = checks.whole("batch_size", batch_size, 1)
        self._check_parts()
        self.done = 0
        self._asked = False  # whether batches were asked for that nobody counted
        self._begun: _Epoch | None = None  # the one begun last
        self._loop: _Loop | None = None  # the counted loop that may go on
        self._inside: _Loop | None = None  # the counted loop that waits for a batch just now

    def __getstate__(self) -> dict[str, Any]:
        """A copy is in no loop."""
        return self.__dict__ | {"_begun": None, "_loop": None, "_inside": None}

    def _check_parts(self) -> None:
        """Refuse batches that ranks cannot share equally, and epochs without any."""
        if len(self) == 0:
            raise ValueError(
                f"drop_last leaves no batch of {self.total_batch_size} of {self.examples} examples"
            )
        if self.total_batch_size % self.ranks:
            raise ValueError(
                f"batch_size is that of all ranks together, so {self.ranks} ranks must divide it; "
                f"got batch_size={self.total_batch_size}"
            )
        rest = self.examples % self.total_batch_size
        if not self.drop_last and rest % self.ranks:
            raise ValueError(
                f"the last batch has {rest} examples, which {self.ranks} ranks cannot share "
                f"equally; drop_last=True leaves it out"
            )

    @property
    def batch_size(self) -> int:
        """How many examples of a batch are this rank's."""
        return self.total_batch_size // self.ranks

    def __len__(self) -> int:
        """Batches of an epoch, the same on all ranks."""
        whole, rest = divmod(self.examples, self.total_batch_size)
        return whole + (rest > 0 and not self.drop_last)

    @property
    def epoch(self) -> int:
        """The epoch of the next counted batch, or that the next loop begins; from 0 on."""
        return self.done // len(self)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; in mid-epoch its own number changes nothing."""
        epoch = checks.whole("epoch", epoch, 0)
        if self._inside is not None:
            self._check_epoch_of_host(epoch, self._inside.begins // len(self))
        elif self._asked or epoch != self.epoch:
            self._go_to(epoch * len(self))

    def _check_epoch_of_host(self, epoch: int, here: int) -> None:
        """Refuse the epoch of a loader that counts epochs for itself, and otherwise."""
        if epoch != here:
            raise RuntimeError(
                f"the loader sets epoch {epoch} inside counted(…), and these batches are at epoch "
                f"{here}; call the loader's own set_epoch({here}) before the loop"
            )

    def _go_to(self, done: int) -> None:
        """So many batches are done for certain; a counted loop that is under way is over."""
        self.done, self._asked = done, False
        self._loop = self._begun = None

    def __iter__(self) -> Iterator[list[int]]:
        """The batches of this rank that are left of the epoch; who asks next has the one after."""
        frame = sys._getframe(1)
        self._check_ranks(frame)
        asker = _asker(frame)
        if self._begun is None or not self._begun.is_for(asker, self._inside):
            self._begun = _Epoch(self._begin(), asker, self._inside)
        return self._batches(self._begun)

    def _check_ranks(self, frame: FrameType) -> None:
        """Refuse where parts of a batch would be dealt out twice, or not at all."""
        group = _ranks_of_group() if self._of_group else None
        if group not in (None, (self.rank, self.ranks)):
            raise RuntimeError(
                f"these batches were made for rank {self.rank} of {self.ranks}, and the process "
                f"group has rank {group[0]} of {group[1]}: make them when the group is there, or "
                f"give rank= and ranks="
            )
        dealer = _dealer(frame) if self.ranks > 1 or self._inside is not None else None
        if dealer is not None:
            raise RuntimeError(
                f"{dealer} deals batches out to processes, and these have the part of rank "
                f"{self.rank} of {self.ranks} already; leave their loader out of Accelerate's "
                f"prepare, and loop over it as it is"
            )

    def _begin(self) -> int:
        """Where an epoch that is begun now begins."""
        first = self.done if self._inside is None else self._inside.begins
        after = (first // len(self) + 1) * len(self)
        if self._inside is None:
            self._go_to(after)
            self._asked = True
        else:
            self._inside.begins = after
        return first

    def _batches(self, begun: _Epoch) -> Iterator[list[int]]:
        begun.used = True
        epoch, first = divmod(begun.first, len(self))
        drawn, backwards = drawn_order(self.order, self.seed, epoch, self.examples)
        for number in range(first, len(self)):
            place = len(self) - 1 - number if backwards else number
            rows = drawn[place * self.total_batch_size : (place + 1) * self.total_batch_size]
            part = len(rows) // self.ranks
            whole = rows[::-1] if backwards else rows
            if begun.loop is not None:
                begun.loop.asked += 1
            yield whole[self.rank * part : (self.rank + 1) * part].tolist()

    def counted(self, loader: Iterable[T]) -> Iterator[T]:
        """What the loader of these batches hands out in what is left of the epoch, each counted as
        done when it is handed out: save after its step.

        A loop that is broken off goes on with the next batch. `loader` may be wrapped (`tqdm`), if
        each batch still comes once and in order, and the loader is begun by this loop: not
        `counted(enumerate(loader))`, which has begun it, but `enumerate(counted(loader))`.
        """
        self._check_loader(loader)
        loop = self._loop = _Loop(self.done)
        batches = _lazily(loader)
        while True:
            self._check_under_way(loop)
            with self._waiting(loop):
                batch = next(batches, loop)
            if isinstance(batch, _Loop):
                return
            self._count_one(loop, loader)
            yield batch

    @contextmanager
    def _waiting(self, loop: _Loop) -> Iterator[None]:
        """What is asked for now is for that loop."""
        self._inside = loop
        try:
            yield
        finally:
            self._inside = None

    def _check_loader(self, loader: object) -> None:
        """Refuse what can be seen not to hand out these batches, each once and in order."""
        if self._inside is not None:
            raise RuntimeError("counted(…) inside counted(…): batches are counted once")
        if not isinstance(loader, DataLoader):
            return
        of = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        if of is not self or not getattr(loader, "in_order", True):
            raise ValueError(
                f"counted(…) needs a loader of these batches that hands them out in their order; "
                f"got one of {type(of).__name__} with in_order={getattr(loader, 'in_order', True)}"
            )
        data = loader.dataset
        if isinstance(data, Sized) and len(data) != self.examples:
            raise ValueError(
                f"counted(…) needs a loader of the data that these batches are of: examples is "
                f"{self.examples}, the loader's dataset has {len(data)}"
            )

    def _check_under_way(self, loop: _Loop) -> None:
        if self._loop is not loop:
            raise RuntimeError(
                "something else began, moved or loaded these batches while counted(…) was under "
                "way; loop over counted(…) anew, and give other loops a sampler of their own"
            )

    def _count_one(self, loop: _Loop, loader: object) -> None:
        """A batch has come, and must be one that was asked for in this loop."""
        if loop.came == loop.asked:
            raise RuntimeError(
                f"counted(…) was handed a batch that was not asked for inside it; accepted: their "
                f"loader, or what begins it when looped over; got {type(loader).__name__}"
            )
        loop.came += 1
        self.done, self._asked = self.done + 1, False

    def state_dict(self) -> dict[str, Any]:
        """How many batches are done, and of what; the same on every rank."""
        if self._asked:
            raise RuntimeError(
                "batches were asked for that nobody counted, and a loader with workers asks for "
                "more than were trained on; loop over counted(loader), or call set_epoch(…) where "
                "an epoch begins and save there"
            )
        settings = {name: getattr(self, called) for name, called in _SETTINGS.items()}
        return settings | {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a sampler like this one was saved, on any number of ranks."""
        for name in (*_SETTINGS, "done"):
            if name not in state:
                raise ValueError(f"not the state of these batches: it has no {name!r}")
        for name, called in _SETTINGS.items():
            if state[name] != getattr(self, called):
                raise ValueError(
                    f"the state is of batches with {name}={state[name]!r}; "
                    f"here it is {getattr(self, called)!r}"
                )
        self._go_to(checks.whole("done", state["done"], 0))
