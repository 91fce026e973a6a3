"""What the law says of runs, against runs, closed forms and made-up records."""

from dataclasses import replace

import numpy as np
import pytest

from antipgd.paper.experiments import (
    adam_clock,
    finite_rate_regression,
    finite_rate_sensing,
    finite_rate_valley,
)
from antipgd.paper.record import Record
from antipgd.paper.results import Results
from antipgd.paper.simulation import minima
from antipgd.paper.simulation.local import run_local
from antipgd.paper.simulation.minima import Case, case_runs, course, miss, misses, pairs, prelude

SMALL = {"d": 12, "n": 4, "nonzero": 2}
SLOW, FAST = Case(0.02, 0.0, 0.02), Case(0.06, 0.5, 0.02)


def small_runs(case, descent=150.0):
    return case_runs("quadratic_regression", SMALL, case, descent, (0.05, 0.1, 0.15), range(4))


@pytest.fixture(scope="module")
def results():
    return Results(run_local([run for case in (SLOW, FAST) for run in small_runs(case)], 2))


def test_steps_to_a_clock():
    assert Case(0.1, 0.0, 0.02).after(0.2) == 5000
    assert Case(0.1, 0.9, 0.02).after(0.2) == 500
    assert str(Case(0.1, 0.9, 0.02)) == "η = 0.1, β = 0.9, σ = 0.02"


def test_a_prelude_ends_where_the_noise_begins(results):
    for pair in pairs(results, FAST):
        run = pair.noisy.run
        assert pair.before.run == prelude(run)
        steps, norms = pair.noisy.column("norm", "w")
        there = np.linalg.norm(pair.start)
        assert norms[steps == run.start] == pytest.approx(there, rel=1e-13)
        assert abs(norms[steps > run.start][0] - there) > 1e-4


def test_runs_follow_the_flow_and_not_the_old_clock(results):
    """Far from η → 0 the flow of R and both clocks are near where the runs are; φ = 1 is not."""
    for measure, near in (("trace", 0.02), ("test_loss", 0.04)):
        for clock in ("flow", "direction", "spectrum"):
            assert abs(misses(results, FAST, measure, clock).mean()) < near, (measure, clock)
        assert misses(results, FAST, measure, "old").mean() < -2 * near
    for one in pairs(results, SLOW):
        start = course(one.noisy.run, one.start)["flow"][0]
        np.testing.assert_allclose(start, one.start, atol=3e-4)  # the minimum nearby


def test_a_prediction_depends_on_everything_that_the_law_does(results):
    pair = pairs(results, FAST)[0]
    run = pair.noisy.run
    point = course(run, pair.start)["flow"][-1]
    for changes in ({"lr": 0.05}, {"sigma": 0.019}, {"momentum": 0.45}):
        other = course(replace(run, **changes), pair.start)["flow"][-1]
        assert np.abs(other - point).max() > 1e-3, changes


def test_seeds_without_a_minimum_or_past_the_range_are_not_judged():
    unfinished = Results(run_local(small_runs(FAST, descent=0.3), 2))
    assert np.isnan(misses(unfinished, FAST, "trace", "flow")).all()
    assert all(pair.ratio == np.inf for pair in pairs(unfinished, FAST))


def test_where_the_law_does_not_apply_the_miss_is_infinite(results):
    pair = pairs(results, FAST)[0]
    fast = replace(pair.noisy.run, lr=100.0)
    lost = pair._replace(noisy=replace(pair.noisy, run=fast))
    assert course(fast, pair.start) is None
    assert (miss(lost, "trace", "flow") == np.inf).all()


def test_misses_are_drawn_in_percent(monkeypatch):
    monkeypatch.setattr(minima, "misses", lambda *a, **k: np.log([0.5, 0.5]))
    drawn = minima._dots(Results([]), [SLOW], "trace", "old")
    np.testing.assert_allclose([drawn.y, drawn.low, drawn.high], -50)


@pytest.mark.parametrize("experiment", [finite_rate_regression, finite_rate_sensing])
def test_misses_of_opposite_signs_do_not_cancel(experiment, monkeypatch):
    signs = np.resize([1.0, -1.0], 10)
    for size, verdict in ((0.001, "holds"), (0.2, "fails")):
        spread = size * signs * np.linspace(0.9, 1.1, 10)
        monkeypatch.setattr(experiment, "misses", lambda *a, found=spread: found)
        found = [one for one in experiment.claims(Results([])) if ".old_" not in one.id]
        assert {one.verdict for one in found} == {verdict}


def test_the_clock_integrates_the_ratio():
    run, times = small_runs(SLOW)[0], np.array([0.0, 1.0, 2.0, 4.0, 5.0])
    found = minima._clock(run, times, 1 + times**2)
    np.testing.assert_allclose(found, run.sigma**2 * (times + times**3 / 3), rtol=1e-9)


def test_the_law_of_the_valley_is_the_time_to_get_there():
    """β = 0 has a closed form, ln(1/h)/2 − η(1−h)/4: Anti-PGD's time to leave the valley."""
    case = Case(1.5, 0.0, 0.01)
    for h in (0.9, 0.5, 0.1):
        tau = np.log(1 / h) / 2 - case.lr * (1 - h) / 4
        assert finite_rate_valley.law(case, np.array([tau]))[0] == pytest.approx(
            np.log(h), abs=1e-6
        )
    assert finite_rate_valley.law(Case(1e-8, 0.9, 1.0), np.array([0.5]))[0] == pytest.approx(-1)


def adam_record(run, steps_needed):
    """A run whose trace halves linearly in the logarithm of the steps, 0.7 at `steps_needed`."""
    start = run.start
    points = []
    for n in run.measure:
        noisy = max(n - start, 0)
        fall = 1.0 if noisy == 0 else min(1.0, 0.7 - 0.2 * np.log(noisy / steps_needed))
        points.append((n, "z", 1.0, 1.0, 50 * fall, 1.0, None))
    return Record(run, "ok", None, None, tuple(points), {}, None, None)


def test_exponents_of_adams_steps():
    """Of made-up steps ∝ η^−1.3 σ^−0.8, and of ones that are not reached."""
    made = []
    for run in adam_clock.runs(3):
        lr, sigma = adam_clock.UNITS[run.problem]
        needed = 50_000 * (run.lr / lr) ** -1.3 * (run.sigma / sigma) ** -0.8
        made.append(adam_record(run, needed))
    claims = {claim.id: claim for claim in adam_clock.claims(Results(made))}
    assert claims["adam_clock.regression_lr"].value == pytest.approx(1.3, abs=0.01)
    assert claims["adam_clock.sensing_sigma"].value == pytest.approx(0.8, abs=0.01)
    assert claims["adam_clock.sensing_sigma"].verdict == "fails"
    assert claims["adam_clock.sensing_reached"].value == 1
    late = [adam_record(record.run, 1e9) for record in made]
    claims = {claim.id: claim for claim in adam_clock.claims(Results(late))}
    assert claims["adam_clock.regression_reached"].value == 0
