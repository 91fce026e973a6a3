"""σ of a member's next draw: its group's or the noise's own, times the schedule, times its scale.

Knows the optimizer's groups, not when draws are made.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from antipgd.noise.injection import check_sigma
from antipgd.noise.schedules import Schedule, factor
from antipgd.noise.taps import Taps
from antipgd.torch.members import Member, check_fits_type
from antipgd.torch.together import Grouped


def next_sigmas(
    members: Sequence[Member],
    optimizer: Grouped,
    sigma: float,
    schedule: Schedule | str | None,
    step: int,
    taps: Taps,
) -> list[float]:
    """σ of each member's draw at `step`; 0 while it is frozen."""
    groups = optimizer.param_groups

    @cache  # asks once for the tensors of a group, of which there may be a thousand
    def unscaled(index: int, first_lr: float | None, even_frozen: bool) -> float:
        group = groups[index]
        if isinstance(schedule, str):
            times = _relative_rate(first_lr, group)
        else:
            times = factor(schedule, step)
        own = sigma if even_frozen else group.get("sigma", sigma)
        return check_sigma(own) * times

    found = []
    for member in members:
        own = 0.0
        if not member.frozen:
            own = unscaled(member.group, member.first_lr, member.even_frozen) * member.scale
        check_fits_type(own, taps, member, "sigma")
        found.append(own)
    return found


def _relative_rate(first_lr: float | None, group: Mapping[str, Any]) -> float:
    """The learning rate relative to its first value, which schedule="lr" follows.

    Its size: a decay that runs past its end may give a rate a little below 0, but σ has no sign.
    """
    if first_lr is None or not first_lr > 0:
        raise ValueError(
            f"schedule='lr' follows the learning rate relative to its first value, "
            f"which must be > 0; got {first_lr}"
        )
    return abs(float(group["lr"])) / first_lr
