"""How fast many small runs go: run-steps per second against real peers. `make bench`.

Anti-PGD on quadratic regression at the paper's size (n = 40, d = 100, float64), eight settings of σ
on each of ten seeds. Peers: the loop everybody would write in torch (autograd, torch.optim.SGD,
randn); torch with the gradient written by hand, one run at a time; and that with all eighty runs in
one batch. The roofline is the products alone, by the fastest routine measured for them, plus
the bare noise kernel; it can be passed because runs of one seed share their draws here. One thread,
process CPU time, order shuffled, median over rounds; three processes, the worst counts. All threads
are printed on wall time. Adds to benchmarks/results.json.
"""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch

from antipgd.noise.inplace import inject_rows
from antipgd.paper.problems import kernels
from antipgd.paper.run.blocks import LANES, Block
from antipgd.paper.run.compiled import CompiledStepper
from antipgd.paper.run.local import run_local
from antipgd.paper.spec import make_run

SEEDS, SIGMA, LR, N, D = 10, 0.05, 0.1, 40, 100
PROCESSES, ROUNDS = 3, 9
STEPS = {"ours": 400, "autograd": 60, "by hand": 150, "batched": 150}


def spec(seed, lane, steps=1000):
    sigma = SIGMA * (lane + 1) / LANES
    return make_run("quadratic_regression", {}, "anti", lr=LR, sigma=sigma, steps=steps, seed=seed,
                    relax=False)  # fmt: skip


def blocks():
    return [Block(tuple(spec(seed, lane) for lane in range(LANES))) for seed in range(SEEDS)]


def ours():
    steppers = [CompiledStepper(block) for block in blocks()]
    for stepper in steppers:
        stepper.advance(1)

    def run():
        for stepper in steppers:
            stepper.advance(stepper.step + STEPS["ours"])
        return STEPS["ours"] * LANES * SEEDS

    return run


def autograd():
    data = blocks()[0].data
    X, y = torch.tensor(data.X), torch.tensor(data.y)
    w = torch.nn.Parameter(torch.ones(D, dtype=torch.float64))
    optimizer = torch.optim.SGD([w], lr=LR)
    previous = torch.zeros_like(w)

    def run():
        nonlocal previous
        for _ in range(STEPS["autograd"]):
            optimizer.zero_grad()
            loss = (X @ (w * w) - y).square().mean() / 4
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                xi = SIGMA * torch.randn_like(w)
                w.add_(xi - previous)
                previous = xi
        return STEPS["autograd"]

    return run


def by_hand():
    data = blocks()[0].data
    X, y = torch.tensor(data.X), torch.tensor(data.y)
    w, previous = torch.ones(D, dtype=torch.float64), torch.zeros(D, dtype=torch.float64)

    def run():
        nonlocal w, previous
        for _ in range(STEPS["by hand"]):
            gradient = w * (X.T @ (X @ (w * w) - y)) / N
            xi = SIGMA * torch.randn_like(w)
            w = w - LR * gradient + xi - previous
            previous = xi
        return STEPS["by hand"]

    return run


def batched():
    data = [block.data for block in blocks()]
    X = torch.tensor(np.stack([d.X for d in data]))
    y = torch.tensor(np.stack([d.y for d in data]))[:, :, None]
    w = torch.ones(SEEDS, D, LANES, dtype=torch.float64)
    sigma = SIGMA * (torch.arange(LANES) + 1) / LANES
    previous = torch.zeros_like(w)

    def run():
        nonlocal w, previous
        for _ in range(STEPS["batched"]):
            gradient = w * (X.mT @ (X @ (w * w) - y)) / N
            xi = sigma * torch.randn_like(w)
            w = w - LR * gradient + xi - previous
            previous = xi
        return STEPS["batched"] * LANES * SEEDS

    return run


