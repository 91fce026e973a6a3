"""Which clock does an optimizer have? Steps to a flatter minimum, by lr and σ. `make clocks`.

From the optimizer's own minimum (no noise, learning rate cosined to 0) it goes on with noise in
the forward form, gradients at z + ξ, ξ fresh and Gaussian, with moments that begin anew. n is how
many steps the exact trace of the Hessian at z takes to fall from FIRST to LAST of what it was. Not
from the start: there the trace at z jumps by O(σ²), because z leaves the minimum of L for one
of L + σ²/2 tr ∇²L; n from the start to FIRST and to LAST stands beside it. n ∝ η^−a σ^−b is
fitted for each seed; means over seeds with 95 % intervals of Student's t. Beside that: what is left
of the trace without noise, after as many steps as the slowest run of the largest lr took.

All of it was fixed before these seeds were run (the grid by a look at seeds 1000 to 1005): 12
seeds, each with data of its own, 3 learning rates × 3 σ, levels .9 and .7. The rule: an optimizer
has the clock Σησ^B if on each of its problems the interval of a lies within ±.15 of 1 and that of
b within ±.15 of B, and the means of b between neighbouring σ within ±.25 of B.

Three changes came after a first run, which they did not change where all seeds got there: MOST,
which one run with momentum passed; `able`, without which one seed of small sensing never ended;
and that rows in which a seed does not get there are not judged, where they had counted as no clock.

Writes benchmarks/clocks.json; names of rows measure these alone and leave the others there.
"""

import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import scipy.stats
import torch
from torch import Tensor

from clocks_stacked import (
    Problem,
    Regression,
    Sensing,
    SignSGD,
    SmallSensing,
    StackedMuon,
    Stepping,
)

SEEDS = range(12)
FIRST, LAST = 0.9, 0.7
WITHIN, WITHIN_NEIGHBOURS = 0.15, 0.25
LOOKS = 5  # steps between two looks at the trace
MOST = 120_000  # steps of one run
B_OF = {"sgd": 2, "adam": 1}  # the power of σ in the clock that a row is held against


@dataclass(frozen=True)
class Row:
    """One optimizer on one problem."""

    clock: str  # that it is held against
    problem: type
    make: Callable
    lrs: tuple[float, ...]
    sigmas: tuple[float, ...]
    descent: float  # the first learning rate on the way to the minimum
    steps: int = 10_000  # on that way
    options: dict = field(default_factory=dict)


def _torchs(kind: type) -> Callable:
    return lambda w, lr, **options: Stepping(kind, w, lr, **options)


SMALL, TINY = (0.02, 0.04, 0.08), (0.0075, 0.015, 0.03)  # σ where weights are 1, and where .2
RATES, SLOW = (0.0005, 0.001, 0.002), (0.0001, 0.0002, 0.0004)


def _like_adam(kind: type, **options) -> Row:
    return Row("adam", Regression, _torchs(kind), RATES, SMALL, 0.01, options=options)


def _of_matrices(make: Callable, problem: type, descent: float, **options) -> Row:
    return Row("adam", problem, make, SLOW, TINY, descent, options=options)


optim = torch.optim
SGD, ADAM = _torchs(optim.SGD), _torchs(optim.Adam)
ROWS = {
    "SGD, regression": Row("sgd", Regression, SGD, (0.005, 0.01, 0.02), SMALL, 0.05),
    "SGD with momentum .9, regression": Row(
        "sgd", Regression, SGD, (0.0005, 0.001, 0.002), SMALL, 0.005, options={"momentum": 0.9}
    ),
    "Adam, regression": _like_adam(optim.Adam),
    "Adam, sensing": _of_matrices(ADAM, Sensing, 0.01),
    "Adam, small sensing": _of_matrices(ADAM, SmallSensing, 0.01),
    "AdamW with decay .01, regression": _like_adam(optim.AdamW),
    "AdamW with decay .1, regression": _like_adam(optim.AdamW, weight_decay=0.1),
    "NAdam, regression": _like_adam(optim.NAdam),
    "RAdam, regression": _like_adam(optim.RAdam),
    "RMSprop, regression": _like_adam(optim.RMSprop),
    "signs, regression": _like_adam(SignSGD),
    "Adagrad, regression": Row(
        "adam", Regression, _torchs(optim.Adagrad), (0.08, 0.16, 0.32), SMALL, 0.1
    ),
    "Muon without decay, sensing": _of_matrices(StackedMuon, Sensing, 0.0005, weight_decay=0.0),
    "Muon without decay, small sensing": _of_matrices(
        StackedMuon, SmallSensing, 0.0005, weight_decay=0.0
    ),
    "Muon with decay .1, sensing": _of_matrices(StackedMuon, Sensing, 0.0005),
}


def minimum(row: Row, problem: Problem) -> Tensor:
    """Where the optimizer comes to rest without noise."""
    w = problem.start.clone()
    optimizer = row.make(w, row.descent, **row.options)
    for n in range(row.steps):
        optimizer.lr = row.descent * (1 + math.cos(math.pi * n / row.steps)) / 2
        optimizer.step(problem.gradient(w))
    return w


def steps_to(row: Row, problem: Problem, start: Tensor, lr: float, sigma: float, most: int):
    """Steps until the trace is at FIRST and at LAST of its start, by level and seed.

    nan for seeds that are not there after `most` steps.
    """
    z, before = start.clone(), problem.trace(start)
    optimizer = row.make(z, lr, **row.options)
    draws = torch.Generator().manual_seed(5)
    found = torch.full((2, len(z)), math.nan, dtype=torch.float64)
    for n in range(1, most + 1):
        xi = torch.randn(z.shape, generator=draws, dtype=z.dtype)
        optimizer.step(problem.gradient(z + sigma * xi))
        if n % LOOKS == 0:
            ratio = problem.trace(z) / before
            for level, steps in zip((FIRST, LAST), found, strict=True):
                steps[steps.isnan() & (ratio <= level)] = n
            if not found.isnan().any():
                break
    return found.numpy()


