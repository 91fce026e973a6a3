"""Gradients of networks of ReLU units, compiled: see `products` for the layout of eight runs.

Units of a layer stand one after the other, each with its examples. Examples are taken in tiles that
stay in the cache, and sums over them go on from tile to tile. Gradients call nothing that depends
on the CPU, such as the exp of libm.
"""

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from antipgd.compiling import jit_with
from antipgd.paper.simulation.problems import codes, products
from antipgd.paper.simulation.problems.codes import ACTIVE
from antipgd.paper.simulation.problems.products import (
    FEW,
    LANES,
    add_multiplied,
    add_multiplied_lanes,
    multiply,
    multiply_lanes,
)

jit = jit_with(codes, products)

TILE = 16  # examples at a time, with two hidden layers
_EXAMPLES = 40  # and with one
CLASSES = 10
_LOG2E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 0.6931471803691238, 1.9082149292705877e-10
_LOWEST = -708.0
_T3, _T4, _T5, _T6, _T7, _T8, _T9, _T10, _T11, _T12, _T13 = (
    1 / math.factorial(k) for k in range(3, 14)
)


@intrinsic
def _float_of_bits(typing_context, bits):
    """The float64 whose bits are this int64."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


@jit
def exp_of_negative(n, x):
    """e^x in place for x ≤ 0, that of −708 below: the series after reduction by powers of two."""
    for i in range(n):
        least = _LOWEST if x[i] < _LOWEST else x[i]
        k = np.floor(least * _LOG2E + 0.5)
        rest = (least - k * _LN2_HIGH) - k * _LN2_LOW
        total = _T13
        for term in (_T12, _T11, _T10, _T9, _T8, _T7, _T6, _T5, _T4, _T3, 0.5, 1.0, 1.0):
            total = total * rest + term
        x[i] = total * _float_of_bits((np.int64(k) + 1023) << 52)


@jit
def _are_few(w):
    """Whether all lanes but the first ones stand at zero, as those without a run do: there the
    gradient is zero, too."""
    for j in range(w.shape[0] // LANES):
        for lane in range(FEW, LANES):
            if w[LANES * j + lane] != 0:
                return False
    return True


@jit
def _rectify(n, x):
    """max(x, 0); what is not a number stays so."""
    for i in range(n):
        x[i] = np.maximum(x[i], 0.0)


@jit
def _where_on(n, x, units):
    """x where a unit is on, else 0, in the units' place."""
    for i in range(n):
        units[i] = x[i] * (units[i] > 0)  # a branch would be mispredicted half of the time


@jit
def _keep_where_on(n, units, x):
    """The same in the place of x."""
    for i in range(n):
        x[i] = x[i] * (units[i] > 0)


@jit
def _count_active(d, hidden, w, sizes, watched):
    """How many units have |v| ‖u‖ above a share of the largest."""
    outer = LANES * hidden * d
    for lane in range(LANES):
        largest = 0.0
        for j in range(hidden):
            total = 0.0
            for k in range(d):
                u = w[LANES * (d * j + k) + lane]
                total += u * u
            v = w[outer + LANES * j + lane]
            sizes[j] = math.sqrt(total) * abs(v)
            largest = max(largest, sizes[j])
        watched[lane] = 0
        for j in range(hidden):
            watched[lane] += 1 if sizes[j] > ACTIVE * largest else 0


