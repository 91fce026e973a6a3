"""Steps of a block in compiled code: what `stepping.NumpyStepper` does, some hundred times faster.

Eight runs in vector lanes share each gradient's data and each draw. See `problems.kernels` for the
layout and for why a run's bits are its own.
"""

import numpy as np
from numpy.typing import NDArray

from antipgd.compiling import jit_with
from antipgd.noise import kernels as noise
from antipgd.noise import stream, transforms
from antipgd.noise.inplace import law_arguments
from antipgd.paper.pipeline import Tick
from antipgd.paper.simulation.blocks import LANES, Block
from antipgd.paper.simulation.problems import codes
from antipgd.paper.simulation.problems import kernels as problems
from antipgd.paper.simulation.problems.problem import Array
from antipgd.paper.simulation.stepping import RELAX_STEPS, RELAX_TOLERANCE

jit = jit_with(noise, stream, transforms, problems, codes)

assert problems.LANES == LANES
_LOOK = 4096  # steps of a relaxation between two ticks
_LARGEST = np.finfo(np.float64).max


@jit
def _spread(n, xi, mask, start, out):
    """A draw into all lanes, zero where the mask is."""
    noise.not_inlined()
    for j in range(n):
        for lane in range(LANES):
            out[LANES * (start + j) + lane] = xi[j] * mask[start + j]


@jit
def _spread_coefficients(n, coefficients, out):
    noise.not_inlined()
    for j in range(n):
        for lane in range(LANES):
            out[LANES * j + lane] = coefficients[lane]


@jit
def _set_product(n, a, b, out):
    noise.not_inlined()
    noise.widest_vectors()
    for i in range(n):
        out[i] = a[i] * b[i]


@jit
def _add_product(n, a, b, out):
    noise.not_inlined()
    noise.widest_vectors()
    for i in range(n):
        out[i] += a[i] * b[i]


@jit
def _move(n, w, eta, g, eps, out):
    """out = w − η g + ε; returns how many elements are not finite."""
    noise.not_inlined()
    noise.widest_vectors()
    bad = 0
    for i in range(n):
        x = w[i] - eta[i] * g[i] + eps[i]
        out[i] = x
        bad += 0 if abs(x) <= _LARGEST else 1
    return bad


