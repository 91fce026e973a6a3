"""Steps of a block in plain NumPy: the slow, obvious version, for any problem.

w_{n+1} = w_n − η g_n + ε_n with ε_n = Σ_j taps[j] σ_{d−j} ξ_{d−j} in every lane; g_n is the full
gradient, that of a mini-batch, or that for shifted labels, or what momentum or Adam makes of it.
The draw d comes with step n+1, or none while one is held. `compiled` does the same.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from antipgd.noise import kernels
from antipgd.noise.inplace import law_arguments
from antipgd.noise.stream import key_indices
from antipgd.paper.pipeline import Tick
from antipgd.paper.simulation import directions
from antipgd.paper.simulation.balancing import PairBalance
from antipgd.paper.simulation.blocks import LANES, Block
from antipgd.paper.simulation.orders import BALANCED, REPLACEMENT
from antipgd.paper.simulation.problems.problem import Array

RELAX_STEPS = 100_000
_LOOK = 256  # steps of a relaxation between two ticks
RELAX_TOLERANCE = 1e-8


class Stepper(Protocol):
    """A block on its way. A lane that left stands still at its last weights.

    `diverged_at` is the step at which a lane's weights would no longer have been finite, `left_at`
    the one at which its watched quantity was outside the interval; zero while neither happened.
    """

    step: int
    diverged_at: NDArray[np.int64]
    left_at: NDArray[np.int64]

    def advance(self, last: int) -> None:
        """Go on to step `last`, and look there whether lanes have left."""

    def weights(self) -> Array:
        """Weights of all lanes, shape (LANES, d)."""

    def averages(self) -> Array:
        """Of training loss, ‖w‖² and the watched quantity, by lane, over the run's last `average`
        steps at the weights where their gradients were taken; of the loss only with all examples
        and their own labels."""

    def relax(
        self, W: Array, going: NDArray[np.bool_], tick: Tick
    ) -> tuple[Array, NDArray[np.int64]]:
        """Noise-free descent of the lanes `going` until ‖g‖ < 1e-8 (1 + ‖g at the start‖).

        At most RELAX_STEPS steps. Returns the weights and how many steps each lane took, −1 for
        those that left the finite numbers. `tick` is called now and then and may raise to stop.
        """


# Where a method's gradient is taken, given the gradient as a function and each lane's σ.
GRADIENTS: dict[str, Callable[[Callable[[Array], Array], Array, Array], Array]] = {
    "plain": lambda at, W, sigma: at(W),
}


def weight_draws(block: Block, draw: int) -> Array:
    """ξ_draw of the weights, zero in the parts that get no noise.

    Antithetic, ξ_{2k} is −ξ_{2k−1}: both are ± the k-th draw of the stream.
    """
    number, sign = draw, 1.0
    if block.shared.antithetic:
        number, sign = -(-draw // 2), 1.0 if draw % 2 else -1.0
    return sign * block.mask_of(number) * lane_draws(block, block.keys[0], number, len(block.start))


def lane_draws(block: Block, key: int, step: int, count: int) -> Array:
    """ξ_step as float64; zero before step 1."""
    drawn = np.zeros(count, np.float32)
    if step >= 1:
        kernels.draw_into(drawn, np.uint64(key), step, 0, law_arguments(block.law))
    return drawn.astype(np.float64)


def balance_of(block: Block) -> PairBalance | None:
    """What orders the batches of a block whose gradients decide on them."""
    if block.shared.order != BALANCED:
        return None
    assert len(block.runs) == 1
    return PairBalance(block.shared.seed, block.problem.examples, len(block.start))


class NumpyStepper:
    """A `Stepper` that knows nothing but the problem's NumPy functions."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.step = 0
        self.diverged_at = np.zeros(LANES, np.int64)
        self.left_at = np.zeros(LANES, np.int64)
        self._alive = np.array([run is not None for run in block.lanes])
        self._W = np.tile(block.start, (LANES, 1))
        self._eta = block.per_lane(lambda run: run.lr)[:, None]
        self._kind = directions.kind_of(block)
        self._memory = directions.fresh_memory(self._kind, self._W.shape)
        self._powers = directions.fresh_powers()
        self._sums = np.zeros((3, LANES))
        self._balance = balance_of(block)

    def weights(self) -> Array:
        return self._W.copy()

    def averages(self) -> Array:
        return self._sums / (self.block.shared.average or 1)

    def advance(self, last: int) -> None:
        block, depth = self.block, len(self.block.taps)
        hold, draws_by = block.shared.hold, block.shared.draws_by
        oldest = draws_by(self.step) + 1 - max(depth, 1)  # of the draws needed, one still held
        sigmas = block.sigmas(oldest, draws_by(last) + 1)
        for n in range(self.step, last):
            self._look(n)
            if not self._alive.any():
                break
            self._add_up(n)
            draw = draws_by(n + 1)
            now = sigmas[: draw - oldest + 1][::-1][: max(depth, 1)]  # σ_draw, σ_{draw−1}, …
            W = self._W - self._eta * self._direction(self._gradient(n + 1, now[0]))
            if depth and n % hold == 0 and now.any():
                W = W + self._injection(draw, now)
            finite = np.isfinite(W).all(axis=1)
            self.diverged_at[self._alive & ~finite] = n + 1
            self._alive &= finite
            self._W[self._alive] = W[self._alive]
        self.step = last
        self._look(last)

    def _look(self, n: int) -> None:
        if self.block.shared.leave is not None and n > 0:
            low, high = self.block.shared.leave
            watched = self.block.problem.watch(self._W)
            left = self._alive & ~((low < watched) & (watched < high))
            self.left_at[left] = n
            self._alive &= ~left

    def _add_up(self, n: int) -> None:
        """What is averaged over the last steps, where the gradient of step n+1 is taken."""
        run, problem = self.block.shared, self.block.problem
        if run.average is not None and n >= run.steps - run.average:
            with np.errstate(over="ignore", invalid="ignore"):  # of one that diverges
                self._sums[0] += problem.loss(self._W, self.block.data)
                self._sums[1] += (self._W**2).sum(axis=1)
                self._sums[2] += problem.watch(self._W)

    def _direction(self, g: Array) -> Array:
        """What the optimizer makes of a gradient."""
        with np.errstate(over="ignore", invalid="ignore"):
            if self._kind == directions.ADAM:
                return directions.adam(g, self._memory, self._powers)
            if self._kind == directions.MOMENTUM:
                beta = self.block.per_lane(lambda run: run.momentum)[:, None]
                nesterov = self.block.per_lane(lambda run: run.nesterov)[:, None]
                return directions.heavy_ball(g, self._memory, beta, nesterov)
        return g

    def _gradient(self, step: int, sigma: Array) -> Array:
        block = self.block
        examples, batch = block.problem.examples, block.shared.batch
        _, batch_key, label_key = block.keys
        rows = None if batch is None else key_indices(batch_key, step, batch, examples)
        if self._balance is not None and batch is not None:
            rows = self._balance.rows(step - 1, batch)
        elif batch is not None and block.shared.order != REPLACEMENT:
            (rows,) = block.rows(step - 1, step)
        shift = None
        if block.labelled.any():
            drawn = lane_draws(block, label_key, step, batch or examples)
            shift = (block.labelled * sigma)[:, None] * drawn

        def at(W: Array) -> Array:
            if rows is None and shift is None:
                return block.problem.gradient(W, block.data)
            return block.problem.gradient(W, block.data, rows, shift)

        with np.errstate(over="ignore", invalid="ignore"):
            if self._balance is not None and rows is not None:
                self._show(self._balance, step, rows, shift)
            return GRADIENTS[block.gradient](at, self._W, sigma)

    def _show(
        self, balance: PairBalance, step: int, rows: NDArray[np.int64], shift: Array | None
    ) -> None:
        """The gradient of each example of a batch, for the next epoch's order."""
        block, lane = self.block, self.block.runs[0][0]
        begin = (step - 1) * len(rows) % block.problem.examples
        for i in range(len(rows)):
            own = None if shift is None else shift[:, i : i + 1]
            each = block.problem.gradient(self._W, block.data, rows[i : i + 1], own)
            balance.show(begin + i, each[lane])

    def _injection(self, newest: int, sigmas: Array) -> Array:
        """Σ_j taps[j] σ_{newest−j} ξ_{newest−j}, from the newest draw to the oldest, but for those
        that stay."""
        total = np.zeros_like(self._W)
        for lag, (taps, sigma) in enumerate(zip(self.block.taps, sigmas, strict=True)):
            if lag and newest - lag <= self.block.shared.kept:
                break
            total += (taps * sigma)[:, None] * weight_draws(self.block, newest - lag)
        return total

    def relax(
        self, W: Array, going: NDArray[np.bool_], tick: Tick
    ) -> tuple[Array, NDArray[np.int64]]:
        problem, data = self.block.problem, self.block.data
        W, going, steps = W.copy(), going.copy(), np.zeros(LANES, np.int64)
        with np.errstate(over="ignore", invalid="ignore"):
            g = problem.gradient(W, data)
            enough = RELAX_TOLERANCE * (1 + np.linalg.norm(g, axis=1))
            for n in range(RELAX_STEPS):
                if n % _LOOK == 0:
                    tick(0)
                going &= ~(np.linalg.norm(g, axis=1) < enough)
                if not going.any():
                    break
                after = W - self._eta * g
                lost = going & ~np.isfinite(after).all(axis=1)
                steps[lost] = -1
                going &= ~lost
                W[going] = after[going]
                steps[going] += 1
                g = problem.gradient(W, data)
        return W, steps
