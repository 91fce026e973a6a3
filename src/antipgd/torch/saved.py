"""Where an optimizer's state keeps the noise: under `antipgd` in each of its param groups.

A group's key survives torch.save, `weights_only=True` and torch.distributed.checkpoint, where a
top-level key does not; the last one keeps only keys that the live groups have, so these have it.
"""

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from antipgd.torch.record import Record, check_alike, read_record
from antipgd.torch.together import Grouped

KEY = "antipgd"
EXPECTED = "expected"


class Live(str):
    """Stands in a live param group for its noise; a copy of it is the record as text."""

    __slots__ = ("write",)
    write: Callable[["Live"], str]

    def __new__(cls, write: Callable[["Live"], str]) -> "Live":
        """A mark whose record `write` gives."""
        mark = super().__new__(cls, "attached")
        mark.write = write
        return mark

    def __deepcopy__(self, memo: object) -> str:
        return self.write(self)

    def __reduce_ex__(self, protocol: object) -> tuple[type, tuple[str]]:
        return str, (self.write(self),)


def mark(optimizer: Grouped, write: Callable[[Live], str]) -> None:
    """Stand in every live param group: torch.distributed.checkpoint keeps no other keys.

    Each has a mark of its own, also one that was made from another's options.
    """
    seen: set[int] = set()
    for group in optimizer.param_groups:
        own = group.get(KEY)
        if not isinstance(own, Live) or own.write != write or id(own) in seen:
            own = group[KEY] = Live(write)
        seen.add(id(own))


def place_of(mark: Live, optimizer: Grouped) -> int | None:
    """Which param group a mark stands in."""
    groups = enumerate(optimizer.param_groups)
    return next((index for index, group in groups if group.get(KEY) is mark), None)


def own_groups(optimizer: Grouped) -> list[Mapping[str, Any]]:
    """The live param groups, without a mark that came along with another optimizer's options.

    That other one must still be there: else this is a shallow copy of it, on its noisy weights.
    """
    foreign = [group[KEY] for group in optimizer.param_groups if isinstance(group.get(KEY), Live)]
    for other in foreign:
        other.write(other)
    return [
        {key: value for key, value in group.items() if not isinstance(value, Live)}
        for group in optimizer.param_groups
    ]


def expect_noise(optimizer: Optimizer) -> None:
    """Let torch.distributed.checkpoint load noise into an optimizer that has none attached yet.

    It fills only the keys that the optimizer's state has when it is asked for. Call this before
    that (or attach before loading), then load, then attach.
    """
    for group in optimizer.param_groups:
        group.setdefault(KEY, EXPECTED)


def is_expected(optimizer: Grouped) -> bool:
    """Whether `expect_noise` was called and nothing has been loaded since."""
    return any(group.get(KEY) == EXPECTED for group in optimizer.param_groups)


def is_loaded(optimizer: Grouped) -> bool:
    """Whether records stand where marks should: a class that runs no hooks has loaded them."""
    return bool(optimizer.param_groups) and all(
        isinstance(mark := group.get(KEY), str) and type(mark) is not Live and mark != EXPECTED
        for group in optimizer.param_groups
    )


def left_in(groups: Iterable[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], str]]:
    """The param groups in which a record stands without a noise that writes it, and those."""
    found = [(group, group.get(KEY)) for group in groups]
    return [(group, text) for group, text in found if type(text) is str and text != EXPECTED]


def read_groups(groups: Sequence[Mapping[str, Any]]) -> list[Record]:
    """The records of all param groups, [] where none has any."""
    there = [KEY in group and not _is_expectation(group[KEY]) for group in groups]
    if not any(there):
        return []
    if not all(there):
        raise ValueError(
            f"the noise of param group {there.index(False)}: antipgd is missing, "
            f"but param group {there.index(True)} has it"
        )
    where = [f"the noise of param group {i}" for i in range(len(groups))]
    records = [read_record(group[KEY], place) for group, place in zip(groups, where, strict=True)]
    check_alike(records, where)
    return records


def _is_expectation(value: object) -> bool:
    return isinstance(value, str) and value == EXPECTED


def saved_groups(state: object) -> list[Mapping[str, Any]]:
    """The param groups of an optimizer's state_dict; what is none is refused."""
    if not isinstance(state, Mapping) or "param_groups" not in state:
        raise ValueError(f"an optimizer's state_dict has 'param_groups'; got {_shown(state)}")
    groups = state["param_groups"]
    if not isinstance(groups, list | tuple):
        raise ValueError(f"param_groups must be a list of dictionaries; got {_shown(groups)}")
    for i, group in enumerate(groups):
        if not isinstance(group, Mapping):
            raise ValueError(f"param group {i} must be a dictionary; got {_shown(group)}")
        if not isinstance(group.get("params"), list | tuple):
            shown = _shown(group.get("params"))
            raise ValueError(f"param group {i}: params must be a list; got {shown}")
    return list(groups)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return f"a dictionary with {reprlib.repr(list(value))}"
    return reprlib.repr(value)


def _is_key(entry: object) -> bool:
    try:
        hash(entry)
    except TypeError:
        return False
    return True


def check_loadable(optimizer: Optimizer, state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The param groups of a state that torch is about to load, refused where torch would.

    Refused here so that every rank of a job hears of it.
    """
    groups = saved_groups(state)
    own = optimizer.param_groups
    if len(groups) != len(own):
        raise ValueError(
            f"the checkpoint has {len(groups)} param groups, this optimizer {len(own)}"
        )
    for i, (group, ours) in enumerate(zip(groups, own, strict=True)):
        if len(group["params"]) != len(ours["params"]):
            raise ValueError(
                f"param group {i}: params has {len(group['params'])} entries in the checkpoint, "
                f"{len(ours['params'])} in this optimizer"
            )
        if not all(_is_key(entry) for entry in group["params"]):
            raise ValueError(
                f"param group {i}: params must be numbers or names; got {_shown(group['params'])}"
            )
    entries = state.get("state")
    if not isinstance(entries, Mapping):
        raise ValueError(f"state must be a dictionary; got {_shown(entries)}")
    known = {entry for group in groups for entry in group["params"]}
    for key, entry in entries.items():
        if key in known and not isinstance(entry, Mapping | Tensor):
            raise ValueError(
                f"state of parameter {key!r} must be a dictionary or a tensor; got {_shown(entry)}"
            )
    return groups
