"""What the noise keeps between steps: a count, the σ's of the newest draws, and what never changes.

Nothing per parameter. Seed, law, taps and the names of the noisy leaves stand in the state as
structure: a compiled step depends on them. A checkpoint of the leaves alone does not hold them, so
one leaf is their mark, and values that were begun with other settings are noticed. Knows nothing of
when noise is added.
"""

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from antipgd.checks import one_of, whole
from antipgd.noise import Law, as_law, as_taps, stream_key
from antipgd.noise.injection import check_sigma
from antipgd.noise.schedules import advise_on_hold
from antipgd.noise.taps import Taps
from antipgd.optax.filters import (
    FILTER,
    FilterAxis,
    as_text,
    axes_of,
    check_filter_axis,
    refuse_others,
)
from antipgd.optax.leaves import checked_layers, masked_names, named_leaves
from antipgd.optax.sizes import check_leaf, filters, scale

STATIC_ARGS = ("seed", "hold", "schedule", "mask", "filter_axis")
"""For `optax.inject_hyperparams(…, static_args=STATIC_ARGS)`: what cannot be traced."""


class Settings(NamedTuple):
    """What does not change from step to step, in plain values that flax can write to a file."""

    seed: int
    law: str
    taps: Taps
    relative: bool | str  # behind "filter" where the filters are, as `filters.as_text` has it
    hold: int
    antithetic: bool
    forward: bool  # the params are z; else they carry the noise
    names: tuple[str, ...] = ()  # of the leaves that take noise
    layers: str = "all"  # or what `checked_layers` makes of "one"


jax.tree_util.register_pytree_node(Settings, lambda s: ((), s), lambda settings, _: settings)


class CorrelatedNoiseState(NamedTuple):
    """Steps taken; σ_n, σ_{n−1}, … of the len(taps) − 1 newest draws; and what never changes."""

    count: jax.Array  # type: ignore[assignment]  # Optax's word, though a tuple has a method of it
    sigmas: jax.Array
    scales: jax.Array  # root mean square at the start where σ is relative, of each noisy leaf or
    # of each of its filters, one leaf after the other; or 1
    mark: jax.Array  # of the settings
    settings: Settings


def checked_settings(
    sigma: Any,
    *,
    relative: bool | str,
    taps: Iterable[float],
    law: Law | str,
    seed: int,
    schedule: Any,
    mask: Any,
    hold: int,
    antithetic: bool,
    layers: str,
    filter_axis: FilterAxis,
    forward: bool,
) -> Settings:
    """The settings but for the names, each refused unless it is what it should be."""
    _refuse_injected(seed=seed, hold=hold, schedule=schedule, mask=mask, filter_axis=filter_axis)
    if not isinstance(sigma, jax.core.Tracer):
        check_sigma(sigma)
    stream_key(seed, "")  # refuses what is no seed
    if not isinstance(antithetic, bool):
        raise ValueError(f"antithetic must be True or False; got {antithetic!r}")
    if not isinstance(relative, bool) and relative != FILTER:
        raise ValueError(f"relative must be True, False or {FILTER!r}; got {relative!r}")
    check_filter_axis(filter_axis, relative)
    one_of("layers", layers, ("all", "one"))
    hold = whole("hold", hold, 1, 2**31 - 1)
    advise_on_hold(schedule, hold, 4)
    return Settings(
        int(seed), str(as_law(law)), as_taps(taps), relative, hold, antithetic, forward,
        layers=layers,
    )  # fmt: skip


def _refuse_injected(**static: Any) -> None:
    """inject_hyperparams makes arrays of all numbers and functions not listed as static."""
    for name, value in static.items():
        if isinstance(value, jax.Array):
            raise TypeError(
                f"{name} must be static; with optax.inject_hyperparams, pass "
                f"static_args={STATIC_ARGS} (antipgd.optax.STATIC_ARGS); got {name}={value!r}"
            )


def begin(
    fixed: Settings, sigma: Any, mask: Any, params: Any, filter_axis: FilterAxis
) -> CorrelatedNoiseState:
    """The state before the first step."""
    count, mark = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
    sigmas = jnp.zeros(_kept(fixed.taps), jnp.result_type(float))
    one = jnp.ones((), sigmas.dtype)
    if type(params).__name__ == "_ParamsPlaceholder":  # of optax.tree_map_params
        return CorrelatedNoiseState(count, sigmas, one, mark, jnp.zeros(()))  # type: ignore[arg-type]
    leaves, _ = named_leaves(params)
    names = [name for name, _ in leaves] if mask is None else masked_names(mask, params)
    noisy = {name: leaf for name, leaf in leaves if name in set(names)}
    for name, leaf in noisy.items():
        check_leaf(name, leaf, sigma, fixed.relative, fixed.taps, fixed.forward)
    layers = checked_layers(list(noisy)) if fixed.layers == "one" else fixed.layers
    relative, scales = _measured(fixed.relative, noisy, filter_axis, one)
    settings = fixed._replace(names=tuple(noisy), relative=relative, layers=layers)
    return CorrelatedNoiseState(count, sigmas, scales, jnp.int32(_mark(settings)), settings)


