"""The noise stream in every library that has it, to see whether all agree.

Each backend is a function (key, step, first_block, blocks, law) → (words, draws) in NumPy, words
of shape (blocks, 4). All are those of the package; Triton's runs in its interpreter. Where it lacks
a law, plain torch draws on GPUs.
"""

import os

import numpy as np

from antipgd import noise
from antipgd.noise import Law, stream

os.environ.setdefault("TRITON_INTERPRET", "1")

_DF = {"student-t": (2.1, 5, 100)}
# Every law of the package, student-t with few, some and many degrees of freedom.
LAWS = tuple(str(Law(name, df)) for name in noise.LAWS for df in _DF.get(name, (None,)))


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
    """Low and high word of a 64-bit number, or of an array of them."""
    return value & 0xFFFFFFFF, value >> 32


def has(backend: str, law: str) -> bool:
    """Whether a backend knows a law; all but one know all."""
    if backend != "triton":
        return True
    from antipgd.torch.gpu.stream import LAWS as TRITON_LAWS

    return law.partition(":")[0] in TRITON_LAWS


def torch_backend(key, step, first_block, blocks, law):
    import torch

    from antipgd.torch import kernel

    words = kernel.philox(first_block + torch.arange(blocks), key, step)
    start, stop = first_block * law.per_block, (first_block + blocks) * law.per_block
    draws = kernel.draw_range(key, step, start, stop, law, torch.device("cpu"))
    return torch.stack(words, dim=-1).numpy().view(np.uint32), draws.numpy()


def _wide_range(first, count):
    """`count` consecutive 64-bit numbers as JAX takes them: low and high words."""
    numbers = np.uint64(first) + np.arange(count, dtype=np.uint64)
    return tuple(half.astype(np.uint32) for half in _halves(numbers))


def jax_backend(key, step, first_block, blocks, law):
    import jax

    from antipgd.optax import kernel

    n, place = law.per_block, (kernel.wide(step), kernel.wide(key))
    words = jax.jit(kernel.philox)(_wide_range(first_block, blocks), *place)
    make = jax.jit(kernel.unit_draws, static_argnums=3)
    draws = make(_wide_range(first_block * n, blocks * n), *place, law)
    return np.stack(words, axis=-1).view(np.uint32), np.asarray(draws)


def triton_backend(key, step, first_block, blocks, law):
    import torch

    from antipgd.noise.placement import Shard
    from antipgd.torch.gpu.launching import Targets
    from antipgd.torch.gpu.tables import as_signed
    from stream_triton import words_kernel

    words = torch.empty((blocks, 4), dtype=torch.int32)
    place = torch.tensor([as_signed(key), step, first_block])
    words_kernel[(-(-blocks // 64),)](words, place, blocks, SIZE=64)
    draws = torch.zeros(blocks * law.per_block)
    start = first_block * law.per_block
    shard = Shard((start + len(draws),), (start,))
    Targets([draws], [key], [shard], law).inject(step, np.ones((1, 1)))
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
