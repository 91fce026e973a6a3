"""The experiments on small networks: what is tuned on what, what is at a minimum, what is said."""

from dataclasses import replace

import numpy as np
import pytest

from antipgd.paper.claims import (
    FAILS,
    HOLDS,
    LEVEL,
    NOT_AT_MINIMUM,
    UNDECIDED,
    compare_difference,
    compare_ratio,
)
from antipgd.paper.experiments import digits_networks, student_teacher
from antipgd.paper.record import Record
from antipgd.paper.results import Results
from antipgd.paper.simulation import tuned
from antipgd.paper.simulation.local import run_local
from antipgd.paper.simulation.spec import make_run
from antipgd.paper.simulation.tuned import Arm

MODULES = [student_teacher, digits_networks]
each_module = pytest.mark.parametrize(
    "module", MODULES, ids=lambda one: one.__name__.split(".")[-1]
)


def record(run, loss=1e-9, test=1.0, trace=1.0, weights=None):
    """A finished run with these values at its end."""
    size = len(run.make_start(run.make_problem())) if weights is None else len(weights)
    w = tuple(np.zeros(size)) if weights is None else tuple(map(float, weights))
    return Record(run, "ok", None, None, ((run.steps, "w", loss, test, trace, 1.0, None),),
                  {"w": w}, None, None)  # fmt: skip


def arms_of(module):
    if module is student_teacher:
        return [module.ARMS]
    return [kind.arms for kind in module.LOSSES.values()]


@each_module
def test_judged_seeds_are_not_those_that_were_tuned_on_and_neither_are_the_examples(module):
    runs = module.runs(3)
    judged = [run for run in runs if dict(run.settings)["held_out"] == "test"]
    tuning = [run for run in runs if dict(run.settings)["held_out"] == "validation"]
    assert len(judged) + len(tuning) == len(runs)
    assert {run.name for run in tuning} == {run.name for run in module.tuning_runs()}
    assert {run.seed for run in judged} == {module.FIRST + i for i in range(3)}
    assert {run.seed for run in tuning} == set(module.TUNING)
    assert max(module.TUNING) < 100 <= module.FIRST
    assert (8 if module is student_teacher else 10) <= module.SEEDS


@each_module
def test_every_arm_is_tuned_with_as_many_values_and_seeds(module):
    for arms in arms_of(module):
        assert list(arms) == ["gd", "sgd", "pgd", "anti"]
        assert {len(arm.grid) for arm in arms.values()} == {5}
        assert all(list(arm.grid) == sorted(set(arm.grid)) for arm in arms.values())
        assert [arm.tuned for arm in arms.values()] == ["lr", "lr", "sigma", "sigma"]
    counts = {}
    for run in module.tuning_runs():
        key = (run.settings, run.method)
        counts[key] = counts.get(key, 0) + 1
    assert set(counts.values()) == {5 * len(module.TUNING)}


@each_module
def test_all_arms_take_as_many_steps_and_noise_is_out_before_the_end(module):
    by_loss = {}
    for run in module.runs(2):
        by_loss.setdefault(dict(run.settings).get("loss_name"), set()).add(run.steps)
        if run.method in ("pgd", "anti"):
            assert 0 < run.start < run.stop < run.steps
        assert (run.batch is not None) == (run.method == "sgd")
        assert not run.relax
    assert all(len(steps) == 1 for steps in by_loss.values())


def test_values_that_are_used_are_on_their_grids():
    assert set(student_teacher.CHOSEN) == {
        (teacher, n) for teacher in (1, 2, 5, 10, 40) for n in (30, 60, 120, 440)
    }
    for values in student_teacher.CHOSEN.values():
        for arm, value in zip(student_teacher.ARMS.values(), values, strict=True):
            assert value in arm.grid
    for kind in digits_networks.LOSSES.values():
        assert all(kind.chosen[name] in arm.grid for name, arm in kind.arms.items())


CELL = {"teacher": 1, "n": 30}


def tuning_records(test_of):
    arm = student_teacher.ARMS["anti"]
    cell = (1, 30)
    return arm, [
        record(student_teacher._run(cell, "anti", value, seed, tuning), **test_of(value, tuning))
        for value in arm.grid
        for seed in (0, 1)
        for tuning in (True, False)
    ]


def test_tuning_sees_held_out_examples_only():
    """The records with test examples say that the last value is best, and are not heard."""
    arm, records = tuning_records(
        lambda value, tuning: {"test": abs(value - 0.08) + 0.1 if tuning else 1 - value}
    )
    assert tuned.best(Results(records), arm, student_teacher.score, **CELL) == 0.08
    assert not arm.at_the_end(0.08)
    assert arm.at_the_end(0.32)


