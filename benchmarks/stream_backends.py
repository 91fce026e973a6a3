"""The noise stream written again in torch, JAX and Triton, to see whether all agree.

Each backend is a function (key, step, first_block, blocks, law) → (words, draws) in NumPy, words
of shape (blocks, 4). torch and JAX share the transforms of `antipgd.noise.transforms`, which are
written for any array library; the generator itself is new in each. Triton's kernel is written
out in full, because its language is its own; it runs in the interpreter.
"""

import os

import numpy as np

from antipgd.noise import Law, stream, transforms

os.environ.setdefault("TRITON_INTERPRET", "1")

LAWS = (
    "gaussian",
    "rademacher",
    "uniform",
    "laplace",
    "student-t:2.1",
    "student-t:5",
    "student-t:100",
)


def numpy_backend(key, step, first_block, blocks, law):
    words = stream.stream_words(key, step, first_block, blocks)
    n = law.per_block
    return words, stream.key_draws(key, step, first_block * n, (first_block + blocks) * n, law)


def numba_backend(key, step, first_block, blocks, law):
    from antipgd.noise import inplace, kernels

    quarters = np.empty(4 * kernels._BLOCKS, np.int32)
    parts = []
    for done in range(0, blocks, kernels._BLOCKS):
        n = min(kernels._BLOCKS, blocks - done)
        first = np.uint64(first_block + done)
        kernels._philox(np.uint64(key), np.uint64(step), first, n, quarters)
        parts.append(quarters.reshape(4, -1)[:, :n].T.copy())
    words = np.concatenate(parts).view(np.uint32)
    out = np.empty(blocks * law.per_block, np.float32)
    start = first_block * law.per_block
    kernels.draw_into(out, np.uint64(key), step, start, inplace.law_arguments(law))
    return words, out


def _halves(value):
    return value & 0xFFFFFFFF, value >> 32


def torch_backend(key, step, first_block, blocks, law):
    import torch

    from antipgd.torch import kernel

    words = kernel.philox(first_block + torch.arange(blocks), key, step)
    start, stop = first_block * law.per_block, (first_block + blocks) * law.per_block
    draws = kernel.draw_range(key, step, start, stop, law, torch.device("cpu"))
    return torch.stack(words, dim=-1).numpy().view(np.uint32), draws.numpy()


def jax_lanes():
    """XLA may fuse a multiply and an add, hence a few ulp."""
    import jax.numpy as jnp
    from jax.lax import bitcast_convert_type

    return transforms.Lanes(
        to_float=lambda integers: integers.astype(jnp.float32),
        to_int=lambda floats: floats.astype(jnp.int32),
        float_bits=lambda floats: bitcast_convert_type(floats, jnp.int32),
        bits_float=lambda bits: bitcast_convert_type(bits, jnp.float32),
        sqrt=jnp.sqrt,
        where=jnp.where,
    )


def _jax_multiply(a, b):
    """High and low words of a 32×32-bit product, in uint32 alone: JAX has no uint64 by default."""
    a_low, a_high, b_low, b_high = a & 0xFFFF, a >> 16, b & 0xFFFF, b >> 16
    middle = a_high * b_low + (a_low * b_low >> 16)
    rest = a_low * b_high + (middle & 0xFFFF)
    return a_high * b_high + (middle >> 16) + (rest >> 16), a * b


def jax_backend(key, step, first_block, blocks, law):
    import jax
    import jax.numpy as jnp

    def run(c0, c1):
        x0, x1 = c0, c1
        x2, x3 = (jnp.full_like(c0, part) for part in _halves(step))
        k0, k1 = (np.uint32(part) for part in _halves(key))
        m0, m1 = (np.uint32(m) for m in stream.PHILOX_MULTIPLIERS)
        for _ in range(stream.PHILOX_ROUNDS):
            high0, low0 = _jax_multiply(m0, x0)
            high1, low1 = _jax_multiply(m1, x2)
            x0, x1, x2, x3 = high1 ^ x1 ^ k0, low1, high0 ^ x3 ^ k1, low0
            k0 = np.uint32((int(k0) + stream.PHILOX_WEYL[0]) & 0xFFFFFFFF)
            k1 = np.uint32((int(k1) + stream.PHILOX_WEYL[1]) & 0xFFFFFFFF)
        words = tuple(jax.lax.bitcast_convert_type(x, jnp.int32) for x in (x0, x1, x2, x3))
        draws = jnp.stack(transforms.unit_draws(words, law, jax_lanes()), axis=-1).reshape(-1)
        return jnp.stack(words, axis=-1), draws

    block = np.uint64(first_block) + np.arange(blocks, dtype=np.uint64)
    counters = (
        (block & np.uint64(0xFFFFFFFF)).astype(np.uint32),
        (block >> np.uint64(32)).astype(np.uint32),
    )
    words, draws = jax.jit(run)(*counters)
    return np.asarray(words).view(np.uint32), np.asarray(draws)


def triton_backend(key, step, first_block, blocks, law):
    import torch

    from antipgd.noise import inplace
    from stream_triton import philox_kernel

    words = torch.empty((blocks, 4), dtype=torch.int32)
    draws = torch.empty(blocks * law.per_block, dtype=torch.float32)
    constants = inplace.law_arguments(law)[1:]
    size = 64
    philox_kernel[(-(-blocks // size),)](
        words, draws, *_halves(key), *_halves(step), *_halves(first_block),
        blocks, *map(float, constants), LAW=law.code, PER_BLOCK=law.per_block, SIZE=size,
        enable_fp_fusion=False,
    )  # fmt: skip
    return words.numpy().view(np.uint32), draws.numpy()


BACKENDS = {
    "numpy": numpy_backend,
    "numba": numba_backend,
    "torch": torch_backend,
    "jax": jax_backend,
    "triton": triton_backend,
}


def ulps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """How many representable numbers apart two float32 arrays are."""

    def ordered(x):
        bits = np.asarray(x, np.float32).view(np.int32).astype(np.int64)
        return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)

    return np.abs(ordered(a) - ordered(b))


def compare(backend: str, key: int, step: int, first_block: int, blocks: int, law: Law):
    """(words that differ, draws that differ, largest distance in ulp, draws over 4 ulp) from the
    NumPy reference."""
    words, draws = BACKENDS[backend](key, step, first_block, blocks, law)
    true_words, true_draws = numpy_backend(key, step, first_block, blocks, law)
    assert words.shape == true_words.shape
    assert draws.shape == true_draws.shape
    different = draws.view(np.int32) != true_draws.view(np.int32)
    apart = ulps(draws, true_draws)
    return (
        int((words != true_words).sum()),
        int(different.sum()),
        int(apart.max()),
        (apart > 4).sum(),
    )
