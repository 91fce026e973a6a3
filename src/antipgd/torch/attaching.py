"""`attach`: one line that adds anticorrelated noise to any torch optimizer.

Checks what it is given before anything changes, on all ranks of a job alike, and that no parameter
takes noise twice.
"""

import gc
import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from antipgd.noise import ANTI, Law, Schedule, as_law, as_taps
from antipgd.noise.injection import check_sigma
from antipgd.torch import saved
from antipgd.torch.advice import advise
from antipgd.torch.anchored import refuse_unfit
from antipgd.torch.handle import Noise, attached_noises
from antipgd.torch.members import Exclude, Member, rms
from antipgd.torch.parts import agree, is_distributed
from antipgd.torch.record import Record
from antipgd.torch.rounding import Rounding
from antipgd.torch.stepping import has_stepped

log = logging.getLogger("antipgd")


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

    A frozen tensor (requires_grad=False) takes no noise while it is frozen. A step in which every
    group has learning rate 0 is not counted and adds nothing. Where torch.distributed is
    initialised, every rank must attach; `seed=None` is rank 0's then.

    Optimizers that pull weights to an average (schedule-free, Lookahead, …) and containers of
    optimizers are refused.
    """
    given = optimizer
    optimizer = getattr(given, "optimizer", given)  # Accelerate's wrapper has no hooks
    noise, records, error = None, [], None
    try:
        _check_optimizer(given, optimizer)
        noise = _made(
            optimizer, sigma, relative, law, taps, seed, schedule, exclude, model, namespace
        )
        records = noise.checked(saved.own_groups(optimizer))
    except Exception as refusal:
        noise, error = None, refusal
    facts = {} if noise is None else noise.facts(records) | ({} if records else {"seed": seed})
    seeds = agree(error, facts, None if noise is None else noise.seed)
    assert noise is not None
    noise.draw_from(seeds[0])
    _begin(noise, records)
    return noise


def _made(
    optimizer: Optimizer,
    sigma: float,
    relative: bool,
    law: Law | str,
    taps: Iterable[float],
    seed: int | None,
    schedule: Schedule | str | None,
    exclude: Exclude,
    model: torch.nn.Module | None,
    namespace: str,
) -> Noise:
    """A noise that acts on nothing yet, of checked settings."""
    check_sigma(sigma)
    _check_record_can_hold(relative, namespace)
    for group in optimizer.param_groups:
        check_sigma(group.get("sigma", sigma), "sigma of a param group")
    if not (schedule is None or schedule == "lr" or callable(schedule)):
        raise ValueError(f"schedule must be a function of the step or 'lr'; got {schedule!r}")
    noise = Noise(
        optimizer, float(sigma), relative, as_law(law), as_taps(taps), _seed(seed), schedule,
        exclude, model, namespace,
    )  # fmt: skip
    _refuse_shared(noise)
    return noise


def _check_optimizer(given: object, optimizer: object) -> None:
    """Refuse what is no optimizer, or one whose weights the noise would not come out of again."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"attach needs a torch.optim.Optimizer; got {type(optimizer).__name__}")
    refuse_unfit(given, optimizer)


def _check_record_can_hold(relative: object, namespace: object) -> None:
    """Refuse now what would make a checkpoint that cannot be loaded."""
    if not isinstance(relative, bool):
        raise ValueError(f"relative must be True or False; got {relative!r}")
    if not isinstance(namespace, str):
        raise ValueError(f"namespace must be text; got {namespace!r}")


def _seed(seed: int | None) -> int:
    """The seed given, else torch.initial_seed(), which is never advanced."""
    if seed is None:
        return torch.initial_seed() % 2**64
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise ValueError(f"seed must be an integer from 0 to 2**64 - 1; got {seed!r}")
    return int(seed)


def _begin(noise: Noise, records: list[Record]) -> None:
    """Measure, go on from a checkpoint's records, let the ranks agree on σ, advise, and act.

    To act is last: where warnings are errors, an advice ends it all.
    """
    expected = saved.is_expected(noise.optimizer)
    sigmas, error = [], None
    try:
        if records:
            noise.adopt(records)
        else:
            noise.roll.measure()
        sigmas = noise.sigmas()
    except Exception as refusal:
        error = refusal
    agree(error, {"sigma by tensor": sigmas})
    _note_same_draws(noise)
    if not records:
        _ask_about_checkpoints(noise.optimizer, expected)
        advise(noise.members, sigmas, noise.seed, noise.relative)
    noise.rounding = Rounding(*_sizes(noise, sigmas))
    noise.hook()


def _sizes(noise: Noise, sigmas: list[float]) -> tuple[list[Member], list[float], list[float]]:
    """The members that take noise, their σ, and their root mean squares, measured by all ranks."""
    rows = [(m, s) for m, s in zip(noise.members, sigmas, strict=True) if not m.frozen]
    return [m for m, _ in rows], [s for _, s in rows], [rms(m.parameter) for m, _ in rows]


def attach_copy(optimizer: Optimizer, sigma: float, seed: int, **settings: Any) -> Noise:
    """The noise of a copied optimizer, which goes on with the draws of the original.

    Ranks are not asked: one of them may copy alone.
    """
    noise = Noise(
        optimizer, sigma, settings["relative"], as_law(settings["law"]),
        as_taps(settings["taps"]), seed, settings["schedule"], settings["exclude"], None,
        settings["namespace"],
    )  # fmt: skip
    records = noise.checked(optimizer.param_groups)
    if records:
        noise.adopt(records)
        noise.hook(alone=True)
    return noise


def _ask_about_checkpoints(optimizer: Optimizer, expected: bool) -> None:
    """Noise that torch.distributed.checkpoint has dropped leaves no trace: so ask."""
    if expected or not has_stepped(optimizer):
        return
    log.log(
        logging.WARNING if is_distributed() else logging.INFO,
        "the optimizer has made steps and has no noise in it: its weights are taken to be clean. "
        "torch.distributed.checkpoint loads noise only into an optimizer that has some: attach "
        "before loading, or call antipgd.torch.expect_noise(optimizer) before",
    )


def _parameters(noise: Noise) -> set[int]:
    return {id(member.parameter) for member in noise.members}


def _refuse_shared(noise: Noise) -> None:
    """A parameter takes noise once."""
    own, optimizer = _parameters(noise), noise.optimizer
    if any(theirs is optimizer or own & _parameters(o) for o, theirs in attached_noises()):
        gc.collect()  # the other may be garbage that only waits to be collected
    for other, theirs in attached_noises():
        if theirs is optimizer:
            raise ValueError("this optimizer has noise already; stop() it before attaching anew")
        for member in other.members:
            if id(member.parameter) in own:
                raise ValueError(
                    f"parameter {member.name!r} has noise already through another optimizer; "
                    f"use exclude= in one of the two"
                )


def _note_same_draws(noise: Noise) -> None:
    """Say, in the log, that another model of this process draws the same."""
    keys = {member.key: member.name for member in noise.members}
    for other, _ in attached_noises():
        same = [keys[m.key] for m in other.members if other is not noise and m.key in keys]
        if same:
            log.info(
                "another optimizer draws the same noise for %r (seed %d); where they train "
                "together, give one of them namespace= or another seed", same[0], noise.seed,
            )  # fmt: skip
            return
