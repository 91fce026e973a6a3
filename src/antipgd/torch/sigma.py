"""σ of a member's next draw: its group's or the noise's own, times the schedule, times its scale.

Knows the optimizer's groups, not when draws are made.
"""

from torch.optim import Optimizer

from antipgd.noise.injection import check_sigma
from antipgd.noise.schedules import Schedule, factor
from antipgd.noise.taps import Taps
from antipgd.torch.members import Member, check_fits_type


def next_sigma(
    member: Member,
    optimizer: Optimizer,
    sigma: float,
    schedule: Schedule | str | None,
    step: int,
    taps: Taps,
) -> float:
    """σ of the member's draw at `step`; 0 while it is frozen."""
    if member.frozen:
        return 0.0
    group = optimizer.param_groups[member.group]
    if isinstance(schedule, str):
        times = _relative_rate(member, group)
    else:
        times = factor(schedule, step)
    found = check_sigma(group.get("sigma", sigma)) * times * member.scale
    check_fits_type(found, taps, member, "sigma")
    return found


def _relative_rate(member: Member, group: dict) -> float:
    """The learning rate relative to its first value, which schedule="lr" follows.

    Its size: a decay that runs past its end may give a rate a little below 0, but σ has no sign.
    """
    if member.first_lr is None or not member.first_lr > 0:
        raise ValueError(
            f"schedule='lr' follows the learning rate relative to its first value, "
            f"which must be > 0; got {member.first_lr}"
        )
    return abs(float(group["lr"])) / member.first_lr
