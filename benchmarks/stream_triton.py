"""The noise stream as a Triton kernel (interpreted here; a GPU needs enable_fp_fusion=False)."""

import triton
import triton.language as tl

from antipgd.noise import stream
from antipgd.noise import transforms as t

M0, M1 = (tl.constexpr(m) for m in stream.PHILOX_MULTIPLIERS)
W0, W1 = (tl.constexpr(w) for w in stream.PHILOX_WEYL)
ROUNDS = tl.constexpr(stream.PHILOX_ROUNDS)
SIGN, SWAP, EXPONENT = tl.constexpr(t.SIGN), tl.constexpr(t.SWAP), tl.constexpr(t.EXPONENT)
ROOT, ONE_BITS = tl.constexpr(t.SQRT_HALF_BITS), tl.constexpr(t.ONE_BITS)
PER_EXPONENT = tl.constexpr(2.0**-23)
LN2_PER_EXPONENT = tl.constexpr(t.LN2_PER_EXPONENT)
SQRT_HALF, SQRT3 = tl.constexpr(t.SQRT_HALF), tl.constexpr(t.SQRT3_PER_UNIT)
LN2_HIGH, LN2_LOW = tl.constexpr(t.LN2_HIGH), tl.constexpr(t.LN2_LOW)
L0, L1, L2, L3, L4, L5, L6 = (tl.constexpr(c) for c in t.LOG)
S0, S1, S2, S3 = (tl.constexpr(c) for c in t.SIN)
C0, C1, C2 = (tl.constexpr(c) for c in t.COS)
E0, E1, E2, E3, E4, E5 = (tl.constexpr(c) for c in t.EXPM1)


@triton.jit
def as_float(bits):
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def as_bits(value):
    return value.to(tl.int32, bitcast=True)


@triton.jit
def minus_log(word):
    bits = as_bits(((word & 0x7FFFFFFF) | 1).to(tl.float32))
    exponent = (bits - ROOT) & EXPONENT
    x = as_float(bits - exponent) - 1.0
    q = L6 * x + L5
    q = q * x + L4
    q = q * x + L3
    q = q * x + L2
    q = q * x + L1
    q = q * x + L0
    return ((31 << 23) - exponent).to(tl.float32), x + x * x * q


@triton.jit
def exponential(word):
    j, log = minus_log(word)
    return j * LN2_PER_EXPONENT - log


@triton.jit
def signed(magnitude, word):
    return as_float(as_bits(magnitude) ^ (word & SIGN))


@triton.jit
def direction(word):
    a = as_float((word & 0x7FFFFE) | 0x40000001) - 3.0
    y = a * a
    sine = a * (((S3 * y + S2) * y + S1) * y + S0)
    cosine = 1.0 + y * ((C2 * y + C1) * y + C0)
    straight = (word & SWAP) == 0
    return tl.where(straight, cosine, sine), tl.where(straight, sine, cosine)


@triton.jit
def student_t(word, b, a, log_high, log_low, scale):
    j, log = minus_log(word)
    j = j * PER_EXPONENT
    k = (j * a + 0.5).to(tl.int32)
    whole = k.to(tl.float32)
    high = j * log_high - whole * LN2_HIGH
    low = j * log_low - whole * LN2_LOW
    r = high + (low - log * a)
    power = as_float((k + 127) << 23)
    q = E5 * r + E4
    q = q * r + E3
    q = q * r + E2
    q = q * r + E1
    q = q * r + E0
    grown = power * (r + r * r * q) + (power - 1.0)
    first, _ = direction(b)
    return signed(tl.sqrt_rn(grown * scale), b) * first


@triton.jit
def philox(k0, k1, x0, x1, x2, x3):
    for _ in tl.static_range(ROUNDS):
        high0, low0 = tl.umulhi(x0, M0), x0 * M0
        high1, low1 = tl.umulhi(x2, M1), x2 * M1
        x0, x1, x2, x3 = high1 ^ x1 ^ k0, low1, high0 ^ x3 ^ k1, low0
        k0 = k0 + W0
        k1 = k1 + W1
    return x0, x1, x2, x3


@triton.jit
def philox_kernel(
    words_out, draws_out, key_low, key_high, step_low, step_high, block_low, block_high,
    blocks, power, log_high, log_low, scale,
    LAW: tl.constexpr, PER_BLOCK: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    here = i < blocks
    zero = tl.zeros((SIZE,), tl.uint32)
    x0 = zero + block_low.to(tl.uint32) + i.to(tl.uint32)
    x1 = zero + block_high.to(tl.uint32) + (x0 < i.to(tl.uint32)).to(tl.uint32)  # carry
    x2, x3 = zero + step_low.to(tl.uint32), zero + step_high.to(tl.uint32)
    k0, k1 = zero + key_low.to(tl.uint32), zero + key_high.to(tl.uint32)
    x0, x1, x2, x3 = philox(k0, k1, x0, x1, x2, x3)
    w0, w1 = x0.to(tl.int32, bitcast=True), x1.to(tl.int32, bitcast=True)
    w2, w3 = x2.to(tl.int32, bitcast=True), x3.to(tl.int32, bitcast=True)
    tl.store(words_out + 4 * i, w0, mask=here)
    tl.store(words_out + 4 * i + 1, w1, mask=here)
    tl.store(words_out + 4 * i + 2, w2, mask=here)
    tl.store(words_out + 4 * i + 3, w3, mask=here)
    to = draws_out + PER_BLOCK * i
    if LAW == 0:
        a0, a1 = direction(w1)
        b0, b1 = direction(w3)
        a = signed(tl.sqrt_rn(2.0 * exponential(w0)), w1)
        b = signed(tl.sqrt_rn(2.0 * exponential(w2)), w3)
        tl.store(to, a * a0, mask=here)
        tl.store(to + 1, a * a1, mask=here)
        tl.store(to + 2, b * b0, mask=here)
        tl.store(to + 3, b * b1, mask=here)
    elif LAW == 1:
        for bit in tl.static_range(32):
            tl.store(to + bit, as_float(((w0 << (31 - bit)) & SIGN) | ONE_BITS), mask=here)
            tl.store(to + 32 + bit, as_float(((w1 << (31 - bit)) & SIGN) | ONE_BITS), mask=here)
            tl.store(to + 64 + bit, as_float(((w2 << (31 - bit)) & SIGN) | ONE_BITS), mask=here)
            tl.store(to + 96 + bit, as_float(((w3 << (31 - bit)) & SIGN) | ONE_BITS), mask=here)
    elif LAW == 2:
        tl.store(to, (w0 | 1).to(tl.float32) * SQRT3, mask=here)
        tl.store(to + 1, (w1 | 1).to(tl.float32) * SQRT3, mask=here)
        tl.store(to + 2, (w2 | 1).to(tl.float32) * SQRT3, mask=here)
        tl.store(to + 3, (w3 | 1).to(tl.float32) * SQRT3, mask=here)
    elif LAW == 3:
        tl.store(to, signed(exponential(w0) * SQRT_HALF, w0), mask=here)
        tl.store(to + 1, signed(exponential(w1) * SQRT_HALF, w1), mask=here)
        tl.store(to + 2, signed(exponential(w2) * SQRT_HALF, w2), mask=here)
        tl.store(to + 3, signed(exponential(w3) * SQRT_HALF, w3), mask=here)
    else:
        tl.store(to, student_t(w0, w1, power, log_high, log_low, scale), mask=here)
        tl.store(to + 1, student_t(w2, w3, power, log_high, log_low, scale), mask=here)
