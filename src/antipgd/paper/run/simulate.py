"""Many small runs at once: a block of runs to its end, with measurements on the way.

Measures at w and at z, and relaxed at the end. Each run is measured by itself, all its points in
one call, so that neither its steps nor its measurements depend on the other runs of the block.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from antipgd.noise import reference
from antipgd.paper.problems.problem import Array
from antipgd.paper.record import MEASURES, Point, Record
from antipgd.paper.run.blocks import LANES, Block
from antipgd.paper.run.compiled import CompiledStepper
from antipgd.paper.run.stepping import (
    RELAX_STEPS,
    NumpyStepper,
    Stepper,
    weight_draws,
)
from antipgd.paper.spec import Run

Tick = Callable[[int], None]
_CHUNK = 4096  # steps between two looks at the progress

Snapshot = tuple[int, str, Array]


def make_stepper(block: Block) -> Stepper:
    """The compiled one where the problem has a kernel."""
    return CompiledStepper(block) if block.has_kernel else NumpyStepper(block)


def _clean(block: Block, run: Run, w: Array, step: int, drawn: dict[int, Array]) -> Array:
    """z, what remains of w without the draws it carries."""
    if not run.taps:
        return w

    def draw(k: int) -> Array:
        if k not in drawn:
            drawn[k] = weight_draws(block, k)
        return drawn[k]

    z = reference.clean(
        w, step, draw=draw, sigma=lambda k: run.sigma * run.factor(k), taps=run.taps
    )
    return z.astype(np.float64, copy=False)


def _photograph(
    block: Block, stepper: Stepper, seen: dict[int, list[Snapshot]], done: set[int]
) -> None:
    """Keep w and z of every lane that is still on its way, or has just left its interval."""
    W, drawn = stepper.weights(), {}  # type: tuple[Array, dict[int, Array]]
    for lane, run in block.runs:
        if lane in done or stepper.diverged_at[lane]:
            continue
        step = int(stepper.left_at[lane]) or stepper.step
        if stepper.left_at[lane]:
            done.add(lane)
        seen[lane].append((step, "w", W[lane]))
        if run.has_clean_weights:
            draws = drawn if step == stepper.step else {}
            seen[lane].append((step, "z", _clean(block, run, W[lane], step, draws)))


def _measured(block: Block, shots: list[Snapshot]) -> tuple[Point, ...]:
    """All measures of each snapshot; infinite where the weights are not finite."""
    problem, data = block.problem, block.data
    W = np.array([w for _, _, w in shots])
    there = np.isfinite(W).all(axis=1)
    values = np.full((len(W), len(MEASURES)), np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        values[there] = np.column_stack(
            [
                problem.loss(W[there], data),
                problem.test_loss(W[there], data),
                problem.trace(W[there], data),
                np.sqrt((W[there] ** 2).sum(axis=1)),
                problem.watch(W[there]),
            ]
        )
    rows = [[None if np.isnan(value) else value for value in row] for row in values.tolist()]
    return tuple((step, place, *row) for (step, place, _), row in zip(shots, rows, strict=True))


def _relax(
    block: Block, stepper: Stepper, seen: dict[int, list[Snapshot]]
) -> dict[int, tuple[int, bool]]:
    """Relax from z, or from w where z does not exist; (steps, whether it converged) by lane."""
    if not block.shared.relax:
        return {}
    start = np.full((LANES, len(block.start)), np.nan)
    lanes = [lane for lane, _ in block.runs if seen[lane] and not stepper.diverged_at[lane]]
    for lane in lanes:
        start[lane] = seen[lane][-1][2]
    W, steps = stepper.relax(start)
    for lane in lanes:
        w = W[lane] if steps[lane] >= 0 else np.full_like(W[lane], np.inf)
        seen[lane].append((seen[lane][-1][0], "relaxed", w))
    taken = {lane: int(steps[lane]) for lane in lanes}
    return {lane: (abs(n), 0 <= n < RELAX_STEPS) for lane, n in taken.items()}


def _status(stepper: Stepper, block: Block, lane: int, w: Array) -> str:
    if stepper.diverged_at[lane]:
        return "diverged"
    if not stepper.left_at[lane]:
        return "ok"
    assert block.shared.leave is not None
    low, _ = block.shared.leave
    return "left low" if block.problem.watch(w[None])[0] <= low else "left high"


def simulate(block: Block, tick: Tick = lambda run_steps: None) -> list[Record]:
    """The records of a block's runs. `tick` is told of run-steps done, and may raise to stop."""
    stepper = make_stepper(block)
    seen: dict[int, list[Snapshot]] = {lane: [] for lane, _ in block.runs}
    done: set[int] = set()
    _photograph(block, stepper, seen, done)
    for before, after in pairwise(block.shared.measure):
        for step in [*range(before + _CHUNK, after, _CHUNK), after]:
            taken = step - stepper.step
            stepper.advance(step)
            tick(taken * len(block.runs))
        _photograph(block, stepper, seen, done)
    relaxed = _relax(block, stepper, seen)
    records = []
    for lane, run in block.runs:
        ends = {place: w for _, place, w in seen[lane] if np.isfinite(w).all()}
        steps, converged = relaxed.get(lane, (None, None))
        records.append(
            Record(
                run=run,
                status=_status(stepper, block, lane, ends["w"]),
                diverged_at=int(stepper.diverged_at[lane]) or None,
                left_at=int(stepper.left_at[lane]) or None,
                points=_measured(block, seen[lane]),
                weights={place: tuple(map(float, w)) for place, w in ends.items()},
                relax_steps=steps,
                relaxation_converged=converged,
            )
        )
    return records
