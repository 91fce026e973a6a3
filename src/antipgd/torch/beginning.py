"""How a noise begins, in both forms: settings checked, ranks agreed, a checkpoint taken over.

Refuses before anything changes, on all ranks of a job alike, and where a parameter would take
noise twice.
"""

import gc
import logging
from collections.abc import Iterable, Sequence

import torch
from torch.optim import Optimizer

from antipgd.checks import one_of, whole
from antipgd.noise import Law, Schedule, as_law, as_taps
from antipgd.noise.injection import check_sigma
from antipgd.torch import saved
from antipgd.torch.advice import advise, check_tried, take_units, was_tried
from antipgd.torch.drawing import Drawing
from antipgd.torch.handle import Noise
from antipgd.torch.living import attached_noises, carried_by_abandoned, stop_abandoned
from antipgd.torch.parts import agree, is_distributed
from antipgd.torch.record import CHECKS, LAST_STEP, LAYERS, Record
from antipgd.torch.settings import Settings
from antipgd.torch.sigma import sigma_of
from antipgd.torch.stepping import has_stepped

log = logging.getLogger("antipgd")


def checked_settings(
    optimizers: Sequence[Optimizer],
    sigma: float,
    relative: bool | str,
    law: Law | str,
    taps: Iterable[float],
    seed: int | None,
    schedule: Schedule | str | None,
    namespace: str,
    drawing: Drawing,
) -> Settings:
    """The settings as values, each refused by name where it is not accepted."""
    check_sigma(sigma)
    check_tried(sigma, relative)
    _check_record_can_hold(relative, namespace)
    whole("hold", drawing.hold, 1, LAST_STEP)
    one_of("layers", drawing.layers, LAYERS)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            check_sigma(sigma_of(group, optimizer, sigma), "sigma of a param group")
    if not (schedule is None or schedule == "lr" or callable(schedule)):
        raise ValueError(f"schedule must be a function of the step or 'lr'; got {schedule!r}")
    return Settings(
        float(sigma), relative, as_law(law), as_taps(taps), _seed(seed), schedule, namespace,
        drawing,
    )  # fmt: skip


def _check_record_can_hold(relative: object, namespace: object) -> None:
    """Refuse now what would make a checkpoint that cannot be loaded."""
    CHECKS["relative"]("relative", relative)
    if not isinstance(namespace, str):
        raise ValueError(f"namespace must be text; got {namespace!r}")


def _seed(seed: int | None) -> int:
    """The seed given, else torch.initial_seed(), which is never advanced."""
    if seed is None:
        return torch.initial_seed() % 2**64
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise ValueError(f"seed must be an integer from 0 to 2**64 - 1; got {seed!r}")
    return int(seed)


def begin(
    noise: Noise | None,
    records: list[Record],
    error: Exception | None,
    seed: int | None,
    sigma: object = None,
) -> None:
    """Let the ranks agree that nobody refuses, and on what; go on from `records`, or anew; act.

    `seed` is the one given: None is rank 0's then. So is `sigma`: one that was tried keeps its
    units and is not warned of.
    """
    facts = {} if noise is None else noise.facts(records) | ({} if records else {"seed": seed})
    seeds = agree(error, facts, None if noise is None else noise.seed)
    assert noise is not None
    noise.draw_from(seeds[0])
    _measure_and_act(noise, records, sigma)


def _measure_and_act(noise: Noise, records: list[Record], sigma: object) -> None:
    """Measure, go on from a checkpoint's records, let the ranks agree on σ, advise, and act.

    To act is last: where warnings are errors, an advice ends it all.
    """
    expected = saved.is_expected(noise.together)
    sigmas, to_come, error = [], [], None
    try:
        if records:
            noise.adopt(records)
        else:
            noise.roll.measure()
            take_units(noise.members, sigma, noise.relative)
        sigmas = noise.sigmas()
        to_come = noise.sigmas_to_come()
        noise.check_sigmas(to_come)
    except Exception as refusal:
        error = refusal
    agree(error, {"sigma by tensor": sigmas})
    _note_same_draws(noise)
    if not records:
        _ask_about_checkpoints(noise, expected)
        tried = was_tried(sigma, noise.relative, noise.drawing.layers)
        advise(noise.members, to_come, noise.seed, noise.relative, tried)
        noise.advise_on_hold()
    noise.foresee(to_come)
    noise.hook()


def _ask_about_checkpoints(noise: Noise, expected: bool) -> None:
    """Noise that torch.distributed.checkpoint has dropped leaves no trace: so ask."""
    if expected or not any(map(has_stepped, noise.optimizers)):
        return
    if noise.form == "forward":
        log.info(
            "the optimizer has made steps and has no noise in it: the noise begins at step 0. If "
            "a checkpoint had some, perturb before loading, or call "
            "antipgd.torch.expect_noise(optimizer) before"
        )
        return
    log.log(
        logging.WARNING if is_distributed() else logging.INFO,
        "the optimizer has made steps and has no noise in it: its weights are taken to be clean. "
        "torch.distributed.checkpoint loads noise only into an optimizer that has some: attach "
        "before loading, or call antipgd.torch.expect_noise(optimizer) before",
    )


def _parameters(noise: Noise) -> set[int]:
    return {id(member.parameter) for member in noise.members}


def refuse_shared(noise: Noise) -> None:
    """A parameter takes noise once, and an optimizer keeps one noise."""
    own, optimizers = _parameters(noise), {id(optimizer) for optimizer in noise.optimizers}
    stop_abandoned()
    others = attached_noises()
    if any(optimizers & set(map(id, theirs)) or own & _parameters(o) for o, theirs in others):
        del others
        gc.collect()  # the other may be garbage that only waits to be collected
    _refuse_left_behind(own)
    for other, theirs in attached_noises():
        if optimizers & set(map(id, theirs)):
            raise ValueError("this optimizer has noise already; stop() it first")
        for member in other.members:
            if id(member.parameter) in own:
                raise ValueError(
                    f"parameter {member.name!r} has noise already through another optimizer; "
                    f"stop() that noise, or use exclude= in one of the two. An optimizer that "
                    f"is no longer used may be kept by its scheduler"
                )


def _refuse_left_behind(own: set[int]) -> None:
    """Refuse weights that carry draws which nobody would take out any more."""
    for member in carried_by_abandoned():
        if id(member.parameter) in own:
            raise ValueError(
                f"parameter {member.name!r} carries noise of an earlier attach, whose optimizer is "
                f"gone; stop() that noise, which takes it out, or stop(remove=False) to leave it"
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
