"""The noise stream compiled for CPUs: injections added to arrays in place, without temporaries.

Same words and same bits as `stream` and `injection`, proven in the tests. The work arrays stay in
the second-level cache, whatever the size of the weights. Kernels are serial and release the GIL;
`inplace` splits the work over threads. Compiled code checks no bounds: see `workspace` for what
fits into which array.

Needs numba (the `numba` extra). Importing this module compiles nothing.
"""

import numpy as np

from antipgd.extras import needed_by

with needed_by("antipgd.noise.kernels"):
    from llvmlite import ir
    from numba import carray, njit, types
    from numba.extending import intrinsic

from antipgd.compiling import jit_with
from antipgd.noise import stream
from antipgd.noise import transforms as t
from antipgd.noise.stream import PHILOX_MULTIPLIERS, PHILOX_ROUNDS, PHILOX_WEYL

jit = jit_with(stream, t)

# A law's code is its place here; `inplace.law_arguments` refuses what is not here.
LAWS = ("gaussian", "rademacher", "uniform", "laplace", "student-t")
GAUSSIAN, RADEMACHER, UNIFORM, LAPLACE, STUDENT_T = range(len(LAWS))

CHUNK = 4096  # draws made at a time
# Columns of a piece (see `placement`).
_ADDRESS, _OUTER, _ROWS, _COLUMNS = 0, 1, 2, 3
_OUTER_STEP, _ROW_STEP, _COLUMN_STEP = 4, 5, 6
_START, _OUTER_JUMP, _ROW_JUMP = 7, 8, 9

_LINE_BYTES = 64
_PREFETCH_BYTES = 4096  # far enough ahead to hide main memory, near enough to stay in the cache
_SLACK = 256  # a slice of CHUNK draws touches at most this many more, in whole blocks and lanes
_LANES = 16  # blocks are made in multiples of this, lest a scalar loop do the rest
_BLOCKS = CHUNK // 2 + _LANES  # student-t: CHUNK // 2 + 1 blocks for a chunk, in whole lanes
_SIGN_BLOCKS = 512  # blocks of 128 signs made at a time
_STRIP_ROWS, _STRIP_COLUMNS = 32, 9  # a strip of a 3×3 convolution in channels_last: nine words
_STRIPS = 216  # made at a time: 9 · 216 words, one block more for the start, and seven read past

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_M0, _M1 = map(np.uint64, PHILOX_MULTIPLIERS)
_W0, _W1 = map(np.uint64, PHILOX_WEYL)


def _ints(*values):
    return tuple(np.int32(value) for value in values)


def _floats(*values):
    return tuple(np.float32(value) for value in values)


# numba turns module constants of these exact types into literals; a Python float would promote
# the arithmetic to float64.
_I1, _MAGNITUDE, _SIGN, _SWAP = _ints(1, 0x7FFFFFFF, t.SIGN, t.SWAP)
_ROOT, _EXPONENT, _TOP, _ONE_BITS = _ints(t.SQRT_HALF_BITS, t.EXPONENT, 31 << 23, t.ONE_BITS)
_ANGLE_MASK, _ANGLE_BITS, _I23, _BIAS, _I31 = _ints(0x7FFFFE, 0x40000001, 23, 127, 31)
_ONE, _TWO, _THREE, _HALF_F = _floats(1, 2, 3, 0.5)
_LN2_PER_EXPONENT, _SQRT_HALF = _floats(t.LN2_PER_EXPONENT, t.SQRT_HALF)
_SQRT3_PER_UNIT, _LN2_HIGH = _floats(t.SQRT3_PER_UNIT, t.LN2_HIGH)
_LN2_LOW, _PER_EXPONENT = _floats(t.LN2_LOW, 2.0**-23)
_L0, _L1, _L2, _L3, _L4, _L5, _L6 = _floats(*t.LOG)
_S0, _S1, _S2, _S3 = _floats(*t.SIN)
_C0, _C1, _C2 = _floats(*t.COS)
_E0, _E1, _E2, _E3, _E4, _E5 = _floats(*t.EXPM1)


@intrinsic
def _float_bits(typing_context, x):
    """The bits of a float32 as int32."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), generate


@intrinsic
def _bits_float(typing_context, x):
    """The float32 whose bits are this int32."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def _pointer(typing_context, address, like):
    """An address as a pointer to elements of the array `like`'s type."""
    pointer = types.CPointer(like.dtype)

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(pointer))

    return pointer(types.int64, like), generate


