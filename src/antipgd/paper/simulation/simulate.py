"""Many small runs at once: a block of runs to its end, with measurements on the way.

Measures at w and at z, and relaxed at the end. Each run is measured by itself, all its points in
one call, so that neither its steps nor its measurements depend on the other runs of the block.
"""

from itertools import pairwise

import numpy as np

from antipgd.noise import reference
from antipgd.paper.pipeline import Tick
from antipgd.paper.record import Point, Record
from antipgd.paper.simulation.blocks import LANES, Block
from antipgd.paper.simulation.compiled import CompiledStepper
from antipgd.paper.simulation.problems.problem import Array, Problem
from antipgd.paper.simulation.spec import MEASURES, Run
from antipgd.paper.simulation.stepping import (
    RELAX_STEPS,
    NumpyStepper,
    Stepper,
    weight_draws,
)

_CHUNK = 4096  # steps between two looks at the progress

Snapshot = tuple[int, str, Array]


def make_stepper(block: Block) -> Stepper:
    """The compiled one where the problem has a kernel; else its functions are examined first."""
    if block.has_kernel:
        return CompiledStepper(block)
    _check_shapes(block)
    return NumpyStepper(block)


def _gradient_at_start(block: Block, W: Array) -> Array:
    """A gradient with arguments like those that the steps will give."""
    problem, batch = block.problem, block.shared.batch
    rows = None if batch is None else np.zeros(batch, np.int64)
    shift = None
    if block.labelled.any():
        shift = np.zeros((len(W), batch or problem.examples))
    if rows is None and shift is None:
        return problem.gradient(W, block.data)
    return problem.gradient(W, block.data, rows, shift)


def _check_shapes(block: Block) -> None:
    """Refuse functions that do not give one number, or one gradient, for each row of W."""
    problem, data, d = block.problem, block.data, len(block.start)
    R = 3 if d != 3 else 2  # so that a sum over the wrong axis shows
    W = np.tile(block.start, (R, 1))
    with np.errstate(all="ignore"):
        found = {
            "loss": problem.loss(W, data),
            "gradient": _gradient_at_start(block, W),
            "test_loss": problem.test_loss(W, data),
            "watch": problem.watch(W),
        }
        if type(problem).trace is not Problem.trace:  # else it follows from the gradient
            found["trace"] = problem.trace(W, data)
    for function, value in found.items():
        shape, each = ((R, d), "gradient") if function == "gradient" else ((R,), "number")
        if np.shape(value) != shape:
            raise ValueError(
                f"{type(problem).__name__}.{function} must return shape {shape}, one {each} per "
                f"row; got {np.shape(value)}"
            )


def _clean(block: Block, run: Run, w: Array, step: int, drawn: dict[int, Array]) -> Array:
    """z, what remains of w without the draws it carries."""
    if not run.taps:
        return w

    def draw(k: int) -> Array:
        if k not in drawn:
            drawn[k] = weight_draws(block, k)
        return drawn[k]

    z = reference.clean(
        w,
        run.draws_by(step),
        draw=draw,
        sigma=lambda k: run.sigma * run.draw_factor(k) if k > run.kept else 0.0,
        taps=run.taps,
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


def _averaged(block: Block, stepper: Stepper, lane: int) -> tuple[Point, ...]:
    """A row of means over the last steps, of what is added up there; none if the lane diverged."""
    run = block.shared
    if run.average is None or stepper.diverged_at[lane]:
        return ()
    loss, norm2, watched = stepper.averages()[:, lane].tolist()
    if run.batch is not None or block.labelled[lane]:
        loss = np.nan  # what the steps see is not the loss of all examples
    if type(block.problem).watch is Problem.watch:
        watched = np.nan
    means = (loss, np.nan, np.nan, norm2**0.5, watched)
    return ((run.steps, "average", *(None if np.isnan(mean) else mean for mean in means)),)


def _relax(
    block: Block, stepper: Stepper, seen: dict[int, list[Snapshot]], tick: Tick
) -> dict[int, tuple[int | None, bool]]:
    """Relax from z, or from w where z does not exist; (steps, whether it converged) by lane."""
    if not block.shared.relax:
        return {}
    start, going = np.tile(block.start, (LANES, 1)), np.zeros(LANES, bool)
    lanes = [lane for lane, _ in block.runs if seen[lane] and not stepper.diverged_at[lane]]
    for lane in lanes:
        start[lane], going[lane] = seen[lane][-1][2], True
    W, steps = stepper.relax(start, going, tick)
    for lane in lanes:
        w = W[lane] if steps[lane] >= 0 else np.full_like(W[lane], np.inf)
        seen[lane].append((seen[lane][-1][0], "relaxed", w))
    taken = {lane: int(steps[lane]) for lane in lanes}
    return {lane: (n if n >= 0 else None, 0 <= n < RELAX_STEPS) for lane, n in taken.items()}


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
    relaxed = _relax(block, stepper, seen, tick)
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
                points=_measured(block, seen[lane]) + _averaged(block, stepper, lane),
                weights={place: tuple(map(float, w)) for place, w in ends.items()},
                relax_steps=steps,
                relaxation_converged=converged,
            )
        )
    return records
