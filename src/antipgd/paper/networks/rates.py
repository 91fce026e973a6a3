"""The learning rate over a training, as a factor of every single step: nothing is kept between.

`constant`; `cosine`, down to zero at the end; `step:30,45:0.1`, multiplied with 0.1 after 30 epochs
and again after 45. In the first `warmup` epochs it rises in a line, and is the full one at their
last step; a cosine begins after them. No step has rate zero.
"""

import math

from antipgd.checks import number, one_of, whole

_KINDS = ("constant", "cosine", "step:EPOCH,…:FACTOR")


def _parts(schedule: str) -> tuple[tuple[int, ...], float]:
    """The epochs after which a `step:` schedule goes down, and by which factor."""
    _, epochs, factor = schedule.split(":")
    return tuple(int(epoch) for epoch in epochs.split(",")), float(factor)


def _checked_steps(schedule: str, epochs: int) -> str:
    try:
        after, factor = _parts(schedule)
    except ValueError:
        raise ValueError(
            f"a schedule in steps is step:EPOCH,…:FACTOR, such as step:30,45:0.1; got {schedule!r}"
        ) from None
    if sorted({*after}) != [*after] or not 0 < after[0] <= after[-1] < epochs:
        raise ValueError(
            f"the epochs of a schedule must rise, from 1 to less than epochs={epochs}; "
            f"got {schedule!r}"
        )
    number("the factor of a schedule", factor, 0, above=True)
    return f"step:{','.join(map(str, after))}:{factor!r}"


def checked_schedule(schedule: str, epochs: int) -> str:
    """A schedule in its one spelling."""
    if isinstance(schedule, str) and schedule.startswith("step:"):
        return _checked_steps(schedule, epochs)
    return one_of("schedule", schedule, _KINDS)


def checked_warmup(warmup: int, epochs: int) -> int:
    """Epochs of warm-up, fewer than there are."""
    warmup = whole("warmup", warmup, 0)
    if warmup >= epochs:
        raise ValueError(f"warmup must be less than epochs={epochs}; got {warmup}")
    return warmup


def rate_factor(schedule: str, warmup: int, epochs: int, step: int, per_epoch: int) -> float:
    """What the learning rate of `step`, counted from 0 over the whole training, is multiplied with;
    an epoch has `per_epoch` of them."""
    rising = warmup * per_epoch
    if step < rising:
        return (step + 1) / rising
    if schedule == "cosine":
        return (1 + math.cos(math.pi * (step - rising) / (epochs * per_epoch - rising))) / 2
    if schedule.startswith("step:"):
        after, factor = _parts(schedule)
        return factor ** sum(step >= epoch * per_epoch for epoch in after)
    return 1.0