def test_a_value_that_misses_the_minimum_is_not_chosen_unless_all_do():
    arm, records = tuning_records(
        lambda value, _: {"test": abs(value - 0.08) + 0.1, "loss": 1.0 if value == 0.08 else 0.0}
    )
    assert tuned.best(Results(records), arm, student_teacher.score, **CELL) == 0.04
    arm, records = tuning_records(lambda value, _: {"test": abs(value - 0.08), "loss": 1.0})
    assert tuned.best(Results(records), arm, student_teacher.score, **CELL) == 0.08


def test_a_minimum_of_squared_loss_is_a_five_hundredth_of_saying_nothing():
    run = student_teacher._run((2, 60), "gd", 0.1, 100, False)
    problem = run.make_problem()
    nothing = problem.loss(np.zeros((1, 440)), run.make_data(problem))[0]
    assert student_teacher.is_there(record(run, loss=1.99e-3 * nothing))
    assert not student_teacher.is_there(record(run, loss=2.01e-3 * nothing))
    lost = replace(record(run), status="diverged", diverged_at=3)
    assert not student_teacher.is_there(lost)
    assert student_teacher.score(lost) == np.inf
    run = digits_networks._run("squared", "gd", 0.05, 100, False)
    assert digits_networks.is_there(record(run, loss=0.99e-3))
    assert not digits_networks.is_there(record(run, loss=1.01e-3))


def test_a_minimum_of_cross_entropy_is_a_hundredth_with_every_image_right():
    run = digits_networks._run("cross_entropy", "gd", 0.1, 100, False)
    assert not digits_networks.is_there(record(run, loss=1e-3))  # zero weights err everywhere
    problem = run.make_problem()
    data, w = run.make_data(problem), run.make_start(problem)
    for _ in range(400):
        w = w - 0.1 * problem.gradient(w[None], data)[0]
    assert problem.errors(w[None], data)[0] == 0
    assert digits_networks.is_there(record(run, loss=0.0099, weights=w))
    assert not digits_networks.is_there(record(run, loss=0.0101, weights=w))
    errors = problem.errors(w[None], data, test=True)[0]
    assert digits_networks.score(record(run, loss=0.0, test=7.0, weights=w)) == errors


def test_a_seed_that_missed_the_minimum_makes_it_neither_hold_nor_fail():
    ours, theirs, named = np.array([1.0, 1.1, 0.9]), np.array([4.0, 4.5, 4.2]), ("a.b", "s", "r")
    there, missed = np.ones(3, bool), np.array([True, False, True])
    claim = tuned.judge_ratio(named, "t", ours, theirs, (there, there))
    assert (claim.verdict, claim.n) == (HOLDS, 3)
    assert claim.value == pytest.approx(np.exp(np.log(ours / theirs).mean()))
    claim = tuned.judge_ratio(named, "t", ours, theirs, (there, missed))
    assert (claim.verdict, claim.n) == (NOT_AT_MINIMUM, 3)
    assert claim.value == pytest.approx((ours / theirs).mean())
    assert "0 and 1 of 3 seeds are not at a minimum" in claim.tested
    assert tuned.judge_ratio(named, "t", theirs, ours, (there, there)).verdict == FAILS
    infinite = np.full(3, np.inf)
    assert (tuned.ratios(infinite, infinite) == 1).all()


def test_level_goes_before_holding():
    near = np.array([1.0, 1.001, 0.999, 1.002])
    assert compare_ratio("a.b", "s", "r", "t", 0.97 * near, near[::-1]).verdict == LEVEL
    assert compare_ratio("a.b", "s", "r", "t", 0.9 * near, near[::-1]).verdict == HOLDS
    assert compare_ratio("a.b", "s", "r", "t", 1.2 * near, near[::-1]).verdict == FAILS
    assert compare_difference("a.b", "s", "r", "t", [0.5, 0.6, 0.4]).verdict == LEVEL
    assert compare_difference("a.b", "s", "r", "t", [2.5, 2.6, 2.4]).verdict == HOLDS
    assert compare_difference("a.b", "s", "r", "t", [-2.5, -2.6, -2.4]).verdict == FAILS
    assert compare_difference("a.b", "s", "r", "t", [5, -2, 1]).verdict == UNDECIDED


def test_effective_sharpness_is_the_trace_at_small_rates_and_a_logarithm_at_others():
    h = np.array([0.5, 3.0, 8.0])
    assert tuned.effective_sharpness(h, 1e-9) == pytest.approx(h.sum(), rel=1e-6)
    wanted = -2 / 0.1 * np.log(1 - 0.1 * h / 2).sum()
    assert tuned.effective_sharpness(h, 0.1) == pytest.approx(wanted, rel=1e-12)
    beta, x = 0.9, 0.1 * h
    barrier = (1 + beta) ** 2 / (1 - beta) * np.log(1 - x / (2 * (1 + beta)))
    wanted = 2 / 0.1 * (-beta * x / (1 - beta) - barrier).sum()
    assert tuned.effective_sharpness(h, 0.1, beta) == pytest.approx(wanted, rel=1e-10)
    assert tuned.effective_sharpness(np.array([21.0]), 0.1) == np.inf


