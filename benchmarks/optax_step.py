"""What the noise costs in JAX: a jitted, donating SGD step at 10⁷ parameters. `make bench`.

Against plain `optax.sgd` and `optax.add_noise` after it, which makes one draw per step and stores
none, and so is no Anti-PGD; and against the Anti-PGD one would write with it in mind, which stores
the last draw. Ours makes two draws per step, in forward form one: there the gradient is multiplied
with w, so that w is needed. Order shuffled, medians over rounds, wall time with
all threads; three processes, the worst ratio counts. Adds to benchmarks/results.json.

What limits ours: arithmetic, not memory. It is one fused loop, in which each element computes the
Philox block it lies in for itself, twice, with 32-bit products made of 16-bit halves; blocks that
share their four words would need a loop with several outputs, which XLA does not fuse on CPUs (the
same sums took 4 to 8 s stacked). `add_noise` is limited by the memory traffic of JAX's threefry,
rolled into a loop over whole arrays. Leaves whose last axis is 3 are vectorised along it, badly.
"""

import json
import os
import platform
import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from antipgd.optax import anti_pgd, perturb, perturbed

PROCESSES, ROUNDS = 3, 9
LR, SIGMA = 0.05, 0.01
REQUIRED = 3.5
SHAPES = {
    "a matrix of 2500 x 4000": [(2500, 4000)],
    "dense and 3x3xIxO kernels": [(3, 3, 512, 512)] * 3 + [(1024, 1024)] * 2 + [(512,)] * 8,
    "OxIx3x3 kernels": [(512, 512, 3, 3)] * 4,
}
PLAIN, ADD_NOISE, STORED = "optax.sgd", "+ optax.add_noise (one draw)", "+ stored draw (4 bytes)"
OURS = {law: f"antipgd {law}" for law in ("gaussian", "rademacher", "uniform", "student-t:5")}
FORWARD = {f"antipgd forward {law}": law for law in ("gaussian", "rademacher")}


class Stored(NamedTuple):
    key: Any
    previous: Any


def stored_draw() -> optax.GradientTransformation:
    """Anti-PGD with jax.random and the previous draw kept."""

    def init(params):
        return Stored(jax.random.key(0), jax.tree.map(jnp.zeros_like, params))

    def update(updates, state, params=None):
        key, now = jax.random.split(state.key)
        leaves, structure = jax.tree.flatten(updates)
        keys = jax.random.split(now, len(leaves))
        new = structure.unflatten(
            [
                SIGMA * jax.random.normal(k, u.shape, u.dtype)
                for k, u in zip(keys, leaves, strict=True)
            ]
        )
        added = jax.tree.map(lambda u, a, b: u + (a - b), updates, new, state.previous)
        return added, Stored(key, new)

    return optax.GradientTransformation(init, update)


def ways() -> dict[str, optax.GradientTransformation]:
    rows = {
        PLAIN: optax.sgd(LR),
        ADD_NOISE: optax.chain(optax.sgd(LR), optax.add_noise(SIGMA**2, 0.0, 0)),
        STORED: optax.chain(optax.sgd(LR), stored_draw()),
    }
    forward = {
        name: optax.chain(optax.sgd(LR), perturb(SIGMA, law=law)) for name, law in FORWARD.items()
    }
    return rows | {name: anti_pgd(LR, SIGMA, law=law) for law, name in OURS.items()} | forward


class Runner:
    """One optimizer, compiled, with params of its own that it donates."""

    def __init__(
        self, tx: optax.GradientTransformation, shapes: list[tuple[int, ...]], forward: bool
    ) -> None:
        def step(params, gradient, state):
            if forward:
                gradient = jax.tree.map(jnp.multiply, gradient, perturbed(params, state))
            updates, state = tx.update(gradient, state, params)
            return optax.apply_updates(params, updates), state

        self.params = {str(i): jnp.zeros(shape) for i, shape in enumerate(shapes)}
        self.state = tx.init(self.params)
        self.step = jax.jit(step, donate_argnums=(0, 2))
        self.size = sum(leaf.size for leaf in self.params.values())
        self.bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(self.state))

    def run(self, gradient) -> float:
        begin = time.perf_counter()
        self.params, self.state = jax.block_until_ready(
            self.step(self.params, gradient, self.state)
        )
        return time.perf_counter() - begin


def measure(problem: str) -> dict[str, dict[str, float]]:
    """Median seconds and state bytes of every way, in one process."""
    shapes = SHAPES[problem]
    runners = {name: Runner(tx, shapes, name in FORWARD) for name, tx in ways().items()}
    gradient = {str(i): jnp.full(shape, 1e-6) for i, shape in enumerate(shapes)}
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    for runner in runners.values():
        runner.run(gradient)
        runner.run(gradient)
    for _ in range(ROUNDS):
        for name in random.sample(list(runners), len(runners)):
            seconds[name].append(runners[name].run(gradient))
    return {
        name: {"seconds": median(seconds[name]), "bytes": runner.bytes, "size": runner.size}
        for name, runner in runners.items()
    }


def child(problem: str) -> dict[str, dict[str, float]]:
    command = [sys.executable, __file__, "--child", problem]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def compare(problem: str) -> list[dict[str, Any]]:
    runs = [child(problem) for _ in range(PROCESSES)]
    rows = []
    print(f"\n{problem}, {os.cpu_count()} threads, wall time")
    print(f"{'':32}{'ms':>8}{'x sgd':>8}{'x add_noise':>13}{'worst':>8}{'state bytes':>13}")
    for name in runs[0]:
        sgd = [run[name]["seconds"] / run[PLAIN]["seconds"] for run in runs]
        noise = [run[name]["seconds"] / run[ADD_NOISE]["seconds"] for run in runs]
        row = {
            "problem": problem,
            "way": name,
            "milliseconds": median(run[name]["seconds"] for run in runs) * 1e3,
            "times_sgd": median(sgd),
            "times_add_noise": median(noise),
            "times_add_noise_worst": max(noise),
            "state_bytes": runs[0][name]["bytes"],
            "parameters": runs[0][name]["size"],
        }
        rows.append(row)
        print(
            f"{name:32}{row['milliseconds']:8.1f}{row['times_sgd']:8.1f}"
            f"{row['times_add_noise']:13.2f}{row['times_add_noise_worst']:8.2f}"
            f"{row['state_bytes']:13,.0f}"
        )
    return rows


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(measure(sys.argv[2])))
        return
    rows = [row for problem in SHAPES for row in compare(problem)]
    worst = max(r["times_add_noise_worst"] for r in rows if r["way"] in OURS.values())
    verdict = "holds" if worst <= REQUIRED else "MISSED"
    print(f"\nat most {REQUIRED} x add_noise: {verdict} ({worst:.2f} at worst)")
    path = Path(__file__).with_name("results.json")
    stored = json.loads(path.read_text()) if path.exists() else {}
    stored["optax"] = {
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "versions": {m.__name__: m.__version__ for m in (jax, optax)},
        "rows": rows,
    }
    path.write_text(json.dumps(stored, indent=1) + "\n")
    print(f"written to {path.name}")


if __name__ == "__main__":
    main()