def able(row: Row, seeds) -> list[int]:
    """Seeds that get there at the largest lr and σ in a 16th of MOST steps.

    Some minima have no flatter one beside them; the slowest runs take 16 times as many or more.
    """
    problem = row.problem(seeds)
    start = minimum(row, problem)
    last = steps_to(row, problem, start, row.lrs[-1], row.sigmas[-1], MOST // 16)[1]
    return [seed for seed, steps in zip(seeds, last, strict=True) if not math.isnan(steps)]


def interval(values) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval."""
    values = np.asarray(values)
    t = scipy.stats.t.ppf(0.975, len(values) - 1)
    return float(values.mean()), float(t * values.std(ddof=1) / math.sqrt(len(values)))


def exponents(lrs, sigmas, steps) -> dict:
    """a, b and b between neighbouring σ of n ∝ η^−a σ^−b; `steps` by lr, σ and seed."""
    cells = np.array([[1, -math.log(lr), -math.log(s)] for lr in lrs for s in sigmas])
    logs = np.log(steps)
    _, a, b = np.linalg.lstsq(cells, logs.reshape(len(cells), -1), rcond=None)[0]
    local = -np.diff(logs, axis=1) / np.diff(np.log(sigmas))[None, :, None]
    return {"a": interval(a), "b": interval(b),
            "b by neighbours": [interval(each) for each in local.mean(axis=0)]}  # fmt: skip


def fits(found: dict, power: int) -> bool:
    """Whether the rule at the top holds."""
    near = [abs(found[k][0] - to) + found[k][1] <= WITHIN for k, to in (("a", 1), ("b", power))]
    local = [abs(mean - power) <= WITHIN_NEIGHBOURS for mean, _ in found["b by neighbours"]]
    return all([*near, *local])


def without_noise(row: Row, problem: Problem, start: Tensor, steps: int) -> float:
    """What is left of the trace after so many steps of the largest learning rate, no noise."""
    w = start.clone()
    optimizer = row.make(w, row.lrs[-1], **row.options)
    for _ in range(steps):
        optimizer.step(problem.gradient(w))
    return float((problem.trace(w) / problem.trace(start)).mean())


def measured(row: Row) -> dict:
    seeds = able(row, SEEDS)
    found = {"lrs": row.lrs, "sigmas": row.sigmas, "seeds": seeds, "fits": None}
    if len(seeds) <= len(SEEDS) / 2:
        return found
    problem = row.problem(seeds)
    start = minimum(row, problem)
    cells = [[steps_to(row, problem, start, lr, s, MOST) for s in row.sigmas] for lr in row.lrs]
    first, last = np.moveaxis(np.array(cells), 2, 0)  # by lr, σ and seed
    found |= {
        "trace at the start": problem.trace(start).mean().item(),
        "gradient at the start": problem.gradient(start).abs().max().item(),
        "never": int(np.isnan(last).sum()),
    }  # fmt: skip
    if found["never"]:
        return found
    slowest = round(float(np.median(last[-1, 0])))
    between = exponents(row.lrs, row.sigmas, last - first)
    return found | {
        "median steps": np.median(last - first, axis=2).tolist(),
        "between": between, "fits": fits(between, B_OF[row.clock]),
        "from the start": [exponents(row.lrs, row.sigmas, steps) for steps in (first, last)],
        "left without noise": without_noise(row, problem, start, slowest),
    }  # fmt: skip


def _shown(pair: tuple[float, float]) -> str:
    return f"{pair[0]:.2f} ± {pair[1]:.2f}"


def line(name: str, row: Row, found: dict) -> str:
    name = f"{name} ({len(found['seeds'])})"
    if "between" not in found:
        return f"| {name} | not all got there | | | | | not judged |"
    between = found["between"]
    local = ", ".join(f"{mean:.2f}" for mean, _ in between["b by neighbours"])
    start = ", ".join(f"{each['b'][0]:.2f}" for each in found["from the start"])
    verdict = f"Σησ{'²' * (B_OF[row.clock] - 1)}" if found["fits"] else "none fits"
    return (f"| {name} | {_shown(between['a'])} | {_shown(between['b'])} | {local} | {start} | "
            f"{found['left without noise']:.2f} | {verdict} |")  # fmt: skip


def _add(name: str, found: dict) -> None:
    """Write a row beside those that are there."""
    path = Path(__file__).with_name("clocks.json")
    rows = json.loads(path.read_text())["rows"] if path.exists() else {}
    rows[name] = found
    result = {
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "versions": {module.__name__: module.__version__ for module in (np, torch)},
        "levels": [FIRST, LAST],
        "rows": {each: rows[each] for each in ROWS if each in rows},
    }  # fmt: skip
    path.write_text(json.dumps(result, indent=1) + "\n")


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    print("| optimizer, problem (data sets) | a | b | b by neighbours | "
          f"b from the start to {FIRST}, {LAST} | trace left without noise | clock |\n"
          "|---|---|---|---|---|---|---|")  # fmt: skip
    for name in names or ROWS:
        begin = time.process_time()
        found = measured(ROWS[name])
        print(line(name, ROWS[name], found), flush=True)
        print(f"{name}: {time.process_time() - begin:.0f} s", file=sys.stderr, flush=True)
        _add(name, found)


if __name__ == "__main__":
    main(sys.argv[1:])
