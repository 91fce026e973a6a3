"""Whether weights of 16 bits can hold the noise: below half a rounding step it is lost.

Rounded to nearest, w − z keeps all of ξ down to σ/rms = 2⁻⁷ in bfloat16, about half of it at 2⁻¹⁰.
"""

import warnings
from collections.abc import Sequence

from antipgd.torch.forward.forming import NARROW
from antipgd.torch.members import Member, rms

WARNED_BELOW = 2**-7
REFUSED_BELOW = 2**-9


def check_rounding(members: Sequence[Member], sigmas: Sequence[float]) -> None:
    """Refuse a σ that the weights' type would round away, warn where it begins to."""
    weak = {}
    for member, sigma in zip(members, sigmas, strict=True):
        if member.parameter.dtype not in NARROW or sigma == 0 or member.frozen:
            continue
        size = rms(member.parameter.detach().float())
        if not size > 0:
            continue
        ratio = sigma / size
        if ratio < REFUSED_BELOW:
            raise ValueError(
                f"sigma {sigma:.3g} is {ratio:.2g} times the root mean square of {member.name!r}, "
                f"whose type {member.parameter.dtype} would round it away; at least "
                f"{REFUSED_BELOW * size:.3g} (2^-9 of it), or float32 weights with torch.autocast"
            )
        if ratio < WARNED_BELOW:
            weak[member.name] = ratio
    if weak:
        name = min(weak, key=weak.__getitem__)
        warnings.warn(
            f"sigma is {weak[name]:.2g} times the root mean square of {name!r}: its type rounds "
            f"part of the noise away; from 2^-7 = {WARNED_BELOW:.2g} on it does not",
            stacklevel=6,
        )
