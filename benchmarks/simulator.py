"""How fast many small runs go: run-steps per second against real peers. `make bench`.

Anti-PGD in float64 at the paper's sizes, eight settings of σ on each of several seeds: quadratic
regression (n = 40, d = 100) and matrix sensing (n = 20, 100 measurements). Peers: the loop
everybody would write in torch (autograd, torch.optim.SGD, randn); torch with the gradient written
by hand, one run at a time; and that with all runs in one batch. The roofline is the matrix products
alone, each by the fastest routine measured for it, plus the bare noise kernel; it can be passed
because runs of one seed share their draws here. One thread, process CPU time, order shuffled,
median over rounds; three processes, the worst counts. All threads are printed on wall time. Adds to
benchmarks/results.json.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numba import njit

from antipgd.noise.inplace import Targets
from antipgd.paper.simulation.blocks import LANES, Block
from antipgd.paper.simulation.compiled import CompiledStepper
from antipgd.paper.simulation.local import run_local
from antipgd.paper.simulation.problems import kernels
from antipgd.paper.simulation.spec import make_run

PROCESSES, ROUNDS = 3, 9
STEPS = {"ours": 400, "autograd": 60, "by hand": 150, "batched": 150, "noise": 20, "products": 200}
OURS, AUTOGRAD, BY_HAND = (
    "antipgd simulator",
    "torch autograd and optimizer",
    "torch gradient by hand",
)
NOISE = "bare noise kernel"


@dataclass(frozen=True)
class Bench:
    """A problem as torch users would write it, and the products its gradient is made of.

    `loss` and `gradient` take weights of shape (…, *shape), one run's or those of many, with
    inputs (…, examples, features) and labels. The data are multiplied with eight runs at a time,
    forth and back; `square` is the size n of the n × n products of each run with itself.
    """

    lr: float
    sigma: float
    seeds: int
    start: torch.Tensor
    inputs: Callable[[Any], np.ndarray]
    loss: Callable[..., torch.Tensor]
    gradient: Callable[..., torch.Tensor]
    data_product: tuple[int, int]
    square: int
    required: dict[str, float]  # how many times faster we have to be


def regression_loss(w, X, y):
    return ((w * w) @ X.mT - y).square().mean() / 4


def regression_gradient(w, X, y):
    return w * (((w * w) @ X.mT - y) @ X) / y.shape[-1]


def sensing_loss(U, A, y):
    return ((U @ U.mT).flatten(-2) @ A.mT - y).square().mean() / 2


def sensing_gradient(U, A, y):
    """With symmetric measurements, flattened."""
    G = ((U @ U.mT).flatten(-2) @ A.mT - y) @ A
    return (2 / y.shape[-1]) * (G.unflatten(-1, U.shape[-2:]) @ U)


def whole_measurements(data, n=20):
    """The symmetric parts of the measurements as rows of n² numbers."""
    a, b = np.triu_indices(n)
    A = np.zeros((len(data.B), n, n))
    A[:, a, b] = data.B / 2
    return (A + A.mT).reshape(-1, n * n)


BENCHES = {
    "quadratic_regression": Bench(
        lr=0.1, sigma=0.05, seeds=10, start=torch.ones(100, dtype=torch.float64),
        inputs=lambda data: data.X, loss=regression_loss, gradient=regression_gradient,
        data_product=(40, 100), square=0, required={AUTOGRAD: 100, BY_HAND: 10},
    ),
    "matrix_sensing": Bench(
        lr=0.001, sigma=0.1, seeds=4, start=torch.eye(20, dtype=torch.float64),
        inputs=whole_measurements, loss=sensing_loss, gradient=sensing_gradient,
        data_product=(100, 210), square=20, required={AUTOGRAD: 25, BY_HAND: 4},
    ),
}  # fmt: skip


def spec(name, seed, lane, steps=1000):
    bench = BENCHES[name]
    sigma = bench.sigma * (lane + 1) / LANES
    return make_run(name, {}, "anti", lr=bench.lr, sigma=sigma, steps=steps, seed=seed,
                    relax=False)  # fmt: skip


def blocks(name):
    seeds = range(BENCHES[name].seeds)
    return [Block(tuple(spec(name, seed, lane) for lane in range(LANES))) for seed in seeds]


def ours(name):
    steppers = [CompiledStepper(block) for block in blocks(name)]
    for stepper in steppers:
        stepper.advance(1)

    def run():
        for stepper in steppers:
            stepper.advance(stepper.step + STEPS["ours"])
        return STEPS["ours"] * LANES * len(steppers)

    return run


def torch_data(name):
    """Inputs and labels of every seed, stacked."""
    data = [block.data for block in blocks(name)]
    inputs = np.stack([BENCHES[name].inputs(one) for one in data])
    return torch.tensor(inputs), torch.tensor(np.stack([one.y for one in data]))


def autograd(name):
    bench = BENCHES[name]
    X, y = (of_seeds[0] for of_seeds in torch_data(name))
    w = torch.nn.Parameter(bench.start.clone())
    optimizer = torch.optim.SGD([w], lr=bench.lr)
    previous = torch.zeros_like(w)

    def run():
        nonlocal previous
        for _ in range(STEPS["autograd"]):
            optimizer.zero_grad()
            bench.loss(w, X, y).backward()
            optimizer.step()
            with torch.no_grad():
                xi = bench.sigma * torch.randn_like(w)
                w.add_(xi - previous)
                previous = xi
        return STEPS["autograd"]

    return run


def by_hand(bench, w, X, y, sigma, steps, runs):
    previous = torch.zeros_like(w)

    def run():
        nonlocal w, previous
        for _ in range(steps):
            xi = sigma * torch.randn_like(w)
            w = w - bench.lr * bench.gradient(w, X, y) + xi - previous
            previous = xi
        return steps * runs

    return run


def one_by_hand(name):
    bench = BENCHES[name]
    X, y = (of_seeds[0] for of_seeds in torch_data(name))
    return by_hand(bench, bench.start, X, y, bench.sigma, STEPS["by hand"], 1)


def batched(name):
    bench = BENCHES[name]
    X, y = torch_data(name)
    shape = bench.start.shape
    w = bench.start.expand(bench.seeds, LANES, *shape).contiguous()
    sigma = (bench.sigma * (torch.arange(LANES) + 1) / LANES).double()
    sigma = sigma.reshape(LANES, *[1] * len(shape))
    runs = bench.seeds * LANES
    return by_hand(bench, w, X, y[:, None], sigma, STEPS["batched"], runs)


def repeated(call, runs=LANES):
    def run():
        for _ in range(STEPS["products"]):
            call()
        return STEPS["products"] * runs

    return run


def data_products(rows, columns, seeds):
    """The data times eight vectors, forth and back, by several routines."""
    rng = np.random.default_rng(0)
    X, Q = rng.standard_normal((rows, columns)), rng.standard_normal((columns, LANES))
    R, G = np.empty((rows, LANES)), np.empty((columns, LANES))
    XT = np.ascontiguousarray(X.T)
    np.matmul(X, Q, R)
    tX, tXT, tQ, tR, tG = map(torch.tensor, (X, XT, Q, R, G))
    bX, bQ, bR = (t.expand(seeds, -1, -1).contiguous() for t in (tX, tQ, tR))
    x, q, r, g = (array.reshape(-1) for array in (X, Q, R, G))
    many = LANES * seeds
    return {
        "data product": {
            "numpy": repeated(lambda: np.matmul(X, Q, R)),
            "torch.mm": repeated(lambda: torch.mm(tX, tQ, out=tR)),
            "torch.bmm": repeated(lambda: torch.bmm(bX, bQ), many),
            "ours": repeated(lambda: kernels.multiply(x, columns, 1, rows, columns, q, r)),
        },
        "transposed product": {
            "numpy": repeated(lambda: np.matmul(XT, R, G)),
            "torch.mm": repeated(lambda: torch.mm(tXT, tR, out=tG)),
            "torch.bmm": repeated(lambda: torch.bmm(bX.mT, bR), many),
            "ours": repeated(lambda: kernels.multiply(x, 1, columns, columns, rows, r, g)),
        },
    }


@njit
def square_products_in_lanes(n, u, g, out):
    """Half of UUᵀ, which is symmetric, and GU."""
    for a in range(n):
        at = LANES * n * a
        kernels.multiply_lanes(u[at:], n, 1, n - a, n, u[at:], out[at:])
    for a in range(n):
        at = LANES * n * a
        kernels.multiply_lanes(u, 1, n, n, n, g[at:], out[at:])


def square_products(n, seeds):
    """UUᵀ and GU of every run, by several routines."""
    if n == 0:
        return {}
    rng = np.random.default_rng(1)
    U, G = rng.standard_normal((2, LANES * seeds, n, n))
    out = np.empty_like(U)
    tU, tG = torch.tensor(U), torch.tensor(G)
    u, g, o = (array[:LANES].reshape(-1) for array in (U, G, out))
    many = LANES * seeds
    return {
        "products of a run": {
            "numpy": repeated(lambda: (np.matmul(U, U.mT, out), np.matmul(G, U, out)), many),
            "torch.bmm": repeated(lambda: (torch.bmm(tU, tU.mT), torch.bmm(tG, tU)), many),
            "ours": repeated(lambda: square_products_in_lanes(n, u, g, o)),
        }
    }


def products(name):
    bench = BENCHES[name]
    found = data_products(*bench.data_product, bench.seeds)
    return found | square_products(bench.square, bench.seeds)


def bare_noise(name):
    """Injections of two draws each for all runs, as the library makes them."""
    bench = BENCHES[name]
    w = np.zeros((LANES * bench.seeds, bench.start.numel()))
    rows = Targets(list(w), range(len(w)))
    coefficients = np.tile([bench.sigma, -bench.sigma], (len(w), 1))
    step = 1

    def run():
        nonlocal step
        for _ in range(STEPS["noise"]):
            step += 1
            rows.inject(step, coefficients)
        return STEPS["noise"] * len(w)

    return run


def measure(name):
    """Median seconds per run-step of every way, in one process on one thread."""
    torch.set_num_threads(1)
    ways = {
        OURS: ours(name),
        AUTOGRAD: autograd(name),
        BY_HAND: one_by_hand(name),
        f"{BY_HAND}, all runs batched": batched(name),
        NOISE: bare_noise(name),
    }
    for product, routines in products(name).items():
        ways |= {f"{product}: {routine}": run for routine, run in routines.items()}
    seconds = {way: [] for way in ways}
    for run in ways.values():
        run()
    for _ in range(ROUNDS):
        for way in random.sample(list(ways), len(ways)):
            began = time.process_time()
            run_steps = ways[way]()
            seconds[way].append((time.process_time() - began) / run_steps)
    return {way: median(times) for way, times in seconds.items()}


def roofline_fraction(result):
    """The fastest products and the bare noise, over ours."""
    fastest = {}
    for way, value in result.items():
        product, colon, _ = way.partition(": ")
        if colon:
            fastest[product] = min(value, fastest.get(product, value))
    return (sum(fastest.values()) + result[NOISE]) / result[OURS]


def everything_on_all_threads(name):
    """Run-steps per second of whole runs with measurements, wall time."""
    steps, seeds = 20_000, range(BENCHES[name].seeds)
    runs = [spec(name, seed, lane, steps) for seed in seeds for lane in range(LANES)]
    list(run_local(runs[:1]))
    began = time.perf_counter()
    list(run_local(runs))
    return len(runs) * steps / (time.perf_counter() - began)


def child(name):
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--child", name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def print_rows(name, rows):
    print(f"\n{name}, Anti-PGD, {BENCHES[name].seeds * LANES} runs, 1 thread, process CPU time")
    print(f"{'':42}{'us/run-step':>12}{'ours is faster, worst':>24}")
    for way, row in rows.items():
        needed = BENCHES[name].required.get(way)
        met = needed is not None and row["ours_is_faster_worst"] >= needed
        verdict = "" if needed is None else f"  required {needed}x: {'met' if met else 'MISSED'}"
        print(
            f"{way:42}{row['us_per_run_step']:12.3f}{row['ours_is_faster_worst']:23.2f}x{verdict}"
        )


def compare(name):
    """All ways of one problem, printed and returned."""
    results = [child(name) for _ in range(PROCESSES)]
    rows = {
        way: {
            "us_per_run_step": median(result[way] for result in results) * 1e6,
            "ours_is_faster_worst": min(result[way] / result[OURS] for result in results),
        }
        for way in results[0]
    }
    print_rows(name, rows)
    fraction = min(roofline_fraction(result) for result in results)
    print(f"fraction of the roofline (fastest products + bare noise), worst: {fraction:.2f}")
    whole = everything_on_all_threads(name)
    print(f"whole runs with measurements on {os.cpu_count()} threads: {whole:,.0f} run-steps/s")
    return {
        "rows": rows,
        "roofline_fraction_worst": fraction,
        "whole_runs_per_second_all_threads": whole,
    }


def main():
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(measure(sys.argv[2])))
        return
    found = {name: compare(name) for name in BENCHES}
    path = Path(__file__).with_name("results.json")
    stored = json.loads(path.read_text()) if path.exists() else {}
    stored["simulator"] = found
    path.write_text(json.dumps(stored, indent=1) + "\n")
    print(f"written to {path.name}")


if __name__ == "__main__":
    main()
