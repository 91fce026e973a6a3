"""Steps of a block in compiled code: what `stepping.NumpyStepper` does, some hundred times faster.

Eight runs in vector lanes share each gradient's data and each draw. See `problems.products` for the
layout and for why a run's bits are its own.
"""

import numpy as np
from numpy.typing import NDArray

from antipgd.compiling import jit_with
from antipgd.noise import kernels as noise
from antipgd.noise import stream, transforms
from antipgd.noise.inplace import law_arguments
from antipgd.paper.pipeline import Tick
from antipgd.paper.simulation import directions, lanes
from antipgd.paper.simulation.balancing import PairBalance
from antipgd.paper.simulation.blocks import LANES, Block
from antipgd.paper.simulation.problems import codes, layers, products
from antipgd.paper.simulation.problems import kernels as problems
from antipgd.paper.simulation.problems.problem import Array
from antipgd.paper.simulation.stepping import RELAX_STEPS, RELAX_TOLERANCE, balance_of

jit = jit_with(noise, stream, transforms, problems, products, layers, codes, lanes, directions)

assert problems.LANES == LANES
_LOOK = 4096  # steps of a relaxation between two ticks


@jit
def _add_up(code, examples, r, w, watched, norms, sums):
    """Add what is averaged at `w`: see `stepping.Stepper.averages`."""
    problems.add_losses(code, examples, r, w, watched, sums[0])
    lanes.squared_norms(w, norms)
    for lane in range(LANES):
        sums[1, lane] += norms[lane]
        sums[2, lane] += watched[lane]


@jit
def _renew(lag, row, stays, taps, sigmas, current):
    """Taps × σ of a lag into `current`, nought for a draw that stays; whether they are others than
    before."""
    changed = False
    for lane in range(LANES):
        value = 0.0 if stays else taps[lag, lane] * sigmas[row - lag, lane]
        changed = changed or value != current[lag, lane]
        current[lag, lane] = value
    return changed


@jit
def _first_alive(alive):
    """The lane of a run that is alone."""
    for lane in range(LANES):
        if alive[lane]:
            return lane
    return 0


@jit
def _next_rows(n, order, following, total, indices):
    """What `balancing.PairBalance.rows` returns, into `indices`."""
    begin = n * indices.shape[0] % order.shape[0]
    if begin == 0 and n > 0:
        order[:] = following
        total[:] = 0
    indices[:] = order[begin : begin + indices.shape[0]]


@jit
def _show(
    n, code, matrix, vector, indices, shift, w, work, r, watched, g, lane, one, label,
    order, following, total, first,
):  # fmt: skip
    """The gradient of each example of a batch, for the next epoch's order."""
    begin = n * indices.shape[0] % order.shape[0]
    for i in range(indices.shape[0]):
        lanes.choose(indices[i : i + 1], matrix, vector, one, label)
        problems.gradient(code, one, label, shift[LANES * i :], w, work, r, watched, g)
        lanes.balance(begin + i, lane, g, order, following, total, first)


