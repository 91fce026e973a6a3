"""The gradients of the paper's problems, compiled: eight runs at a time, one per vector lane.

The weights of eight runs lie side by side: element j of run l at index 8j + l. A lane never meets
another one and every sum runs in its textbook order without fused multiply-adds, so a run has the
same bits whatever shares its lanes and on every CPU. Proven equal to the NumPy forms in the tests.

A kernel that changes results needs a new RESULTS_VERSION (see `spec`).
"""

import numpy as np

try:
    from llvmlite import ir
    from numba import njit, types
    from numba.core import cgutils
    from numba.extending import intrinsic
except ImportError as error:
    raise ImportError("the simulator needs numba: pip install 'antipgd[paper]'") from error

from antipgd.compiling import jit_with
from antipgd.paper.simulation.problems import codes
from antipgd.paper.simulation.problems.codes import (
    MATRIX_SENSING,
    ONE_HIDDEN_UNIT,
    QUADRATIC_REGRESSION,
    WIDENING_VALLEY,
)

jit = jit_with(codes)

LANES = 8
_TILE = 8  # rows of a product made at a time, one vector register each


def _in_all_lanes(builder, number):
    vector = ir.VectorType(number.type, LANES)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.IntType(64)(0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(one, one, mask)


def _product_of_rows(rows, a_in_lanes):
    """An intrinsic out[r] = Σ_k a[r·row_step + k·step] · b[k], lanes in b, out and perhaps a.

    LLVM would keep the sums in memory, since it cannot know that `out` and `b` do not overlap.
    """

    @intrinsic
    def product(typing_context, a, row_step, step, count, b, out):
        lanes, integer = ir.VectorType(ir.DoubleType(), LANES), ir.IntType(64)

        def generate(context, builder, signature, arguments):
            a, row_step, step, count, b, out = arguments
            zero = ir.Constant(lanes, [0.0] * LANES)
            sums = [cgutils.alloca_once_value(builder, zero) for _ in range(rows)]

            def at(address, offset, kind):
                bytes_each = 8 * LANES if kind is lanes else 8
                place = builder.add(address, builder.mul(offset, integer(bytes_each)))
                return builder.inttoptr(place, kind.as_pointer())

            def element(offset):
                if a_in_lanes:
                    return builder.load(at(a, offset, lanes), align=8)
                number = builder.load(at(a, offset, ir.DoubleType()), align=8)
                return _in_all_lanes(builder, number)

            with cgutils.for_range(builder, count) as loop:
                factor = builder.load(at(b, loop.index, lanes), align=8)
                for row, total in enumerate(sums):
                    offset = builder.add(
                        builder.mul(integer(row), row_step), builder.mul(loop.index, step)
                    )
                    term = builder.fmul(element(offset), factor)
                    builder.store(builder.fadd(builder.load(total), term), total)
            for row, total in enumerate(sums):
                builder.store(builder.load(total), at(out, integer(row), lanes), align=8)
            return context.get_dummy_value()

        return types.none(*[types.int64] * 6), generate

    return product


def _product(a_in_lanes):
    """The product of any number of rows."""
    tile, half, single = (_product_of_rows(rows, a_in_lanes) for rows in (_TILE, _TILE // 2, 1))
    bytes_each = 8 * LANES if a_in_lanes else 8

    @njit(nogil=True)  # no cache: intrinsics in a closure look new to it in every process
    def product(a_at, row_step, step, rows, count, b_at, out_at):
        r = 0
        while r < rows:
            here = np.int64(a_at + bytes_each * r * row_step)
            there = np.int64(out_at + 8 * LANES * r)
            if r + _TILE <= rows:
                tile(here, np.int64(row_step), np.int64(step), np.int64(count), b_at, there)
                r += _TILE
            elif r + _TILE // 2 <= rows:
                half(here, np.int64(row_step), np.int64(step), np.int64(count), b_at, there)
                r += _TILE // 2
            else:
                single(here, np.int64(row_step), np.int64(step), np.int64(count), b_at, there)
                r += 1

    return product


_product_with_numbers, _product_with_lanes = _product(False), _product(True)


@jit
def multiply(a, row_step, step, rows, count, b, out):
    """out[r] = Σ_k a[r·row_step + k·step] · b[k] for each lane; `a` is flat, b and out in lanes."""
    _product_with_numbers(a.ctypes.data, row_step, step, rows, count,
                          np.int64(b.ctypes.data), out.ctypes.data)  # fmt: skip


@jit
def multiply_lanes(a, row_step, step, rows, count, b, out):
    """`multiply` with `a` in lanes too."""
    _product_with_lanes(a.ctypes.data, row_step, step, rows, count,
                        np.int64(b.ctypes.data), out.ctypes.data)  # fmt: skip


@jit
def _square(n, w, out):
    for i in range(n):
        out[i] = w[i] * w[i]


@jit
def _less_labels(n, y, shift, r):
    """r −= y + shift, example by example."""
    for i in range(n):
        for lane in range(LANES):
            r[LANES * i + lane] -= y[i] + shift[LANES * i + lane]


@jit
def _times_mean(n, w, inverse, g):
    for i in range(n):
        g[i] = w[i] * (g[i] * inverse)


@jit
def _regression(X, y, shift, w, squares, r, g):
    examples, d = X.shape
    flat = X.reshape(-1)
    _square(d * LANES, w, squares)
    multiply(flat, d, 1, examples, d, squares, r)
    _less_labels(examples, y, shift, r)
    multiply(flat, 1, d, d, examples, r, g)
    _times_mean(d * LANES, w, 1 / examples, g)  # a division per element would cost a sixth


@jit
def _valley(w, watched, g):
    d = w.shape[0] // LANES - 1
    v = LANES * d
    watched[:] = 0
    for j in range(d):
        for lane in range(LANES):
            watched[lane] += w[LANES * j + lane] * w[LANES * j + lane]
    for j in range(d):
        for lane in range(LANES):
            g[LANES * j + lane] = w[v + lane] * w[v + lane] * w[LANES * j + lane]
    for lane in range(LANES):
        g[v + lane] = w[v + lane] * watched[lane]


@jit
def _packed_square(n, u, out):
    """UUᵀ over the pairs a ≤ b, row by row."""
    done = 0
    for a in range(n):
        row = u[LANES * n * a :]
        multiply_lanes(row, n, 1, n - a, n, row, out[LANES * done :])
        done += n - a


@jit
def _unpack(n, packed, diagonal, off_diagonal, out):
    """The symmetric matrix of a packed one, in lanes, times these factors."""
    done = 0
    for a in range(n):
        for b in range(a, n):
            factor = diagonal if a == b else off_diagonal
            for lane in range(LANES):
                value = packed[LANES * done + lane] * factor
                out[LANES * (n * a + b) + lane] = value
                out[LANES * (n * b + a) + lane] = value
            done += 1


@jit
def _sensing(B, y, shift, w, work, r, g):
    """G U with G = (2/M) Σ_i r_i S_i; `g` holds UUᵀ and then Σ_i r_i B_i before the result."""
    examples, pairs = B.shape
    n = int(np.sqrt(w.shape[0] // LANES))
    flat = B.reshape(-1)
    _packed_square(n, w, g)
    multiply(flat, pairs, 1, examples, pairs, g, r)
    _less_labels(examples, y, shift, r)
    multiply(flat, 1, pairs, pairs, examples, r, g)
    _unpack(n, g, 2 / examples, 1 / examples, work)  # B_ab = 2 S_ab off the diagonal
    for a in range(n):
        row = LANES * n * a
        multiply_lanes(w, 1, n, n, n, work[row:], g[row:])


@jit
def _hidden_unit(X, y, shift, w, r, watched, g):
    """The last column of X holds the number of relevant features, behind which `watched` looks."""
    examples, columns = X.shape
    features = columns - 1
    v, relevant, inverse = LANES * features, int(X[0, features]), 1 / examples
    flat = X.reshape(-1)
    multiply(flat, columns, 1, examples, features, w, r)
    for i in range(examples):
        for lane in range(LANES):
            r[LANES * i + lane] *= w[v + lane]
    _less_labels(examples, y, shift, r)
    multiply(flat, 1, columns, features, examples, r, g)
    watched[:] = 0
    g[v:] = 0
    for j in range(features):
        for lane in range(LANES):
            u, slope = w[LANES * j + lane], g[LANES * j + lane] * inverse
            g[LANES * j + lane] = w[v + lane] * slope
            g[v + lane] += u * slope
            watched[lane] += u * u if j >= relevant else 0.0


@jit
def gradient(code, matrix, vector, shift, w, work, r, watched, g):
    """Gradients at `w` into `g`; the watched quantity, where there is one, into `watched`.

    `matrix` and `vector` hold the examples to use, `shift` (in lanes) what to add to their labels.
    `work` and `r` are work arrays as long as w and shift.
    """
    if code == QUADRATIC_REGRESSION:
        _regression(matrix, vector, shift, w, work, r, g)
    elif code == WIDENING_VALLEY:
        _valley(w, watched, g)
    elif code == MATRIX_SENSING:
        _sensing(matrix, vector, shift, w, work, r, g)
    elif code == ONE_HIDDEN_UNIT:
        _hidden_unit(matrix, vector, shift, w, r, watched, g)
    else:
        raise NotImplementedError("a problem that is not compiled")


@jit
def add_losses(code, examples, r, w, watched, sums):
    """Add the losses at `w`, from what `gradient` with all examples has just left there."""
    if code == WIDENING_VALLEY:
        v = w.shape[0] - LANES
        for lane in range(LANES):
            sums[lane] += w[v + lane] * w[v + lane] * watched[lane] / 2
        return
    divisor = (4 if code == QUADRATIC_REGRESSION else 2) * examples
    for lane in range(LANES):
        total = 0.0
        for i in range(examples):
            total += r[LANES * i + lane] * r[LANES * i + lane]
        sums[lane] += total / divisor
