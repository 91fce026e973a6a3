"""What the noise costs: ratios against real peers, measured side by side. `make bench`.

Each way of adding noise is applied to the 62 tensors of ResNet18 (11.2 million parameters), to one
tensor of 10⁸, and after a whole step of torch's fused SGD on those 62. In every round the order is
shuffled and the caches are flushed before each measurement; a process takes the median over rounds;
three processes run, and the worst ratio of the three counts. One thread is judged, on process CPU
time; all threads are printed, on wall time.
Writes benchmarks/results.json.
"""

import json
import os
import platform
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numba
import numpy as np
import torch

import antipgd.torch
from antipgd.noise import stream_key
from antipgd.noise.inplace import Targets

SIGMA = 0.01
ANTI = [SIGMA, -SIGMA]
PROCESSES = 3
ROUNDS = {"resnet18": 15, "one of 1e8": 7, "SGD step on resnet18": 15}
FLUSH_BYTES = 320_000_000  # more than the last-level cache of the machines we know
LAWS = ("rademacher", "gaussian", "uniform", "laplace", "student-t:5")
NAIVE, IN_PLACE = "torch naive randn_like pair", "torch in-place pair"


def resnet18_shapes() -> list[tuple[int, ...]]:
    """Convolutions, BatchNorm pairs and the classifier of the CIFAR variant: 62 tensors."""
    shapes: list[tuple[int, ...]] = [(64, 3, 3, 3), (64,), (64,)]
    width = 64
    for planes in (64, 128, 256, 512):
        for block in range(2):
            inputs = width if block == 0 else planes
            shapes += [(planes, inputs, 3, 3), (planes,), (planes,)]
            shapes += [(planes, planes, 3, 3), (planes,), (planes,)]
            if inputs != planes:
                shapes += [(planes, inputs, 1, 1), (planes,), (planes,)]
        width = planes
    return [*shapes, (10, 512), (10,)]


def make(problem: str) -> list[torch.Tensor]:
    shapes = [(10**8,)] if problem == "one of 1e8" else resnet18_shapes()
    return [torch.zeros(shape) for shape in shapes]


def targets(tensors: list[torch.Tensor]) -> Targets:
    keys = [stream_key(0, i) for i in range(len(tensors))]
    return Targets([tensor.numpy() for tensor in tensors], keys)


def ours(tensors, law, threads):
    prepared, coefficients, step = targets(tensors), np.array([ANTI] * len(tensors)), [1]

    def run():
        step[0] += 1
        prepared.inject(step[0], coefficients, law, threads=threads)

    return run


def channels_last(tensors):
    return [
        tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor
        for tensor in tensors
    ]


def read_modify_write(tensors):
    return lambda: torch._foreach_add_(tensors, SIGMA)


def torch_normal(tensors):
    """One draw and no anticorrelation: only what torch needs to make the numbers."""
    return lambda: [tensor.normal_(0, SIGMA) for tensor in tensors]


def naive(tensors):
    """The usual code: draw, subtract the previous draw, keep the new one."""
    previous = [torch.zeros_like(tensor) for tensor in tensors]

    def run():
        for i, tensor in enumerate(tensors):
            new = torch.randn_like(tensor) * SIGMA
            tensor.add_(new - previous[i])
            previous[i] = new

    return run


def in_place(tensors):
    """The same without temporaries: the old draw out, a new one into its buffer, and in."""
    buffers = [torch.zeros_like(tensor) for tensor in tensors]

    def run():
        for tensor, buffer in zip(tensors, buffers, strict=True):
            tensor.sub_(buffer)
            buffer.normal_(0, SIGMA)
            tensor.add_(buffer)

    return run


def dictionary(tensors):
    """As the paper's authors publish it: a dictionary of the previous noise."""
    previous = {}

    def run():
        for tensor in tensors:
            new = torch.normal(0.0, SIGMA, size=tensor.size())
            tensor.add_(new - previous.get(tensor, 0.0))
            previous[tensor] = new

    return run


def steps(threads: int) -> dict:
    """A whole step of fused SGD, alone and with each way of adding noise after it."""

    def optimizer():
        parameters = [torch.nn.Parameter(tensor) for tensor in make("resnet18")]
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 1e-6)
        return parameters, torch.optim.SGD(parameters, lr=0.05, fused=True)

    rows = {"fused SGD": optimizer()[1].step}
    for law in ("rademacher", "gaussian"):
        _, attached = optimizer()
        antipgd.torch.attach(attached, sigma=SIGMA, law=law, seed=0, namespace=law)
        rows[f"+ antipgd {law}"] = attached.step
    for name, way in ((NAIVE, naive), (IN_PLACE, in_place), ("torch dictionary", dictionary)):
        parameters, plain = optimizer()
        after = way([parameter.detach() for parameter in parameters])
        rows[f"+ {name}"] = lambda plain=plain, after=after: (plain.step(), after())
    return rows


