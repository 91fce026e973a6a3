"""Noise in an optimizer's state that nobody goes on with is said before the next step.

A script that loads a checkpoint and forgets `perturb` or `attach` would train on without noise, and
where the weights carried it, with the last draw in them for good. torch has hooks for the steps of
all optimizers: ours looks one key of each param group up. Knows records, not draws.
"""

import warnings
import weakref
from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from antipgd.torch import saved
from antipgd.torch.living import noise_of
from antipgd.torch.parts import is_sharded
from antipgd.torch.record import Record, read_record
from antipgd.torch.replaced import is_same
from antipgd.torch.sampling import as_row, diagonal
from antipgd.torch.stepping import rests

_told: "weakref.WeakSet[Optimizer]" = weakref.WeakSet()


def listen() -> None:
    """Look at every optimizer of this process before it steps."""
    register_optimizer_step_pre_hook(_look)


def leave_on_purpose(optimizer: Optimizer) -> None:
    """Let an optimizer keep a record after its noise has ended, and step on without a word."""
    _told.add(optimizer)


def forget_noise(optimizer: Optimizer) -> None:
    """Let go of noise that was loaded with an optimizer's state, and step on without a word.

    The weights stay as they are. Noise that acts is not forgotten but stopped: `noise.stop()`.
    """
    inner: Any = getattr(optimizer, "optimizer", optimizer)
    if noise_of(inner) is not None:
        raise ValueError("forget_noise is for noise that nobody goes on with; stop() this one")
    for group in inner.param_groups:
        group.pop(saved.KEY, None)


def _look(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    left = saved.left_in(optimizer.param_groups)
    if left and optimizer not in _told:
        say_left_behind(optimizer, [(group, read_record(text, _WHERE)) for group, text in left])


_WHERE = "the noise of a param group"
Left = list[tuple[Mapping[str, Any], Record]]


def say_left_behind(optimizer: Optimizer, left: Left) -> None:
    """Warn, once for an optimizer, of records in it that nobody has taken over.

    A step that does not count (torch.distributed.checkpoint makes one to ask for a state) is none.
    """
    if rests(optimizer) or noise_of(optimizer) is not None:
        return
    _told.add(optimizer)
    what, how = _advice(left)
    record = left[0][1]
    warnings.warn(
        f"the loaded state of this {type(optimizer).__name__} was saved with noise "
        f"(sigma {record.sigma:g}, step {record.step}) that nobody goes on with: {what}. "
        f"antipgd.torch.{how}; antipgd.torch.forget_noise(optimizer) lets it go",
        stacklevel=4,
    )


def _advice(left: Left) -> tuple[str, str]:
    """What it means that nobody goes on, and how one would."""
    without = "this training goes on without it"
    if left[0][1].form == "forward":
        return without, "perturb(model, optimizer, …) goes on with it"
    if not any(any(row) for _, record in left for row in record.sigmas):
        return without, "attach(optimizer, …) goes on with it"
    out = "attach(optimizer, …) goes on with it, and .stop() on what that returns takes it out"
    are_those = _are_the_saved_weights(left)
    if are_those is None:
        return "the weights keep its last draw in them, unless you cleaned them", out
    if are_those:
        return "the weights keep its last draw in them and no other comes", out
    return (
        f"{without}, from other weights than were saved with it",
        "attach(optimizer, …) and, where these are clean, .reset() on what that returns go on",
    )


def _are_the_saved_weights(left: Left) -> bool | None:
    """Whether the weights are those that carried the noise; None where no record can tell."""
    found = []
    for group, record in left:
        own = [p for p in group["params"] if not is_sharded(p)]
        for shape, sample in zip(record.shapes, record.samples, strict=False):
            now = [diagonal(p).cpu().double().numpy() for p in own if tuple(p.shape) == shape]
            if sample:
                found.append(any(is_same([as_row(sample)], [row]) for row in now))
    return all(found) if found else None