def _measured(
    relative: bool | str, noisy: dict[str, Any], filter_axis: FilterAxis, one: jax.Array
) -> tuple[bool | str, jax.Array]:
    """What σ is relative to, as a state says it, and how large that is."""
    if not relative or not noisy:
        return relative, one
    if relative != FILTER:
        return relative, jnp.stack([scale(name, leaf, one.dtype) for name, leaf in noisy.items()])
    axes = [axes_of(name, leaf, filter_axis) for name, leaf in noisy.items()]
    rows = zip(noisy.items(), axes, strict=True)
    scales = [filters(name, leaf, own, one.dtype) for (name, leaf), own in rows]
    return as_text(list(map(jnp.shape, noisy.values())), axes), jnp.concatenate(scales)


def _mark(settings: Settings) -> int:
    said = tuple(settings) if settings.layers != "all" else tuple(settings)[:-1]  # as ever
    digest = blake2b(repr(said).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little", signed=True)


def checked_state(state: CorrelatedNoiseState) -> CorrelatedNoiseState:
    """The state in plain arrays (nnx keeps them in Variables), refused if it is a mixture.

    That is what a restore into another transformation makes: values of the one, settings of the
    other. Where values are traced nothing can be raised; then all σ are NaN.
    """
    count, sigmas, scales, mark = jax.tree_util.tree_leaves(state)
    want = _mark(state.settings)
    if isinstance(mark, jax.core.Tracer):
        sigmas = jnp.where(mark == want, sigmas, jnp.nan)
    elif int(mark) != want:
        asked = {k: _asked(v) for k, v in state.settings._asdict().items() if k != "names"}
        ours = ", ".join(f"{k}={v!r}" for k, v in asked.items())
        raise ValueError(
            f"the values of this state were begun with another noise than {ours}, or on params "
            f"with other names or filters along other axes; restore them into an optimizer built "
            f"as the saved one was"
        )
    return CorrelatedNoiseState(count, sigmas, scales, mark, state.settings)


def draw_of(state: CorrelatedNoiseState) -> jax.Array:
    """The number of the newest draw after the state's n steps, each held: ⌈n/hold⌉."""
    return -(-state.count // state.settings.hold)


def next_sigmas(
    state: CorrelatedNoiseState, fixed: Settings, sigma: Any, factor: Callable[[Any], Any]
) -> tuple[jax.Array, jax.Array]:
    """σ of the draw that this step brings, before those of the last; and whether it brings one."""
    _refuse_another(fixed, state.settings)
    now = jnp.asarray(sigma, state.sigmas.dtype) * factor(optax.safe_increment(state.count))
    sigmas = jnp.concatenate([now.astype(state.sigmas.dtype)[None], state.sigmas])
    return sigmas, state.count % fixed.hold == 0


def advanced(
    state: CorrelatedNoiseState, sigmas: jax.Array, fresh: jax.Array
) -> CorrelatedNoiseState:
    """The state after the step. A draw that is held keeps the σ that it came with."""
    kept = jnp.where(fresh, sigmas[: _kept(state.settings.taps)], state.sigmas)
    return state._replace(count=optax.safe_increment(state.count), sigmas=kept)


def _kept(taps: Taps) -> int:
    """How many σ's are kept; one where none is needed, because Orbax saves no empty array."""
    return max(len(taps) - 1, 1)


def refuse_other_filters(
    state: CorrelatedNoiseState, fixed: Settings, filter_axis: FilterAxis, tree: Any
) -> None:
    """A state goes on with the filters that it was begun with."""
    begun, names = state.settings.relative, state.settings.names
    if fixed.relative != FILTER or not isinstance(begun, str):
        return
    leaves = dict(named_leaves(tree)[0])
    if leaves.keys() >= set(names):  # else there is another refusal
        refuse_others(names, begun, leaves, filter_axis)


def _asked(value: Any) -> Any:
    """A setting as it was given: a state may say behind a word what came of it."""
    return value.partition(" ")[0] if isinstance(value, str) else value


def _refuse_another(ours: Settings, theirs: Settings) -> None:
    """A state goes on with the noise it was begun with, lest its draws never be taken out."""
    for field in (name for name in Settings._fields if name != "names"):
        want, got = getattr(ours, field), _asked(getattr(theirs, field))
        if want != got:
            raise ValueError(
                f"this state was begun with {field}={got}, but the transformation has "
                f"{field}={want}; call init for a new one"
            )
