"""How large σ is beside the weights: relative σ, and what their type can hold.

Weights that are traced have no size yet; of them only the type is looked at.
"""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec, auto_axes

from antipgd.noise.taps import Taps
from antipgd.optax.filters import Axes
from antipgd.optax.leaves import check_type, dtype_of

# σ over the weights' root mean square. Bfloat16 has steps of 2⁻⁸: below, rounding eats the noise.
WARNED, REFUSED = 2.0**-7, 2.0**-9


def rms(leaf: Any, dtype: Any) -> jax.Array:
    """The root mean square of a leaf, 0 for an empty one; no square overflows."""
    values = jnp.abs(jnp.asarray(leaf).astype(dtype))
    largest = jnp.max(values, initial=0)
    unit = jnp.where(largest > 0, largest, 1)
    return unit * jnp.sqrt(jnp.sum(jnp.square(values / unit)) / max(values.size, 1))


def scale(name: str, leaf: Any, dtype: Any) -> jax.Array:
    """The root mean square to four digits, as in torch: it shall not depend on the sharding."""
    size = rms(leaf, dtype)
    if not isinstance(size, jax.core.Tracer) and not bool(jnp.isfinite(size)):
        raise ValueError(f"relative sigma: the weights of leaf {name!r} are not finite")
    return _four_digits(size, dtype)


def filters(name: str, leaf: Any, axes: Axes, dtype: Any) -> jax.Array:
    """σ's unit for each filter along these axes, in order: the leaf's, times the filter's share of
    it to four digits, as in torch. Without an axis the leaf is one filter."""
    size = scale(name, leaf, dtype)
    if not axes:
        return size[None]
    values = jnp.asarray(leaf).astype(dtype)
    others = tuple(axis for axis in range(values.ndim) if axis not in axes)
    safe = jnp.where(size > 0, size, 1)
    shares = _in_a_row(jnp.sqrt(jnp.mean(jnp.square(values / safe), axis=others)))
    return size * jnp.where(size > 0, _four_digits(shares, dtype), 1)


def _in_a_row(sizes: jax.Array) -> jax.Array:
    """One after the other, whole on every device: those of all leaves are put behind each other,
    which JAX refuses where it is told of shardings that differ."""
    mesh, flat = jax.typeof(sizes).sharding.mesh, jnp.ravel
    if AxisType.Explicit in mesh.axis_types:
        whole = NamedSharding(mesh, PartitionSpec(None))  # type: ignore[no-untyped-call]
        flat = auto_axes(flat, out_sharding=whole)
    return flat(sizes)


def _four_digits(sizes: jax.Array, dtype: Any) -> jax.Array:
    unit = jnp.power(jnp.asarray(10.0, dtype), jnp.floor(jnp.log10(sizes)) - 3)
    rounded = jnp.round(sizes / unit) * unit
    return jnp.where(jnp.isfinite(rounded), rounded, sizes)


def check_leaf(
    name: str, leaf: Any, sigma: Any, relative: bool | str, taps: Taps, forward: bool
) -> None:
    """Refuse a leaf whose type takes no noise, or not of this size."""
    check_type(name, leaf, forward)
    if isinstance(leaf, jax.core.Tracer) or isinstance(sigma, jax.core.Tracer):
        return
    dtype = dtype_of(leaf)
    most = sum(map(abs, taps)) * float(sigma)
    if not most <= float(jnp.finfo(dtype).max):  # type: ignore[no-untyped-call]
        raise ValueError(
            f"sigma must be finite in {dtype}, the type of leaf {name!r}, also times the taps; "
            f"got {sigma}"
        )
    if dtype.itemsize == 2 and sigma > 0:
        size = 1.0 if relative else float(rms(leaf, jnp.float32))
        _check_rounding(name, dtype, float(sigma), size)


def _check_rounding(name: str, dtype: Any, sigma: float, size: float) -> None:
    """Below 2⁻⁹ of the weights nothing is left of the noise after rounding."""
    if sigma >= WARNED * size:
        return
    said = (
        f"sigma is {sigma / size:.2g} of the root mean square of leaf {name!r}, which is {dtype}: "
        f"rounding to its 16 bits"
    )
    ways = f"use sigma >= {WARNED * size:.2g}, float32 params, or leave the leaf out with mask="
    if sigma < REFUSED * size:
        raise ValueError(f"{said} leaves nothing of the noise; {ways}")
    warnings.warn(f"{said} changes the noise; {ways}", stacklevel=2)
