"""From random words to unit draws, in exact float32 arithmetic, on any array library.

The published format (docs/noise-stream.md) fixes each transform as a sequence of float32 +, ×,
correctly rounded √ and bit operations, without fused multiply-add. Library functions such as
log and cos differ between libraries in the last bits; these polynomials do not. A word is a
*signed* 32-bit integer here, because that is the one type all libraries shift and mask alike.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from antipgd.noise.laws import Law


@dataclass(frozen=True)
class Lanes:
    """What an array library must supply, besides arithmetic and bit operators."""

    to_float: Callable[[Any], Any]  # int32 → nearest float32
    to_int: Callable[[Any], Any]  # float32 → int32, towards zero
    float_bits: Callable[[Any], Any]  # float32 → its bits as int32
    bits_float: Callable[[Any], Any]  # bits as int32 → float32
    sqrt: Callable[[Any], Any]  # float32 → correctly rounded float32
    where: Callable[[Any, Any, Any], Any]


NUMPY = Lanes(
    to_float=lambda integers: integers.astype(np.float32),
    to_int=lambda floats: floats.astype(np.int32),
    float_bits=lambda floats: floats.view(np.int32),
    bits_float=lambda bits: bits.view(np.float32),
    sqrt=np.sqrt,
    where=np.where,
)


def single(value: float) -> float:
    """`value` rounded to float32, as a Python float: exact in every library."""
    return float(np.float32(value))


# Minimax polynomials, lowest power first, with the largest relative error of the whole function
# before rounding. Where the first term is exact (x, 1) it stays outside, so that even a fused
# multiply-add elsewhere moves the result by an ulp at most. They are part of the format: a
# change of any is a new stream version.
LOG = tuple(map(single, (-0.500003234, 0.333347149, -0.249712285, 0.199068832,
                         -0.172432243, 0.161805008, -0.100823794)))  # fmt: skip
"""ln(1+x) = x + x² LOG(x) on [√½ − 1, √2 − 1], to 1.8e-7."""
SIN = tuple(map(single, (0.785398163, -0.0807454538, 0.00249004415, -3.59752671e-05)))
"""sin(πt/4) = t SIN(t²) on [−1, 1], to 3.8e-9."""
COS = tuple(map(single, (-0.308424427, 0.0158502007, -0.000319020047)))
"""cos(πt/4) = 1 + t² COS(t²) on [−1, 1], to 3.8e-8."""
EXPM1 = tuple(map(single, (0.500000277, 0.166666464, 0.0416617275,
                           0.00833429229, 0.00140981925, 0.000198553254)))  # fmt: skip
"""eʳ − 1 = r + r² EXPM1(r) on [−0.7, 0.7], to 3.3e-8."""

LN2 = single(math.log(2))
LN2_HIGH = single(0.693359375)  # few bits, so that k · LN2_HIGH is exact
LN2_LOW = single(math.log(2) - 0.693359375)
LN2_PER_EXPONENT = LN2 * 2.0**-23  # for exponents left in their place in the bits
SQRT_HALF_BITS = 0x3F3504F3
SQRT_HALF = single(math.sqrt(0.5))
SQRT3_PER_UNIT = single(math.sqrt(3)) * 2.0**-31
SIGN = -(2**31)
SWAP = 2**30
EXPONENT = -(2**23)
ONE_BITS = 0x3F800000


def polynomial(coefficients: tuple[float, ...], x: Any) -> Any:
    """Horner's scheme, highest power first: one × and one + per coefficient."""
    value = coefficients[-1] * x + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        value = value * x + coefficient
    return value


def minus_log(words: Any, lanes: Lanes) -> tuple[Any, Any]:
    """j · 2²³ and l with −ln u = j ln 2 − l, for u = (bits 30…1 of the word, then a one) / 2³¹.

    So 2⁻³¹ ≤ u ≤ 1; j is an integer from 0 to 31 and u · 2ʲ lies in [√½, √2).
    """
    bits = lanes.float_bits(lanes.to_float((words & 0x7FFFFFFF) | 1))
    exponent = (bits - SQRT_HALF_BITS) & EXPONENT
    x = lanes.bits_float(bits - exponent) - 1.0
    return lanes.to_float((31 << 23) - exponent), x + x * x * polynomial(LOG, x)


def exponential(words: Any, lanes: Lanes) -> Any:
    """−ln u, the standard exponential draw of a word."""
    j, log = minus_log(words, lanes)
    return j * LN2_PER_EXPONENT - log


def direction(words: Any, lanes: Lanes) -> tuple[Any, Any]:
    """A point on the half circle around angle 0 or π/2; bit 31, the sign, is left to the radius.

    Bits 22…1 place t in (−1, 1) symmetrically, the angle is πt/4; bit 30 swaps the coordinates.
    """
    t = lanes.bits_float((words & 0x7FFFFE) | 0x40000001) - 3.0
    square = t * t
    sine = t * polynomial(SIN, square)
    cosine = 1.0 + square * polynomial(COS, square)
    straight = (words & SWAP) == 0
    return lanes.where(straight, cosine, sine), lanes.where(straight, sine, cosine)


