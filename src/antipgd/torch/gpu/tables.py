"""What a launch reads: where the elements lie, and who draws what. In plain NumPy and torch.

Knows layouts and numbers, not Triton.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ELEMENTS = 1024  # that a program makes at a time
TIMES = 8  # how often it does


class Field(IntEnum):
    """The numbers of a piece, as the kernel reads them; memory is counted in elements."""

    AT = 0  # where it begins, from the tensor that the launch is given
    START = 1  # the parameter's element there
    ROWS = 2
    COLUMNS = 3
    OUTER_STEP = 4  # in memory
    ROW_STEP = 5
    COLUMN_STEP = 6
    OUTER_JUMP = 7  # in elements of the parameter
    ROW_JUMP = 8
    PER_RUN = 9  # lanes of a run
    LANES = 10
    OWNER = 11  # row of `Place.facts`


class Place(NamedTuple):
    """What is drawn, in the memory of a device; a captured graph reads it anew."""

    facts: Tensor  # int64, a row for each tensor: its key, and its row in the table
    newest: Tensor  # int64, the step of the newest draw
    table: Tensor  # float64, coefficients of the draws newest, newest − 1, …


_lasting: "WeakValueDictionary[int, Tensor]" = WeakValueDictionary()  # tables, by identity
_in_graphs: dict[int, Place] = {}  # by that of the table; nobody says when a graph is gone


def lasting(place: Place) -> Place:
    """A place that is written at every step, so that a graph may go on reading it."""
    _lasting[id(place.table)] = place.table
    return place


def keep_for_graph(place: Place) -> None:
    """A graph that is being captured reads this: never free it.

    Unless it is a copy, which torch.compile makes for its own graphs and fills before each replay.
    """
    if _lasting.get(id(place.table)) is place.table:
        _in_graphs[id(place.table)] = place


def is_in_graph(place: Place) -> bool:
    """Whether a captured graph reads it."""
    return id(place.table) in _in_graphs


class Plan(NamedTuple):
    """Where the elements lie, in the memory of a device."""

    chunks: Tensor  # int32: piece and first lane of each program
    pieces: Tensor  # int64: `Field`
    one_run: bool  # in each piece, without gaps in memory


def as_signed(key: int) -> int:
    """A key of 64 bits as the signed number of the same bits."""
    return key - 2**64 if key >= 2**63 else key


def place_of(key: int, newest: int, coefficients: Sequence[float], device: torch.device) -> Place:
    """The draw of one tensor, brought to a device in one copy.

    Each part begins at a multiple of 16 bytes, as in memory of its own: else the kernel would be
    compiled once more.
    """
    bits = np.array(coefficients, np.float64).view(np.int64)
    numbers = np.concatenate([np.array([as_signed(key), 0, newest, 0], np.int64), bits])
    there = torch.from_numpy(numbers).to(device)
    return Place(there[None, :2], there[2], there[4:].view(torch.float64)[None])


def described(layout: NDArray[np.int64], at: int, owner: int, unit: int) -> NDArray[np.int64]:
    """The pieces of one tensor (`placement.layout_of`) as the kernel reads them.

    A run that begins anywhere in a unit touches one more than one that begins with it.
    """
    out = np.empty((len(layout), len(Field)), np.int64)
    memory, outer, rows, columns = layout.T[:4]
    out[:, Field.AT], out[:, Field.OWNER] = at + memory, owner
    out[:, Field.ROWS], out[:, Field.COLUMNS] = rows, columns
    out[:, Field.OUTER_STEP : Field.COLUMN_STEP + 1] = layout[:, 4:7]
    out[:, Field.START], out[:, Field.OUTER_JUMP], out[:, Field.ROW_JUMP] = layout.T[7:10]
    begins = (layout[:, 7:10] % unit == 0).all(axis=1)
    out[:, Field.PER_RUN] = (columns + np.where(begins, 1, 2) * (unit - 1)) // unit
    out[:, Field.LANES] = outer * rows * out[:, Field.PER_RUN]
    return out


def planned(
    pieces: Sequence[NDArray[np.int64]], unit: int, device: torch.device
) -> tuple[Plan, ...]:
    """All pieces, those of one run without gaps and all others apart: a launch each."""
    rows = np.concatenate([np.empty((0, len(Field)), np.int64), *pieces])
    one = (rows[:, Field.LANES] == rows[:, Field.PER_RUN]) & (rows[:, Field.COLUMN_STEP] == 1)
    return tuple(
        _plan(own, unit, device, run)
        for own, run in ((rows[one], True), (rows[~one], False))
        if len(own)
    )


def _plan(rows: NDArray[np.int64], unit: int, device: torch.device, one_run: bool) -> Plan:
    """Pieces, cut into chunks for the programs of a launch."""
    most = TIMES * ELEMENTS // unit
    counts = -(-rows[:, Field.LANES] // most)
    owners = np.repeat(np.arange(len(rows)), counts)
    number = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    chunks = np.stack([owners, number * most], axis=1).astype(np.int32)
    return Plan(torch.from_numpy(chunks).to(device), torch.from_numpy(rows).to(device), one_run)
