"""Does a 95 % interval hold the trace in 95 % of cases? 400 seeds of every estimator.

On whole Hessians of models of many kinds, taken once by autodiff: `test_estimators` proves that
the samples are those of `hessian_trace`. A cell is a model × an estimator × a fixed number of
products or a tolerance that stops it early. `make test-slow` prints the table.
"""

import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch

from antipgd.flatness.estimators import Operator
from antipgd.flatness.planning import Plan
from antipgd.flatness.probes import Probes
from antipgd.flatness.trace import Trace, difference

SEEDS = 400
METHODS = ["hutchinson", "hutch++"]
FIXED = 64  # products
STOPPED = 100  # the tolerance is what Hutchinson's reaches with so many products
TOLERANCES = {"nearly the identity": 0.02}  # Hutchinson's is too good there for the others
TOTAL = np.array([1.0, 0.0])


def spectrum(eigenvalues):
    """A matrix with these eigenvalues in random directions."""
    rng = np.random.default_rng(0)
    q, _ = np.linalg.qr(rng.standard_normal((len(eigenvalues),) * 2))
    return (q * eigenvalues) @ q.T


def matrices(cases):
    made = {
        "mlp tanh": cases["mlp tanh"](width=30),
        "mlp relu": cases["mlp relu"](width=30),
        "batch norm train": cases["batch norm train"](width=16),
        "batch norm eval": cases["batch norm eval"](width=16),
        "attention": cases["attention"](width=8, scale=0.5),
        "quadratic regression": cases["quadratic regression"](d=200),
        "matrix sensing": cases["matrix sensing"](n=15),
        "widening valley": cases["widening valley"](d=200),
    }
    i = np.arange(1, 301.0)
    return {name: case.hessian() for name, case in made.items()} | {
        "one large eigenvalue": spectrum(np.where(i == 1, 300.0, 1.0)),
        "power law": spectrum(1 / i),
        "geometric": spectrum(0.9**i),
        "nearly the identity": spectrum(1 + 0.3 * np.sin(i)),
    }


class Dense:
    """Plans on a whole matrix."""

    def __init__(self, H, first_seed=0, tolerance=None):
        self.first_seed = first_seed
        self.matrix, self.trace, self.size = torch.from_numpy(H), np.trace(H), len(H)
        self.ones = torch.ones(self.size, dtype=torch.float64)
        variance = 2 * (H**2).sum() - 2 * (np.diag(H) ** 2).sum()
        reached = min(0.2, 2 * np.sqrt(variance / STOPPED) / abs(self.trace))
        self.tolerance = tolerance or reached

    def estimate(self, method, seed, tolerance):
        probes = Probes(seed, ["0"], [self.size], torch.float64, torch.device("cpu"))
        operator = Operator(lambda v: v @ self.matrix, probes, self.ones, 64)
        budget = FIXED if tolerance is None else 10_000
        plan = Plan(operator, budget, tolerance, self.size // 2)
        used, samples = plan.carry_out(method)
        return used, samples, plan.spent

    def whole(self, method, seed, tolerance):
        """A trace as `hessian_trace` gives it."""
        used, samples, spent = self.estimate(method, seed, tolerance)
        return Trace(
            estimate=samples.estimate(TOTAL), batch_norm="none", converged=True, seed=seed,
            method=used, products=spent, names=("0",), sizes=(self.size,), scales=np.ones(1),
            samples=samples,
        )  # fmt: skip

    def coverage(self, method, stopped, seeds=SEEDS):
        """The share of seeds whose interval holds the trace, and the products on average.

        Runs that turned to the exact trace, which is cheaper where a tolerance asks for much, say
        nothing of intervals and are left out.
        """
        hits, spent, tolerance = [], [], self.tolerance if stopped else None
        for seed in range(self.first_seed, self.first_seed + seeds):
            used, samples, products = self.estimate(method, seed, tolerance)
            low, high = samples.estimate(TOTAL).interval()
            if used != "exact":
                hits.append(low <= self.trace <= high)
            spent.append(products)
        return Cell(np.sum(hits), len(hits), np.mean(spent))


class Cell(NamedTuple):
    hits: int
    runs: int
    products: float

    def __str__(self):
        exact = f" {SEEDS - self.runs}e" if self.runs < SEEDS else ""
        share = f"{100 * self.hits / self.runs:.1f}" if self.runs else "-"
        return f"{share} ({self.products:.0f}{exact})"


@pytest.mark.slow
def test_intervals_cover(cases, capsys):
    columns = [(method, stopped) for method in [*METHODS, "auto"] for stopped in (False, True)]
    rows, tolerances = {}, {}
    for k, (name, H) in enumerate(matrices(cases).items()):
        # Seeds of its own, so that the rows are independent.
        dense = Dense(H, SEEDS * k, TOLERANCES.get(name))
        tolerances[name] = dense.tolerance
        rows[name] = [dense.coverage(method, stopped) for method, stopped in columns]
    with capsys.disabled():  # stdout of pytest-xdist's workers goes nowhere, stderr is shown
        print(table(columns, rows, tolerances), file=sys.stderr)
    estimators = [cell for row in rows.values() for cell in row[: 2 * len(METHODS)]]
    pooled = sum(cell.hits for cell in estimators) / sum(cell.runs for cell in estimators)
    assert 0.935 <= pooled <= 0.965
    for row in rows.values():
        for cell in row:
            assert cell.runs < SEEDS / 2 or cell.hits >= 0.905 * cell.runs


@pytest.mark.slow
def test_intervals_of_differences_cover():
    """Of traces with common seeds that a tolerance stopped, alike or not."""
    i = np.arange(1, 301.0)
    root = np.random.default_rng(5).standard_normal((300, 300))
    falling, large = spectrum(1 / i), spectrum(np.where(i == 1, 300.0, 1.0))
    pairs = [
        (falling, falling + 0.002 * root @ root.T / 300),
        (large, large / 2 + 0.1 * root @ root.T / 300),
        (spectrum(np.exp(np.sin(i))), 20 * falling),
    ]
    hits = []
    for one, other in pairs:
        exact = np.trace(one) - np.trace(other)
        for method in METHODS:
            for seed in range(100):
                traces = [Dense(H).whole(method, seed, 0.05) for H in (one, other)]
                low, high = difference(*traces).interval()
                hits.append(low <= exact <= high)
    assert 0.92 <= np.mean(hits) <= 0.97  # 600 pairs: 95 % ± 1.8


def table(columns, rows, tolerances):
    heads = [f"{method}{' stopped' if stopped else ''}" for method, stopped in columns]
    lines = [
        "",
        f"Coverage of 95 % intervals in %, {SEEDS} seeds each: after {FIXED} products, or stopped",
        "by the tolerance on the left. In brackets: mean of products; e: runs that turned exact.",
        " " * 30 + "".join(f"{head:>20}" for head in heads),
    ]
    for name, row in rows.items():
        cells = "".join(f"{cell!s:>20}" for cell in row)
        lines.append(f"{name:22}{tolerances[name]:>8.1g}{cells}")
    totals = [Cell(*np.sum([row[k][:2] for row in rows.values()], axis=0), 0)
              for k in range(len(columns))]  # fmt: skip
    shares = [100 * total.hits / total.runs for total in totals]
    lines.append(f"{'all':30}" + "".join(f"{share:>20.1f}" for share in shares))
    both = totals[: 2 * len(METHODS)]
    pooled = 100 * sum(t.hits for t in both) / sum(t.runs for t in both)
    return "\n".join([*lines, f"pooled over both estimators: {pooled:.2f}", ""])
