"""Several optimizers as one list of param groups.

Keeps none of them alive. Knows optimizers, not noise.
"""

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from torch.optim import Optimizer


class Grouped(Protocol):
    """What has param groups: an optimizer, or several together."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The param groups, one after the other."""


class Together:
    """Optimizers whose param groups are numbered through."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._each = [weakref.ref(optimizer) for optimizer in optimizers]

    @property
    def are_gone(self) -> bool:
        """Whether one of them was deleted."""
        return any(ref() is None for ref in self._each)

    @property
    def are_all_gone(self) -> bool:
        """Whether all of them were deleted."""
        return all(ref() is None for ref in self._each)

    @property
    def if_there(self) -> list[Optimizer] | None:
        """The optimizers, which stay while this is held; None if one of them was deleted.

        To ask first and take then would be too late: the collector may come between.
        """
        found = self._left()
        return found if len(found) == len(self._each) else None

    def _left(self) -> list[Optimizer]:
        return [optimizer for ref in self._each if (optimizer := ref()) is not None]

    @property
    def each(self) -> list[Optimizer]:
        """The optimizers, in the order given."""
        found = self._left()
        if len(found) < len(self._each):
            lost = len(self._each) - len(found)
            which = f"{lost} of {len(self._each)} optimizers" if found else "the optimizer"
            raise ReferenceError(f"{which} of this noise is gone: keep it, or stop() the noise")
        return found

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The param groups of all, one after the other."""
        return [group for optimizer in self.each for group in optimizer.param_groups]

    @property
    def owners(self) -> list[Optimizer]:
        """Whose each param group is."""
        return [optimizer for optimizer in self.each for _ in optimizer.param_groups]

    def span(self, optimizer: Optimizer) -> range:
        """The numbers of an optimizer's groups."""
        first = 0
        for other in self.each:
            if other is optimizer:
                break
            first += len(other.param_groups)
        return range(first, first + len(optimizer.param_groups))
