"""Training functions of a user, good and bad."""

import functools
import os
import signal
import sys

import numpy as np
from threadpoolctl import threadpool_info

CALLS = "calls"


def train(sigma, lr, seed, width=2, folder=None):
    """Leaves a line for each call, so that calls can be counted."""
    with (folder / CALLS).open("a") as file:
        file.write("x")
    return {"loss": sigma + 10 * lr + 100 * width + seed, "accuracy": np.float32(0.5)}


def misbehave(sigma, seed):
    if sigma == 1:
        raise RuntimeError("no luck")
    if sigma == 2:
        return {"loss": float("nan")}
    if sigma == 3:
        return [1.0]
    if sigma == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    if sigma == 5:
        return {"sigma": 1.0}
    if sigma == 6:
        return {"loss": "low"}
    if sigma == 7:
        sys.exit(0)
    if sigma == 8:
        return {"loss": np.zeros(3)}
    return {"loss": 1.0 + seed} if seed else {"loss": 1.0, "extra": 2}


def anything(**settings):
    pools = max(pool["num_threads"] for pool in threadpool_info())  # NumPy's own is one of them
    threads = int(os.environ["OMP_NUM_THREADS"])
    return {"count": len(settings), "threads": threads, "pools": pools}


def twice(function):
    @functools.wraps(function)
    def wrapper(**settings):
        return {name: 2 * value for name, value in function(**settings).items()}

    return wrapper


@twice
def decorated(seed):
    return {"loss": seed}


doubled = twice(anything)

number = 3