def products():
    """The two products of a step for eight runs of one seed, by several routines."""
    rng = np.random.default_rng(0)
    X, Q, R = (rng.standard_normal(shape) for shape in ((N, D), (D, LANES), (N, LANES)))
    XT = np.ascontiguousarray(X.T)
    out_r, out_g = np.empty((N, LANES)), np.empty((D, LANES))
    tX, tQ, tR, tXT = map(torch.tensor, (X, Q, R, XT))
    t_r, t_g = torch.tensor(out_r), torch.tensor(out_g)
    flat, q, r = X.reshape(-1), Q.reshape(-1), R.reshape(-1)
    r_out, g_out = out_r.reshape(-1), out_g.reshape(-1)
    bX, bQ, bR = (t.expand(SEEDS, -1, -1).contiguous() for t in (tX, tQ, tR))
    calls = 200

    def repeated(call, runs=LANES):
        def run():
            for _ in range(calls):
                call()
            return calls * runs

        return run

    return {
        "products: numpy": repeated(lambda: (np.matmul(X, Q, out_r), np.matmul(XT, R, out_g))),
        "products: torch.mm": repeated(
            lambda: (torch.mm(tX, tQ, out=t_r), torch.mm(tXT, tR, out=t_g))
        ),
        "products: torch.bmm": repeated(
            lambda: (torch.bmm(bX, bQ), torch.bmm(bX.mT, bR)), LANES * SEEDS
        ),
        "products: ours": repeated(
            lambda: (
                kernels.multiply(flat, D, 1, N, D, q, r_out),
                kernels.multiply(flat, 1, D, D, N, r, g_out),
            )
        ),
    }


def bare_noise():
    """Injections of two draws each for the eighty runs, as the library makes them."""
    w = np.zeros((LANES * SEEDS, D))
    keys = np.repeat(np.arange(SEEDS, dtype=np.uint64), LANES)
    coefficients = np.tile([SIGMA, -SIGMA], (len(w), 1))
    step = 1

    def run():
        nonlocal step
        for _ in range(20):
            step += 1
            inject_rows(w, keys, step, coefficients)
        return 20 * len(w)

    return run


def measure():
    """Median seconds per run-step of every way, in one process on one thread."""
    torch.set_num_threads(1)
    ways = {
        "antipgd simulator": ours(),
        "torch autograd and optimizer": autograd(),
        "torch gradient by hand": by_hand(),
        "torch gradient by hand, 80 runs batched": batched(),
        "bare noise kernel": bare_noise(),
        **products(),
    }
    seconds = {name: [] for name in ways}
    for run in ways.values():
        run()
    for _ in range(ROUNDS):
        for name in random.sample(list(ways), len(ways)):
            began = time.process_time()
            run_steps = ways[name]()
            seconds[name].append((time.process_time() - began) / run_steps)
    return {name: median(times) for name, times in seconds.items()}


def everything_on_all_threads():
    """Run-steps per second of whole runs with measurements, wall time."""
    steps = 20_000
    runs = [spec(seed, lane, steps) for seed in range(SEEDS) for lane in range(LANES)]
    list(run_local(runs[:1]))
    began = time.perf_counter()
    list(run_local(runs))
    return len(runs) * steps / (time.perf_counter() - began)


def child():
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--child"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main():
    if sys.argv[1:] == ["--child"]:
        print(json.dumps(measure()))
        return
    results = [child() for _ in range(PROCESSES)]
    ours_name = "antipgd simulator"
    print("\nquadratic regression, Anti-PGD, 1 thread, process CPU time")
    print(f"{'':42}{'us/run-step':>12}{'ours is faster, worst':>24}")
    rows = {}
    for name in results[0]:
        speedup = min(result[name] / result[ours_name] for result in results)
        rows[name] = {
            "us_per_run_step": median(result[name] for result in results) * 1e6,
            "ours_is_faster_worst": speedup,
        }
        print(f"{name:42}{rows[name]['us_per_run_step']:12.3f}{speedup:23.2f}x")
    fractions = []
    for result in results:
        fastest = min(value for name, value in result.items() if name.startswith("products"))
        fractions.append((fastest + result["bare noise kernel"]) / result[ours_name])
    print(f"fraction of the roofline (fastest products + bare noise), worst: {min(fractions):.2f}")
    whole = everything_on_all_threads()
    print(f"whole runs with measurements on {os.cpu_count()} threads: {whole:,.0f} run-steps/s")
    path = Path(__file__).with_name("results.json")
    stored = json.loads(path.read_text()) if path.exists() else {}
    stored["simulator"] = {
        "rows": rows,
        "roofline_fraction_worst": min(fractions),
        "whole_runs_per_second_all_threads": whole,
    }
    path.write_text(json.dumps(stored, indent=1) + "\n")
    print(f"written to {path.name}")


if __name__ == "__main__":
    main()
