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

LANES = 8
QUADRATIC_REGRESSION, WIDENING_VALLEY = range(2)  # codes, as in `Problem.compiled`
_TILE = 8  # rows of a product made at a time, one vector register each


def _product_of_rows(rows):
    """An intrinsic out[r] = Σ_k a[r·row_step + k·step] · b[k], lanes in b and out.

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
                place = builder.add(address, builder.mul(offset, integer(8)))
                return builder.inttoptr(place, kind.as_pointer())

            with cgutils.for_range(builder, count) as loop:
                place = at(b, builder.mul(loop.index, integer(LANES)), lanes)
                factor = builder.load(place, align=8)
                for row, total in enumerate(sums):
                    offset = builder.add(
                        builder.mul(integer(row), row_step), builder.mul(loop.index, step)
                    )
                    number = builder.load(at(a, offset, ir.DoubleType()), align=8)
                    one = builder.insert_element(
                        ir.Constant(lanes, ir.Undefined), number, integer(0)
                    )
                    mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
                    spread = builder.shuffle_vector(one, one, mask)
                    term = builder.fmul(spread, factor)
                    builder.store(builder.fadd(builder.load(total), term), total)
            for row, total in enumerate(sums):
                place = at(out, integer(row * LANES), lanes)
                builder.store(builder.load(total), place, align=8)
            return context.get_dummy_value()

        return types.none(*[types.int64] * 6), generate

    return product


_tile_product, _row_product = _product_of_rows(_TILE), _product_of_rows(1)


@njit(nogil=True, cache=True)
def multiply(a, row_step, step, rows, count, b, out):
    """out[r] = Σ_k a[r·row_step + k·step] · b[k] for each lane; `a` is flat, b and out in lanes."""
    a_at, b_at, out_at = a.ctypes.data, b.ctypes.data, out.ctypes.data
    r = 0
    while r < rows:
        here, there = np.int64(a_at + 8 * r * row_step), np.int64(out_at + 8 * LANES * r)
        if r + _TILE <= rows:
            _tile_product(here, np.int64(row_step), np.int64(step), np.int64(count),
                          np.int64(b_at), there)  # fmt: skip
            r += _TILE
        else:
            _row_product(here, np.int64(row_step), np.int64(step), np.int64(count),
                         np.int64(b_at), there)  # fmt: skip
            r += 1


@njit(nogil=True, cache=True)
def _square(n, w, out):
    for i in range(n):
        out[i] = w[i] * w[i]


@njit(nogil=True, cache=True)
def _less_labels(n, y, shift, r):
    """r −= y + shift, example by example."""
    for i in range(n):
        for lane in range(LANES):
            r[LANES * i + lane] -= y[i] + shift[LANES * i + lane]


@njit(nogil=True, cache=True)
def _times_mean(n, w, inverse, g):
    for i in range(n):
        g[i] = w[i] * (g[i] * inverse)


@njit(nogil=True, cache=True)
def _regression(X, y, shift, w, squares, r, g):
    examples, d = X.shape
    flat = X.reshape(-1)
    _square(d * LANES, w, squares)
    multiply(flat, d, 1, examples, d, squares, r)
    _less_labels(examples, y, shift, r)
    multiply(flat, 1, d, d, examples, r, g)
    _times_mean(d * LANES, w, 1 / examples, g)  # a division per element would cost a sixth


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
def gradient(code, matrix, vector, shift, w, squares, r, watched, g):
    """Gradients at `w` into `g`; the watched quantity, where there is one, into `watched`.

    `matrix` and `vector` hold the examples to use, `shift` (in lanes) what to add to their labels.
    `squares` and `r` are work arrays as long as w and shift.
    """
    if code == QUADRATIC_REGRESSION:
        _regression(matrix, vector, shift, w, squares, r, g)
    else:
        _valley(w, watched, g)
