"""Runs on this machine: specs in, records out as they finish, on threads.

Compiled steps release the interpreter's lock. What is yielded does not depend on the number of
threads, only its order does.
"""

import threading
import traceback
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed

from threadpoolctl import threadpool_limits

from antipgd.paper.methods import SIMULATED
from antipgd.paper.pipeline import Tick, cpu_count
from antipgd.paper.record import Failure, Record
from antipgd.paper.simulation.blocks import Block, blocks_of
from antipgd.paper.simulation.simulate import simulate
from antipgd.paper.simulation.spec import Run


class _StoppedError(Exception):
    """Somebody asked the workers to stop."""


def plan(runs: Iterable[Run]) -> list[Block]:
    """Runs in blocks, those with a kernel packed more tightly."""
    compiled: dict[tuple[object, ...], bool] = {}
    kinds: dict[bool, list[Run]] = {True: [], False: []}
    for run in runs:
        kind = (run.problem, run.settings, SIMULATED[run.method].gradient)
        if kind not in compiled:
            compiled[kind] = Block((run,)).has_kernel
        kinds[compiled[kind]].append(run)
    return blocks_of(kinds[True], compiled=True) + blocks_of(kinds[False], compiled=False)


def _attempt(block: Block, tick: Tick) -> list[Record | Failure]:
    """A block's records; if it fails, each run by itself, so that only the guilty ones fail."""
    try:
        return [*simulate(block, tick)]
    except _StoppedError:
        raise
    except Exception as error:
        if len(block.runs) == 1:
            reason = f"{type(error).__name__}: {error}"
            return [Failure(block.shared, reason, traceback.format_exc())]
    results: list[Record | Failure] = []
    for lane, run in block.runs:
        alone = tuple(run if i == lane else None for i in range(len(block.lanes)))
        results += _attempt(Block(alone), lambda run_steps: tick(0))
    return results


def run_local(
    runs: Iterable[Run], threads: int | None = None, tick: Tick = lambda run_steps: None
) -> Generator[Record | Failure]:
    """Records and failures as they finish. `tick` is told of run-steps done, from any thread."""
    stop = threading.Event()

    def watched(run_steps: int) -> None:
        if stop.is_set():
            raise _StoppedError
        tick(run_steps)

    with (
        threadpool_limits(1, "blas"),  # else sums, and so results, depend on the number of cores
        ThreadPoolExecutor(threads or cpu_count(), thread_name_prefix="antipgd") as pool,
    ):
        try:
            futures = [pool.submit(_attempt, block, watched) for block in plan(runs)]
            for future in as_completed(futures):
                yield from future.result()
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
