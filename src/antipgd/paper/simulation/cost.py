"""How long runs will take, from a few steps of each kind of block."""

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from antipgd.paper.simulation.blocks import LANES, Block
from antipgd.paper.simulation.local import plan
from antipgd.paper.simulation.simulate import make_stepper
from antipgd.paper.simulation.spec import Run
from antipgd.paper.simulation.stepping import RELAX_STEPS

_TRIALS, _TRIAL_STEPS = 3, 200


class Cost(NamedTuple):
    """Seconds on one thread: of the steps, and the most that relaxations can take."""

    steps: float
    relaxations: float


def _seconds_per_step(block: Block) -> float:
    """The shortest of a few trials, the others being disturbed."""
    stepper = make_stepper(block)
    stepper.advance(1)  # compiles, or loads what was compiled
    took = []
    for trial in range(_TRIALS):
        began = time.perf_counter()
        stepper.advance(1 + (trial + 1) * _TRIAL_STEPS)
        took.append(time.perf_counter() - began)
    return min(took) / _TRIAL_STEPS


def _descents(run: Run) -> Block:
    """What a relaxation of runs like this one does: full gradients without noise."""
    plain = replace(run, method="gd", sigma=0.0, taps=(), law="", batch=None, schedule=None,
                    start=0, stop=None, leave=None, noisy="all", momentum=0.0, nesterov=False,
                    optimizer="sgd", hold=1, antithetic=False, average=None)  # fmt: skip
    return Block((plain,) * LANES)


def cost(runs: Iterable[Run]) -> Cost:
    """What runs cost if every block takes as long as the first of its kind."""
    measured: dict[tuple[object, ...], float] = {}
    steps = relaxations = 0.0
    for block in plan(runs):
        run = block.shared
        kind = (run.problem, run.settings, run.batch, run.law, len(block.taps), run.hold,
                run.optimizer, run.momentum > 0, run.average is None)  # fmt: skip
        if kind not in measured:
            measured[kind] = _seconds_per_step(block)
        steps += measured[kind] * run.steps
        if run.relax and kind[:2] not in measured:
            measured[kind[:2]] = _seconds_per_step(_descents(run))
        relaxations += measured[kind[:2]] * RELAX_STEPS if run.relax else 0.0
    return Cost(steps, relaxations)


def seconds_needed(runs: Iterable[Run]) -> float:
    """Seconds on one thread, without relaxations."""
    return cost(runs).steps