@jit
def _zero_lane(lane, out):
    for j in range(out.shape[0] // LANES):
        out[LANES * j + lane] = 0


@jit
def _freeze(lane, w, alive, eta, taps, frozen):
    """Put a lane's weights aside. It goes on at zero, with no step and no noise."""
    for j in range(w.shape[0] // LANES):
        frozen[lane, j] = w[LANES * j + lane]
    _zero_lane(lane, w)
    _zero_lane(lane, eta)
    taps[:, lane] = 0
    alive[lane] = False


@jit
def _look(n, low, high, watched, w, alive, eta, taps, frozen, left_at):
    """Freeze the lanes whose watched quantity is not inside the open interval."""
    for lane in range(LANES):
        if alive[lane] and not low < watched[lane] < high:
            left_at[lane] = n
            _freeze(lane, w, alive, eta, taps, frozen)


@jit
def _lose(n, new, w, alive, eta, taps, frozen, diverged_at):
    """Freeze the lanes of which something in `new` is not finite."""
    for lane in range(LANES):
        lost = False
        for j in range(w.shape[0] // LANES):
            lost = lost or not abs(new[LANES * j + lane]) <= _LARGEST
        if lost and alive[lane]:
            diverged_at[lane] = n
            _freeze(lane, w, alive, eta, taps, frozen)
        if lost:
            _zero_lane(lane, new)


@jit
def _any(flags):
    for lane in range(LANES):
        if flags[lane]:
            return True
    return False


@jit
def _draw(key, step, d, law, mask, words, signs, xi, out):
    """ξ_step into all lanes of `out`."""
    for start in range(0, d, noise.CHUNK):
        n = min(noise.CHUNK, d - start)
        noise.draw_chunk(key, step, start, n, law, words, signs, xi)
        _spread(n, xi, mask, start, out)


@jit
def _choose(indices, matrix, vector, chosen, labels):
    for i in range(indices.shape[0]):
        labels[i] = vector[indices[i]]
        for j in range(matrix.shape[1]):
            chosen[i, j] = matrix[indices[i], j]


@jit
def _shift_labels(n, scale, draws, shift):
    for i in range(n):
        for lane in range(LANES):
            shift[LANES * i + lane] = scale[lane] * draws[LANES * i + lane]


@jit
def _squared_norms(g, norms):
    norms[:] = 0
    for j in range(g.shape[0] // LANES):
        for lane in range(LANES):
            norms[lane] += g[LANES * j + lane] * g[LANES * j + lane]


@jit
def _advance(
    code, matrix, vector, batch, law, keys, mask, taps, labelled, first, last, sigmas,
    watching, low, high, weights, alive, eta, frozen, diverged_at, left_at,
):  # fmt: skip
    """Steps first … last−1; row k of `sigmas` belongs to draw first + 2 − rows of taps + k."""
    size, depth = weights.shape[0], taps.shape[0]
    d = size // LANES
    used = batch if batch > 0 else vector.shape[0]
    chosen, labels = np.empty((batch, matrix.shape[1])), np.empty(batch)
    indices = np.empty(batch, np.int64)
    room = max(used, vector.shape[0]) * LANES  # the last look takes all examples
    shift, r = np.zeros(room), np.empty(room)
    label_draws = np.empty(used * LANES)
    squares, g, eps = np.empty(size), np.zeros(size), np.zeros(size)
    w, new = weights.copy(), np.empty(size)
    everywhere = np.ones(used)
    watched, scale, moving_labels = np.zeros(LANES), np.zeros(LANES), _any(labelled)
    draws = np.zeros((depth, size))  # ξ_k in row k mod depth, in all lanes
    factors = np.zeros((depth, size))  # taps × σ
    current = np.zeros((depth, LANES))
    words, signs, _older, xi, _eps = noise.workspace(np.empty(0, np.float32))
    for k in range(max(first + 2 - depth, 1), first + 1):
        _draw(keys[0], k, d, law, mask, words, signs, xi, draws[k % depth])
    for n in range(first, last):
        if not _any(alive):
            break
        now = n - first + max(depth, 1) - 1  # the row of draw n + 1
        if moving_labels:
            _draw(keys[2], n + 1, used, law, everywhere, words, signs, xi, label_draws)
            for lane in range(LANES):
                scale[lane] = labelled[lane] * sigmas[now, lane]
            _shift_labels(used, scale, label_draws, shift)
        if batch > 0:
            noise.draw_indices(keys[1], n + 1, vector.shape[0], words, indices)
            _choose(indices, matrix, vector, chosen, labels)
            problems.gradient(code, chosen, labels, shift, w, squares, r, watched, g)
        else:
            problems.gradient(code, matrix, vector, shift, w, squares, r, watched, g)
        if watching and n > 0:
            _look(n, low, high, watched, w, alive, eta, taps, frozen, left_at)
        if depth > 0:
            _draw(keys[0], n + 1, d, law, mask, words, signs, xi, draws[(n + 1) % depth])
        for lag in range(depth):
            changed = n == first
            for lane in range(LANES):
                value = taps[lag, lane] * sigmas[now - lag, lane]
                changed = changed or value != current[lag, lane]
                current[lag, lane] = value
            if changed:
                _spread_coefficients(d, current[lag], factors[lag])
            if lag == 0:
                _set_product(size, factors[lag], draws[(n + 1) % depth], eps)
            else:
                _add_product(size, factors[lag], draws[(n + 1 - lag) % depth], eps)
        if _move(size, w, eta, g, eps, new) > 0:
            _lose(n + 1, new, w, alive, eta, taps, frozen, diverged_at)
        w, new = new, w
    if watching and last > 0:
        problems.gradient(code, matrix, vector, shift, w, squares, r, watched, g)
        _look(last, low, high, watched, w, alive, eta, taps, frozen, left_at)
    weights[:] = w


@jit
def _relax(code, matrix, vector, first, last, enough, weights, going, eta, final, steps):
    """Steps first … last−1 of a descent, per lane until its gradient is small.

    See `stepping.Stepper.relax`. `enough` is set at step 0.
    """
    size, used = weights.shape[0], vector.shape[0]
    shift, r = np.zeros(used * LANES), np.empty(used * LANES)
    squares, g, eps = np.empty(size), np.zeros(size), np.zeros(size)
    w, new = weights.copy(), np.empty(size)
    watched, norms = np.zeros(LANES), np.zeros(LANES)
    lost_at, taps = np.zeros(LANES, np.int64), np.zeros((0, LANES))
    for n in range(first, last):
        problems.gradient(code, matrix, vector, shift, w, squares, r, watched, g)
        _squared_norms(g, norms)
        for lane in range(LANES):
            norm = np.sqrt(norms[lane])
            if n == 0:
                enough[lane] *= 1 + norm
            if going[lane] and norm < enough[lane]:
                steps[lane] = n
                _freeze(lane, w, going, eta, taps, final)
        if not _any(going):
            break
        if _move(size, w, eta, g, eps, new) > 0:
            _lose(n + 1, new, w, going, eta, taps, final, lost_at)
        w, new = new, w
    for lane in range(LANES):
        if lost_at[lane] > 0:
            steps[lane] = -1
    weights[:] = w


def _in_lanes(W: Array) -> Array:
    return np.ascontiguousarray(W.T).reshape(-1)


class CompiledStepper:
    """A `Stepper` for problems that have a kernel."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.step = 0
        self.diverged_at = np.zeros(LANES, np.int64)
        self.left_at = np.zeros(LANES, np.int64)
        d = len(block.start)
        compiled = block.problem.compiled(block.data)
        assert compiled is not None
        if not 0 <= compiled.code < len(codes.KERNELS):
            raise NotImplementedError(
                f"{block.shared.problem} has a kernel of number {compiled.code}, which is not "
                f"compiled; accepted: {', '.join(codes.KERNELS)}"
            )
        self._data = (
            compiled.code,
            np.ascontiguousarray(compiled.matrix, np.float64),
            np.ascontiguousarray(compiled.vector, np.float64),
        )
        self._alive = np.array([run is not None for run in block.lanes])
        self._w = _in_lanes(np.where(self._alive[:, None], block.start, 0.0))
        self._eta = np.tile(block.per_lane(lambda run: run.lr), d)
        self._taps = block.taps.copy()
        self._frozen = np.zeros((LANES, d))

    def weights(self) -> Array:
        return np.where(self._alive[:, None], self._w.reshape(-1, LANES).T, self._frozen)

    def advance(self, last: int) -> None:
        block, first, depth = self.block, self.step, len(self._taps)
        low, high = block.shared.leave or (0.0, 0.0)
        _advance(
            *self._data, block.shared.batch or 0, law_arguments(block.law),
            np.array(block.keys, np.uint64), block.mask, self._taps, block.labelled, first, last,
            block.sigmas(first + 2 - max(depth, 1), last + 1),
            block.shared.leave is not None, low, high,
            self._w, self._alive, self._eta, self._frozen, self.diverged_at, self.left_at,
        )  # fmt: skip
        self.step = last

    def relax(
        self, W: Array, going: NDArray[np.bool_], tick: Tick
    ) -> tuple[Array, NDArray[np.int64]]:
        going, final, steps = going.copy(), W.copy(), np.full(LANES, RELAX_STEPS, np.int64)
        eta = np.tile(self.block.per_lane(lambda run: run.lr) * going, W.shape[1])
        w, enough = _in_lanes(np.where(going[:, None], W, 0.0)), np.full(LANES, RELAX_TOLERANCE)
        for first in range(0, RELAX_STEPS, _LOOK):
            last = min(first + _LOOK, RELAX_STEPS)
            _relax(*self._data, first, last, enough, w, going, eta, final, steps)
            tick(0)
            if not going.any():
                break
        final[going] = w.reshape(-1, LANES).T[going]
        return final, steps