@intrinsic
def not_inlined(typing_context):
    """Keep the calling function a function: inlined, LLVM no longer sees which arrays may
    overlap and falls back to scalar code."""

    def generate(context, builder, signature, arguments):
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.none(), generate


@intrinsic
def widest_vectors(typing_context):
    """Let the calling function use all of AVX-512: LLVM prefers half of it, which costs the
    float transforms a fifth. llvmlite writes out this attribute but does not list it, hence
    `set.add`."""

    def generate(context, builder, signature, arguments):
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.none(), generate


@intrinsic
def _prefetch(typing_context, address):
    """Ask for the cache line at an address, which need not be valid."""
    byte_pointer = ir.IntType(8).as_pointer()
    flag = ir.IntType(32)

    def generate(context, builder, signature, arguments):
        function = builder.module.declare_intrinsic(
            "llvm.prefetch",
            [byte_pointer],
            ir.FunctionType(ir.VoidType(), [byte_pointer, flag, flag, flag]),
        )
        read, near, data = (ir.Constant(flag, value) for value in (0, 3, 1))
        builder.call(function, [builder.inttoptr(arguments[0], byte_pointer), read, near, data])
        return context.get_dummy_value()

    return types.none(types.int64), generate


@intrinsic
def _add_sign_strip(typing_context, newer, older, c_newer, c_older, w, column_bytes):
    """w[r + c·column_step] += (±c_newer) + (±c_older) for 32 rows of nine columns.

    `newer`, `older` and `w` are addresses. The sign of (r, c) is bit 9r + c of nine words, so
    half a column takes 16 bits from fixed places: one shuffle of the words and one shift, where a
    loop over an index would gather. LLVM does not find this by itself, hence vectors by hand.
    """
    number, word, lanes = c_newer.bitwidth, ir.IntType(32), 16
    signature = types.none(types.int64, types.int64, c_newer, c_newer, types.int64, types.int64)

    def generate(context, builder, signature, arguments):
        scalar = ir.FloatType() if number == 32 else ir.DoubleType()
        floats, words = ir.VectorType(scalar, lanes), ir.VectorType(word, lanes)

        def constant(values):
            return ir.Constant(words, [ir.Constant(word, int(value)) for value in values])

        def everywhere(value):
            one = builder.insert_element(ir.Constant(floats, ir.Undefined), value, word(0))
            return builder.shuffle_vector(one, one, constant([0] * lanes))

        def signs(loaded, bits):
            picked = builder.shuffle_vector(loaded, loaded, constant(bits // 32))
            shifted = builder.shl(picked, constant(31 - bits % 32))
            signed = builder.and_(shifted, constant([0x80000000] * lanes))
            ones = builder.or_(signed, constant([int(_ONE_BITS)] * lanes))
            unit = builder.bitcast(ones, ir.VectorType(ir.FloatType(), lanes))
            return unit if number == 32 else builder.fpext(unit, floats)

        def at(address, kind):
            return builder.inttoptr(address, kind.as_pointer())

        newer, older, c_newer, c_older, w, column_bytes = arguments
        loaded = [builder.load(at(address, words), align=4) for address in (newer, older)]
        scales = [everywhere(c) for c in (c_newer, c_older)]
        for column in range(_STRIP_COLUMNS):
            for row in range(0, _STRIP_ROWS, lanes):
                bits = _STRIP_COLUMNS * np.arange(row, row + lanes) + column
                new, old = (
                    builder.fmul(scale, signs(source, bits))
                    for scale, source in zip(scales, loaded, strict=True)
                )
                place = builder.add(w, ir.Constant(ir.IntType(64), row * number // 8))
                target = at(place, floats)
                weights = builder.load(target, align=number // 8)
                added = builder.fadd(weights, builder.fadd(new, old))
                builder.store(added, target, align=number // 8)
            w = builder.add(w, column_bytes)
        return context.get_dummy_value()

    return signature, generate


@njit(inline="always")
def _minus_log(word):
    bits = _float_bits(np.float32((word & _MAGNITUDE) | _I1))
    exponent = np.int32(np.int32(bits - _ROOT) & _EXPONENT)
    x = _bits_float(np.int32(bits - exponent)) - _ONE
    q = _L6 * x + _L5
    q = q * x + _L4
    q = q * x + _L3
    q = q * x + _L2
    q = q * x + _L1
    q = q * x + _L0
    return np.float32(np.int32(_TOP - exponent)), x + x * x * q


@njit(inline="always")
def _exponential(word):
    j, log = _minus_log(word)
    return j * _LN2_PER_EXPONENT - log


@njit(inline="always")
def _signed(magnitude, word):
    return _bits_float(np.int32(_float_bits(magnitude) ^ np.int32(word & _SIGN)))


@njit(inline="always")
def _direction(word):
    a = _bits_float(np.int32(np.int32(word & _ANGLE_MASK) | _ANGLE_BITS)) - _THREE
    y = a * a
    sine = a * (((_S3 * y + _S2) * y + _S1) * y + _S0)
    cosine = _ONE + y * ((_C2 * y + _C1) * y + _C0)
    straight = (word & _SWAP) == 0
    return cosine if straight else sine, sine if straight else cosine


@njit(inline="always")
def _gaussian_pair(a, b):
    radius = _signed(np.float32(np.sqrt(_TWO * _exponential(a))), b)
    first, second = _direction(b)
    return radius * first, radius * second


@njit(inline="always")
def _grown(word, a, log_high, log_low):
    j, log = _minus_log(word)
    j = j * _PER_EXPONENT
    k = np.int32(j * a + _HALF_F)
    whole = np.float32(k)
    high = j * log_high - whole * _LN2_HIGH
    low = j * log_low - whole * _LN2_LOW
    r = high + (low - log * a)
    power = _bits_float(np.int32(np.int32(k + _BIAS) << _I23))
    q = _E5 * r + _E4
    q = q * r + _E3
    q = q * r + _E2
    q = q * r + _E1
    q = q * r + _E0
    return power * (r + r * r * q) + (power - _ONE)


@njit(inline="always")
def _student_t(a, b, power, log_high, log_low, scale):
    first, _ = _direction(b)
    return _signed(np.float32(np.sqrt(_grown(a, power, log_high, log_low) * scale)), b) * first


@jit
def _philox(key, step, first_block, n, words):
    """Words 0 … 3 of n consecutive blocks, each kind in its quarter of `words`.

    They sit in 64-bit lanes with rubbish above bit 32; masking only at the multiplication is
    what LLVM turns into one vector multiply.
    """
    not_inlined()
    key0, key1 = key & _LOW, key >> _HALF
    for i in range(n):
        block = first_block + np.uint64(i)
        x0, x1, x2, x3 = block, block >> _HALF, step, step >> _HALF
        k0, k1 = key0, key1
        for _ in range(PHILOX_ROUNDS):
            p0 = _M0 * (x0 & _LOW)
            p1 = _M1 * (x2 & _LOW)
            x0, x1 = (p1 >> _HALF) ^ x1 ^ k0, p1
            x2, x3 = (p0 >> _HALF) ^ x3 ^ k1, p0
            k0 = k0 + _W0
            k1 = k1 + _W1
        words[i] = np.int32(x0)
        words[_BLOCKS + i] = np.int32(x1)
        words[2 * _BLOCKS + i] = np.int32(x2)
        words[3 * _BLOCKS + i] = np.int32(x3)


@jit
def _fill_gaussian(n, words, out):
    not_inlined()
    widest_vectors()
    for i in range(n):
        g0, g1 = _gaussian_pair(words[i], words[_BLOCKS + i])
        g2, g3 = _gaussian_pair(words[2 * _BLOCKS + i], words[3 * _BLOCKS + i])
        out[4 * i] = g0
        out[4 * i + 1] = g1
        out[4 * i + 2] = g2
        out[4 * i + 3] = g3


@jit
def _fill_uniform(n, words, out):
    not_inlined()
    widest_vectors()
    for i in range(n):
        out[4 * i] = np.float32(words[i] | _I1) * _SQRT3_PER_UNIT
        out[4 * i + 1] = np.float32(words[_BLOCKS + i] | _I1) * _SQRT3_PER_UNIT
        out[4 * i + 2] = np.float32(words[2 * _BLOCKS + i] | _I1) * _SQRT3_PER_UNIT
        out[4 * i + 3] = np.float32(words[3 * _BLOCKS + i] | _I1) * _SQRT3_PER_UNIT


@njit(inline="always")
def _laplace(word):
    return _signed(_exponential(word) * _SQRT_HALF, word)


@jit
def _fill_laplace(n, words, out):
    not_inlined()
    widest_vectors()
    for i in range(n):
        out[4 * i] = _laplace(words[i])
        out[4 * i + 1] = _laplace(words[_BLOCKS + i])
        out[4 * i + 2] = _laplace(words[2 * _BLOCKS + i])
        out[4 * i + 3] = _laplace(words[3 * _BLOCKS + i])


@jit
def _fill_student_t(n, words, power, log_high, log_low, scale, out):
    not_inlined()
    widest_vectors()
    for i in range(n):
        a, b = words[i], words[_BLOCKS + i]
        c, d = words[2 * _BLOCKS + i], words[3 * _BLOCKS + i]
        out[2 * i] = _student_t(a, b, power, log_high, log_low, scale)
        out[2 * i + 1] = _student_t(c, d, power, log_high, log_low, scale)


@jit
def _fill(law, n, words, xi):
    code, _, power, log_high, log_low, scale = law
    if code == GAUSSIAN:
        _fill_gaussian(n, words, xi)
    elif code == UNIFORM:
        _fill_uniform(n, words, xi)
    elif code == LAPLACE:
        _fill_laplace(n, words, xi)
    elif code == STUDENT_T:
        _fill_student_t(n, words, power, log_high, log_low, scale, xi)
    else:
        raise NotImplementedError("a law that is not compiled")


@njit(inline="always")
def _in_lanes(blocks):
    return (blocks + _LANES - 1) // _LANES * _LANES


@jit
def _interleave(n, words, signs):
    not_inlined()
    for i in range(n):
        signs[4 * i] = words[i]
        signs[4 * i + 1] = words[_BLOCKS + i]
        signs[4 * i + 2] = words[2 * _BLOCKS + i]
        signs[4 * i + 3] = words[3 * _BLOCKS + i]


@jit
def _make_signs(key, step, first_block, blocks, words, signs):
    """The words of some blocks one after the other; each bit is a sign of the rademacher law."""
    n = _in_lanes(blocks)
    _philox(key, np.uint64(step), np.uint64(first_block), n, words)
    _interleave(n, words, signs)


@njit(inline="always")
def _sign(word, bit):
    shifted = np.int32(word << np.int32(_I31 - np.int32(bit)))
    return _bits_float(np.int32(np.int32(shifted & _SIGN) | _ONE_BITS))


@jit
def _zero(n, out):
    not_inlined()
    for i in range(n):
        out[i] = 0


@jit
def _add_signs(n, signs, c, out):
    """out += ±c. Adding to zeros vectorises where setting does not, and gives the same bits."""
    not_inlined()
    widest_vectors()
    for i in range(n):
        for bit in range(32):
            out[32 * i + bit] += c * _sign(signs[i], bit)


@jit
def _add_sign_pairs(n, newer, older, c_newer, c_older, w):
    """w += (±c_newer) + (±c_older)."""
    not_inlined()
    widest_vectors()
    ahead = w.ctypes.data + _PREFETCH_BYTES
    for i in range(n):
        for line in range(0, 32 * w.itemsize, _LINE_BYTES):
            _prefetch(np.int64(ahead + 32 * i * w.itemsize + line))
        for bit in range(32):
            w[32 * i + bit] += c_newer * _sign(newer[i], bit) + c_older * _sign(older[i], bit)


@jit
def _is_sign_pair(newest, coefficients, law):
    """Anti-PGD with the rademacher law: the one case so cheap that an extra pass would show."""
    if law[0] != RADEMACHER or newest < 2 or coefficients.shape[0] != 2:
        return False
    return coefficients[0] != 0 and coefficients[1] != 0


@jit
def _inject_sign_pairs(w, blocks, key, newest, coefficients, first_block, words, newer, older):
    """One pass over the `blocks` whole blocks at the beginning of `w`."""
    c_newer, c_older = w.dtype.type(coefficients[0]), w.dtype.type(coefficients[1])
    for i in range(0, blocks, _SIGN_BLOCKS):
        n = min(_SIGN_BLOCKS, blocks - i)
        _make_signs(key, newest, first_block + i, n, words, newer)
        _make_signs(key, newest - 1, first_block + i, n, words, older)
        _add_sign_pairs(4 * n, newer, older, c_newer, c_older, w[128 * i :])


@jit
def _add_scaled(n, c, xi, out):
    not_inlined()
    for i in range(n):
        out[i] += c * xi[i]


@jit
def _set_scaled(n, c, xi, out):
    not_inlined()
    for i in range(n):
        out[i] = c * xi[i]


@jit
def _injection(key, newest, coefficients, start, count, law, words, newer, older, xi, eps):
    """Σ_j coefficients[j] · ξ_{newest−j} of elements start … start+count−1, count ≤ CHUNK.

    The order of operations is that of `injection.combine`. At least one draw must take part.
    The work array `eps` is filled in whole blocks; returns where in it the first element is.
    Work arrays go in whole, with a length, and never in tuples: in compiled code a slice or a
    tuple of arrays counts references, which costs as much as dozens of draws.
    """
    per_block = law[1]
    first = start // per_block
    skip = start - first * per_block
    blocks = (skip + count + per_block - 1) // per_block
    if law[0] == RADEMACHER:
        _zero(128 * blocks, eps)
    if _is_sign_pair(newest, coefficients, law):
        _inject_sign_pairs(eps, blocks, key, newest, coefficients, first, words, newer, older)
        return skip
    n = _in_lanes(blocks)
    fresh = True
    for lag in range(coefficients.shape[0]):
        if coefficients[lag] == 0 or newest - lag < 1:
            continue
        c = eps.dtype.type(coefficients[lag])
        if law[0] == RADEMACHER:
            _make_signs(key, newest - lag, first, blocks, words, newer)
            _add_signs(4 * blocks, newer, c, eps)
        else:
            _philox(key, np.uint64(newest - lag), np.uint64(first), n, words)
            _fill(law, n, words, xi)
            if fresh:
                _set_scaled(n * per_block, c, xi, eps)
            else:
                _add_scaled(n * per_block, c, xi, eps)
        fresh = False
    return skip


@jit
def _add(w, eps):
    not_inlined()
    for i in range(w.shape[0]):
        w[i] += eps[i]


@jit
def _inject_run(w, key, newest, coefficients, start, law, words, newer, older, xi, eps):
    """Add the injection to elements that are consecutive both in memory and in the parameter."""
    pairs = _is_sign_pair(newest, coefficients, law)
    done = 0
    while done < w.shape[0]:
        rest = w.shape[0] - done
        past = (start + done) % 128
        if pairs and past == 0 and rest >= 128:
            blocks = rest // 128
            first = (start + done) // 128
            _inject_sign_pairs(
                w[done:], blocks, key, newest, coefficients, first, words, newer, older
            )
            done += 128 * blocks
        else:
            wide = min(rest, CHUNK - past)
            skip = _injection(
                key, newest, coefficients, start + done, wide, law, words, newer, older, xi, eps
            )
            _add(w[done : done + wide], eps[skip:])
            done += wide


@jit
def _add_columns(w, column_step, eps, skip, rows, columns, ahead):
    """w[r + c·column_step] += eps[skip + r·columns + c], running along memory.

    Asks for the memory `ahead` elements further on. Unsigned indices cannot count from the end,
    so no test for that stands in the way, and gathers with 32 bits are twice as fast.
    """
    not_inlined()
    widest_vectors()
    far = w.ctypes.data + ahead * w.itemsize
    for c in range(columns):
        begin = c * column_step
        for byte in range(0, rows * w.itemsize, _LINE_BYTES):
            _prefetch(np.int64(far + begin * w.itemsize + byte))
        to, of = np.uint64(begin), np.uint32(skip + c)
        for r in range(np.uint32(rows)):
            w[to + np.uint64(r)] += eps[of + np.uint32(r) * np.uint32(columns)]


@jit
def _add_strided(w, row_step, column_step, eps, skip, rows, columns):
    """w[r·row_step + c·column_step] += eps[skip + r·columns + c]."""
    not_inlined()
    for r in range(rows):
        for c in range(columns):
            w[r * row_step + c * column_step] += eps[skip + r * columns + c]


@jit
def _inject_panel(w, piece, key, newest, coefficients, start, law, words, newer, older, xi, eps):
    """Add the injection to rows × columns whose memory does not run along the parameter."""
    rows, columns, row_jump = piece[_ROWS], piece[_COLUMNS], piece[_ROW_JUMP]
    row_step, column_step = piece[_ROW_STEP], piece[_COLUMN_STEP]
    panel = eps[CHUNK + _SLACK :]
    width = min(columns, CHUNK // 16)
    most = CHUNK // width  # rows that fit into a chunk
    strips = (rows + most - 1) // most
    height = (rows + strips - 1) // strips  # ≤ most, and about the same for each strip
    for r in range(0, rows, height):
        high = min(height, rows - r)
        for c in range(0, columns, width):
            wide = min(width, columns - c)
            first = start + r * row_jump + c
            if row_jump == columns == wide:  # the rows follow each other in the parameter
                added = eps
                skip = _injection(key, newest, coefficients, first, high * wide,
                                  law, words, newer, older, xi, eps)  # fmt: skip
            else:
                added = panel
                for i in range(high):
                    skip = _injection(key, newest, coefficients, first + i * row_jump, wide,
                                      law, words, newer, older, xi, eps)  # fmt: skip
                    for j in range(wide):
                        panel[i * wide + j] = eps[skip + j]
                skip = 0
            here = w[r * row_step + c * column_step :]
            if row_step == 1:
                ahead = piece[_OUTER_STEP] if piece[_OUTER] > 1 else height
                _add_columns(here, column_step, added, skip, high, wide, ahead)
            else:
                _add_strided(here, row_step, column_step, added, skip, high, wide)


@jit
def _in_strips(piece):
    """Whether a piece is what channels_last makes of 3×3 convolutions, in whole strips."""
    rows, columns = piece[_ROWS], piece[_COLUMNS]
    dense = piece[_ROW_JUMP] == columns and piece[_OUTER_JUMP] == rows * columns
    whole = rows % _STRIP_ROWS == 0 and piece[_START] % 32 == 0
    return columns == _STRIP_COLUMNS and piece[_ROW_STEP] == 1 and dense and whole


@jit
def _add_sign_strips(w, first, strips, piece, newer, older, skip, c_newer, c_older):
    """Add to strips first … first + strips − 1 of a piece; their words begin at word `skip`."""
    not_inlined()
    widest_vectors()
    per_panel = piece[_ROWS] // _STRIP_ROWS
    outer_step, column_bytes = piece[_OUTER_STEP], piece[_COLUMN_STEP] * w.itemsize
    for i in range(strips):
        panel = (first + i) // per_panel
        row = (first + i - panel * per_panel) * _STRIP_ROWS
        to = w.ctypes.data + (panel * outer_step + row) * w.itemsize
        ahead = to + outer_step * w.itemsize
        for c in range(_STRIP_COLUMNS):
            for byte in range(0, _STRIP_ROWS * w.itemsize, _LINE_BYTES):
                _prefetch(np.int64(ahead + c * column_bytes + byte))
        at = 4 * (skip + _STRIP_COLUMNS * i)
        _add_sign_strip(np.int64(newer.ctypes.data + at), np.int64(older.ctypes.data + at),
                        c_newer, c_older, np.int64(to), np.int64(column_bytes))  # fmt: skip


@jit
def _inject_strips(w, piece, key, newest, coefficients, words, newer, older):
    """One pass over a piece that is `_in_strips`, for a sign pair."""
    c_newer, c_older = w.dtype.type(coefficients[0]), w.dtype.type(coefficients[1])
    total = piece[_OUTER] * piece[_ROWS] // _STRIP_ROWS
    for i in range(0, total, _STRIPS):
        n = min(_STRIPS, total - i)
        word = piece[_START] // 32 + _STRIP_COLUMNS * i
        skip = word % 4
        blocks = (skip + _STRIP_COLUMNS * n + 3) // 4
        _make_signs(key, newest, word // 4, blocks, words, newer)
        _make_signs(key, newest - 1, word // 4, blocks, words, older)
        _add_sign_strips(w, i, n, piece, newer, older, skip, c_newer, c_older)


@jit
def _inject_piece(piece, key, newest, coefficients, law, words, newer, older, xi, eps):
    """Add the injection of one piece: `outer` panels of rows × columns (see `placement`)."""
    outer, rows, columns = piece[_OUTER], piece[_ROWS], piece[_COLUMNS]
    outer_step, row_step, column_step = piece[_OUTER_STEP], piece[_ROW_STEP], piece[_COLUMN_STEP]
    span = (outer - 1) * outer_step + (rows - 1) * row_step + (columns - 1) * column_step + 1
    w = carray(_pointer(piece[_ADDRESS], eps), span)
    if _in_strips(piece) and _is_sign_pair(newest, coefficients, law):
        _inject_strips(w, piece, key, newest, coefficients, words, newer, older)
        return
    for o in range(outer):
        here, start = w[o * outer_step :], piece[_START] + o * piece[_OUTER_JUMP]
        if column_step == 1 and (rows == 1 or columns >= CHUNK // 16):
            for r in range(rows):
                run = here[r * row_step : r * row_step + columns]
                _inject_run(run, key, newest, coefficients, start + r * piece[_ROW_JUMP],
                            law, words, newer, older, xi, eps)  # fmt: skip
        else:
            _inject_panel(here, piece, key, newest, coefficients, start,
                          law, words, newer, older, xi, eps)  # fmt: skip


@jit
def workspace(like):
    """Work arrays: words, signs (newer, older), xi, and eps like `like`.

    `_injection` makes count ≤ CHUNK elements: at most CHUNK // 2 + 1 blocks of two draws,
    CHUNK // 4 + 1 of four or CHUNK // 128 + 1 of 128, the first three arrays in whole lanes.
    Behind the CHUNK + _SLACK elements of the injection, `eps` has a panel of CHUNK elements.
    """
    words = np.empty(4 * _BLOCKS, np.int32)
    newer, older = np.empty(4 * _SIGN_BLOCKS, np.int32), np.empty(4 * _SIGN_BLOCKS, np.int32)
    xi = np.empty(CHUNK + _SLACK, np.float32)
    return words, newer, older, xi, np.empty(2 * CHUNK + _SLACK, like.dtype)


@jit
def _adds_something(newest, coefficients):
    for lag in range(min(newest, coefficients.shape[0])):
        if coefficients[lag] != 0:
            return True
    return False


@jit
def inject_pieces(pieces, owners, keys, newest, coefficients, law, like):
    """Add the injections of all `pieces`; piece i belongs to tensor owners[i]."""
    words, newer, older, xi, eps = workspace(like)
    for i in range(pieces.shape[0]):
        owner = owners[i]
        if _adds_something(newest, coefficients[owner]):
            _inject_piece(pieces[i], keys[owner], newest, coefficients[owner],
                          law, words, newer, older, xi, eps)  # fmt: skip


@jit
def inject_layout(pieces, law, like, address, key, newest, coefficients):
    """Add the injection of a tensor that begins at `address`, where `pieces` begin at 0."""
    if not _adds_something(newest, coefficients[0]):
        return
    words, newer, older, xi, eps = workspace(like)
    piece = np.empty(pieces.shape[1], np.int64)
    for i in range(pieces.shape[0]):
        piece[:] = pieces[i]
        piece[_ADDRESS] += address
        _inject_piece(piece, key[0], newest, coefficients[0],
                      law, words, newer, older, xi, eps)  # fmt: skip


@jit
def draw_into(out, key, step, start, law):
    """Unit draws of elements start … start + len(out) − 1 at a step ≥ 1, into float32 `out`."""
    words, newer, older, xi, eps = workspace(out)
    _zero(out.shape[0], out)
    _inject_run(out, key, step, np.ones(1), start, law, words, newer, older, xi, eps)


@jit
def draw_chunk(key, step, start, count, law, words, signs, xi):
    """Unit draws of elements start … start + count − 1 at a step ≥ 1, at the beginning of `xi`.

    For loops of compiled code that make work arrays once, by `workspace`. `start` must be a
    multiple of CHUNK and count at most CHUNK; `xi` is filled in whole blocks.
    """
    per_block = law[1]
    first, blocks = start // per_block, (count + per_block - 1) // per_block
    if law[0] == RADEMACHER:
        _make_signs(key, step, first, blocks, words, signs)
        _zero(128 * blocks, xi)
        _add_signs(4 * blocks, signs, np.float32(1), xi)
    else:
        n = _in_lanes(blocks)
        _philox(key, np.uint64(step), np.uint64(first), n, words)
        _fill(law, n, words, xi)


@jit
def draw_indices(key, step, bound, words, out):
    """As many indices from 0 to bound − 1 as `out` holds: see `stream.key_indices`."""
    most = 4 * (_BLOCKS // _LANES * _LANES)
    for begin in range(0, out.shape[0], most):
        n = min(most, out.shape[0] - begin)
        blocks = _in_lanes((n + 3) // 4)
        _philox(key, np.uint64(step), np.uint64(begin // 4), blocks, words)
        for i in range(n):
            word = np.uint64(np.uint32(words[(i & 3) * _BLOCKS + (i >> 2)]))
            out[begin + i] = np.int64((word * np.uint64(bound)) >> _HALF)
