"""Step, keys and coefficients of all seats, in the memory of each device that draws for itself.

Written in place, so that passes which were compiled, or captured in a CUDA graph, read what comes
next. The CPU's is what a compiled pass reads where no kernel reads memory.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipgd.noise import Law
from antipgd.torch.gpu.choosing import draws_on
from antipgd.torch.gpu.tables import Place, is_in_graph, lasting

CPU = torch.device("cpu")


class Places:
    """What the seats draw now, on each device."""

    def __init__(self, law: Law) -> None:
        self._law = law
        self._by_device: dict[torch.device, Place] = {}
        self._homes: list[torch.device] = []
        self._parameters: list[Tensor] = []
        self._keys = np.empty(0, np.uint64)
        self._shape: tuple[int, ...] = ()
        self._own: list[Place] = []
        self._newest = 0
        self.turn = 0
        """Counts what was written there: another number, another draw."""

    def fit(self, parameters: Sequence[Tensor]) -> bool:
        """Whether these lie on the devices that the last ones lay on."""
        return self._homes == [parameter.device for parameter in parameters]

    def check_rows(self, parameters: Sequence[Tensor]) -> None:
        """Refuse other parameters than a captured graph has found here."""
        now, then = [*map(id, parameters)], [*map(id, self._parameters)]
        if now != then and any(map(is_in_graph, self._by_device.values())):
            raise RuntimeError(
                f"a CUDA graph was captured while {len(then)} parameters took noise, and others "
                f"have come or gone ({len(now)} now): its replays would repeat one draw. Add and "
                f"take param groups before passes are captured; or stop() this noise, perturb "
                f"again and capture anew"
            )

    def end(self) -> None:
        """Graphs that are replayed from here on add nothing."""
        for place in self._by_device.values():
            place.table.zero_()

    def advance(self, newest: int) -> None:
        """Another step, which may have the draw of the last one."""
        if newest == self._newest:
            return
        self._newest = newest
        self.turn += 1
        for place in self._by_device.values():
            place.newest.fill_(newest)

    def take(
        self, parameters: Sequence[Tensor], keys: NDArray[np.uint64], table: NDArray[np.float64]
    ) -> list[Place]:
        """Other keys or coefficients; returns where each parameter's own are.

        As the same objects, as long as these lie where the last ones lay.
        """
        self.turn += 1
        if not self.fit(parameters) or self._shape != table.shape:
            self._move(parameters, table.shape)
        if not np.array_equal(keys, self._keys):
            rows = np.arange(len(keys), dtype=np.uint64)
            facts = torch.from_numpy(np.stack([keys, rows], axis=1).view(np.int64))
            for place in self._by_device.values():
                place.facts.copy_(facts)
        for place in self._by_device.values():
            place.table.copy_(torch.from_numpy(table))
        self._parameters, self._keys = list(parameters), keys
        return self._own

    def _move(self, parameters: Sequence[Tensor], shape: tuple[int, ...]) -> None:
        """Make room in the memory of these parameters' devices."""
        self._homes = [parameter.device for parameter in parameters]
        self._shape, self._keys = shape, np.empty(0, np.uint64)
        own = {d: d if draws_on(d, self._law) is not None else CPU for d in set(self._homes)}
        self._by_device = {home: self._room(home, shape) for home in set(own.values())}
        seats = enumerate(self._by_device[own[device]] for device in self._homes)
        self._own = [place._replace(facts=place.facts[row : row + 1]) for row, place in seats]

    def _room(self, device: torch.device, shape: tuple[int, ...]) -> Place:
        place = self._by_device.get(device)
        if place is not None and place.table.shape == shape:
            return place
        facts = torch.zeros(shape[0], 2, dtype=torch.int64, device=device)
        newest = torch.full((), self._newest, dtype=torch.int64, device=device)
        return lasting(Place(facts, newest, torch.zeros(shape, dtype=torch.float64, device=device)))
