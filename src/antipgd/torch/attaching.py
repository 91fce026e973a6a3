"""`attach`: one line that adds anticorrelated noise to any torch optimizer.

The weights w then carry the noise; `perturb` is the form in which they never do.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from antipgd.noise import ANTI, Law, Schedule, as_law, as_taps
from antipgd.torch import saved
from antipgd.torch.advice import number_of
from antipgd.torch.anchored import refuse_unfit
from antipgd.torch.beginning import begin, checked_settings, refuse_shared
from antipgd.torch.drawing import Drawing
from antipgd.torch.in_weights import InWeights
from antipgd.torch.layers import check_layers
from antipgd.torch.members import Exclude
from antipgd.torch.membership import Membership
from antipgd.torch.record import ELEMENT
from antipgd.torch.settings import Settings
from antipgd.torch.stepping import refuse_unheard


def attach(
    optimizer: Optimizer,
    sigma: float,
    *,
    relative: bool | str = False,
    law: Law | str = "gaussian",
    taps: Iterable[float] = ANTI,
    seed: int | None = None,
    schedule: Schedule | str | None = None,
    exclude: Exclude = None,
    model: torch.nn.Module | None = None,
    namespace: str = "",
    hold: int = 1,
    layers: str = "all",
) -> InWeights:
    """Add noise of standard deviation `sigma` to the weights after every step of `optimizer`.

    With `relative`, a tensor's σ is `sigma` times its root mean square now; with "filter", that of
    each of its filters (rows of its first axis) is `sigma` times the filter's. A param group may
    have a `sigma` of its own. `schedule` is a function of the step, or "lr" to follow the learning
    rate.
    `exclude` takes names, patterns and predicates. Parameters are known by the names given to the
    optimizer or found in `model`, else by position. `seed=None` takes torch.initial_seed(). With
    `hold`, each draw stays for that many steps. With layers="one", each is on one layer (a module
    with parameters of its own), and the next on the next.

    A frozen tensor (requires_grad=False) takes no noise while it is frozen. A step in which every
    group has learning rate 0 is not counted and adds nothing. Where torch.distributed is
    initialised, every rank must attach; `seed=None` is rank 0's then.

    Optimizers that pull weights to an average (schedule-free, Lookahead, …) and containers of
    optimizers are refused.
    """
    given = optimizer
    optimizer = getattr(given, "optimizer", given)  # Accelerate's wrapper has no hooks
    sigma = number_of(sigma)
    noise, records, error = None, [], None
    try:
        _check_optimizer(given, optimizer)
        settings = checked_settings(
            [optimizer],
            sigma,
            relative,
            law,
            taps,
            seed,
            schedule,
            namespace,
            Drawing(hold, layers=layers),
        )
        noise = _made(settings, optimizer, exclude, model)
        records = noise.checked(saved.own_groups(optimizer))
    except Exception as refusal:
        noise, error = None, refusal
    begin(noise, records, error, seed, sigma)
    assert noise is not None
    return noise


def _made(
    settings: Settings,
    optimizer: Optimizer,
    exclude: Exclude,
    model: torch.nn.Module | None,
) -> InWeights:
    """A noise that acts on nothing yet."""
    roll = Membership(
        optimizer, model, exclude, settings.law, settings.taps, settings.namespace,
        settings.relative,
    )  # fmt: skip
    if settings.drawing.layers == "one":
        check_layers(roll.members)
    if settings.relative == ELEMENT:
        raise ValueError(
            "relative='element' needs the clean weights at every draw, which noise in the weights "
            "does not have at hand; use antipgd.torch.perturb"
        )
    noise = InWeights(settings, [optimizer], roll, model)
    refuse_shared(noise)
    return noise


def _check_optimizer(given: object, optimizer: object) -> None:
    """Refuse what is no optimizer, or one whose weights the noise would not come out of again."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"attach needs a torch.optim.Optimizer; got {type(optimizer).__name__}")
    refuse_unheard(optimizer)
    refuse_unfit(given, optimizer)


def attach_copy(optimizer: Optimizer, sigma: float, seed: int, **settings: Any) -> InWeights:
    """The noise of a copied optimizer, which goes on with the draws of the original.

    Ranks are not asked: one of them may copy alone.
    """
    own = Settings(
        sigma, settings["relative"], as_law(settings["law"]), as_taps(settings["taps"]), seed,
        settings["schedule"], settings["namespace"],
        Drawing(settings["hold"], layers=settings["layers"]),
    )  # fmt: skip
    roll = Membership(
        optimizer, None, settings["exclude"], own.law, own.taps, own.namespace, own.relative
    )
    noise = InWeights(own, [optimizer], roll, None)
    records = noise.checked(optimizer.param_groups)
    if records:
        noise.adopt(records)
        noise.hook(alone=True)
    return noise
