"""A Ray cluster: each job is a task, with the CPUs, GPUs and memory it declares.

Needs the `ray` extra. Ray itself tries nothing again: what is lost with a worker or a node is heard
here, like on every other engine. Nodes are asked for their antipgd before anything runs.
"""

import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from antipgd.extras import needed_by
from antipgd.paper.engines.engine import Done, EngineError, Future, Lost, Said, Work, answer
from antipgd.paper.engines.leases import Lease, Listener
from antipgd.paper.engines.on import On
from antipgd.paper.engines.parcels import Code, Parcel, perform
from antipgd.paper.pipeline import cpu_count

_STORE = 100 * 2**20  # bytes for objects: records are small
_AHEAD = 2  # jobs for each CPU, so that none waits for the driver
_REACHED, _ASKED, _STOPPED = 10.0, 120.0, 15.0  # seconds


def _ray() -> Any:
    with needed_by("--on ray", "ray"):
        import ray
    return ray


def check_address(address: str) -> None:
    """Refuse an address where no Ray answers: Ray itself would wait for minutes."""
    host, colon, port = address.rpartition(":")
    if "://" in address or not (colon and host and port.isdecimal()):
        raise EngineError(
            f"--on ray={address}: an address is HOST:PORT, of the head node as `ray start --head` "
            "prints it, or auto on a machine of the cluster"
        )
    try:
        with socket.create_connection((host, int(port)), _REACHED):
            pass
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise EngineError(f"no Ray at {address}: {why}; is `ray start --head` running?") from None
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=4 * _REACHED)
    except subprocess.TimeoutExpired:
        raise EngineError(f"what answers at {address} is no Ray: it says nothing") from None
    except subprocess.CalledProcessError as error:
        why = (error.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise EngineError(
            f"{address} is not to be used by Ray {_ray().__version__} of here: {why:.400}"
        ) from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Ray logs to the console while it starts."""
    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _start(where: str, count: int | None) -> None:
    """Join a cluster, or start one on this machine alone."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else a warning from Ray
    os.environ.setdefault("RAY_worker_niceness", "0")  # of a Ray that starts here: as other engines
    ray = _ray()
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if where:
        if where != "auto":
            check_address(where)
        how["address"] = where
    else:
        # "local": a new one, even where a cluster is running already.
        how |= {"address": "local", "num_cpus": count or cpu_count(), "include_dashboard": False,
                "object_store_memory": _STORE, "_node_ip_address": "127.0.0.1"}  # fmt: skip
    try:
        with _quiet():
            ray.init(**how)
    except (
        ConnectionError, RuntimeError, ValueError, TimeoutError, ray.exceptions.RayError,
    ) as error:  # fmt: skip
        raise EngineError(f"cannot use Ray at {where or 'this machine'}: {error}") from error


def look(lease: Lease | None) -> tuple[Code, bool]:
    """On a node: its antipgd, and whether it sees what the driver wrote into the folder."""
    return Code.here(), lease is None or lease.held


class Ray:
    """An engine of all nodes of a cluster."""

    tries = 3

    def __init__(
        self, on: On, count: int | None, folder: Path | None, device: str,
        warn: Callable[[str], None],
    ) -> None:  # fmt: skip
        _start(on.where, count)
        self._ray, self._device, self._most = _ray(), device, count
        self._folder = None if folder is None else folder.absolute()
        gpus = on.gpus if on.gpus is not None else int(device != "cpu")
        needs = {"num_cpus": on.cpus, "num_gpus": gpus, "memory": on.memory}
        self._cpus = on.cpus
        self._task = self._ray.remote(perform).options(**needs, max_retries=0)
        try:
            self._check_nodes()
            self._check_needs({"CPU": on.cpus, "GPU": gpus, "memory": on.memory or 0}, warn)
        except BaseException:
            self.close()
            raise

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def _check_nodes(self) -> None:
        """Refuse a cluster of which a node has another antipgd, or does not see the folder."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as At

        asked = self._ray.remote(look)
        lease = None if self._folder is None else Lease.grant(self._folder, "nodes")
        for node in self._nodes():
            where = node["NodeManagerHostname"]
            task = asked.options(num_cpus=0, scheduling_strategy=At(node["NodeID"], soft=False))
            try:
                code, sees = self._ray.get(task.remote(lease), timeout=_ASKED)
            except self._ray.exceptions.GetTimeoutError:
                raise EngineError(f"Ray's node {where} did not answer in {_ASKED:g} s") from None
            except self._ray.exceptions.RayError as error:
                why = str(error).strip().splitlines()[-1]
                raise EngineError(f"Ray's node {where} cannot use this antipgd: {why}") from error
            reason = Code.here().refuse(code)
            if reason is not None:
                raise EngineError(reason)
            if not sees:
                raise EngineError(
                    f"{where} does not see {self._folder}: --out must be on a disk that all nodes "
                    "of the cluster share"
                )
        if lease is not None:
            lease.end()

    def _check_needs(self, needs: dict[str, float], warn: Callable[[str], None]) -> None:
        """Warn where no node has what a job needs: Ray waits for one that has, perhaps for ever."""
        there = [node["Resources"] for node in self._nodes()]
        if not any(all(one.get(k, 0) >= n for k, n in needs.items()) for one in there):
            wanted = ", ".join(f"{k} {n:g}" for k, n in needs.items() if n)
            warn(f"no node of the cluster has what a job needs ({wanted}); waiting for one")

    @property
    def slots(self) -> int:
        """As many as CPUs will take now, and some ahead; nodes come and go."""
        if self._most is not None:
            return self._most
        cpus = sum(node["Resources"].get("CPU", 0) for node in self._nodes())
        return max(1, int(cpus) // self._cpus) * _AHEAD

    def submit(self, spec: Any, work: Work) -> Future:
        """Begin a task."""
        lease = None if self._folder is None else Lease.grant(self._folder, spec.name)
        parcel = Parcel.packed(spec, work, lease, self._device)
        return _Future(self._ray, spec, self._task.remote(parcel), lease)

    def wait(self, futures: Sequence[Future]) -> None:
        """Wait for a second at most: for an end, or for what may have been said."""
        self._ray.wait([one.ref for one in futures], timeout=1.0)  # type: ignore[attr-defined]

    def stop(self, futures: Sequence[Future]) -> Sequence[tuple[Future, Done]]:
        """End leases, wait for those who notice, and then end the others."""
        refs = [future.ref for future in futures]  # type: ignore[attr-defined]
        if not refs:
            return ()
        for future in futures:
            future.listener.end()  # type: ignore[attr-defined]
        patience = 0.0 if self._folder is None else _STOPPED
        _, left = self._ray.wait(refs, num_returns=len(refs), timeout=patience)
        for ref in left:
            self._ray.cancel(ref, force=True)
        return ()

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        self._ray.shutdown()


class _Future:
    """A task."""

    def __init__(self, ray: Any, spec: Any, ref: Any, lease: Lease | None) -> None:
        self.spec, self.ref, self.listener, self._ray = spec, ref, Listener(lease), ray

    def heard(self) -> list[Said]:
        ended = bool(self._ray.wait([self.ref], timeout=0)[0])  # before the news: none is missed
        said: list[Said] = [*self.listener.news()]
        if ended:
            said.append(self._end())
            self.listener.end()
        return said

    def _end(self) -> Done | Lost:
        errors = self._ray.exceptions
        try:
            return answer(self._ray.get(self.ref))
        except errors.OutOfMemoryError:
            return Lost("its node was short of memory, and Ray ended the process")
        except errors.WorkerCrashedError:
            return Lost("its process died (short of memory? a smaller micro needs less)")
        except errors.NodeDiedError:
            return Lost("its node died")
        except errors.RayError as error:
            return Lost(f"Ray says: {' '.join(str(error).split())[:300]}")