def ways(problem: str, threads: int) -> dict:
    """Every way of adding noise, the yardstick first."""
    if problem == "SGD step on resnet18":
        return steps(threads)
    tensors = make(problem)
    rows = {"read-modify-write": read_modify_write(tensors)}
    rows |= {f"antipgd {law}": ours(tensors, law, threads) for law in LAWS}
    if problem == "resnet18":
        other = channels_last(make(problem))
        for law in ("rademacher", "gaussian"):
            rows[f"antipgd {law}, channels_last"] = ours(other, law, threads)
    rows["torch normal_ (one draw, no noise added)"] = torch_normal(make(problem))
    rows[NAIVE] = naive(tensors)
    rows[IN_PLACE] = in_place(tensors)
    return rows


def measure(problem: str, threads: int) -> dict[str, float]:
    """Median seconds of every way, in one process."""
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    rows = ways(problem, threads)
    flush = np.zeros(FLUSH_BYTES // 4, np.float32)
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    for run in rows.values():
        run()
    for _ in range(ROUNDS[problem]):
        for name in random.sample(list(rows), len(rows)):
            flush += 1
            begin = clock()
            rows[name]()
            seconds[name].append(clock() - begin)
    return {name: median(times) for name, times in seconds.items()}


def memory(way: str) -> dict[str, float]:
    """Peak bytes per parameter beyond the weights, over a few steps of one way."""
    torch.set_num_threads(1)
    build = {"naive": naive, "in-place": in_place}.get(way, lambda t: ours(t, way, 1))
    build([torch.zeros(10_000)])()  # imports and compiles
    tensors = make("one of 1e8")
    tensors[0].add_(1)  # touch every page
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = build(tensors)
    for _ in range(3):
        run()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"bytes per parameter": (after - before) * 1024 / 1e8}


def child(*arguments: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def table(problem: str, threads: int, processes: int) -> list[dict]:
    runs = [child(problem, str(threads)) for _ in range(processes)]
    elements = sum(tensor.numel() for tensor in make(problem))
    rows = []
    base = next(iter(runs[0]))
    naive_name, in_place_name = (
        next(name for name in runs[0] if name.endswith(end)) for end in (NAIVE, IN_PLACE)
    )
    for name in runs[0]:
        ratios = [run[name] / run[base] for run in runs]
        rows.append(
            {
                "problem": problem,
                "threads": threads,
                "way": name,
                "ns_per_parameter": median(run[name] for run in runs) / elements * 1e9,
                "times_first_row": median(ratios),
                "worst": max(ratios),
                "speedup_over_naive_worst": min(run[naive_name] / run[name] for run in runs),
                "speedup_over_in_place_worst": min(run[in_place_name] / run[name] for run in runs),
            }
        )
    for law in ("rademacher", "gaussian") if problem == "resnet18" else ():
        last, first = f"antipgd {law}, channels_last", f"antipgd {law}"
        worst = max(run[last] / run[first] for run in runs)
        next(row for row in rows if row["way"] == last)["times_contiguous_worst"] = worst
    return rows


def show(rows: list[dict]) -> None:
    problem, threads = rows[0]["problem"], rows[0]["threads"]
    clock = "process CPU time" if threads == 1 else "wall time"
    print(f"\n{problem}, {threads} thread{'s' * (threads > 1)}, {clock}")
    print(f"{'':42}{'ns/param':>9}{'x first':>8}{'worst':>8}{'vs naive':>10}{'vs in-place':>12}")
    for row in rows:
        print(
            f"{row['way']:42}{row['ns_per_parameter']:9.2f}{row['times_first_row']:8.2f}"
            f"{row['worst']:8.2f}{row['speedup_over_naive_worst']:9.1f}x"
            f"{row['speedup_over_in_place_worst']:11.1f}x"
            + (
                f"   {row['times_contiguous_worst']:.2f}x contiguous at worst"
                if "times_contiguous_worst" in row
                else ""
            )
        )


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        kind, argument = sys.argv[2:4]
        result = memory(argument) if kind == "memory" else measure(kind, int(argument))
        print(json.dumps(result))
        return
    tables = []
    for threads, processes in ((1, PROCESSES), (os.cpu_count() or 1, 1)):
        for problem in ROUNDS:
            tables += (rows := table(problem, threads, processes))
            show(rows)
    print("\nextra memory, peak bytes per parameter (10^8 parameters)")
    extra = {way: child("memory", way) for way in ("rademacher", "gaussian", "naive", "in-place")}
    for way, result in extra.items():
        print(f"{way:42}{result['bytes per parameter']:9.2f}")
    result = {
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "versions": {m.__name__: m.__version__ for m in (numba, np, torch)},
        "rows": tables,
        "memory": {way: result["bytes per parameter"] for way, result in extra.items()},
    }
    path = Path(__file__).with_name("results.json")
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\nwritten to {path.name}")


if __name__ == "__main__":
    main()
