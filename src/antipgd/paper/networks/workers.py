"""Trainings side by side: specs in, records out as they finish, on any engine.

Here, processes of one thread each. Whoever stops listening stops the workers, which leave their
checkpoints behind. What is yielded does not depend on the engine or the number of processes, only
its order does. Knows torch only inside the workers.
"""

import logging
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from antipgd.paper.engines.engine import Engine, Result, Tell
from antipgd.paper.engines.hearing import Line, results
from antipgd.paper.engines.processes import Processes
from antipgd.paper.files import alone, make_folder
from antipgd.paper.networks.extra import check_torch
from antipgd.paper.networks.queue import Queue
from antipgd.paper.networks.spec import Training
from antipgd.paper.pipeline import Made, Outcome, Tick, complete, cpu_count
from antipgd.paper.progress import say
from antipgd.paper.record import Record
from antipgd.paper.store import Store


def check_start(specs: Iterable[Training], device: str) -> None:
    """Refuse what would make every training fail: no torch, no such device, data not there."""
    check_torch()
    from antipgd.paper.networks.data import load
    from antipgd.paper.networks.machine import check_device

    check_device(device)
    for name in sorted({spec.data for spec in specs}):
        load(name)


def train_one(
    spec: Training, *, tell: Tell, device: str, root: Path | None, threads: int = 1
) -> list[Result]:
    """The work of an engine: one training, with its checkpoints in a folder below `root`."""
    logging.getLogger("antipgd").setLevel(logging.ERROR)  # σ was tuned: advice would be noise
    warnings.filterwarnings("ignore", "sigma is .* the noise drowns")
    from antipgd.paper.networks.train import train

    return [train(spec, root, tick=tell, warn=tell, device=device, threads=threads)]


def run_on(
    engine: Engine,
    specs: Iterable[Training],
    root: Path | None = None,
    tick: Tick = lambda epochs: None,
    warn: Callable[[str], None] = lambda message: None,
) -> Generator[Result | Made]:
    """Records and failures as they finish; `root` is the folder for checkpoints, which all machines
    of the engine see.

    Trainings whose noise begins later share the noise-free epochs before it, through a checkpoint.
    """
    work = partial(train_one, root=None if root is None else root.absolute())
    return results(Queue(specs, share=root is not None), engine, work, tick, warn)


def train_on(
    engine: Engine,
    spec: Training,
    root: Path,
    tick: Tick,
    warn: Callable[[str], None],
    threads: int = 1,
) -> Result:
    """One training on an engine, as `antipgd train` has it."""
    make_folder(root)
    work = partial(train_one, root=root.absolute(), threads=threads)
    (end,) = results(Line([spec]), engine, work, tick, warn)
    return end.result if isinstance(end, Made) else end


def run_processes(
    specs: Iterable[Training],
    processes: int | None = None,
    root: Path | None = None,
    tick: Tick = lambda epochs: None,
    warn: Callable[[str], None] = lambda message: None,
    device: str = "cpu",
) -> Generator[Result | Made]:
    """The same on processes of this machine: by default as many as processors or, with `cuda`, as
    GPUs, one on each."""
    check_torch()
    from antipgd.paper.networks.machine import devices

    places = devices(device)
    count = processes or (cpu_count() if device == "cpu" else len(places))
    return run_on(Processes(count, places), specs, root, tick, warn)


def complete_trainings(
    specs: Sequence[Training],
    store: Store,
    processes: int | None = None,
    device: str = "cpu",
    *,
    engine: Engine | None = None,
    retry: bool = False,
    keep: bool = False,
    show_progress: bool | None = None,
) -> Outcome:
    """Train what the store does not have yet, with checkpoints in a folder beside it; those of a
    training are removed when its record is stored, unless they are to be kept for others that may
    go on from them. Without an engine, on processes of this machine."""
    root = _checkpoints_of(store)

    def run(missing: Sequence[Training], tick: Tick) -> Generator[Result | Made]:
        check_start(missing, device if engine is None else "cpu")
        left = {spec.name: spec for spec in missing}
        if engine is None:
            training = run_processes(missing, processes, root, tick, say, device)
        else:
            training = run_on(engine, missing, root, tick, say)
        with alone(root), closing(training) as finished:
            for one in finished:
                yield one
                result = one.result if isinstance(one, Made) else one
                if isinstance(result, Record) and not keep:  # it is stored by now
                    del left[result.run.name]
                    forget_checkpoints(root, result.run, left.values())

    return complete(specs, store, run, retry=retry, show_progress=show_progress, stage="trainings")


def _checkpoints_of(store: Store) -> Path:
    return store.root.parent / "checkpoints"


def forget_all(store: Store, specs: Iterable[Training]) -> None:
    """Remove what checkpoints are left of trainings, and of what they began with, if their records
    are safe."""
    for spec in specs:
        if store.state(spec) == "done":
            forget_checkpoints(_checkpoints_of(store), spec, ())


def forget_checkpoints(root: Path, spec: Training, left: Iterable[Training]) -> None:
    """Remove the checkpoints of a training whose record is safe, and of what it began with, unless
    one of those left begins with them.
    """
    from antipgd.paper.networks.checkpoint import Checkpoints

    needed = {prefix.name for one in left if (prefix := one.prefix()) is not None}
    for done in (spec, spec.prefix()):
        if done is not None and done.name not in needed:
            Checkpoints(root, done).forget()
