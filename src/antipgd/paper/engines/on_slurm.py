"""SLURM through submitit: each job is a job of the cluster. Needs the `slurm` extra.

Also submitit's own executors: `local`, processes of this machine that are dealt with like jobs, and
`debug`, this very process. A job that is preempted, or whose time is up, has left a checkpoint and
is submitted again.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from antipgd.extras import needed_by
from antipgd.paper.engines.engine import (
    Done,
    EngineError,
    Future,
    Lost,
    NoRoomError,
    Said,
    Work,
    answer,
)
from antipgd.paper.engines.leases import Lease, Listener
from antipgd.paper.engines.on import On
from antipgd.paper.engines.parcels import Parcel, perform
from antipgd.paper.files import FilesError, why
from antipgd.paper.pipeline import cpu_count

_JOBS = 64  # in SLURM's queue at a time
_POLL = {"": 5.0, "local": 0.3, "debug": 0.0}  # seconds
_GRACE = {"": 30.0, "local": 0.5, "debug": 0.0}  # until a result is seen on a shared disk
_STOPPED = 15.0
_KEPT = ("submitted_pickle", "result_pickle", "stdout", "stderr", "submission_file")


class Slurm:
    """An engine of jobs in SLURM's queue."""

    tries = 3

    def __init__(
        self, on: On, count: int | None, folder: Path | None, device: str,
        warn: Callable[[str], None],
    ) -> None:  # fmt: skip
        with needed_by("--on slurm", "slurm"):
            import submitit
        if folder is None:
            raise EngineError("--on slurm needs a folder, --out, on a disk that all nodes share")
        logging.getLogger("submitit").setLevel(logging.ERROR)
        self._errors, self._folder, self._device = submitit.core.utils, folder.absolute(), device
        self._poll, self._grace = _POLL[on.where], _GRACE[on.where]
        self.slots = count or {"": _JOBS, "local": cpu_count(), "debug": 1}[on.where]
        try:
            self._executor = submitit.AutoExecutor(self._folder, cluster=on.where or "slurm")
        except RuntimeError as error:
            raise EngineError(f"--on slurm: {error}") from error
        self._executor.update_parameters(**_parameters(on, device))

    def submit(self, spec: Any, work: Work) -> Future:
        """Queue a job."""
        lease = Lease.grant(self._folder, spec.name)
        parcel = Parcel.packed(spec, work, lease, self._device)
        try:
            job = self._executor.submit(perform, parcel)
        except (self._errors.FailedJobError, self._errors.FailedSubmissionError) as error:
            lease.end()
            raise NoRoomError(f"SLURM does not take the job: {_last_line(str(error))}") from error
        except OSError as error:  # submitit writes files of its own
            lease.end()
            raise FilesError(f"cannot submit a job from {self._folder}: {why(error)}") from error
        return _Future(spec, job, lease, self._grace, self._errors.FailedJobError)

    def wait(self, futures: Sequence[Future]) -> None:
        """Let some time pass; submitit asks SLURM seldom enough by itself."""
        time.sleep(self._poll)

    def stop(self, futures: Sequence[Future]) -> Sequence[tuple[Future, Done]]:
        """End leases, wait for those who notice, and cancel the others."""
        for future in futures:
            future.listener.end()  # type: ignore[attr-defined]
        jobs = [one.job for one in futures if one.started]  # type: ignore[attr-defined]
        patient = time.monotonic() + _STOPPED
        while time.monotonic() < patient and not all(job.done() for job in jobs):
            time.sleep(0.2)
        for future in futures:
            future.cancel()  # type: ignore[attr-defined]
        return ()

    def close(self) -> None:
        """Remove what submitit leaves: links to scripts of jobs that are done."""
        for path in self._folder.glob(".submission_file_*"):
            if not path.exists():
                path.unlink()


def _parameters(on: On, device: str) -> dict[str, Any]:
    """As submitit calls them."""
    gpus = on.gpus if on.gpus is not None else int(device != "cpu")
    wanted: dict[str, Any] = {"name": "antipgd", "timeout_min": on.time, "cpus_per_task": on.cpus}
    if gpus:
        wanted["gpus_per_node"] = gpus
    if on.memory is not None:
        wanted["mem_gb"] = on.memory / 2**30
    if on.partition:
        wanted["slurm_partition"] = on.partition
    return wanted


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip(" -|=")]
    return lines[-1] if lines else text


class _Future:
    """A job."""

    def __init__(self, spec: Any, job: Any, lease: Lease, grace: float, failed: Any) -> None:
        self.spec, self.job, self.listener, self._grace = spec, job, Listener(lease), grace
        self._failed, self._ended = failed, 0.0

    @property
    def started(self) -> bool:
        """Whether it may be running: one in the queue has no log yet."""
        return self.job.paths.stdout.exists()

    def heard(self) -> list[Said]:
        end = self._end() if self.job.done() else None  # before the news: none is missed
        said: list[Said] = [*self.listener.news()]
        if end is not None:
            said.append(end)
            self.listener.end()
        return said

    def _end(self) -> Done | Lost | None:
        """Its result; None for as long as the one of a job that has ended may still turn up."""
        self._ended = self._ended or time.monotonic()
        if not self.job.paths.result_pickle.exists() and self._own_result is None:
            if time.monotonic() - self._ended < self._grace:
                return None
            return Lost(
                f"job {self.job.job_id} ended without a result (state {self.job.state}; killed, "
                f"short of memory, or the disk full?); its log: {self.job.paths.stderr}"
            )
        try:
            heard = answer(self.job.result())
        except self._failed as error:
            return Lost(f"job {self.job.job_id}: {_last_line(str(error))}")
        self.tidy()
        return heard

    @property
    def _own_result(self) -> Any:
        """Of the debug executor, which writes none."""
        return getattr(getattr(self.job, "_submission", None), "_result", None)

    def tidy(self) -> None:
        """Remove the files of a job that is done; those of lost ones stay for whoever asks why."""
        for name in _KEPT:
            with contextlib.suppress(OSError):
                Path(getattr(self.job.paths, name)).unlink()

    def cancel(self) -> None:
        """Take it back."""
        with contextlib.suppress(OSError):
            self.job.cancel(check=False)
