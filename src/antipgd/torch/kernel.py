"""The noise stream in plain torch, for any device: same words, same bits as the CPU kernels.

Eager torch rounds every operation by itself, which is what the format asks for. Its float32 √ is
not correctly rounded everywhere, so √ is corrected with integers: no float64, which MPS lacks.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from antipgd.noise.laws import Law
from antipgd.noise.placement import Shard, row_major_strides
from antipgd.noise.stream import PHILOX_MULTIPLIERS, PHILOX_ROUNDS, PHILOX_WEYL
from antipgd.noise.transforms import Lanes, unit_draws

CHUNK = 2**20  # elements at a time, which bounds the temporaries
_LOW = 0xFFFFFFFF
_FRACTION, _HIDDEN = 0x7FFFFF, 0x800000  # of a float32's bits: below its exponent, and the one


def correct_sqrt(x: Tensor, root: Tensor) -> Tensor:
    """√x of float32 x, correctly rounded, from a `root` that may be some hundred ulp off.

    With x = m·4ᵏ and an integer 2⁴⁶ ≤ m < 2⁴⁸, the root is s·2ᵏ with the integer s nearest to √m,
    2²³ ≤ s < 2²⁴: the one with −s < m − s² ≤ s. Zero, infinity and nan are as `root` has them;
    below 2⁻¹²⁶, where no law goes, it stays what it was.
    """
    bits = x.view(torch.int32).to(torch.int64)
    exponent = bits >> 23
    odd = (exponent + 1) & 1
    m = ((bits & _FRACTION) | _HIDDEN) << (23 + odd)
    high = (((exponent - 173 - odd) >> 1) + 149) << 23  # the result's bits are these plus s
    s = root.view(torch.int32).to(torch.int64) - high
    off = (m - s * s).to(torch.float32) / (2 * s).to(torch.float32)  # Newton's step, in ulp
    s = s + off.round().to(torch.int64)
    rest = m - s * s
    s = s + (rest > s).to(torch.int64) - (rest <= -s).to(torch.int64)
    exact = (high + s).to(torch.int32).view(torch.float32)
    return torch.where((exponent > 0) & (exponent < 255), exact, root)


TORCH = Lanes(
    to_float=lambda integers: integers.to(torch.float32),
    to_int=lambda floats: floats.to(torch.int32),
    float_bits=lambda floats: floats.view(torch.int32),
    bits_float=lambda bits: bits.view(torch.float32),
    sqrt=lambda floats: correct_sqrt(floats, floats.sqrt()),
    where=torch.where,
)


def philox(blocks: Tensor, key: int, step: int) -> tuple[Tensor, ...]:
    """The four words of each block (int64 indices), as int32."""
    x0, x1 = blocks & _LOW, (blocks >> 32) & _LOW
    x2, x3 = torch.full_like(blocks, step & _LOW), torch.full_like(blocks, step >> 32)
    k0, k1 = key & _LOW, key >> 32
    for _ in range(PHILOX_ROUNDS):
        p0, p1 = x0 * PHILOX_MULTIPLIERS[0], x2 * PHILOX_MULTIPLIERS[1]
        x0, x1 = ((p1 >> 32) & _LOW) ^ x1 ^ k0, p1 & _LOW
        x2, x3 = ((p0 >> 32) & _LOW) ^ x3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + PHILOX_WEYL[0]) & _LOW, (k1 + PHILOX_WEYL[1]) & _LOW
    return tuple(x.to(torch.int32) for x in (x0, x1, x2, x3))


def draw_range(
    key: int, step: int, start: int, stop: int, law: Law, device: torch.device
) -> Tensor:
    """Unit draws of consecutive elements start … stop−1 at a step ≥ 1."""
    first, last = start // law.per_block, -(-stop // law.per_block)
    words = philox(torch.arange(first, last, device=device), key, step)
    drawn = torch.stack(unit_draws(words, law, TORCH), dim=-1).reshape(-1)
    return drawn[start - first * law.per_block :][: stop - start]


def draw_at(elements: Tensor, key: int, step: int, law: Law) -> Tensor:
    """Unit draws of any elements (int64 indices), a block for each: for scattered shards."""
    words = philox(elements // law.per_block, key, step)
    lane = elements % law.per_block
    if law.name == "rademacher":  # one bit, not 128 draws for each element
        word = torch.stack(words, dim=-1).gather(-1, (lane // 32).unsqueeze(-1)).squeeze(-1)
        return 1.0 - 2.0 * ((word >> (lane % 32).to(torch.int32)) & 1).to(torch.float32)
    drawn = torch.stack(unit_draws(words, law, TORCH), dim=-1)
    return drawn.gather(-1, lane.unsqueeze(-1)).squeeze(-1)


def _elements(shape: Sequence[int], shard: Shard, device: torch.device) -> Tensor:
    """The parameter's element index of each element of a part."""
    total = torch.zeros((), dtype=torch.int64, device=device)
    strides = row_major_strides(shard.global_shape)
    for axis, (size, offset, stride) in enumerate(zip(shape, shard.offset, strides, strict=True)):
        along = (offset + torch.arange(size, device=device)) * stride
        total = total + along.reshape([size if i == axis else 1 for i in range(len(shape))])
    return total.expand(tuple(shape))


def injection(
    shape: Sequence[int],
    key: int,
    newest: int,
    coefficients: Sequence[float],
    law: Law,
    shard: Shard | None,
    like: Tensor,
) -> Tensor | None:
    """Σ_j coefficients[j] · ξ_{newest−j} of a part of a parameter, in the type of `like`.

    The order of operations is that of `antipgd.noise.injection.combine`.
    """
    whole = shard is None or tuple(shape[1:]) == tuple(shard.global_shape[1:])
    size = prod(shape)
    start = 0 if shard is None or not shape else shard.offset[0] * prod(shape[1:])
    total = None
    for lag, coefficient in enumerate(coefficients):
        step = newest - lag
        if coefficient == 0 or step < 1:
            continue
        if whole:
            xi = draw_range(key, step, start, start + size, law, like.device).reshape(tuple(shape))
        else:
            assert shard is not None
            xi = draw_at(_elements(shape, shard, like.device), key, step, law)
        term = xi.to(like.dtype) * coefficient
        total = term if total is None else total + term
    return total


def inject(
    tensor: Tensor,
    key: int,
    newest: int,
    coefficients: Sequence[float],
    law: Law,
    shard: Shard | None = None,
) -> None:
    """tensor += Σ_j coefficients[j] · ξ_{newest−j}, a chunk at a time along the first axis."""
    if tensor.numel() == 0:
        return
    if tensor.dim() == 0:
        eps = injection((), key, newest, coefficients, law, None, tensor)
        if eps is not None:
            tensor.add_(eps)
        return
    shard = shard or Shard(tuple(tensor.shape), (0,) * tensor.dim())
    rows = max(1, CHUNK // prod(tensor.shape[1:]))
    for begin in range(0, tensor.shape[0], rows):
        part = tensor[begin : begin + rows]
        here = Shard(shard.global_shape, (shard.offset[0] + begin, *shard.offset[1:]))
        eps = injection(part.shape, key, newest, coefficients, law, here, tensor)
        if eps is not None:
            part.add_(eps)
