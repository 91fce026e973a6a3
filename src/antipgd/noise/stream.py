"""The noise stream: ξ as a pure function of (seed, parameter, step, element).

Philox4x32-10 (Salmon et al., 2011) turns a 64-bit key and a 128-bit counter into four words.
The key names the stream (purpose, seed, parameter), the counter the place in it (step, block).
Nothing is stored, so a draw can be made again at any time, in any slice, on any machine. The
format is published in docs/noise-stream.md; this module is its slow, obvious version.
"""

import operator
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from antipgd.noise.laws import Law, as_law
from antipgd.noise.transforms import NUMPY, unit_draws

STREAM_VERSION = 1
"""Of the format in docs/noise-stream.md: the same version draws the same numbers."""
PURPOSES = ("noise", "probe", "data", "start", "batch", "label")
"""What draws are for; each purpose has keys of its own."""

PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)
PHILOX_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def canonical_name(name: str | int) -> str:
    """A parameter's name without the marks that wrappers leave on it.

    `torch.compile`, FSDP and activation checkpointing add path components that stand for no
    module of the user's; DataParallel and DDP add a leading `module.`, which goes unless nothing
    else is left. A position is its number.

    >>> canonical_name("module._orig_mod.layer1.0.weight")
    'layer1.0.weight'
    """
    parts = [part for part in str(name).split(".") if part not in _WRAPPERS]
    while len(parts) > 1 and parts[0] == "module":
        parts = parts[1:]
    return ".".join(parts)


def stream_key(seed: int, name: str | int, purpose: str = "noise") -> int:
    """The 64-bit Philox key of one stream: BLAKE2b-64 of version, purpose, seed and name."""
    if purpose not in PURPOSES:
        raise ValueError(f"unknown purpose {purpose!r}; accepted: {', '.join(PURPOSES)}")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**64:
        raise ValueError(f"seed must be an integer from 0 to 2**64 - 1; got {seed!r}")
    text = f"antipgd-noise-stream/{STREAM_VERSION}\0{purpose}\0{seed}\0{canonical_name(name)}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def philox(counter: NDArray[np.uint32], key: int) -> NDArray[np.uint32]:
    """Philox4x32-10 of counters (…, 4), least significant word first, under one 64-bit key."""
    x0, x1, x2, x3 = (counter[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = np.uint64(key & 0xFFFFFFFF), np.uint64(key >> 32)
    m0, m1 = map(np.uint64, PHILOX_MULTIPLIERS)
    for _ in range(PHILOX_ROUNDS):
        p0, p1 = m0 * x0, m1 * x2
        x0, x1 = (p1 >> _HALF) ^ x1 ^ k0, p1 & _LOW
        x2, x3 = (p0 >> _HALF) ^ x3 ^ k1, p0 & _LOW
        k0 = (k0 + np.uint64(PHILOX_WEYL[0])) & _LOW
        k1 = (k1 + np.uint64(PHILOX_WEYL[1])) & _LOW
    return np.stack([x0, x1, x2, x3], axis=-1).astype(np.uint32)


def stream_words(key: int, step: int, first_block: int, blocks: int) -> NDArray[np.uint32]:
    """The words of `blocks` consecutive blocks of one step, shape (blocks, 4)."""
    block = np.uint64(first_block) + np.arange(blocks, dtype=np.uint64)
    counter = np.empty((blocks, 4), np.uint32)
    counter[:, 0] = block & _LOW
    counter[:, 1] = block >> _HALF
    counter[:, 2] = step & 0xFFFFFFFF
    counter[:, 3] = step >> 32
    return philox(counter, key)


def check_slice(step: int, start: int, stop: int) -> tuple[int, int, int]:
    """The three as Python integers; a negative step and a slice that is none are refused."""
    try:
        if bool in map(type, (step, start, stop)):
            raise TypeError
        step, start, stop = map(operator.index, (step, start, stop))
    except TypeError:
        raise TypeError(
            f"step, start and stop must be integers; got {step!r}, {start!r}, {stop!r}"
        ) from None
    if not 0 <= step < 2**63:
        raise ValueError(f"step must be an integer from 0 to 2**63 - 1; got {step}")
    if not 0 <= start <= stop < 2**63:
        raise ValueError(
            f"a slice of draws needs 0 <= start <= stop < 2**63; got start={start}, stop={stop}"
        )
    return step, start, stop


def key_draws(key: int, step: int, start: int, stop: int, law: Law) -> NDArray[np.float32]:
    """Unit draws of elements start … stop−1 at `step` under a key; zero at step 0 (ξ_0 = 0)."""
    step, start, stop = check_slice(step, start, stop)
    if step == 0 or start == stop:
        return np.zeros(stop - start, np.float32)
    first = start // law.per_block
    blocks = -(-stop // law.per_block) - first
    words = stream_words(key, step, first, blocks).view(np.int32)
    columns = unit_draws(tuple(words.T), law, NUMPY)
    drawn = np.stack(columns, axis=-1).reshape(-1)
    return drawn[start - first * law.per_block :][: stop - start]


def key_indices(key: int, step: int, count: int, bound: int) -> NDArray[np.int64]:
    """`count` independent indices from 0 to bound − 1 at `step`: ⌊word · bound / 2³²⌋.

    No index is more than bound / 2³² more probable than another.
    """
    words = stream_words(key, step, 0, -(-count // 4)).reshape(-1)[:count]
    return ((words.astype(np.uint64) * np.uint64(bound)) >> _HALF).astype(np.int64)


def draws(
    seed: int,
    name: str | int,
    step: int,
    start: int,
    stop: int,
    law: Law | str = "gaussian",
    *,
    purpose: str = "noise",
) -> NDArray[np.float32]:
    """Unit draws ξ_step of elements start … stop−1 of one parameter, float32.

    Elements count in logical row-major order of the whole, unsharded parameter; any slice equals
    that slice of the whole. Step 0 has no noise yet: its draws are zero.

    >>> whole = draws(seed=0, name="layer1.weight", step=3, start=0, stop=1000)
    >>> bool((whole[600:607] == draws(0, "layer1.weight", 3, 600, 607)).all())
    True
    """
    return key_draws(stream_key(seed, name, purpose), step, start, stop, as_law(law))
