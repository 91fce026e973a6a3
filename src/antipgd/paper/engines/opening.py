"""From the words of `--on` to an engine that is open."""

from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

from antipgd.paper.engines.engine import Engine
from antipgd.paper.engines.on import On
from antipgd.paper.files import alone


@contextmanager
def opened(
    on: On,
    count: int | None = None,
    folder: Path | None = None,
    device: str = "cpu",
    warn: Callable[[str], None] = lambda message: None,
) -> Generator[Engine | None]:
    """An engine for as long as the context; None for this machine's processes and threads, which
    whoever runs starts by himself.

    `count` is the most jobs at a time, `folder` one that all machines share.
    """
    if on.engine == "processes":
        yield None
        return
    # Two commands would end each other's leases.
    with nullcontext() if folder is None else alone(folder):
        engine: Engine
        if on.engine == "ray":
            from antipgd.paper.engines.on_ray import Ray

            engine = Ray(on, count, folder, device, warn)
        else:
            from antipgd.paper.engines.on_slurm import Slurm

            engine = Slurm(on, count, folder, device, warn)
        with closing(engine):
            yield engine
