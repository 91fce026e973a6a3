"""`attach`: one line that adds anticorrelated noise to any torch optimizer.

Checks what it is given before anything changes, and that no parameter takes noise twice and no two
parameters of this process take the same.
"""

import gc
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from antipgd.noise import ANTI, Law, Schedule, as_law, as_taps
from antipgd.noise.injection import check_sigma
from antipgd.torch import saved
from antipgd.torch.handle import Noise, attached_noises
from antipgd.torch.members import Exclude
from antipgd.torch.parts import common_seed


def attach(
    optimizer: Optimizer,
    sigma: float,
    *,
    relative: bool = False,
    law: Law | str = "gaussian",
    taps: Iterable[float] = ANTI,
    seed: int | None = None,
    schedule: Schedule | str | None = None,
    exclude: Exclude = None,
    model: torch.nn.Module | None = None,
    namespace: str = "",
) -> Noise:
    """Add noise of standard deviation `sigma` to the weights after every step of `optimizer`.

    With `relative`, a tensor's σ is `sigma` times its root mean square now. A param group may have
    a `sigma` of its own. `schedule` is a function of the step, or "lr" to follow the learning rate.
    `exclude` takes names, patterns and predicates. Parameters are known by the names given to the
    optimizer or found in `model`, else by position. `seed=None` takes torch.initial_seed().

    A step in which every group has learning rate 0 is not counted and adds nothing. Where
    torch.distributed is initialised, every rank must attach; `seed=None` is rank 0's then.
    """
    optimizer = getattr(optimizer, "optimizer", optimizer)  # Accelerate's wrapper has no hooks
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"attach needs a torch.optim.Optimizer; got {type(optimizer).__name__}")
    check_sigma(sigma)
    for group in optimizer.param_groups:
        check_sigma(group.get("sigma", sigma), "sigma of a param group")
    if not (schedule is None or schedule == "lr" or callable(schedule)):
        raise ValueError(f"schedule must be a function of the step or 'lr'; got {schedule!r}")
    if not (exclude is None or isinstance(exclude, str) or callable(exclude)):
        exclude = list(exclude)
    states = saved.states_of(optimizer.param_groups)  # of a checkpoint that was loaded before
    noise = Noise(
        optimizer, float(sigma), relative, as_law(law), as_taps(taps),
        int(states[0]["seed"]) if states else common_seed(seed),
        schedule, exclude, model, namespace,
    )  # fmt: skip
    _refuse_shared(noise)
    noise.begin()
    return noise


def attach_copy(
    optimizer: Optimizer,
    states: Sequence[dict[str, Any]],
    *,
    relative: bool,
    law: Law | str,
    taps: Iterable[float],
    schedule: Schedule | str | None,
    exclude: Exclude,
    namespace: str,
) -> Noise:
    """The noise of a copied optimizer, which goes on with the draws of the original."""
    sigma, seed = (states[0]["sigma"], states[0]["seed"]) if states else (0.0, 0)
    noise = Noise(
        optimizer, sigma, relative, as_law(law), as_taps(taps), seed, schedule, exclude,
        None, namespace,
    )  # fmt: skip
    if states:
        for group, state in zip(optimizer.param_groups, states, strict=True):
            group[saved.KEY] = state
        noise.begin()
    return noise


def _overlap(noise: Noise, other: Noise) -> bool:
    if other.optimizer is noise.optimizer:
        return True
    keys = {member.key for member in noise.members}
    parameters = {id(member.parameter) for member in noise.members}
    return any(m.key in keys or id(m.parameter) in parameters for m in other.members)


def _refuse_shared(noise: Noise) -> None:
    """A parameter takes noise once, and no two parameters of this process take the same."""
    if any(_overlap(noise, other) for other in attached_noises()):
        gc.collect()  # the other may be garbage that only waits to be collected
    parameters = {id(member.parameter) for member in noise.members}
    keys = {member.key for member in noise.members}
    for other in attached_noises():
        if other.optimizer is noise.optimizer:
            raise ValueError("this optimizer has noise already; stop() it before attaching anew")
        for member in other.members:
            if id(member.parameter) in parameters:
                raise ValueError(
                    f"parameter {member.name!r} has noise already through another optimizer; "
                    f"use exclude= in one of the two"
                )
            if member.key in keys:
                raise ValueError(
                    f"another optimizer draws the same noise for {member.name!r} (seed "
                    f"{noise.seed}); give one of them namespace= or another seed"
                )
