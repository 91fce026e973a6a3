"""Products of matrices compiled for eight runs at a time, one per vector lane.

The weights of eight runs lie side by side: element j of run l at index 8j + l. A lane never meets
another one and every sum runs in its textbook order without fused multiply-adds, so a run has the
same bits whatever shares its lanes and on every CPU. Knows no problem.
"""

import numpy as np

from antipgd.extras import needed_by

with needed_by("the simulator", "paper"):
    from llvmlite import ir
    from numba import njit, types
    from numba.core import cgutils
    from numba.extending import intrinsic

from antipgd.compiling import jit_with

jit = jit_with()

LANES = 8
FEW = 4  # lanes that a product can be made of alone
_TILE = 8  # rows of a product made at a time, one vector register each


def _in_all_lanes(builder, number, width):
    vector = ir.VectorType(number.type, width)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.IntType(64)(0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), width), [0] * width)
    return builder.shuffle_vector(one, one, mask)


def _product_of_rows(rows, a_in_lanes, onto, width):
    """An intrinsic out[r] = Σ_k a[r·row_step + k·step] · b[k], lanes in b, out and perhaps a; with
    `onto` the sum goes on from what `out` holds. Of the lanes, the first `width` take part.

    LLVM would keep the sums in memory, since it cannot know that `out` and `b` do not overlap.
    """

    @intrinsic
    def product(typing_context, a, row_step, step, count, b, out):
        lanes, integer = ir.VectorType(ir.DoubleType(), width), ir.IntType(64)

        def generate(context, builder, signature, arguments):
            a, row_step, step, count, b, out = arguments

            def at(address, offset, kind):
                bytes_each = 8 * LANES if kind is lanes else 8
                place = builder.add(address, builder.mul(offset, integer(bytes_each)))
                return builder.inttoptr(place, kind.as_pointer())

            def first(row):
                if onto:
                    return builder.load(at(out, integer(row), lanes), align=8)
                return ir.Constant(lanes, [0.0] * width)

            sums = [cgutils.alloca_once_value(builder, first(row)) for row in range(rows)]

            def element(offset):
                if a_in_lanes:
                    return builder.load(at(a, offset, lanes), align=8)
                number = builder.load(at(a, offset, ir.DoubleType()), align=8)
                return _in_all_lanes(builder, number, width)

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


def _product(a_in_lanes, onto=False, width=LANES):
    """The product of any number of rows."""
    tile, half, pair, single = (
        _product_of_rows(rows, a_in_lanes, onto, width) for rows in (_TILE, _TILE // 2, 2, 1)
    )
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
            elif r + 2 <= rows:
                pair(here, np.int64(row_step), np.int64(step), np.int64(count), b_at, there)
                r += 2
            else:
                single(here, np.int64(row_step), np.int64(step), np.int64(count), b_at, there)
                r += 1

    return product


_with_numbers, _with_lanes = _product(False), _product(True)
_onto_with_numbers, _onto_with_lanes = _product(False, True), _product(True, True)
_few_with_numbers, _few_with_lanes = (_product(kind, False, FEW) for kind in (False, True))
_few_onto_numbers, _few_onto_lanes = (_product(kind, True, FEW) for kind in (False, True))


@jit
def multiply(a, row_step, step, rows, count, b, out, few=False):
    """out[r] = Σ_k a[r·row_step + k·step] · b[k] for each lane; `a` is flat, b and out in lanes.

    With `few`, in the first four lanes only; the others of `out` stay as they are.
    """
    a_at, b_at, out_at = a.ctypes.data, np.int64(b.ctypes.data), out.ctypes.data
    if few:
        _few_with_numbers(a_at, row_step, step, rows, count, b_at, out_at)
    else:
        _with_numbers(a_at, row_step, step, rows, count, b_at, out_at)


@jit
def multiply_lanes(a, row_step, step, rows, count, b, out, few=False):
    """`multiply` with `a` in lanes too."""
    a_at, b_at, out_at = a.ctypes.data, np.int64(b.ctypes.data), out.ctypes.data
    if few:
        _few_with_lanes(a_at, row_step, step, rows, count, b_at, out_at)
    else:
        _with_lanes(a_at, row_step, step, rows, count, b_at, out_at)


@jit
def add_multiplied(a, row_step, step, rows, count, b, out, few=False):
    """`multiply` onto what is in `out`, as if the sum had gone on."""
    a_at, b_at, out_at = a.ctypes.data, np.int64(b.ctypes.data), out.ctypes.data
    if few:
        _few_onto_numbers(a_at, row_step, step, rows, count, b_at, out_at)
    else:
        _onto_with_numbers(a_at, row_step, step, rows, count, b_at, out_at)


@jit
def add_multiplied_lanes(a, row_step, step, rows, count, b, out, few=False):
    """`multiply_lanes` onto what is in `out`, as if the sum had gone on."""
    a_at, b_at, out_at = a.ctypes.data, np.int64(b.ctypes.data), out.ctypes.data
    if few:
        _few_onto_lanes(a_at, row_step, step, rows, count, b_at, out_at)
    else:
        _onto_with_lanes(a_at, row_step, step, rows, count, b_at, out_at)
