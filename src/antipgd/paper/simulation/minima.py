"""What the law at real learning rates says of runs whose noise begins in a minimum.

`antipgd.theory.finite_rate` knows no problem and runs know no law: here they meet. A run descends
without noise until `start`; from there on, n steps are the time t = nη/(1−β) of the flow of R, and
the clock τ on the flow of the trace, which is the flow of R for η → 0.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from antipgd.paper import figures
from antipgd.paper.record import Record
from antipgd.paper.results import Results, Values, log_ratio
from antipgd.paper.simulation.problems.problem import Array
from antipgd.paper.simulation.spec import Run, make_run
from antipgd.theory.finite_rate import (
    Landscape,
    flow,
    mean_ratio,
    ratio_by_direction,
    variance_ratio,
)

CLOCKS = ("flow", "direction", "spectrum", "old")
PLACED = ("flow of R, equal t", "τ by direction", "τ from the spectrum", "old τ")
LARGEST_RATIO = 3.0
_LIMIT = 1e-9  # a learning rate at which φ is 1
_TOLERANCE, _STEPS = 1e-5, 2_000
_MINIMUM = 1e-4  # the largest element of a gradient in what counts as one


class Case(NamedTuple):
    """What runs differ in."""

    lr: float
    momentum: float
    sigma: float

    def __str__(self) -> str:
        return f"η = {self.lr:g}, β = {self.momentum:g}, σ = {self.sigma:g}"

    def after(self, clock: float) -> int:
        """Steps until Σησ²/(1−β) is so large."""
        return round(clock * (1 - self.momentum) / (self.lr * self.sigma**2))


def prelude(run: Run) -> Run:
    """The noise-free beginning of a run alone: where it ends, the noise begins."""
    return make_run(run.problem, dict(run.settings), "gd", lr=run.lr, momentum=run.momentum,
                    steps=run.start, seed=run.seed, measure=(0,), relax=False)  # fmt: skip


def case_runs(
    problem: str, settings: dict, case: Case, descent: float, clocks: Sequence[float],
    seeds: Sequence[int],
) -> list[Run]:  # fmt: skip
    """Anti-PGD after a descent of Σ η/(1−β) = `descent`, measured at these clocks; the descents."""
    start = round(descent * (1 - case.momentum) / case.lr)
    measure = tuple(start + case.after(clock) for clock in (0.0, *clocks))
    runs = [
        make_run(problem, settings, "anti", lr=case.lr, momentum=case.momentum, sigma=case.sigma,
                 start=start, steps=measure[-1], measure=measure, seed=seed, relax=False)
        for seed in seeds
    ]  # fmt: skip
    return [one for run in runs for one in (run, prelude(run))]


def landscape_of(run: Run) -> Landscape:
    """The loss of a run's problem on its data."""
    problem = run.make_problem()
    data = run.make_data(problem)
    return Landscape(
        lambda z: problem.gradient(z[None], data)[0],
        lambda z: problem.hessian(z, data),
        lambda z, M: problem.curvature_gradient(z, data, M),
    )


@lru_cache(maxsize=4096)
def start_ratio(run: Run, begin: tuple[float, ...]) -> float:
    """φ(ηh) of the largest curvature where the noise begins; infinite where that is no minimum."""
    land, start = landscape_of(run), np.array(begin)
    if not np.abs(land.gradient(start)).max() < _MINIMUM:
        return np.inf
    largest = np.linalg.eigvalsh(land.hessian(start))[-1]
    return float(variance_ratio(run.lr * largest, run.momentum, run.nesterov))


def _clock(run: Run, times: Array, ratios: Sequence[float]) -> Array:
    """τ(t) = ∫σ²φ̄ dt, by the trapezoid rule corrected at its ends."""
    rates = run.sigma**2 * np.array(ratios)
    slopes = np.gradient(rates, times, edge_order=2)
    width = np.diff(times)
    pieces = width * (rates[1:] + rates[:-1]) / 2 + width**2 / 12 * (slopes[:-1] - slopes[1:])
    return np.concatenate([[0.0], np.cumsum(pieces)])


@lru_cache(maxsize=4096)
def course(run: Run, start: tuple[float, ...]) -> dict[str, Array] | None:
    """Where the run should be at its measured steps from `start` on, by each of `CLOCKS`; by the
    clocks with φ̄, which is taken along the flow of R, at the last step only.

    None where the law refuses: no minimum is near, or a curvature is past the limit of stability.
    """
    with threadpool_limits(1, "blas"):  # of matrices so small
        try:
            return _course(run, np.array(start))
        except (ValueError, np.linalg.LinAlgError):
            return None


def _course(run: Run, start: Array) -> dict[str, Array]:
    land, options = landscape_of(run), {"momentum": run.momentum, "nesterov": run.nesterov}
    steps = np.array([n for n in run.measure if n >= run.start])
    times = (steps - run.start) * run.lr / (1 - run.momentum)
    settings = {"tolerance": _TOLERANCE, "steps": _STEPS}
    Z = flow(start, run.lr, run.sigma, land, times, **settings, **options)  # type: ignore[arg-type]
    spectra = [np.linalg.eigvalsh(land.hessian(z)) for z in Z]
    ratios = {
        "direction": [ratio_by_direction(z, run.lr, land, **options) for z in Z],  # type: ignore[arg-type]
        "spectrum": [mean_ratio(h, run.lr, **options) for h in spectra],  # type: ignore[arg-type]
    }
    clocks = {name: _clock(run, times, phi)[-1:] for name, phi in ratios.items()}
    clocks["old"] = run.sigma**2 * times
    every = np.unique(np.concatenate(list(clocks.values())))
    limit = flow(start, _LIMIT, 1.0, land, every, **settings)  # type: ignore[arg-type]
    return {"flow": Z} | {
        name: limit[np.searchsorted(every, taus)] for name, taus in clocks.items()
    }


