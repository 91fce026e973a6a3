"""Whether weights of 16 bits can hold the noise: below half a rounding step it is lost.

Rounded to nearest, w − z keeps all of ξ down to σ/rms = 2⁻⁷ in bfloat16, about half of it at 2⁻¹⁰.
"""

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from antipgd.torch.forward.forming import NARROW
from antipgd.torch.members import Member, rms
from antipgd.torch.parts import Gathered

WARNED_BELOW = 2**-7
REFUSED_BELOW = 2**-9


def check_read(name: str, z: Tensor, sigma: float) -> None:
    """As `check_rounding`, for weights whose type has changed since."""
    _check_all([(name, z, sigma, z.dtype)])


def check_rounding(
    members: Sequence[Member], sigmas: Sequence[float], gathered: Mapping[int, Gathered]
) -> None:
    """Refuse a σ that the type in which weights are read would round away, warn where it begins to.

    `gathered` are those that FSDP2 gathers, which may be in fewer bits.
    """
    pairs = [(m, sigma) for m, sigma in zip(members, sigmas, strict=True) if not m.frozen]
    own = [m.parameter for m, _ in pairs]
    types = [gathered[id(z)].dtype if id(z) in gathered else z.dtype for z in own]
    _check_all([(m.name, m.parameter, s, t) for (m, s), t in zip(pairs, types, strict=True)])


def _check_all(read: Sequence[tuple[str, Tensor, float, torch.dtype]]) -> None:
    weak = {}
    for name, z, sigma, dtype in read:
        if dtype not in NARROW or sigma == 0:
            continue
        size = rms(z.detach().float())
        ratio = sigma / size if size > 0 else 1.0
        if ratio < REFUSED_BELOW:
            raise ValueError(
                f"sigma {sigma:.3g} is {ratio:.2g} times the root mean square of {name!r}, "
                f"whose type {dtype} would round it away; at least {REFUSED_BELOW * size:.3g} "
                f"(2^-9 of it), or float32 weights with torch.autocast"
            )
        if ratio < WARNED_BELOW:
            weak[name] = ratio
    if weak:
        name = min(weak, key=weak.__getitem__)
        warnings.warn(
            f"sigma is {weak[name]:.2g} times the root mean square of {name!r}: its type rounds "
            f"part of the noise away; from 2^-7 = {WARNED_BELOW:.2g} on it does not",
            stacklevel=6,
        )
