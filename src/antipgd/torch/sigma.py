"""σ of a member's next draw: its group's or the noise's own, times the schedule, times its scale.

Knows the optimizer's groups, not when draws are made.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

from antipgd.noise.injection import check_sigma
from antipgd.noise.schedules import Schedule, factor
from antipgd.noise.taps import Taps
from antipgd.torch.members import ALWAYS_FITS, Member, check_fits_type
from antipgd.torch.together import Together


def sigma_of(group: Mapping[str, Any], owner: Optimizer, sigma: float) -> float:
    """A param group's own σ, or else `sigma`.

    Where the optimizer has a setting of that name (FriendlySAM does), it is not of the noise.
    """
    return sigma if "sigma" in owner.defaults else group.get("sigma", sigma)


def next_sigmas(
    members: Sequence[Member],
    optimizers: Together,
    sigma: float,
    schedule: Schedule | str | None,
    step: int,
    taps: Taps,
) -> list[float]:
    """σ of each member's draw at `step`; 0 while it is frozen."""
    group_sigmas = _GroupSigmas(optimizers, sigma, schedule, step)
    found = [  # at every step of every tensor, so quickly
        group_sigmas[m.group, m.first_lr, m.guest] * m.scale
        if m.parameter.requires_grad or m.even_frozen
        else 0.0
        for m in members
    ]
    if sum(map(abs, taps)) * max(found, default=0.0) > ALWAYS_FITS:
        for member, own in zip(members, found, strict=True):
            check_fits_type(own, taps, member, "sigma")
    return found


def by_group(
    kinds: Sequence[tuple[int, float | None, bool]],
    optimizers: Together,
    sigma: float,
    schedule: Schedule | str | None,
    step: int,
) -> list[float]:
    """σ before scaling of each kind of member: its group, first learning rate, whether a guest."""
    found = _GroupSigmas(optimizers, sigma, schedule, step)
    return [found[kind] for kind in kinds]


class _GroupSigmas(dict[tuple[int, float | None, bool], float]):
    """σ of a param group's draw before scaling, by the group and its first learning rate.

    The third says that the parameter is a guest, not the group's own.
    """

    def __init__(
        self, optimizers: Together, sigma: float, schedule: Schedule | str | None, step: int
    ) -> None:
        self._asked = optimizers, sigma, schedule, step

    def __missing__(self, key: tuple[int, float | None, bool]) -> float:
        """Asked once for the tensors of a group, of which there may be a thousand."""
        optimizers, sigma, schedule, step = self._asked
        group = optimizers.param_groups[key[0]]
        if isinstance(schedule, str):
            times = _relative_rate(key[1], group)
        else:
            times = factor(schedule, step)
        own = sigma if key[2] else sigma_of(group, optimizers.owners[key[0]], sigma)
        self[key] = check_sigma(own) * times
        return self[key]


def highest_rate(members: Sequence[Member], optimizers: Together) -> tuple[float, float, float]:
    """The largest learning rate relative to its first value among who takes noise, and both."""
    kinds = {(m.group, m.first_lr) for m in members if not m.frozen}
    groups = optimizers.param_groups
    found = [
        (_relative_rate(first, groups[index]), first or 0.0, float(groups[index]["lr"]))
        for index, first in kinds
    ]
    return max(found, default=(0.0, 0.0, 0.0))


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
