"""The PAC-Bayes bound and the trace: sharpness falls, the bound depends on the prior

Quadratic regression, the runs of `regression`, 10 seeds: relaxed ends of GD and Anti-PGD. Expected
sharpness with s = 0.05 and 2,000 draws that both share. The bound holds for losses clipped to [0,
1] example by example, after division by 2.5 = E y²/4, the mean loss of predicting nought; n = 40
examples, δ = 0.05, λ from a grid of 25; priors at w_0 and at 0, both fixed before the data. Once
with s = 0.05, the noise of Anti-PGD itself, once with s from a grid of 8. That the bound is lower
for Anti-PGD is the paper's expectation; whether it says anything is our question.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from antipgd.estimate import Estimate
from antipgd.noise import draws
from antipgd.paper import figures
from antipgd.paper.claims import Claim, mostly, near, smaller
from antipgd.paper.experiments import runs_of
from antipgd.paper.record import Record, Spec
from antipgd.paper.results import Results
from antipgd.paper.simulation.problems.problem import Array
from antipgd.theory.pac_bayes import (
    Bound,
    expected_sharpness,
    pac_bayes_bound,
    sharpness_from_trace,
)

SHOWS = (
    "The terms of the bound and their sum, for two priors and two ways to choose s. Dots are "
    "means over {seeds} seeds, bars their range; above the dashed line a bound says nothing."
)
SEEDS = 10
S, DRAWS, SCALE, DELTA = 0.05, 2000, 2.5, 0.05
S_GRIDS = {"fixed": (S,), "grid": tuple(np.geomspace(0.01, 1.28, 8))}
LAMBDAS = tuple(np.geomspace(1, 1e5, 25))
PRIORS = {"start": 1.0, "zero": 0.0}
WORDS = {"start": "w_0", "zero": "0", "fixed": f"s = {S}", "grid": "the best s of a grid of 8"}
METHODS = ("gd", "anti")
REFERENCE = "thm:pac, eq:trace_hess_pac"


def runs(seeds: int) -> list[Spec]:
    return [run for run in runs_of("regression", seeds) if run.method in METHODS]


@cache
def _draws(seed: int, d: int) -> Array:
    """Unit draws that both methods share."""
    xi = draws(seed, "pac_bayes", 1, 0, DRAWS * d, purpose="probe")
    return xi.astype(np.float64).reshape(DRAWS, d)


def _clipped(data: Any) -> Callable[[Array], Array]:
    """Training losses clipped to [0, 1] example by example."""

    def loss(W: Array) -> Array:
        residual = (W * W) @ data.X.T - data.y
        return np.minimum(residual**2 / (4 * SCALE), 1).mean(axis=1)

    return loss


def _sharpness(record: Record) -> tuple[Estimate, float]:
    """Expected sharpness at the relaxed end, and what the trace makes of it."""
    if "relaxed" not in record.weights:
        return Estimate(math.inf, math.nan, DRAWS), math.nan
    problem = record.run.make_problem()
    data, w = record.run.make_data(problem), np.array(record.weights["relaxed"])
    measured = expected_sharpness(
        lambda W: problem.loss(W, data), w, S, _draws(record.run.seed, len(w))
    )
    return measured, sharpness_from_trace(float(problem.trace(w[None], data)[0]), S)


def _bound(record: Record, prior: str, widths: str) -> Bound:
    """The bound at the relaxed end; infinite where there is none."""
    if "relaxed" not in record.weights:
        return Bound(*[math.inf] * 9)
    problem = record.run.make_problem()
    data, w = record.run.make_data(problem), np.array(record.weights["relaxed"])
    loss, xi = _clipped(data), _draws(record.run.seed, len(w))
    return pac_bayes_bound(
        lambda s: loss(w + s * xi), w, np.full(len(w), PRIORS[prior]), S_GRIDS[widths], LAMBDAS,
        len(data.y), DELTA,
    )  # fmt: skip


def _bounds(results: Results, method: str, prior: str, widths: str) -> list[Bound]:
    return [_bound(record, prior, widths) for record in results.select(method=method)]


def claims(results: Results) -> list[Claim]:
    sharp = {m: [_sharpness(record) for record in results.select(method=m)] for m in METHODS}
    place = "relaxed ends"
    levels = [np.mean([measured.mean for measured, _ in sharp[m]]) for m in METHODS]
    found = [
        smaller("pac_bayes.sharpness", "Anti-PGD ends with a lower expected sharpness than GD",
                REFERENCE, f"{place}, s = {S}, {DRAWS:,} common draws, unclipped loss; mean "
                f"{levels[0]:.3g} for GD, {levels[1]:.3g} for Anti-PGD",
                [measured.mean for measured, _ in sharp["anti"]],
                [measured.mean for measured, _ in sharp["gd"]]),
    ]  # fmt: skip
    found += [
        near(f"pac_bayes.trace_{method}", f"at the end of {figures.NAMES[method]}, expected "
             "sharpness is s²/2 tr H to 10 %", "eq:trace_hess_pac",
             f"measured/predicted, {place}, s = {S}, {DRAWS:,} draws",
             [measured.mean / predicted for measured, predicted in sharp[method]], 1.0, 0.1)
        for method in METHODS
    ]  # fmt: skip
    for widths in S_GRIDS:
        for prior in PRIORS:
            bounds = {m: _bounds(results, m, prior, widths) for m in METHODS}
            useful = [not (a.vacuous and b.vacuous) for a, b in zip(*bounds.values(), strict=True)]
            how = f"prior at {WORDS[prior]}, {WORDS[widths]}"
            means = [np.mean([b.total for b in bounds[m]]) for m in METHODS]
            found += [
                smaller(f"pac_bayes.bound_{prior}_{widths}", "the bound shrinks with the trace: "
                        "it is lower for Anti-PGD than for GD", REFERENCE,
                        f"{how}, {place}; mean {means[0]:.3g} for GD, {means[1]:.3g} for Anti-PGD",
                        [b.total for b in bounds["anti"]], [b.total for b in bounds["gd"]]),
                mostly(f"pac_bayes.useful_{prior}_{widths}", "(ours) the bound says something: it "
                       "is below 1", REFERENCE,
                       f"{how}, {place}; share of seeds with a bound below 1 for GD or Anti-PGD",
                       useful),
            ]  # fmt: skip
    return found


def _bars(results: Results, prior: str, widths: str) -> figures.Panel:
    """The terms of the bound, one mark for each method and term."""
    terms = ("empirical", "sampling", "lambda_term", "divergence", "confidence", "union", "total")
    names = ("loss", "draws", "λ/8n", "KL/λ", "ln(1/δ)/λ", "grids", "total")
    series = []
    for method, aside in zip(METHODS, (-0.1, 0.1), strict=True):
        bounds = _bounds(results, method, prior, widths)
        table = np.array([[getattr(bound, term) for term in terms] for bound in bounds])
        series.append(
            figures.Series(np.arange(len(terms)) + aside, table.mean(axis=0),
                           figures.method_name(method), figures.COLOURS[method], "", "o",
                           table.min(axis=0), table.max(axis=0), bars=True)
        )  # fmt: skip
    series.append(figures.Series([0, len(terms) - 1], [1, 1], "vacuous above", dash="--"))
    return figures.Panel(f"prior at {WORDS[prior]}, {WORDS[widths]}", series, "", "", "linear",
                         "log", ticks=list(enumerate(names)))  # fmt: skip


def plot(results: Results) -> figures.Figure:
    panels = [_bars(results, prior, widths) for widths in S_GRIDS for prior in PRIORS]
    return figures.draw(panels, columns=2, width=4.6)
