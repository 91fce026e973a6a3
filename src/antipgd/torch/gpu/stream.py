"""The noise stream in Triton's language: from (key, step, block) to unit draws of a law.

The same operations in the same order as `antipgd.noise.transforms`, each rounded by itself: who
compiles this must forbid fused multiply-adds (`enable_fp_fusion=False`). A *unit* is what one lane
draws: the two or four draws of a block, or the 32 signs of a word.
"""

from antipgd.extras import needed_by
from antipgd.noise import stream
from antipgd.noise import transforms as t

with needed_by("antipgd.torch.gpu", "gpu"):
    import triton
    import triton.language as tl

# A law's code is its place here; the draws of one lane.
LAWS = {"gaussian": 4, "rademacher": 32, "uniform": 4, "laplace": 4, "student-t": 2}
GAUSSIAN, RADEMACHER, UNIFORM, LAPLACE, STUDENT_T = map(tl.constexpr, range(len(LAWS)))

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
    """The float32 of these bits."""
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def as_bits(value):
    """The bits of a float32, or of a word, as int32."""
    return value.to(tl.int32, bitcast=True)


@triton.jit
def minus_log(word):
    """j · 2²³ and l with −ln u = j ln 2 − l."""
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
    """−ln u."""
    j, log = minus_log(word)
    return j * LN2_PER_EXPONENT - log


@triton.jit
def signed(magnitude, word):
    """`magnitude` with its sign flipped where bit 31 of the word is set."""
    return as_float(as_bits(magnitude) ^ (word & SIGN))


@triton.jit
def direction(word):
    """A point on the half circle around angle 0 or π/2."""
    a = as_float((word & 0x7FFFFE) | 0x40000001) - 3.0
    y = a * a
    sine = a * (((S3 * y + S2) * y + S1) * y + S0)
    cosine = 1.0 + y * ((C2 * y + C1) * y + C0)
    straight = (word & SWAP) == 0
    return tl.where(straight, cosine, sine), tl.where(straight, sine, cosine)


@triton.jit
def gaussian(word, other):
    """Box–Muller: two draws of two words."""
    radius = signed(tl.sqrt_rn(2.0 * exponential(word)), other)
    first, second = direction(other)
    return radius * first, radius * second


@triton.jit
def uniform(word):
    """The odd number nearest to the signed word, scaled to (−√3, √3)."""
    return (word | 1).to(tl.float32) * SQRT3


@triton.jit
def laplace(word):
    """An exponential with the sign of bit 31."""
    return signed(exponential(word) * SQRT_HALF, word)


@triton.jit
def student_t(word, other, a, log_high, log_low, scale):
    """Bailey's form: one draw of two words."""
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
    first, _ = direction(other)
    return signed(tl.sqrt_rn(grown * scale), other) * first


@triton.jit
def philox(key, step, block):
    """The four words of blocks (int64), as int32."""
    zero = tl.zeros(block.shape, tl.uint32)
    x0, x1 = block.to(tl.uint32), (block >> 32).to(tl.uint32)
    x2, x3 = zero + step.to(tl.uint32), zero + (step >> 32).to(tl.uint32)
    k0, k1 = zero + key.to(tl.uint32), zero + (key >> 32).to(tl.uint32)
    for _ in tl.static_range(ROUNDS):
        high0, low0 = tl.umulhi(x0, M0), x0 * M0
        high1, low1 = tl.umulhi(x2, M1), x2 * M1
        x0, x1, x2, x3 = high1 ^ x1 ^ k0, low1, high0 ^ x3 ^ k1, low0
        k0 = k0 + W0
        k1 = k1 + W1
    return as_bits(x0), as_bits(x1), as_bits(x2), as_bits(x3)


@triton.jit
def signs(unit, key, step):
    """The 32 signs of words, a row for each.

    A word is taken out of its four by a sum, across which the compiler does not compute anything
    twice: else each of the 32 threads of a row would run Philox for itself.
    """
    w0, w1, w2, w3 = philox(key, step, unit >> 2)
    words = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), (unit.shape[0], 4))
    which = (unit & 3).to(tl.int32)
    word = tl.sum(tl.where(which[:, None] == tl.arange(0, 4)[None, :], words, 0), axis=1)
    bit = tl.arange(0, 32)
    return as_float(((word[:, None] << (31 - bit)[None, :]) & SIGN) | ONE_BITS)


@triton.jit
def four_draws(unit, key, step, LAW: tl.constexpr):
    """The four draws of blocks, a row for each."""
    w0, w1, w2, w3 = philox(key, step, unit)
    if LAW == GAUSSIAN:
        a, b = gaussian(w0, w1)
        c, d = gaussian(w2, w3)
    elif LAW == UNIFORM:
        a, b, c, d = uniform(w0), uniform(w1), uniform(w2), uniform(w3)
    else:
        a, b, c, d = laplace(w0), laplace(w1), laplace(w2), laplace(w3)
    rows = tl.join(tl.join(a, c), tl.join(b, d))  # [lane, pair, place in the pair]
    return tl.reshape(rows, (unit.shape[0], 4))


@triton.jit
def two_draws(unit, key, step, power, log_high, log_low, scale):
    """The two draws of blocks of student-t, a row for each."""
    w0, w1, w2, w3 = philox(key, step, unit)
    return tl.join(
        student_t(w0, w1, power, log_high, log_low, scale),
        student_t(w2, w3, power, log_high, log_low, scale),
    )


@triton.jit
def unit_draws(unit, key, step, power, log_high, log_low, scale, LAW: tl.constexpr):
    """The draws of units (int64), a row for each, in the order of elements."""
    if LAW == RADEMACHER:
        rows = signs(unit, key, step)
    elif LAW == STUDENT_T:
        rows = two_draws(unit, key, step, power, log_high, log_low, scale)
    else:
        rows = four_draws(unit, key, step, LAW)
    return rows
