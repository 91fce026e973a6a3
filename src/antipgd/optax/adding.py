"""`add_correlated_noise`: the injection ε_n as an Optax transformation.

The state holds the count and the σ's of the draws that the weights still carry, nothing per
parameter. Seed, law, taps and the names of the noisy leaves stand in it too, as structure: a
compiled step depends on them, and `clean_params` needs them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from antipgd.noise import ANTI, Law, as_law, as_taps, stream_key
from antipgd.noise.injection import check_sigma
from antipgd.noise.taps import Taps
from antipgd.optax.kernel import inject, wide
from antipgd.optax.leaves import check_type, check_unsharded, masked_names, named_leaves
from antipgd.optax.schedules import as_traceable


@dataclass(frozen=True)
class Settings:
    """What does not change from step to step."""

    seed: int
    law: Law
    taps: Taps
    names: tuple[str, ...]  # of the leaves that take noise


jax.tree_util.register_pytree_node(Settings, lambda s: ((), s), lambda settings, _: settings)


class CorrelatedNoiseState(NamedTuple):
    """Steps taken; σ_n, σ_{n−1}, … of the len(taps) − 1 newest draws; and what never changes."""

    count: jax.Array  # type: ignore[assignment]  # Optax's word, though a tuple has a method of it
    sigmas: jax.Array
    settings: Settings


def add_correlated_noise(
    sigma: Any,
    *,
    taps: Iterable[float] = ANTI,
    law: Law | str = "gaussian",
    seed: int = 0,
    schedule: Any = None,
    mask: Any = None,
) -> optax.GradientTransformationExtraArgs:
    """Add ε_n = Σ_j taps[j] σ_{n+1−j} ξ_{n+1−j} to the updates; must be last in the chain.

    `sigma` is a standard deviation in units of the weights and may be a traced number;
    `schedule` is a function of the step (1, 2, …) whose value multiplies it. `mask` is a tree of
    bools, or a function of the params that makes one: true takes noise. Leaves are known by their
    paths joined by dots. With `optax.inject_hyperparams`, static_args=("seed", "schedule", "mask").

    >>> tx = optax.chain(optax.sgd(0.1), add_correlated_noise(0.01))
    >>> params = {"w": jnp.zeros(3)}
    >>> state = tx.init(params)
    >>> updates, state = tx.update({"w": jnp.zeros(3)}, state, params)
    >>> from antipgd.noise import draws
    >>> bool(jnp.allclose(updates["w"], 0.01 * draws(0, "w", 1, 0, 3)))
    True
    """
    _refuse_injected(seed=seed, schedule=schedule, mask=mask)
    if not isinstance(sigma, jax.core.Tracer):
        check_sigma(sigma)
    stream_key(seed, "")  # refuses what is no seed
    fixed = Settings(int(seed), as_law(law), as_taps(taps), ())
    factor = as_traceable(schedule)

    def init(params: Any) -> CorrelatedNoiseState:
        count = jnp.zeros((), jnp.int32)
        sigmas = jnp.zeros(len(fixed.taps) - 1, jnp.result_type(float))
        if type(params).__name__ == "_ParamsPlaceholder":  # of optax.tree_map_params
            return CorrelatedNoiseState(count, sigmas, jnp.zeros(()))  # type: ignore[arg-type]
        leaves, _ = named_leaves(params)
        names = [name for name, _ in leaves] if mask is None else masked_names(mask, params)
        for name, leaf in leaves:
            if name in names:
                check_type(name, leaf)
        settings = Settings(fixed.seed, fixed.law, fixed.taps, tuple(names))
        return CorrelatedNoiseState(count, sigmas, settings)

    def update(
        updates: Any, state: CorrelatedNoiseState, params: Any = None, **extra: Any
    ) -> tuple[Any, CorrelatedNoiseState]:
        settings = state.settings
        _refuse_another(fixed, settings)
        newest = optax.safe_increment(state.count)
        sigma_now = jnp.asarray(sigma, state.sigmas.dtype) * factor(newest)
        sigmas = jnp.concatenate([sigma_now.astype(state.sigmas.dtype)[None], state.sigmas])
        added = add_injection(updates, settings, newest, settings.taps, sigmas)
        return added, CorrelatedNoiseState(newest, sigmas[: len(settings.taps) - 1], settings)

    return optax.GradientTransformationExtraArgs(init, update)


def add_injection(
    tree: Any, settings: Settings, newest: jax.Array, taps: Taps, sigmas: jax.Array
) -> Any:
    """The tree with Σ_j taps[j] σ_{newest−j} ξ_{newest−j} on its noisy leaves."""
    leaves, structure = named_leaves(tree)
    missing = set(settings.names) - dict(leaves).keys()
    if missing:
        raise ValueError(
            f"leaves that take noise are missing: {sorted(missing)}; the tree must have the "
            f"structure of the params that init was given"
        )
    noisy = set(settings.names)
    out = []
    for name, leaf in leaves:
        if name in noisy:
            check_type(name, leaf)
            check_unsharded(name, leaf)
            key = wide(stream_key(settings.seed, name))
            leaf = inject(leaf, key, newest, sigmas, taps, settings.law)
        out.append(leaf)
    return jax.tree_util.tree_unflatten(structure, out)


def _refuse_injected(**static: Any) -> None:
    """inject_hyperparams makes arrays of all numbers and functions not listed as static."""
    for name, value in static.items():
        if isinstance(value, jax.Array):
            raise TypeError(
                f"{name} must be static; with optax.inject_hyperparams, pass "
                f"static_args=('seed', 'schedule', 'mask'); got {name}={value!r}"
            )


def _refuse_another(ours: Settings, theirs: Settings) -> None:
    """A state goes on with the noise it was begun with, lest its draws never be taken out."""
    for field in ("seed", "law", "taps"):
        want, got = getattr(ours, field), getattr(theirs, field)
        if want != got:
            raise ValueError(
                f"this state was begun with {field}={got}, but the transformation has "
                f"{field}={want}; call init for a new one"
            )