@jit
def _advance(
    code, matrix, vector, batch, rows, order, following, total, paired, law, keys, mask, taps,
    labelled, first, last, sigmas,
    watching, low, high, weights, alive, eta, frozen, diverged_at, left_at,
    hold, pairs, kept, kind, beta, nesterov, memory, powers, averaged_from, sums,
):  # fmt: skip
    """Steps first … last−1; row k of `sigmas` belongs to draw newest + 2 − rows of taps + k, where
    `newest` is the last one that came before them. `rows` are those of each step, or none; `order`
    to `paired` are a `balancing.PairBalance`, or empty."""
    size, depth, newest = weights.shape[0], taps.shape[0], -(-first // hold)
    used = batch if batch > 0 else vector.shape[0]
    chosen, labels = np.empty((batch, matrix.shape[1])), np.empty(batch)
    indices = np.empty(batch, np.int64)
    one, label, lane_of_run = np.empty((1, matrix.shape[1])), np.empty(1), _first_alive(alive)
    room = max(used, vector.shape[0]) * LANES  # the last look takes all examples
    shift, r = np.zeros(room), np.empty(room)
    label_draws, everywhere, negative = np.empty(used * LANES), np.ones(used), -mask
    work = np.empty(problems.work_size(code, matrix, size))
    g, eps = np.zeros(size), np.zeros(size)
    w, new = weights.copy(), np.empty(size)
    watched, norms, moving_labels = np.zeros(LANES), np.zeros(LANES), lanes.any_of(labelled)
    draws = np.zeros((depth, size))  # ξ_k in row k mod depth, in all lanes
    factors, current = np.zeros((depth, size)), np.zeros((depth, LANES))  # taps × σ
    words, signs, _older, xi, _eps = noise.workspace(np.empty(0, np.float32))
    for k in range(max(newest + 2 - depth, 1), newest + 1):
        lanes.draw_signed(keys[0], k, pairs, law, mask, negative, words, signs, xi,
                          draws[k % depth])  # fmt: skip
    for n in range(first, last):
        if not lanes.any_of(alive):
            break
        draw = n + 1 if hold == 1 else n // hold + 1  # which step n + 1 has
        row = draw - newest + max(depth, 1) - 2
        brought = depth > 0 and (hold == 1 or n % hold == 0)
        if moving_labels:
            lanes.draw_into(keys[2], n + 1, law, everywhere, words, signs, xi, label_draws)
            lanes.shift_labels(used, labelled, sigmas[row], label_draws, shift)
        if batch > 0:
            if order.shape[0] > 0:
                _next_rows(n, order, following, total, indices)
                _show(n, code, matrix, vector, indices, shift, w, work, r, watched, g, lane_of_run,
                      one, label, order, following, total, paired)  # fmt: skip
            elif rows.shape[0] > 0:
                indices[:] = rows[n - first]
            else:
                noise.draw_indices(keys[1], n + 1, vector.shape[0], words, indices)
            lanes.choose(indices, matrix, vector, chosen, labels)
            problems.gradient(code, chosen, labels, shift, w, work, r, watched, g)
        else:
            problems.gradient(code, matrix, vector, shift, w, work, r, watched, g)
        if watching and n > 0:
            lanes.look(n, low, high, watched, w, alive, eta, taps, frozen, left_at)
        if n >= averaged_from:
            _add_up(code, vector.shape[0], r, w, watched, norms, sums)
        if kind > 0:
            lanes.direct(kind, beta, nesterov, memory, powers, g)
        if brought:
            lanes.draw_signed(keys[0], draw, pairs, law, mask, negative, words, signs, xi,
                              draws[draw % depth])  # fmt: skip
            for lag in range(depth):
                stays = lag > 0 and draw - lag <= kept
                if _renew(lag, row, stays, taps, sigmas, current) or draw == newest + 1:
                    lanes.spread_coefficients(mask.shape[0], current[lag], factors[lag])
                if lag == 0:
                    lanes.set_product(size, factors[lag], draws[draw % depth], eps)
                else:
                    lanes.add_product(size, factors[lag], draws[(draw - lag) % depth], eps)
        elif hold > 1:
            eps[:] = 0
        if lanes.move(size, w, eta, g, eps, new) > 0:
            lanes.lose(n + 1, new, w, alive, eta, taps, frozen, diverged_at)
            lanes.forget(alive, memory)
        w, new = new, w
    if watching and last > 0:
        problems.gradient(code, matrix, vector, shift, w, work, r, watched, g)
        lanes.look(last, low, high, watched, w, alive, eta, taps, frozen, left_at)
    weights[:] = w


@jit
def _relax(code, matrix, vector, first, last, enough, weights, going, eta, final, steps):
    """Steps first … last−1 of a descent, per lane until its gradient is small.

    See `stepping.Stepper.relax`. `enough` is set at step 0.
    """
    size, used = weights.shape[0], vector.shape[0]
    shift, r = np.zeros(used * LANES), np.empty(used * LANES)
    work = np.empty(problems.work_size(code, matrix, size))
    g, eps = np.zeros(size), np.zeros(size)
    w, new = weights.copy(), np.empty(size)
    watched, norms = np.zeros(LANES), np.zeros(LANES)
    lost_at, taps = np.zeros(LANES, np.int64), np.zeros((0, LANES))
    for n in range(first, last):
        problems.gradient(code, matrix, vector, shift, w, work, r, watched, g)
        lanes.squared_norms(g, norms)
        for lane in range(LANES):
            norm = np.sqrt(norms[lane])
            if n == 0:
                enough[lane] *= 1 + norm
            if going[lane] and norm < enough[lane]:
                steps[lane] = n
                lanes.freeze(lane, w, going, eta, taps, final)
        if not lanes.any_of(going):
            break
        if lanes.move(size, w, eta, g, eps, new) > 0:
            lanes.lose(n + 1, new, w, going, eta, taps, final, lost_at)
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
        self._kind = directions.kind_of(block)
        self._optimizer = (
            self._kind,
            np.tile(block.per_lane(lambda run: run.momentum), d),
            np.tile(block.per_lane(lambda run: run.nesterov), d),
            directions.fresh_memory(self._kind, self._w.shape),
            directions.fresh_powers(),
        )
        self._sums = np.zeros((3, LANES))
        balance = balance_of(block) or PairBalance(0, 0, 0)
        self._balance = (balance.order, balance.following, balance.total, balance.first)

    def weights(self) -> Array:
        return np.where(self._alive[:, None], self._w.reshape(-1, LANES).T, self._frozen)

    def averages(self) -> Array:
        return self._sums / (self.block.shared.average or 1)

    def advance(self, last: int) -> None:
        block, run, first, depth = self.block, self.block.shared, self.step, len(self._taps)
        low, high = run.leave or (0.0, 0.0)
        _advance(
            *self._data, run.batch or 0, block.rows(first, last), *self._balance,
            law_arguments(block.law), np.array(block.keys, np.uint64), block.mask, self._taps,
            block.labelled, first, last,
            block.sigmas(run.draws_by(first) + 2 - max(depth, 1), run.draws_by(last) + 1),
            run.leave is not None, low, high,
            self._w, self._alive, self._eta, self._frozen, self.diverged_at, self.left_at,
            run.hold, run.antithetic, run.kept, *self._optimizer, run.steps - (run.average or 0),
            self._sums,
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
