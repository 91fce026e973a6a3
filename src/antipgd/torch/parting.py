"""Ranks whose noise has parted since attach: another σ, learning rate or schedule on one of them.

Every fifty steps, and where clean weights are asked for or saved, a rank leaves what it has in the
store that the job was started with, and looks at what its two neighbours left at the same steps.
Nobody waits for anybody: what is not there yet is not compared, so that other steps cost no message
and a rank that calls clean() alone does not hang. Knows the store, not the noise.
"""

import json
from collections.abc import Callable
from itertools import count
from typing import Any

import torch.distributed as dist

from antipgd.torch.parts import is_distributed

EVERY = 50
KEPT = 4  # looks; ranks that take steps together are never that far apart

Facts = Callable[[], dict[str, Any]]
_numbers = count()


class Parting:
    """What one rank's noise has, for the others to see; nobody looks where it is `alone`."""

    def __init__(self, alone: bool) -> None:
        self._number = None if alone else next(_numbers)  # all ranks attach in the same order
        self._steps = self._resumes = 0
        self._left: dict[str, Any] = {}

    def step(self, facts: Facts) -> None:
        """Count a step, also one that adds nothing, and look now and then; `facts` gives what."""
        self._steps += 1
        if self._steps % EVERY == 0:
            self.look(facts)

    def resumed(self) -> None:
        """A state was loaded: a rank that has not come to that yet is behind, not astray."""
        self._resumes += 1

    def look(self, facts: Facts) -> None:
        """Refuse where another rank had something else at this step."""
        if self._number is None or not is_distributed():
            return
        now = f"{self._resumes} {self._steps}"
        self._left.pop(now, None)
        self._left = dict([*self._left.items()][1 - KEPT :]) | {now: facts()}
        store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
        text = json.dumps(self._left)
        store.set(self._key(rank), text)
        for other in {(rank + way) % dist.get_world_size() for way in (-1, 1)} - {rank}:
            if store.check([self._key(other)]):
                theirs = json.loads(store.get(self._key(other)))
                _compare(json.loads(text), theirs, rank, other)

    def _key(self, rank: int) -> str:
        return f"antipgd/{self._number}/{rank}"


def _compare(ours: dict[str, Any], theirs: dict[str, Any], rank: int, other: int) -> None:
    for step in ours.keys() & theirs.keys():
        for name, value in ours[step].items():
            if theirs[step][name] != value:
                raise RuntimeError(
                    f"the ranks have parted in their noise: {name} is {value} on rank {rank}, "
                    f"{theirs[step][name]} on rank {other}; sigma, schedule and learning rate must "
                    f"be the same on all"
                )
