"""What the weights carry, w − z, and taking it out: for good, or inside a block.

Knows members and coefficients, not when noise is added.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from antipgd.noise.injection import carried_coefficients
from antipgd.noise.taps import Taps, telescopes
from antipgd.torch.adding import Adder
from antipgd.torch.members import Member
from antipgd.torch.parts import local_part, reshard


def check_removable(taps: Taps) -> None:
    """Refuse where there are no clean weights."""
    if not telescopes(taps):
        raise ValueError(
            f"taps {taps} do not sum to zero: there are no clean weights to go back to"
        )


def carried(members: Sequence[Member], taps: Taps) -> list[list[float]]:
    """Coefficients of the draws in w − z, newest first."""
    check_removable(taps)
    return [carried_coefficients(taps, member.sigmas) for member in members]


def take_out(adder: Adder, taps: Taps, step: int, model: torch.nn.Module | None) -> None:
    """w ← z."""
    adder.add(step, [[-c for c in row] for row in carried(adder.members, taps)])
    reshard(model)


@contextmanager
def taken_out(adder: Adder, taps: Taps, step: int, model: torch.nn.Module | None) -> Iterator[None]:
    """Inside, the weights are z; after, w again, bit for bit, with a word on what changed there."""
    members = adder.members
    kept = [member.parameter.detach().clone() for member in members]
    take_out(adder, taps, step, model)
    versions = _versions(members)
    try:
        yield
    finally:
        after = _versions(members)
        with torch.no_grad():
            for member, w in zip(members, kept, strict=True):
                member.parameter.copy_(w)
        reshard(model)
        changed = [m.name for m, a, b in zip(members, versions, after, strict=True) if a != b]
        if changed:
            warnings.warn(
                f"changed inside clean() and set back after it: {', '.join(changed)}",
                stacklevel=5,
            )


def _versions(members: Sequence[Member]) -> list[int]:
    return [local_part(member.parameter)[0]._version for member in members]