def signed(magnitude: Any, words: Any, lanes: Lanes) -> Any:
    """`magnitude` with its sign flipped where bit 31 of the word is set."""
    return lanes.bits_float(lanes.float_bits(magnitude) ^ (words & SIGN))


def gaussian(words: tuple[Any, ...], lanes: Lanes) -> list[Any]:
    """Box–Muller on words (0, 1) and (2, 3): four draws."""
    out = []
    for a, b in ((words[0], words[1]), (words[2], words[3])):
        radius = signed(lanes.sqrt(2.0 * exponential(a, lanes)), b, lanes)
        out += [radius * part for part in direction(b, lanes)]
    return out


def rademacher(words: tuple[Any, ...], lanes: Lanes) -> list[Any]:
    """+1 for a bit 0, −1 for a bit 1; bit i of word j is draw 32j + i: 128 draws."""
    return [
        lanes.bits_float(((word << (31 - bit)) & SIGN) | ONE_BITS)
        for word in words
        for bit in range(32)
    ]


def uniform(words: tuple[Any, ...], lanes: Lanes) -> list[Any]:
    """The odd number nearest to the signed word, scaled to (−√3, √3): four draws."""
    return [lanes.to_float(word | 1) * SQRT3_PER_UNIT for word in words]


def laplace(words: tuple[Any, ...], lanes: Lanes) -> list[Any]:
    """An exponential with the sign of bit 31, scaled by √½: four draws."""
    return [signed(exponential(word, lanes) * SQRT_HALF, word, lanes) for word in words]


@dataclass(frozen=True)
class StudentConstants:
    """The constants of student-t, each exact in float32. With a = 2/df:"""

    power: float  # a
    log_high: float  # a ln 2 cut to 15 bits, so that its multiples up to 31 are exact
    log_low: float  # the rest of a ln 2
    scale: float  # makes the variance exactly 1


@lru_cache  # a sum of 10,000 terms, wanted at every step
def student_constants(df: float) -> StudentConstants:
    """For a continuous u the scale would be df − 2. But u stops at 2⁻³¹, which cuts the tail:
    at df = 2.5 that is 1.3 % of the variance, more below. With a = 2/df the mean of u⁻ᵃ − 1
    over the 2³⁰ midpoints is a/(1−a) + 2^(−30(1−a)) ζ(a, ½), ζ being Hurwitz's.
    """
    a = 2 / df
    terms = 10_000
    zeta = math.fsum((k + 0.5) ** -a for k in range(terms)) - terms ** (1 - a) / (1 - a)
    scale = 2 / (a / (1 - a) + 2.0 ** (-30 * (1 - a)) * zeta)
    log_high = math.floor(a * math.log(2) * 2**15) / 2**15
    log_low = a * math.log(2) - log_high
    return StudentConstants(single(a), log_high, single(log_low), single(scale))


def grown(words: Any, constants: StudentConstants, lanes: Lanes) -> Any:
    """u^(−2/df) − 1 = eʸ − 1 with y = a(j ln 2 − l), without ever rounding y.

    With k = ⌊aj + ½⌋, r = y − k ln 2 lies within ±0.7 and its largest part is exact.
    """
    j, log = minus_log(words, lanes)
    j = j * 2.0**-23
    k = lanes.to_int(j * constants.power + 0.5)
    whole = lanes.to_float(k)
    high = j * constants.log_high - whole * LN2_HIGH
    low = j * constants.log_low - whole * LN2_LOW
    r = high + (low - log * constants.power)
    power = lanes.bits_float((k + 127) << 23)
    return power * (r + r * r * polynomial(EXPM1, r)) + (power - 1.0)


def student_t(words: tuple[Any, ...], df: float, lanes: Lanes) -> list[Any]:
    """Bailey's form √(scale (u^(−2/df) − 1)) · cos θ on words (0, 1) and (2, 3): two draws."""
    constants = student_constants(df)
    out = []
    for a, b in ((words[0], words[1]), (words[2], words[3])):
        radius = signed(lanes.sqrt(grown(a, constants, lanes) * constants.scale), b, lanes)
        out.append(radius * direction(b, lanes)[0])
    return out


TRANSFORMS: dict[str, Callable[..., list[Any]]] = {
    "gaussian": gaussian,
    "rademacher": rademacher,
    "uniform": uniform,
    "laplace": laplace,
    "student-t": student_t,
}


def unit_draws(words: tuple[Any, ...], law: Law, lanes: Lanes) -> list[Any]:
    """`law.per_block` arrays: entry e holds draw e of every block."""
    transform = TRANSFORMS[law.name]
    return transform(words, lanes) if law.df is None else transform(words, law.df, lanes)
