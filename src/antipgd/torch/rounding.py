"""What rounding does to the clean weights, and a word before it matters.

Each w + ε is rounded to the weights' type, so z = w − ξ walks at random: after n steps by about
.21 eps · rms(w) · √n, which is 2.5e-8 · rms(w) · √n in float32 (measured for rms(w) ≫ σ; 1.5 times
that where they are equal). For σ = .01 rms it takes a billion steps to pass a tenth of σ, for
σ = 1e-5 rms a thousand. Knows sizes, not when noise is added.
"""

import math
import warnings
from collections.abc import Sequence

import torch

from antipgd.torch.members import Member

PER_STEP = 0.21  # of the type's eps, times rms(w)
SHARE = 0.1  # of σ, that z may walk
SOON = 100_000  # steps: said at once
WAYS = (
    "consider float64 weights, a larger sigma, exclude=, or "
    "antipgd.torch.perturb(model, optimizer, sigma=…), under which nothing is rounded"
)


def drift(size: float, dtype: torch.dtype, steps: float) -> float:
    """How far rounding moves clean weights of a root mean square `size` in so many steps."""
    return PER_STEP * torch.finfo(dtype).eps * size * math.sqrt(steps)


class Rounding:
    """After how many steps rounding has moved each tensor's clean weights by a tenth of σ."""

    def __init__(
        self, members: Sequence[Member], sigmas: Sequence[float], sizes: Sequence[float]
    ) -> None:
        self._limits: dict[str, float] = {}
        rows = [row for row in zip(members, sigmas, sizes, strict=True) if math.isfinite(row[2])]
        lost = [m.name for m, s, size in rows if 0 < s < _eps(m) * size]
        if lost:
            warnings.warn(
                f"sigma is below the rounding of the weights, which do not take such noise: "
                f"{_shown(lost)}; {WAYS}",
                stacklevel=5,
            )
        for member, sigma, size in rows:
            if sigma > 0 and size > 0 and member.name not in lost:
                one = drift(size, member.parameter.dtype, 1)
                self._limits[member.name] = (SHARE * sigma / one) ** 2
        self.next = min(self._limits.values(), default=math.inf)
        if self.next < SOON:
            self._warn(SOON, 5)

    def passed(self, step: int) -> None:
        """Say once that a tenth of σ has been passed."""
        self._warn(step, 4)

    def _warn(self, step: float, depth: int) -> None:
        names = [name for name, limit in self._limits.items() if limit <= step]
        warnings.warn(
            f"rounding moves the clean weights by a tenth of sigma within {self.next:.2g} steps in "
            f"{_shown(names)}; {WAYS}",
            stacklevel=depth,
        )
        self.next = math.inf


def _eps(member: Member) -> float:
    return torch.finfo(member.parameter.dtype).eps


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
