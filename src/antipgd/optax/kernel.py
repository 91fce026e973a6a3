"""The noise stream in JAX: same words as the format, draws within 4 ulp (XLA may fuse × and +).

Every element makes the block it lies in by itself. Nothing is reshaped, gathered or stacked, so an
injection is one elementwise loop, which XLA fuses with the step and splits like the weights. That
computes a block four times for the gaussian law (128 times for rademacher), and yet was the
fastest way measured: XLA has no fused loop that would write the draws of one block one after the
other. All in 32 bits, because JAX has no others by default: a 64-bit number is (low, high).
"""

from collections.abc import Sequence
from functools import partial, reduce
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, auto_axes

from antipgd.noise import transforms
from antipgd.noise.laws import Law
from antipgd.noise.placement import row_major_strides
from antipgd.noise.stream import PHILOX_MULTIPLIERS, PHILOX_ROUNDS, PHILOX_WEYL

Wide = tuple[jax.Array, jax.Array]  # low and high word of 64-bit numbers, as uint32
_LOW = 0xFFFFFFFF
_SIXTEEN = {"bfloat16": (8, 7), "float16": (5, 10)}  # bits of exponent and mantissa

JAX = transforms.Lanes(
    to_float=lambda integers: integers.astype(jnp.float32),
    to_int=lambda floats: floats.astype(jnp.int32),
    float_bits=lambda floats: lax.bitcast_convert_type(floats, jnp.int32),
    bits_float=lambda bits: lax.bitcast_convert_type(bits, jnp.float32),
    sqrt=jnp.sqrt,
    where=jnp.where,
)


def wide(number: int) -> Wide:
    """A 64-bit number as its low and its high word."""
    return jnp.uint32(number & _LOW), jnp.uint32(number >> 32)


def multiply(a: int, b: jax.Array) -> Wide:
    """The 64-bit product of a 32-bit constant and words, by halves of 16 bits."""
    a_low, a_high = np.uint32(a & 0xFFFF), np.uint32(a >> 16)
    b_low, b_high = b & 0xFFFF, b >> 16
    middle = a_high * b_low + (a_low * b_low >> 16)
    rest = a_low * b_high + (middle & 0xFFFF)
    return np.uint32(a) * b, a_high * b_high + (middle >> 16) + (rest >> 16)


def philox(block: Wide, step: Wide, key: Wide) -> tuple[jax.Array, ...]:
    """The four words of each block at a step, as int32."""
    x0, x1, x2, x3 = *block, *step
    k0, k1 = key
    for _ in range(PHILOX_ROUNDS):
        low0, high0 = multiply(PHILOX_MULTIPLIERS[0], x0)
        low1, high1 = multiply(PHILOX_MULTIPLIERS[1], x2)
        x0, x1 = high1 ^ x1 ^ k0, low1
        x2, x3 = high0 ^ x3 ^ k1, low0
        k0, k1 = k0 + np.uint32(PHILOX_WEYL[0]), k1 + np.uint32(PHILOX_WEYL[1])
    return tuple(lax.bitcast_convert_type(x, jnp.int32) for x in (x0, x1, x2, x3))


def row_major(coordinates: Sequence[jax.Array], shape: Sequence[int]) -> Wide:
    """The index of elements in row-major order, from their coordinates along each axis."""
    strides = row_major_strides(shape)
    zero = jnp.zeros((), jnp.uint32)
    if prod(shape) <= 2**32:
        terms = [x * np.uint32(s & _LOW) for x, s in zip(coordinates, strides, strict=True)]
        return reduce(jnp.add, terms, zero), zero
    low = high = zero
    for x, stride in zip(coordinates, strides, strict=True):
        product, product_high = multiply(stride & _LOW, x)
        total = low + product
        carry = (total < low).astype(jnp.uint32)
        low, high = total, high + product_high + x * np.uint32(stride >> 32) + carry
    return low, high


def element_index(shape: Sequence[int]) -> Wide:
    """The index of every element of a parameter: an iota per axis, so that any shard knows its
    place."""
    axes = range(len(shape))
    return row_major([lax.broadcasted_iota(jnp.uint32, shape, axis) for axis in axes], shape)


def unit_draws(element: Wide, step: Wide, key: Wide, law: Law) -> jax.Array:
    """Unit draws ξ_step of elements, for any step ≥ 1."""
    low, high = element
    bits = law.per_block.bit_length() - 1
    lane = low & (law.per_block - 1)
    words = philox((low >> bits | high << (32 - bits), high >> bits), step, key)
    if law.paired:
        second_pair = (lane & (law.per_block // 2)) != 0
        a = jnp.where(second_pair, words[2], words[0])
        b = jnp.where(second_pair, words[3], words[1])
        drawn = transforms.unit_draws((a, b, a, b), law, JAX)
        if law.per_block == 2:
            return drawn[0]
        return jnp.where((lane & 1) == 0, drawn[0], drawn[1])
    which = lane >> (bits - 2)
    word = jnp.where(
        which < 2,
        jnp.where(which == 0, words[0], words[1]),
        jnp.where(which == 2, words[2], words[3]),
    )
    if law.name == "rademacher":
        word = word << (31 - (lane & 31)).astype(jnp.int32)  # the lane's bit becomes the sign
        return JAX.bits_float((word & transforms.SIGN) | transforms.ONE_BITS)
    return transforms.unit_draws((word,), law, JAX)[0]


@partial(jax.jit, static_argnames="law")
def inject(
    leaf: jax.Array, key: Wide, steps: jax.Array, coefficients: jax.Array, law: Law,
    rows: jax.Array | None = None,
) -> jax.Array:  # fmt: skip
    """leaf + Σ_j coefficients[j] ξ_{steps[j]}, in the type of the leaf, in that order.

    `rows`, of a shape that broadcasts, multiply the sum.
    Weights of 16 bits are added to in 32 and rounded once; said in so many words, because some of
    XLA's compilers leave out a rounding that is widened again (xla_allow_excess_precision). Traced
    once for all leaves of one shape, so their keys are arguments.
    """
    made = partial(_injected, law=law)
    place = jax.typeof(leaf).sharding
    if AxisType.Explicit in place.mesh.axis_types:
        # Every operation would say where its result lies, some thousand times: from JAX 0.12 on
        # XLA takes minutes over that.
        made = auto_axes(made, out_sharding=place)
    return made(leaf, key, steps, coefficients, rows)


def _injected(
    leaf: jax.Array, key: Wide, steps: jax.Array, coefficients: jax.Array,
    rows: jax.Array | None, law: Law,
) -> jax.Array:  # fmt: skip
    element = element_index(leaf.shape)
    zero = jnp.zeros((), jnp.uint32)
    dtype = jnp.promote_types(leaf.dtype, jnp.float32)
    total = jnp.zeros(leaf.shape, dtype)
    for step, coefficient in zip(steps, coefficients, strict=True):
        xi = unit_draws(element, (step.astype(jnp.uint32), zero), key, law)
        total = total + xi.astype(dtype) * coefficient.astype(dtype)
    if rows is not None:
        total = total * rows.astype(dtype)
    if leaf.dtype == dtype:
        return leaf + total
    rounded = lax.reduce_precision(leaf.astype(dtype) + total, *_SIXTEEN[leaf.dtype.name])
    return rounded.astype(leaf.dtype)
