"""The gradients of the paper's problems, compiled: eight runs at a time, one per vector lane.

See `products` for the layout, and why a run has the same bits whatever shares its lanes and on
every CPU. Proven equal to the NumPy forms in the tests.

A kernel that changes results needs a new RESULTS_VERSION (see `spec`).
"""

import numpy as np

from antipgd.compiling import jit_with
from antipgd.paper.simulation.problems import codes, layers, products
from antipgd.paper.simulation.problems.codes import (
    DIGITS_NETWORK,
    MATRIX_SENSING,
    ONE_HIDDEN_UNIT,
    QUADRATIC_REGRESSION,
    STUDENT_TEACHER,
    WIDENING_VALLEY,
)
from antipgd.paper.simulation.problems.products import LANES, multiply, multiply_lanes

jit = jit_with(codes, layers, products)


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
def work_size(code, matrix, size):
    """How many numbers of work space `gradient` needs with so many weights in lanes."""
    if code == STUDENT_TEACHER:
        return layers.student_work(matrix.shape[1], size)
    if code == DIGITS_NETWORK:
        return layers.digits_work(int(matrix[0, matrix.shape[1] - 2]), size)
    return size


@jit
def gradient(code, matrix, vector, shift, w, work, r, watched, g):
    """Gradients at `w` into `g`; the watched quantity, where there is one, into `watched`.

    `matrix` and `vector` hold the examples to use, `shift` (in lanes) what to add to their labels.
    `work` and `r` are work arrays, of `work_size` and as long as shift.
    """
    if code == QUADRATIC_REGRESSION:
        _regression(matrix, vector, shift, w, work, r, g)
    elif code == WIDENING_VALLEY:
        _valley(w, watched, g)
    elif code == MATRIX_SENSING:
        _sensing(matrix, vector, shift, w, work, r, g)
    elif code == ONE_HIDDEN_UNIT:
        _hidden_unit(matrix, vector, shift, w, r, watched, g)
    elif code == STUDENT_TEACHER:
        layers.student(matrix, vector, shift, w, work, r, watched, g)
    elif code == DIGITS_NETWORK:
        layers.digits(matrix, vector, w, work, r, g)
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
            one = r[LANES * i + lane]
            total += one if code == DIGITS_NETWORK else one * one
        sums[lane] += total / divisor
