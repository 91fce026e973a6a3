"""The forward form: the params are always z, and w = z + ξ_n is made where the gradient is taken.

`perturb` counts the steps and changes no update; `perturbed` makes w. So everything outside the
gradient, Optax's averages and weight decay among it, sees clean weights.
"""

from collections.abc import Iterable
from typing import Any

import optax

from antipgd.noise import ANTI, Law, as_taps
from antipgd.noise.taps import telescopes
from antipgd.optax.adding import add_carried
from antipgd.optax.filters import FilterAxis
from antipgd.optax.nests import find
from antipgd.optax.schedules import as_traceable
from antipgd.optax.state import (
    CorrelatedNoiseState,
    advanced,
    begin,
    checked_settings,
    checked_state,
    next_sigmas,
    refuse_other_filters,
)


def perturb(
    sigma: Any,
    *,
    relative: bool | str = False,
    taps: Iterable[float] = ANTI,
    law: Law | str = "gaussian",
    seed: int = 0,
    schedule: Any = None,
    mask: Any = None,
    hold: int = 1,
    antithetic: bool = False,
    layers: str = "all",
    filter_axis: FilterAxis = None,
) -> optax.GradientTransformationExtraArgs:
    """Noise for `perturbed`, with the arguments of `add_correlated_noise`; anywhere in the chain.

    The taps must sum to zero. Params may also be bfloat16 or float16.

    >>> import jax, jax.numpy as jnp
    >>> tx = optax.chain(optax.sgd(0.1), perturb(0.01))
    >>> params = {"w": jnp.ones(3)}
    >>> state = tx.init(params)
    >>> for _ in range(2):
    ...     w = perturbed(params, state)
    ...     gradient = jax.grad(lambda w: jnp.sum(w["w"] ** 2))(w)
    ...     updates, state = tx.update(gradient, state, params)
    ...     params = optax.apply_updates(params, updates)
    >>> from antipgd.noise import draws
    >>> bool(jnp.allclose(w["w"], 0.8 + 0.01 * draws(0, "w", 1, 0, 3)))
    True
    """
    taps = as_taps(taps)
    if not telescopes(taps):
        raise ValueError(
            f"perturb needs taps that sum to zero, such as (1, -1): with others there are no "
            f"clean weights to keep; got {taps}. add_correlated_noise takes any"
        )
    fixed = checked_settings(
        sigma, relative=relative, taps=taps, law=law, seed=seed, schedule=schedule, mask=mask,
        hold=hold, antithetic=antithetic, layers=layers, filter_axis=filter_axis, forward=True,
    )  # fmt: skip
    factor = as_traceable(schedule)

    def init(params: Any) -> CorrelatedNoiseState:
        return begin(fixed, sigma, mask, params, filter_axis)

    def update(
        updates: Any, state: CorrelatedNoiseState, params: Any = None, **extra: Any
    ) -> tuple[Any, CorrelatedNoiseState]:
        state = checked_state(state)
        refuse_other_filters(state, fixed, filter_axis, updates)
        return updates, advanced(state, *next_sigmas(state, fixed, sigma, factor))

    return optax.GradientTransformationExtraArgs(init, update)


def perturbed(params: Any, state: Any) -> Any:
    """w = z + ξ_n: where the gradient of the next step is taken. The params z stay as they are.

    `state` is the whole state of the optimizer, or any part of it that holds the state of
    `perturb`, which may be there more than once, with other seeds or leaves. A pure function, with
    dw/dz = 1.
    """
    found = find(state)
    if not found:
        raise ValueError(
            f"no state of perturb in this {type(state).__name__}; pass the state of the optimizer "
            f"(arguments are params, state)"
        )
    for ours in found:
        if not ours.settings.forward:
            raise ValueError(
                "this is a state of add_correlated_noise, whose params carry their noise already; "
                "take the gradient at the params, or use perturb in its place"
            )
    _refuse_repeated(found)
    for ours in found:
        params = add_carried(params, ours, 1.0)
    return params


def _refuse_repeated(found: list[CorrelatedNoiseState]) -> None:
    """Refuse the same draws twice on one leaf: they would add up to twice the noise."""
    seen: set[tuple[int, str]] = set()
    for ours in found:
        own = {(ours.settings.seed, name) for name in ours.settings.names}
        if own & seen:
            seed, name = min(own & seen)
            raise ValueError(
                f"perturb with seed={seed} is there twice for {name!r}, with the same draws: the "
                f"noise would be twice as large; take one away, or give it another seed"
            )
        seen |= own
