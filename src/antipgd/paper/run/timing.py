"""How long runs will take, from a few steps of each kind of block."""

import time
from collections.abc import Iterable

from antipgd.paper.run.local import plan
from antipgd.paper.run.simulate import make_stepper
from antipgd.paper.spec import Run

_TRIAL_STEPS = 200


def seconds_needed(runs: Iterable[Run]) -> float:
    """Seconds on one thread, without relaxations: every block like the first of its kind."""
    measured: dict[tuple[object, ...], float] = {}
    total = 0.0
    for block in plan(runs):
        run = block.shared
        kind = (run.problem, run.settings, run.batch, run.law, len(block.taps))
        if kind not in measured:
            stepper = make_stepper(block)
            stepper.advance(1)  # compiles, or loads what was compiled
            began = time.perf_counter()
            stepper.advance(1 + _TRIAL_STEPS)
            measured[kind] = (time.perf_counter() - began) / _TRIAL_STEPS
        total += measured[kind] * run.steps
    return total
