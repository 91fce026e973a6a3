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
from antipgd.noise.taps import Taps
from antipgd.optax.leaves import check_layers, masked_names, named_leaves
from antipgd.optax.sizes import FILTER, check_leaf, filters, scale

STATIC_ARGS = ("seed", "hold", "schedule", "mask")
"""For `optax.inject_hyperparams(…, static_args=STATIC_ARGS)`: what cannot be traced."""


class Settings(NamedTuple):
    """What does not change from step to step, in plain values that flax can write to a file."""

    seed: int
    law: str
    taps: Taps
    relative: bool | str
    hold: int
    antithetic: bool
    forward: bool  # the params are z; else they carry the noise
    names: tuple[str, ...] = ()  # of the leaves that take noise
    layers: str = "all"


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
    forward: bool,
) -> Settings:
    """The settings but for the names, each refused unless it is what it should be."""
    _refuse_injected(seed=seed, hold=hold, schedule=schedule, mask=mask)
    if not isinstance(sigma, jax.core.Tracer):
        check_sigma(sigma)
    stream_key(seed, "")  # refuses what is no seed
    if not isinstance(antithetic, bool):
        raise ValueError(f"antithetic must be True or False; got {antithetic!r}")
    if not isinstance(relative, bool) and relative != FILTER:
        raise ValueError(f"relative must be True, False or {FILTER!r}; got {relative!r}")
    one_of("layers", layers, ("all", "one"))
    hold = whole("hold", hold, 1, 2**31 - 1)
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


def begin(fixed: Settings, sigma: Any, mask: Any, params: Any) -> CorrelatedNoiseState:
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
    if fixed.layers == "one":
        check_layers(list(noisy))
    scales = one
    if fixed.relative == FILTER and noisy:
        scales = jnp.concatenate([filters(name, leaf, one.dtype) for name, leaf in noisy.items()])
    elif fixed.relative and noisy:
        scales = jnp.stack([scale(name, leaf, one.dtype) for name, leaf in noisy.items()])
    settings = fixed._replace(names=tuple(noisy))
    return CorrelatedNoiseState(count, sigmas, scales, jnp.int32(_mark(settings)), settings)


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
        ours = ", ".join(f"{k}={v!r}" for k, v in state.settings._asdict().items() if k != "names")
        raise ValueError(
            f"the values of this state were begun with another noise than {ours}, or on params "
            f"with other names; restore them into an optimizer built as the saved one was"
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


def _refuse_another(ours: Settings, theirs: Settings) -> None:
    """A state goes on with the noise it was begun with, lest its draws never be taken out."""
    for field in (name for name in Settings._fields if name != "names"):
        want, got = getattr(ours, field), getattr(theirs, field)
        if want != got:
            raise ValueError(
                f"this state was begun with {field}={got}, but the transformation has "
                f"{field}={want}; call init for a new one"
            )
