"""How long runs will take, from a few steps of each kind of block."""

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from antipgd.paper.progress import progress
from antipgd.paper.simulation.blocks import LANES, Block
from antipgd.paper.simulation.local import plan
from antipgd.paper.simulation.orders import REPLACEMENT
from antipgd.paper.simulation.simulate import make_stepper
from antipgd.paper.simulation.spec import Run
from antipgd.paper.simulation.stepping import RELAX_STEPS

_TRIALS, _FEW, _MANY = 3, 10, 200  # trials, and the least and the most steps of one
_ENOUGH = 0.03  # seconds of a trial
_LEAVING = 0.2  # of its steps a run that may leave counts: it takes 2 to 10 %, and is stored, too


class Cost(NamedTuple):
    """Seconds on one thread: of the steps, and the most that relaxations can take."""

    steps: float
    relaxations: float


def _seconds_per_step(block: Block) -> float:
    """The shortest of a few trials, the others being disturbed."""
    stepper = make_stepper(block)
    stepper.advance(1)  # compiles, or loads what was compiled

    def trial(steps: int) -> float:
        began = time.perf_counter()
        stepper.advance(stepper.step + steps)
        return (time.perf_counter() - began) / steps

    steps = int(min(max(_ENOUGH / max(trial(_FEW), 1e-9), _FEW), _MANY))
    return min(trial(steps) for _ in range(_TRIALS))


def _descents(run: Run) -> Block:
    """What a relaxation of runs like this one does: full gradients without noise."""
    plain = replace(run, method="gd", sigma=0.0, taps=(), law="", batch=None, schedule=None,
                    start=0, stop=None, leave=None, noisy="all", momentum=0.0, nesterov=False,
                    optimizer="sgd", hold=1, antithetic=False, average=None,
                    uncorrelated=0, order=REPLACEMENT)  # fmt: skip
    return Block((plain,) * LANES)


def _kind(block: Block) -> tuple[object, ...]:
    run = block.shared
    return (run.problem, run.settings, run.batch, run.law, len(block.taps), run.hold,
            run.optimizer, run.momentum > 0, run.average is None, run.order,
            block.gradient)  # fmt: skip


class Pace:
    """Seconds that a step of one run takes, if every block is as fast as the first of its kind."""

    def __init__(self) -> None:
        self._measured: dict[tuple[object, ...], float] = {}

    def expect(self, runs: Iterable[Run], show: bool | None = None) -> float:
        """Seconds of all these runs on one thread; what is not known yet is measured, and compiled
        before."""
        blocks = plan(runs)
        kinds = {_kind(block): block for block in blocks}
        with progress("compiling and timing", len(kinds), len(kinds), show) as bar:
            for kind, block in kinds.items():
                self.of_block(block)
                bar.tick(1)
                bar.finish(str(kind[0]))
        return sum(self.of_block(block) * block.shared.steps for block in blocks)

    def of_block(self, block: Block) -> float:
        """Seconds of a step of a block, as a mean over all it may take."""
        kind = _kind(block)
        if kind not in self._measured:
            self._measured[kind] = _seconds_per_step(block)
        return self._measured[kind] * (1.0 if block.shared.leave is None else _LEAVING)

    def of_run(self, block: Block) -> float:
        """Seconds of a step of one of its runs."""
        return self.of_block(block) / len(block.runs)

    def of_relaxation(self, run: Run) -> float:
        """The most that a relaxation of a block of such runs can take."""
        kind = (run.problem, run.settings)
        if kind not in self._measured:
            self._measured[kind] = _seconds_per_step(_descents(run))
        return self._measured[kind] * RELAX_STEPS


def cost(runs: Iterable[Run]) -> Cost:
    """What runs cost if every block takes as long as the first of its kind."""
    pace, runs = Pace(), list(runs)
    steps = pace.expect(runs)
    relaxed = [block.shared for block in plan(runs) if block.shared.relax]
    return Cost(steps, sum(map(pace.of_relaxation, relaxed)))


def seconds_needed(runs: Iterable[Run]) -> float:
    """Seconds on one thread, without relaxations."""
    return cost(runs).steps
