"""Noise in an optimizer's state that nobody goes on with is said before the next step.

A script that loads a checkpoint and forgets `perturb` or `attach` would train on without noise, and
where the weights carried it, with the last draw in them for good. torch has hooks for the steps of
all optimizers: ours looks one key up. Knows records, not draws.
"""

import warnings
import weakref
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from antipgd.torch import saved
from antipgd.torch.living import noise_of
from antipgd.torch.record import read_record

_told: "weakref.WeakSet[Optimizer]" = weakref.WeakSet()


def listen() -> None:
    """Look at every optimizer of this process before it steps."""
    register_optimizer_step_pre_hook(_look)


def leave_on_purpose(optimizer: Optimizer) -> None:
    """Let an optimizer keep a record after its noise has ended, and step on without a word."""
    _told.add(optimizer)


def _look(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    groups = optimizer.param_groups
    if groups and type(groups[0].get(saved.KEY)) is str:  # not Live
        say_left_behind(optimizer)


def say_left_behind(optimizer: Optimizer) -> None:
    """Warn, once for an optimizer, of a record in it that nobody has taken over."""
    if optimizer in _told or not saved.is_loaded(optimizer) or noise_of(optimizer) is not None:
        return
    _told.add(optimizer)
    record = read_record(optimizer.param_groups[0][saved.KEY], "the noise of param group 0")
    call = "perturb(model, optimizer, …)" if record.form == "forward" else "attach(optimizer, …)"
    what = "this training goes on without it"
    if record.form == "weights" and any(map(any, record.sigmas)):
        what = "the weights keep its last draw in them and no other comes"
    warnings.warn(
        f"the loaded state of this {type(optimizer).__name__} was saved with noise "
        f"(sigma {record.sigma:g}, step {record.step}) that nobody goes on with: {what}. "
        f"antipgd.torch.{call} goes on with it; .stop() on what that returns ends it for good",
        stacklevel=4,
    )
