"""`add_correlated_noise`: the injection ε_n as an Optax transformation. The params carry the noise.

And how any sum of draws gets onto a tree, for this form and the other.
"""

from collections.abc import Iterable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import optax

from antipgd.noise import ANTI, Law, as_law, stream_key
from antipgd.noise.injection import whose_turn
from antipgd.noise.taps import Taps, carried
from antipgd.optax.filters import FilterAxis, from_text, kept
from antipgd.optax.kernel import inject, wide
from antipgd.optax.leaves import check_type, check_unsharded, layer_of, named_leaves
from antipgd.optax.schedules import as_traceable
from antipgd.optax.state import (
    CorrelatedNoiseState,
    Settings,
    advanced,
    begin,
    checked_settings,
    checked_state,
    draw_of,
    next_sigmas,
    refuse_other_filters,
)


def add_correlated_noise(
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
    """Add ε_n = Σ_j taps[j] σ_{n+1−j} ξ_{n+1−j} to the updates; must be last in the chain.

    `sigma` is a standard deviation in units of the weights and may be a traced number; with
    `relative`, in units of each leaf's root mean square at `init`. `schedule` is a function of the
    step (1, 2, …) whose value multiplies it. `mask` is a tree of bools, or a function of the params
    that makes one: true takes noise. Leaves are known by their paths joined by dots. `hold` steps
    in a row have the same draw; with `antithetic` every second draw is the last one negated.
    relative="filter" measures each output of a layer by itself: along the last axis of a `kernel`
    (Flax), the first of a `weight` (Equinox) or an `embedding`, and of other leaves along
    `filter_axis`: an axis, several, or a function of path and leaf that returns them, () for a leaf
    that is one filter, None where the name tells. layers="one" puts each draw on one layer (leaves
    whose paths differ in the last part), and the next on the next. With
    `optax.inject_hyperparams`, static_args=antipgd.optax.STATIC_ARGS.

    >>> tx = optax.chain(optax.sgd(0.1), add_correlated_noise(0.01))
    >>> params = {"w": jnp.zeros(3)}
    >>> state = tx.init(params)
    >>> updates, state = tx.update({"w": jnp.zeros(3)}, state, params)
    >>> from antipgd.noise import draws
    >>> bool(jnp.allclose(updates["w"], 0.01 * draws(0, "w", 1, 0, 3)))
    True
    """
    fixed = checked_settings(
        sigma, relative=relative, taps=taps, law=law, seed=seed, schedule=schedule, mask=mask,
        hold=hold, antithetic=antithetic, layers=layers, filter_axis=filter_axis, forward=False,
    )  # fmt: skip
    factor = as_traceable(schedule)

    def init(params: Any) -> CorrelatedNoiseState:
        return begin(fixed, sigma, mask, params, filter_axis)

    def update(
        updates: Any, state: CorrelatedNoiseState, params: Any = None, **extra: Any
    ) -> tuple[Any, CorrelatedNoiseState]:
        state = checked_state(state)
        refuse_other_filters(state, fixed, filter_axis, updates)
        sigmas, fresh = next_sigmas(state, fixed, sigma, factor)
        after = advanced(state, sigmas, fresh)
        return add_draws(updates, after, fixed.taps, jnp.where(fresh, sigmas, 0)), after

    return optax.GradientTransformationExtraArgs(init, update)


def add_carried(params: Any, state: CorrelatedNoiseState, sign: float) -> Any:
    """The params ± what they carry after the state's steps, Σ_j c_j σ_{n−j} ξ_{n−j}."""
    state = checked_state(state)
    taps = tuple(sign * c for c in carried(state.settings.taps)[:-1])
    return add_draws(params, state, taps, state.sigmas)


def add_draws(tree: Any, state: CorrelatedNoiseState, taps: Taps, sigmas: jax.Array) -> Any:
    """The tree with Σ_j taps[j] σ_{d−j} ξ_{d−j} on its noisy leaves, d the state's newest draw."""
    settings = state.settings
    leaves, structure = named_leaves(tree)
    _refuse_missing(settings, dict(leaves), tree)
    places = {name: i for i, name in enumerate(settings.names)}
    steps, coefficients = _terms(draw_of(state), taps, sigmas, settings.antithetic)
    turns = _turns(settings, steps)
    units = _units(state, dict(leaves))
    out = []
    for name, leaf in leaves:
        if name in places:
            check_type(name, leaf, settings.forward)
            check_unsharded(name, leaf)
            key = wide(stream_key(settings.seed, name))
            own = coefficients if turns is None else jnp.where(turns[name], coefficients, 0)
            scale, rows = units[places[name]]
            leaf = inject(leaf, key, steps, own * scale, as_law(settings.law), rows)
        out.append(leaf)
    return jax.tree_util.tree_unflatten(structure, out)


def _turns(settings: Settings, steps: jax.Array) -> dict[str, jax.Array] | None:
    """Whether each of these draws is on a leaf's layer, where layers take turns."""
    if settings.layers == "all":
        return None
    own = {name: layer_of(name, settings.layers) for name in settings.names}
    layers = list(dict.fromkeys(own.values()))
    turn: Any = whose_turn(steps, len(layers))  # type: ignore[arg-type]
    return {name: turn == layers.index(layer) for name, layer in own.items()}


def _units(
    state: CorrelatedNoiseState, leaves: dict[str, Any]
) -> list[tuple[Any, jax.Array | None]]:
    """For each noisy leaf what σ is multiplied by, and each filter's where they have units."""
    names, scales, relative, first = state.settings.names, state.scales, state.settings.relative, 0
    found: list[tuple[Any, jax.Array | None]] = []
    if not isinstance(relative, str):
        return [(scales[i] if scales.ndim else scales, None) for i in range(len(names))]
    shapes = [jnp.shape(leaves[name]) for name in names]
    for shape, axes in zip(shapes, from_text(relative, shapes), strict=True):
        own = kept(shape, axes)
        count = prod(own) if axes else 1
        units = scales[first : first + count]
        found.append((1.0, units.reshape(own)) if axes else (units[0], None))
        first += count
    return found


def _refuse_missing(settings: Settings, leaves: dict[str, Any], tree: Any) -> None:
    missing = sorted(set(settings.names) - leaves.keys())
    if missing:
        fast = "; with optax.lookahead, pass params.fast" if hasattr(tree, "fast") else ""
        raise ValueError(
            f"leaves that take noise are missing: {missing}; the tree must have the "
            f"structure of the params that init was given{fast}"
        )


def _terms(
    newest: jax.Array, taps: Taps, sigmas: jax.Array, antithetic: bool
) -> tuple[jax.Array, jax.Array]:
    """Which draws of the stream are added, newest first, and the coefficient of each.

    Antithetic, ξ_{2k} is −ξ_{2k−1}: both are ± the k-th draw of the stream.
    """
    lags = [lag for lag, tap in enumerate(taps) if tap]
    numbers = [newest - lag for lag in lags]
    terms = [taps[lag] * sigmas[lag] for lag in lags]
    if antithetic:
        terms = [jnp.where(k % 2 == 1, c, -c) for k, c in zip(numbers, terms, strict=True)]
        numbers = [(k + 1) // 2 for k in numbers]
    return jnp.stack(numbers), jnp.stack(terms)