def test_at_a_minimum_the_spectrum_without_residuals_is_as_good_as_the_whole():
    """The numerical Hessian of a small network that fits."""
    settings = {"hidden": 16, "n": 10}
    run = make_run("digits_network", settings, "gd", lr=0.1, steps=1, seed=3)
    problem = run.make_problem()
    data, w = run.make_data(problem), run.make_start(problem)
    for _ in range(3000):
        w = w - 0.03 * problem.gradient(w[None], data)[0]
    assert problem.loss(w[None], data)[0] < 1e-3
    whole = tuned.effective_sharpness(np.linalg.eigvalsh(problem.hessian(w, data)), 0.05, 0.9)
    found = tuned.effective_sharpness(problem.gauss_newton_spectrum(w, data), 0.05, 0.9)
    assert found == pytest.approx(whole, rel=2e-3)
    assert found > 1.05 * problem.trace(w[None], data)[0]


def made_cell(test, trace):
    """Eight seeds of a cell with Anti-PGD's test loss and trace as shares of the others'."""
    cell, values = (
        (1, 30),
        dict(zip(student_teacher.ARMS, student_teacher.CHOSEN[1, 30], strict=True)),
    )
    rng, records = np.random.default_rng(0), []
    for name, value in values.items():
        for seed in range(100, 108):
            share = (test, trace) if name == "anti" else (1.0, 1.0)
            wobble = 1 + 0.01 * rng.standard_normal(2)
            run = student_teacher._run(cell, name, value, seed, False)
            records.append(record(run, test=share[0] * wobble[0], trace=share[1] * wobble[1]))
        for other in student_teacher.ARMS[name].grid:
            for seed in student_teacher.TUNING:
                run = student_teacher._run(cell, name, other, seed, True)
                records.append(record(run, test=abs(other - value) + 1))
    return cell, Results(records)


@pytest.mark.parametrize(
    ("test", "verdict", "said"), [(0.5, HOLDS, False), (1.5, FAILS, True), (1.0, LEVEL, True)]
)
def test_where_the_trace_falls_and_the_gain_does_not_follow_it_is_said(test, verdict, said):
    cell, results = made_cell(test, 0.3)
    ends = {
        name: student_teacher._End(student_teacher._judged(results, cell, name))
        for name in student_teacher.ARMS
    }
    found = {claim.id: claim for claim in student_teacher._cell_claims(results, cell, ends)}
    claim = found["student_teacher.test_1_30_gd"]
    assert claim.verdict == verdict
    assert ("the gain does not follow" in claim.tested) == said
    assert found["student_teacher.trace_1_30_gd"].verdict == HOLDS
    assert found["student_teacher.trace_1_30_gd"].value == pytest.approx(0.3, rel=0.02)
    assert "not the best of the grid" not in claim.tested
    followed = student_teacher._followed(30, {cell: ends})
    assert followed.n == 8
    if test != 1:
        assert followed.value == (1 if test < 1 else 0)


def test_values_that_are_not_the_tuned_ones_are_named():
    assert tuned.untuned({"gd": 0.1, "anti": 0.2}, {"gd": 0.1, "anti": 0.2}) == ""
    assert tuned.untuned({"gd": 0.1, "anti": 0.2}, {"gd": 0.3, "anti": 0.2}).endswith(": gd")
    arm = Arm("anti", "sigma", (0.1, 0.2))
    assert arm.settings(0.2, 0.05) == (0.05, 0.2)
    assert arm.said(0.2) == "σ = 0.2 for Anti-PGD"
    assert Arm("gd", "lr", (0.1,)).said(0.1) == "η = 0.1 for GD"
    assert Arm("gd", "lr", (0.1, 0.2)).settings(0.2, 0.05) == (0.2, 0.0)


def test_the_ends_of_real_runs_are_measured(monkeypatch):
    """Few steps of one cell: what is measured is what the problem says."""
    for name, value in (("DESCENT", 5), ("NOISY", 10), ("CLEAN", 5), ("STEPS", 20)):
        monkeypatch.setattr(student_teacher, name, value)
    run = student_teacher._run((2, 30), "anti", 0.08, 100, False)
    (one,) = run_local([run], 1)
    problem, w = run.make_problem(), np.array(one.weights["w"])
    data = run.make_data(problem)
    end = student_teacher._End([one])
    assert end.trace[0] == pytest.approx(problem.trace(w[None], data)[0])
    h = np.linalg.eigvalsh(problem.hessian(w, data))
    s = np.where(h > 0, -20 * np.log(1 - np.maximum(h, 0) / 20), h)
    assert end.sharpness[0] == pytest.approx(s.sum(), rel=1e-9)
    np.testing.assert_array_equal(one.weights["w"], one.weights["z"])  # the noise is out