@jit
def student_work(d, size):
    """Numbers of work space for a student of so many weights in lanes."""
    return max(size, _EXAMPLES * (size // (d + 1)))


@jit
def _less_labels(examples, y, shift, r):
    """r −= y + shift, example by example."""
    for i in range(examples):
        for lane in range(LANES):
            r[LANES * i + lane] -= y[i] + shift[LANES * i + lane]


@jit
def _finish(d, hidden, inverse, v, g):
    """Means instead of sums; the weights into a unit get the factor of the one out of it."""
    outer = LANES * hidden * d
    for j in range(hidden):
        for lane in range(LANES):
            factor = v[LANES * j + lane] * inverse
            g[outer + LANES * j + lane] *= inverse
            for k in range(d):
                g[LANES * (d * j + k) + lane] *= factor


@jit
def student(X, y, shift, w, work, r, watched, g):
    """One hidden layer and one output: the weights into each unit, then those out of them."""
    examples, d = X.shape
    hidden, flat = w.shape[0] // LANES // (d + 1), X.reshape(-1)
    outer, few = LANES * hidden * d, _are_few(w)
    _count_active(d, hidden, w, work, watched)
    g[:] = 0
    for start in range(0, examples, _EXAMPLES):
        used = min(_EXAMPLES, examples - start)
        x, own = flat[d * start :], r[LANES * start :]
        for j in range(hidden):
            multiply(x, d, 1, used, d, w[LANES * d * j :], work[LANES * _EXAMPLES * j :], few)
        _rectify(LANES * _EXAMPLES * hidden, work)
        multiply_lanes(work, 1, _EXAMPLES, used, hidden, w[outer:], own, few)
        _less_labels(used, y[start:], shift[LANES * start :], own)
        add_multiplied_lanes(work, _EXAMPLES, 1, hidden, used, own, g[outer:], few)
        for j in range(hidden):
            unit = work[LANES * _EXAMPLES * j : LANES * _EXAMPLES * (j + 1)]
            _where_on(LANES * used, own, unit)
            add_multiplied(x, 1, d, d, used, unit, g[LANES * d * j :], few)
    _finish(d, hidden, 1 / examples, w[outer:], g)


@jit
def _transpose(rows, columns, a, out):
    for i in range(rows):
        for j in range(columns):
            for lane in range(LANES):
                out[LANES * (rows * j + i) + lane] = a[LANES * (columns * i + j) + lane]


@jit
def _less_truth(examples, y, inverse, outputs, r):
    """(outputs − truth) · inverse; twice the loss of each example into `r`."""
    for i in range(examples):
        for lane in range(LANES):
            total = 0.0
            for c in range(CLASSES):
                at = LANES * (TILE * c + i) + lane
                miss = outputs[at] - (1.0 if y[i] == c else 0.0)
                total += miss * miss
                outputs[at] = miss * inverse
            r[LANES * i + lane] = total


@jit
def _less_largest(examples, outputs):
    for i in range(LANES * examples):
        top = outputs[i]
        for c in range(1, CLASSES):
            top = max(top, outputs[LANES * TILE * c + i])
        for c in range(CLASSES):
            outputs[LANES * TILE * c + i] -= top


@jit
def _probabilities_less_truth(examples, y, inverse, outputs, r):
    """(softmax(outputs) − truth) · inverse; twice the loss of each example into `r`."""
    _less_largest(examples, outputs)
    for c in range(CLASSES):
        exp_of_negative(LANES * examples, outputs[LANES * TILE * c :])
    for i in range(examples):
        for lane in range(LANES):
            total, at = 0.0, LANES * i + lane
            for c in range(CLASSES):
                total += outputs[LANES * TILE * c + at]
            r[at] = -2 * np.log(outputs[LANES * TILE * int(y[i]) + at] / total)
            for c in range(CLASSES):
                p = outputs[LANES * TILE * c + at] / total
                outputs[LANES * TILE * c + at] = (p - (1.0 if y[i] == c else 0.0)) * inverse


@jit
def digits_work(hidden, size):
    """Numbers of work space for two layers of so many units."""
    return max(size, LANES * ((4 * hidden + CLASSES) * TILE + hidden * (hidden + CLASSES)))


@jit
def _forward(pixels, columns, used, hidden, few, x, w, first, second, outputs):
    """The units of both layers and the outputs for a tile of examples."""
    inner, outer = LANES * pixels * hidden, LANES * (pixels + hidden) * hidden
    for j in range(hidden):
        multiply(
            x, columns, 1, used, pixels, w[LANES * pixels * j :], first[LANES * TILE * j :], few
        )
    _rectify(LANES * TILE * hidden, first)
    for j in range(hidden):
        row = w[inner + LANES * hidden * j :]
        multiply_lanes(first, 1, TILE, used, hidden, row, second[LANES * TILE * j :], few)
    _rectify(LANES * TILE * hidden, second)
    for c in range(CLASSES):
        row = w[outer + LANES * hidden * c :]
        multiply_lanes(second, 1, TILE, used, hidden, row, outputs[LANES * TILE * c :], few)


@jit
def _backward(pixels, columns, used, hidden, few, x, turned, first, second, outputs, back, g):
    """Add a tile's part of the gradient. `turned` holds the last two layers transposed."""
    inner, outer = LANES * pixels * hidden, LANES * (pixels + hidden) * hidden
    upper, lower = back[: LANES * TILE * hidden], back[LANES * TILE * hidden :]
    for c in range(CLASSES):
        out, row = outputs[LANES * TILE * c :], g[outer + LANES * hidden * c :]
        add_multiplied_lanes(second, TILE, 1, hidden, used, out, row, few)
    for j in range(hidden):
        row = turned[LANES * (hidden * hidden + CLASSES * j) :]
        multiply_lanes(outputs, 1, TILE, used, CLASSES, row, upper[LANES * TILE * j :], few)
    _keep_where_on(LANES * TILE * hidden, second, upper)
    for j in range(hidden):
        own, row = upper[LANES * TILE * j :], g[inner + LANES * hidden * j :]
        add_multiplied_lanes(first, TILE, 1, hidden, used, own, row, few)
    for j in range(hidden):
        row = turned[LANES * hidden * j :]
        multiply_lanes(upper, 1, TILE, used, hidden, row, lower[LANES * TILE * j :], few)
    _keep_where_on(LANES * TILE * hidden, first, lower)
    for j in range(hidden):
        own, row = lower[LANES * TILE * j :], g[LANES * pixels * j :]
        add_multiplied(x, 1, columns, pixels, used, own, row, few)


@jit
def digits(X, y, w, work, r, g):
    """Two hidden layers and ten outputs. The last two columns of X say how wide the layers are and
    whether the loss is cross-entropy."""
    examples, columns = X.shape
    pixels, hidden, entropy = columns - 2, int(X[0, columns - 2]), X[0, columns - 1] > 0
    flat, layer, few = X.reshape(-1), LANES * TILE * hidden, _are_few(w)
    first, second, back = work[:layer], work[layer : 2 * layer], work[2 * layer : 4 * layer]
    outputs = work[4 * layer : 4 * layer + LANES * TILE * CLASSES]
    turned = work[4 * layer + LANES * TILE * CLASSES :]
    _transpose(hidden, hidden, w[LANES * pixels * hidden :], turned)
    _transpose(CLASSES, hidden, w[LANES * (pixels + hidden) * hidden :],
               turned[LANES * hidden * hidden :])  # fmt: skip
    g[:] = 0
    for start in range(0, examples, TILE):
        used, x = min(TILE, examples - start), flat[columns * start :]
        _forward(pixels, columns, used, hidden, few, x, w, first, second, outputs)
        if entropy:
            _probabilities_less_truth(used, y[start:], 1 / examples, outputs, r[LANES * start :])
        else:
            _less_truth(used, y[start:], 1 / examples, outputs, r[LANES * start :])
        _backward(pixels, columns, used, hidden, few, x, turned, first, second, outputs, back, g)
