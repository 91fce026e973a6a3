"""Clusters on this machine alone, and what is run on them and beside them."""

import contextlib
import os
import signal
import time
from pathlib import Path

from antipgd.paper.networks.spec import make_training
from antipgd.paper.simulation.spec import make_run

MEMORY = 100 * 2**20


@contextlib.contextmanager
def cluster(nodes, **settings):
    """A Ray cluster of so many nodes of one CPU each; the first is the head."""
    from ray.cluster_utils import Cluster

    given = {"num_cpus": 1, "object_store_memory": MEMORY, "include_dashboard": False, **settings}
    found = Cluster(initialize_head=True, head_node_args=given)
    try:
        for _ in range(nodes - 1):
            found.add_node(num_cpus=1, object_store_memory=MEMORY)
        yield found
    finally:
        found.shutdown()


def small_runs(count=200):
    """Runs that differ in method, σ and seed."""
    arms = [("gd", 0.0), ("pgd", 0.1), ("anti", 0.1), ("anti", 0.2), ("pgd", 0.2)]
    return [
        make_run("widening_valley", {"d": 5}, method, lr=0.1, sigma=sigma, steps=100_000, seed=seed)
        for seed in range(count // len(arms))
        for method, sigma in arms
    ]


def training(method="anti", seed=0, **changes):
    values = {"batch": 50, "epochs": 20, "images": 300, "width": 4, "sigma": 0.02}
    return make_training("digits", "cnn", method, seed=seed, **(values | changes))


def trainings():
    """Twelve, four of which share their first epochs."""
    plain = [training(method, seed) for method in ("anti", "gd") for seed in range(4)]
    later = [training(sigma=s, noise_start=10, seed=9) for s in (0.01, 0.02, 0.03, 0.04)]
    return plain + later


def children(pid):
    """The processes that a process has started."""
    with contextlib.suppress(FileNotFoundError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _title(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def busy_node(cluster, seconds=60):
    """A node, not the head, that is working on something."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for node in cluster.worker_nodes:
            if any(_title(child).startswith("ray::perform") for child in children(_raylet(node))):
                return node
        time.sleep(0.05)
    raise AssertionError("no node had anything to do")


def kill_all(pid):
    """A process with all below it, at once."""
    for child in children(pid):
        kill_all(child)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_begun(pid, seconds=60):
    """A process, once it has started another one, with all below it."""
    until = time.monotonic() + seconds
    while not children(pid):
        assert time.monotonic() < until, "nothing was started"
        time.sleep(0.02)
    kill_all(pid)


def _raylet(node):
    return node.all_processes["raylet"][0].process.pid


def lose_power(cluster, node):
    """All processes of a node are gone at once, workers first: they could still answer."""
    kill_all(_raylet(node))
    cluster.remove_node(node, allow_graceful=False)


def stray():
    """Processes of Ray that are left."""
    names = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            names.append(path.read_text().strip())
    return [name for name in names if name.startswith(("raylet", "gcs_server"))]


GREEDY = 77  # the seed of a training that is killed whenever it is tried


def train_unless_greedy(spec, **how):
    """As `train_one`; what the system does to a process without memory."""
    if spec.seed == GREEDY:
        os.kill(os.getpid(), signal.SIGKILL)
    from antipgd.paper.networks.workers import train_one

    return train_one(spec, **how)
