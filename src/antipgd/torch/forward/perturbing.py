"""`perturb`: one line that adds anticorrelated noise to a model's training passes."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from antipgd.checks import one_of
from antipgd.noise import ANTI, Law, Schedule
from antipgd.noise.taps import telescopes
from antipgd.torch import saved
from antipgd.torch.advice import number_of
from antipgd.torch.beginning import begin, checked_settings, refuse_shared
from antipgd.torch.drawing import Drawing
from antipgd.torch.forward.in_passes import InPasses
from antipgd.torch.forward.passes import Passes
from antipgd.torch.forward.refusals import (
    check_model,
    check_optimizers,
    check_owned,
    check_readable,
)
from antipgd.torch.forward.slots import refuse_mixed
from antipgd.torch.layers import check_layers
from antipgd.torch.members import Exclude
from antipgd.torch.membership import Membership
from antipgd.torch.parts import gathered_parameters, is_distributed, is_sharded
from antipgd.torch.record import DRAWS
from antipgd.torch.settings import Settings
from antipgd.torch.together import Together

MEMORY = ("keep", "recompute")


def perturb(
    model: torch.nn.Module,
    optimizer: Optimizer | Iterable[Optimizer],
    sigma: float,
    *,
    relative: bool | str = False,
    law: Law | str = "gaussian",
    taps: Iterable[float] = ANTI,
    seed: int | None = None,
    schedule: Schedule | str | None = None,
    exclude: Exclude = None,
    frozen: Exclude = None,
    namespace: str = "",
    hold: int = 1,
    layers: str = "all",
    draws: str = "step",
    antithetic: bool = False,
    memory: str = "keep",
    audit: bool = True,
) -> InPasses:
    """Let `model` read its weights with noise of standard deviation `sigma` while it trains.

    Like dropout: a module in training mode reads w = z + ξ_n, one in eval mode reads z, and the
    parameters are z always: optimizers, state_dict, averages, exports and decay never see noise.
    After each step of the `optimizer` (one, or several that step together) the draw changes.

    With `relative`, a tensor's σ is `sigma` times its root mean square now; with "filter", that of
    each of its filters (rows of its first axis) is `sigma` times the filter's; with "element", σ of
    each element is `sigma` times its size in that pass, w = z + σ|z|ξ. A param group may have a
    `sigma` of its own. `schedule` is a function of the step, or "lr" to follow the learning
    rate.
    `exclude` takes names, patterns and predicates; so does `frozen`, for parameters that take noise
    though nothing trains them. `seed=None` takes torch.initial_seed().

    `hold` keeps each draw for that many steps. layers="one" puts each draw on one layer (a module
    with parameters of its own), and the next on the next. `draws="micro-batch"` or `"rank"` gives
    each of a step's micro-batches or each rank its own. `antithetic` takes draws in pairs ±ξ, over
    those or over consecutive steps. `memory="recompute"` makes w again in the backward pass instead
    of keeping it. `audit` compares each parameter's first gradient with what came through w, and
    refuses weights that were read past the noise.
    """
    sigma = number_of(sigma)
    noise, records, error = None, [], None
    try:
        check_model(model)
        optimizers = check_optimizers(optimizer)
        check_owned(model, optimizers)
        settings = checked_settings(
            optimizers, sigma, relative, law, taps, seed, schedule, namespace,
            _checked_drawing(hold, draws, antithetic, layers),
        )  # fmt: skip
        one_of("memory", memory, MEMORY)
        if not isinstance(audit, bool):
            raise ValueError(f"audit must be True or False; got {audit!r}")
        _check_taps(settings)
        noise = _made(settings, model, optimizers, exclude, frozen, memory, audit)
        records = noise.checked(saved.own_groups(noise.together))
    except Exception as refusal:
        noise, error = None, refusal
    begin(noise, records, error, seed, sigma)
    assert noise is not None
    return noise


def _checked_drawing(hold: int, draws: str, antithetic: bool, layers: str) -> Drawing:
    one_of("draws", draws, DRAWS)
    if not isinstance(antithetic, bool):
        raise ValueError(f"antithetic must be True or False; got {antithetic!r}")
    return Drawing(hold, draws, antithetic, layers)


def _check_taps(settings: Settings) -> None:
    if not telescopes(settings.taps):
        raise ValueError(
            f"taps must sum to zero in the forward form, else the weights would carry noise for "
            f"ever; got {settings.taps}. attach(…) adds such noise to the weights"
        )


def _made(
    settings: Settings,
    model: torch.nn.Module,
    optimizers: list[Optimizer],
    exclude: Exclude,
    frozen: Exclude,
    memory: str,
    audit: bool,
) -> InPasses:
    """A noise that acts on nothing yet."""
    roll = Membership(
        Together(optimizers), model, exclude, settings.law, settings.taps, settings.namespace,
        settings.relative, frozen, check_readable,
    )  # fmt: skip
    if settings.drawing.layers == "one":
        check_layers(roll.members)
    number = 0
    if memory == "recompute":
        _refuse_tensor_parallel(roll, model, "memory='recompute'", "use memory='keep'")
    if settings.drawing.per == "rank":
        # The ranks that share one replica's weights must read one draw.
        _refuse_tensor_parallel(roll, model, "draws='rank'", "use draws='step'")
        number = dist.get_rank() if is_distributed() else 0
    passes = Passes(settings.law, settings.drawing, memory, number)
    if isinstance(settings.relative, str):
        passes.refuse_when_compiled(
            f"relative={settings.relative!r} does not work under torch.compile, which would round "
            "the shares of the draws in its own order; use relative=True"
        )
    noise = InPasses(settings, optimizers, roll, model, passes, audit)
    refuse_shared(noise)
    refuse_mixed(model, passes, {id(member.parameter) for member in roll.members})
    return noise


def _refuse_tensor_parallel(roll: Membership, model: torch.nn.Module, what: str, way: str) -> None:
    gathered = gathered_parameters(model)
    for member in roll.members:
        read = gathered.get(id(member.parameter))
        if is_sharded(member.parameter) and (read is None or read.tensor_parallel):
            raise ValueError(
                f"{what} does not work with tensor-parallel weights ({member.name!r}), which "
                f"several ranks share; {way}"
            )
