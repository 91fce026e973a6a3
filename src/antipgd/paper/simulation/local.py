"""Runs on this machine's threads, or in bundles on an engine: specs in, records out as they finish.

Compiled steps release the interpreter's lock. What is yielded does not depend on the number of
threads or on the engine, only its order does.
"""

import threading
import traceback
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from threadpoolctl import threadpool_limits

from antipgd.paper.engines.engine import Engine, Result, StoppedError, Tell
from antipgd.paper.engines.hearing import Line, results
from antipgd.paper.methods import SIMULATED
from antipgd.paper.pipeline import Made, Tick, cpu_count
from antipgd.paper.record import Failure, Record, name_of
from antipgd.paper.simulation.blocks import Block, blocks_of
from antipgd.paper.simulation.compiled import CompiledStepper
from antipgd.paper.simulation.simulate import simulate
from antipgd.paper.simulation.spec import Run


def plan(runs: Iterable[Run]) -> list[Block]:
    """Runs in blocks, those with a kernel packed more tightly."""
    compiled: dict[tuple[object, ...], bool] = {}
    kinds: dict[bool, list[Run]] = {True: [], False: []}
    for run in runs:
        kind = (run.problem, run.settings, SIMULATED[run.method].gradient, run.layers)
        if kind not in compiled:
            compiled[kind] = Block((run,)).has_kernel
        kinds[compiled[kind]].append(run)
    return blocks_of(kinds[True], compiled=True) + blocks_of(kinds[False], compiled=False)


def compile_for(runs: Iterable[Run]) -> None:
    """Compile what the runs need, or load it, so that this is no part of their time."""
    for block in plan(runs):
        if block.has_kernel:
            CompiledStepper(block).advance(0)
            return  # one function has the kernels of all problems


def _attempt(block: Block, tick: Tick) -> list[Record | Failure]:
    """A block's records; if it fails, each run by itself, so that only the guilty ones fail."""
    try:
        return [*simulate(block, tick)]
    except StoppedError:
        raise
    except Exception as error:
        if len(block.runs) == 1:
            reason = f"{type(error).__name__}: {error}"
            return [Failure(block.shared, reason, traceback.format_exc())]
    found: list[Record | Failure] = []
    for lane, run in block.runs:
        alone = tuple(run if i == lane else None for i in range(len(block.lanes)))
        found += _attempt(Block(alone), lambda run_steps: tick(0))
    return found


def run_local(
    runs: Iterable[Run],
    threads: int | None = None,
    tick: Tick = lambda run_steps: None,
    weigh: Callable[[Block], float] = lambda block: 1.0,
) -> Generator[Record | Failure]:
    """Records and failures as they finish.

    `tick` is told of run-steps done, from any thread, each times what `weigh` says of its block.
    """
    stop = threading.Event()

    def attempt(block: Block) -> list[Record | Failure]:
        weight = weigh(block)

        def watched(run_steps: float) -> None:
            if stop.is_set():
                raise StoppedError
            tick(run_steps * weight)

        return _attempt(block, watched)

    with (
        threadpool_limits(1, "blas"),  # else sums, and so results, depend on the number of cores
        ThreadPoolExecutor(threads or cpu_count(), thread_name_prefix="antipgd") as pool,
    ):
        try:
            futures = [pool.submit(attempt, block) for block in plan(runs)]
            for future in as_completed(futures):
                yield from future.result()
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)


_BUNDLES = 2  # for each job that an engine may have under way


@dataclass(frozen=True)
class Bundle:
    """Blocks that are simulated one after the other: small runs are not worth a job each."""

    blocks: tuple[Block, ...]

    @property
    def runs(self) -> list[Run]:
        """All runs in it."""
        return [run for block in self.blocks for _, run in block.runs]

    @property
    def name(self) -> str:
        """The hash of their names."""
        return name_of(" ".join(run.name for run in self.runs))

    @property
    def steps(self) -> int:
        """Of all of them."""
        return sum(run.steps for run in self.runs)


def simulate_bundle(bundle: Bundle, *, tell: Tell, device: str) -> list[Result]:
    """The work of an engine: the records of all runs in a bundle."""
    with threadpool_limits(1, "blas"):
        return [
            one
            for block in bundle.blocks
            for one in _attempt(block, lambda run_steps: tell(int(run_steps)))
        ]


def bundles_of(blocks: Iterable[Block], count: int) -> list[Bundle]:
    """At most so many bundles, dealt in turn: neighbours are alike, and so are then the bundles."""
    blocks = list(blocks)
    return [Bundle(tuple(blocks[i::count])) for i in range(min(count, len(blocks)))]


def run_on(
    engine: Engine,
    runs: Iterable[Run],
    tick: Tick = lambda run_steps: None,
    warn: Callable[[str], None] = lambda message: None,
) -> Generator[Result | Made]:
    """Records and failures as they finish on an engine."""
    bundles = bundles_of(plan(runs), _BUNDLES * engine.slots)
    return results(Line(bundles), engine, simulate_bundle, tick, warn)