class Pair(NamedTuple):
    """A noisy run and the descent before it."""

    noisy: Record
    before: Record

    @property
    def start(self) -> tuple[float, ...]:
        """The weights with which the noise begins."""
        return self.before.weights["w"]

    @property
    def ratio(self) -> float:
        """φ(ηh_max) there."""
        return start_ratio(self.noisy.run, self.start)


def pairs(results: Results, case: Case) -> list[Pair]:
    """All seeds of a case."""
    named = {record.run.name: record for record in results.records}
    noisy = results.select(method="anti", lr=case.lr, momentum=case.momentum, sigma=case.sigma)
    return [Pair(record, named[prelude(record.run).name]) for record in noisy]


def miss(pair: Pair, measure: str, clock: str) -> Values:
    """ln(measured at z / predicted) at each step from the noise on, or at the last one: see
    `course`. Infinite where there is no prediction, or the run diverged."""
    run = pair.noisy.run
    steps, values = pair.noisy.column(measure, "z")
    there = [n for n in run.measure if n >= run.start]
    found = dict(zip(steps.tolist(), values.tolist(), strict=True))
    points = course(run, pair.start)
    if points is None:
        return np.full(len(there), np.inf)
    problem = run.make_problem()
    predicted = getattr(problem, measure)(points[clock], run.make_data(problem))
    measured = np.array([found.get(n, np.inf) for n in there[-len(predicted) :]])
    return log_ratio(measured, predicted)


def misses(results: Results, case: Case, measure: str, clock: str, judged: bool = True) -> Values:
    """`miss` at the last step by seed; if `judged`, of the seeds whose noise begins in a minimum
    with φ(ηh_max) ≤ 3. Not a number where there is none."""
    chosen = [pair for pair in pairs(results, case) if not judged or pair.ratio <= LARGEST_RATIO]
    found = [miss(pair, measure, clock)[-1] for pair in chosen]
    return np.array(found if found else [np.nan])


_COLOURS = dict(zip(CLOCKS, ("#1f6fb4", "#17968a", "#7a4fa3", "#c2402a"), strict=True))


def _dots(results: Results, cases: Sequence[Case], measure: str, clock: str) -> figures.Series:
    """Misses in percent, mean over all seeds with two standard errors, a place for each case."""
    logs = [misses(results, case, measure, clock, judged=False) for case in cases]
    tables = [100 * np.expm1(log) for log in logs]
    with np.errstate(invalid="ignore"):
        mean = np.array([table.mean() for table in tables])
        reach = np.array([2 * table.std() / np.sqrt(max(len(table) - 1, 1)) for table in tables])
    x = np.arange(len(cases)) + 0.15 * (CLOCKS.index(clock) - 1.5)
    label, colour = PLACED[CLOCKS.index(clock)], _COLOURS[clock]
    return figures.Series(x, mean, label, colour, "", "o", mean - reach, mean + reach, bars=True)


def _path(results: Results, case: Case, measure: str, marker: str) -> list[figures.Series]:
    """Of the first seed: what was measured, and what the flow of R and the old clock say."""
    pair = pairs(results, case)[0]
    steps, values = pair.noisy.column(measure, "z")
    run = pair.noisy.run
    at = steps >= run.start
    tau = (steps[at] - run.start) * run.lr * run.sigma**2 / (1 - run.momentum)
    label = f"η={case.lr:g} β={case.momentum:g}, measured"
    series = [figures.Series(tau, values[at], label, figures.THEORY, "", marker)]
    for clock in ("flow", "old"):
        predicted = values[at] / np.exp(miss(pair, measure, clock)[: at.sum()])
        name = PLACED[CLOCKS.index(clock)]
        series.append(figures.Series(tau, predicted, name, _COLOURS[clock]))
    return series


def miss_panels(results: Results, cases: Sequence[Case], paths: Sequence[Case]) -> figures.Figure:
    """How far each prediction is from the runs, case by case; and the way of a few first seeds."""
    ticks = [(i, f"{c.lr:g}\n{c.momentum:g}\n{c.sigma:g}") for i, c in enumerate(cases)]
    panels = [
        figures.Panel(
            f"{figures.MEASURES[measure]}: measured over predicted, %",
            [_dots(results, cases, measure, clock) for clock in CLOCKS],
            "η, β, σ", "", "linear", "linear", ticks=ticks,
        )
        for measure in ("trace", "test_loss")
    ]  # fmt: skip
    for measure in ("trace", "test_loss"):
        marked = zip(paths, "os^", strict=True)
        series = [one for case, mark in marked for one in _path(results, case, measure, mark)]
        title = f"{figures.MEASURES[measure]} at z, one seed"
        panels.append(figures.Panel(title, series, "Σησ²/(1−β)", "", "linear", "log"))
    return figures.draw(panels, columns=2, width=5.0, height=3.0)
