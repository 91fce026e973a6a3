"""The rules by which small experiments are judged: each verdict is possible, none is twice."""

import itertools

import numpy as np
import pytest

from antipgd.estimate import Estimate
from antipgd.paper import settings
from antipgd.paper.claims import FAILS, HOLDS, UNDECIDED
from antipgd.paper.experiments import (
    always_best,
    cond_variance,
    neighbourhood,
    pgd_diverges,
    regression_grid,
    sensing_grid,
    sensing_tuned,
    smoothing,
    trace_predicts_test,
    valley_exit,
    valley_theory,
    variations,
)
from antipgd.paper.results import Results
from antipgd.paper.simulation.grid import drastic
from antipgd.paper.simulation.local import run_local
from antipgd.paper.simulation.problems import make_problem
from antipgd.paper.simulation.tanh_regression import (
    LAWS,
    QUADRATIC,
    generator,
    tanh_regression,
)
from antipgd.theory.regularisation import enumerated_step

SPREAD = np.exp(np.random.default_rng(0).normal(0, 0.05, 10))


class Made:
    """Results that are told what to say."""

    def __init__(self, final, status=None):
        self._final, self._status = final, status

    def final(self, measure, place="w", **wanted):
        return self._final(measure=measure, place=place, **wanted)

    def select(self, **wanted):
        return [type("Record", (), {"status": self._status(**wanted)}) for _ in range(24)]


def verdicts(claims):
    return {claim.id.partition(".")[2]: claim.verdict for claim in claims}


# Errors that could cancel


def test_errors_of_opposite_signs_do_not_cancel():
    rng = np.random.default_rng(1)
    surplus = np.array([[0.2], [-0.2], [0.2], [-0.1]]) + rng.normal(0, 0.1, (4, 300))
    oriented = valley_theory.by_worst_signs(surplus)
    assert oriented.shape == (300,)
    assert oriented.mean() == pytest.approx(np.abs(surplus.mean(axis=1)).mean())
    assert abs(surplus.mean()) < 0.04  # what it was before
    highest = max(
        Estimate.of(np.mean(np.array(signs)[:, None] * surplus, axis=0)).interval()[1]
        for signs in itertools.product((1, -1), repeat=4)
    )
    assert Estimate.of(oriented).interval()[1] == pytest.approx(highest)


def test_the_upper_end_covers_the_mean_error():
    rng, truth = np.random.default_rng(2), np.array([0.05, -0.05, 0.0])
    ends = [
        Estimate.of(
            valley_theory.by_worst_signs(truth[:, None] + rng.normal(0, 0.4, (3, 60)))
        ).interval()[1]
        for _ in range(300)
    ]
    assert np.mean(np.array(ends) >= np.abs(truth).mean()) >= 0.95


def test_places_on_the_line_do_not_cancel(monkeypatch):
    aside = np.where(np.arange(smoothing.PLACES) % 2, 0.1, -0.1)

    def profile(results, seed):
        plain, smooth = np.ones(smoothing.PLACES), np.full(smoothing.PLACES, 2.0)
        return None, plain, smooth, plain + (1 + aside + 1e-3 * seed), None

    monkeypatch.setattr(smoothing, "_profile", profile)
    monkeypatch.setattr(smoothing, "_gap", lambda results, seed: 1e-16)
    monkeypatch.setattr(smoothing, "_has_ends", lambda results, seed: True)
    records = [type("R", (), {"run": type("S", (), {"seed": seed})}) for seed in range(5)]
    found = smoothing.claims(type("Results", (), {"records": records}))
    assert verdicts(found) == {"forms": HOLDS, "regulariser": FAILS}
    assert found[1].value == pytest.approx(0.1, abs=0.01)


# Readings


@pytest.mark.parametrize(("share", "verdict"), [(0.3, HOLDS), (0.49, UNDECIDED), (0.7, FAILS)])
def test_drastically_different_is_less_than_half(share, verdict):
    def final(measure, method, **wanted):
        return share * SPREAD if method == "anti" else np.ones(10)

    claim = drastic(Made(final), "a.b", "", "", 10, lr=0.1, sigma=0.1)
    assert claim.verdict == verdict
    assert claim.value == pytest.approx(share, rel=0.05)


@pytest.mark.parametrize(("mean", "verdict"), [(0.3, FAILS), (0.5, UNDECIDED), (0.8, HOLDS)])
def test_a_high_correlation_is_one_above_a_half(mean, verdict, monkeypatch):
    found = list(mean + np.linspace(-0.1, 0.1, 10))
    monkeypatch.setattr(trace_predicts_test, "_correlations", lambda *a, **k: found)
    assert set(verdicts(trace_predicts_test.claims(None)).values()) == {verdict}


def test_diverging_is_what_the_theorem_says_not_overflow():
    ends = {"pgd": 6.0, "anti": 0.1}
    made = Made(lambda method, **k: ends[method] * SPREAD, lambda **k: "ok")
    found = verdicts(pgd_diverges.claims(made))
    assert found["pgd_small_theorem"] == found["anti_small_caption"] == HOLDS
    assert found["finite_pgd_large_theorem"] == FAILS
    assert found["finite_pgd_small_theorem"] == HOLDS
    assert "anti_large_theorem" not in found  # of which the theorem says nothing
    near = Made(lambda method, **k: 3.0 * SPREAD, lambda **k: "diverged")
    found = verdicts(pgd_diverges.claims(near))
    assert found["pgd_small_theorem"] == found["anti_small_caption"] == FAILS
    assert found["finite_pgd_large_theorem"] == HOLDS


def test_the_papers_own_claim_of_tuned_pgd_has_both_at_w():
    places = {}

    def final(measure, method, place, **wanted):
        places.setdefault(method, set()).add(place)
        return SPREAD

    made = Made(final)
    always_best._lower(made, "sparse", "pgd")
    assert places == {"anti": {"w"}, "pgd": {"w"}}
    places.clear()
    assert always_best._lower(made, "dense", "label").statement.startswith("(ours) ")
    assert places == {"anti": {"z"}, "label": {"z"}}


def test_the_larger_sigma_is_to_have_the_lower_trace():
    made = Made(lambda sigma, **k: SPREAD / sigma)
    assert set(verdicts(regression_grid._stronger(made)).values()) == {HOLDS}
    made = Made(lambda sigma, **k: SPREAD * sigma)
    found = verdicts(regression_grid._stronger(made))
    assert set(found.values()) == {FAILS}
    assert len(found) == 6


# Judged once


def test_points_of_the_grids_are_not_judged_twice():
    rate, sigma = settings.REGRESSION_RATES["anti"], settings.REGRESSION_SIGMA
    name, elsewhere = regression_grid.ELSEWHERE
    assert (regression_grid.RATES[name], elsewhere) == (rate, sigma)
    name, elsewhere = sensing_grid.ELSEWHERE
    assert sensing_grid.RATES[name] == settings.SENSING_RATE
    assert elsewhere == settings.SENSING_SIGMA
    made = Made(lambda **k: SPREAD, lambda **k: "ok")
    for module, skipped in ((regression_grid, "moderate_0.05"), (sensing_grid, "mod_0.1")):
        ids = verdicts(module.claims(made))
        assert f"test_{skipped}" not in ids
        assert f"trace_{skipped}" not in ids
        assert sum(name.startswith(("test_", "trace_")) for name in ids) == 16
        assert sum(name.startswith("pgd_") for name in ids) == 9


def test_small_steps_of_sgd_are_the_smallest():
    def final(measure, method, lr, **wanted):
        return (0.9 if (method, lr) == ("sgd", 0.0003) else 1.0) * SPREAD

    made = Made(final, lambda **k: "ok")
    claims = {claim.id: claim for claim in sensing_grid.claims(made)}
    assert claims["sensing_grid.sgd_small_steps"].value == pytest.approx(0.9)


# Claims that had no row


def test_variations_of_constants():
    assert verdicts(variations.claims(None)) == {
        "lemma": HOLDS, "printed": FAILS, "printed_multiples": HOLDS, "corrected": HOLDS,
        "identity": HOLDS,
    }  # fmt: skip
    A, w, xi = variations._case(0, "any")
    eps = variations._injections(xi)
    by_hand = A[1] @ (A[0] @ w + xi[0]) + xi[1] - xi[0]
    np.testing.assert_allclose(variations._walk(A[:2], w, eps[:2])[1], by_hand, rtol=1e-13)
    assert variations._errors("any", variations._printed)[:, 2:].min() > 1e-3


def test_the_step_of_pgd_and_the_guess_about_variances():
    found = {c.id.partition(".")[2]: c for c in cond_variance._pgd_claims()}
    for law in LAWS:
        assert found[f"pgd_mean_{law}"].verdict == HOLDS
        assert found[f"pgd_variance_{law}"].verdict == HOLDS
        claim, sigma = found[f"larger_{law}"], cond_variance.SIGMAS[cond_variance.AT]
        slow = [
            np.mean([enumerated_step(problem.gradient, z, 0.1, sigma, LAWS[law]).variance
                     for z in points]) / sigma**2
            for problem, points in (tanh_regression(seed) for seed in range(10))
        ]  # fmt: skip
        assert claim.value == pytest.approx(np.mean(slow), rel=1e-9)
        assert claim.verdict == (HOLDS if claim.low > 1 else FAILS)


def test_the_variance_of_a_step_on_the_papers_regression():
    """Σ_j η²H_ij² to leading order, H being that of the loss at w = 1."""
    claims = {c.id.partition(".")[2]: c for c in cond_variance._pgd_claims()}
    wanted = []
    for seed in range(10):
        problem = make_problem("quadratic_regression", QUADRATIC)
        data = problem.data(generator(seed, "quadratic_regression"))
        X, d = data.X, data.X.shape[1]
        H = (2 * X.T @ X + np.diag(X.T @ (X @ np.ones(d) - data.y))) / len(X)
        wanted.append((0.1**2 * H @ H).trace() / d)
    assert claims["larger_quadratic_symmetric"].value == pytest.approx(np.mean(wanted), rel=1e-3)


def test_v_is_read_off_trace_and_norm(monkeypatch):
    monkeypatch.setattr(valley_exit, "STEPS", 50)
    records = list(run_local(valley_exit.runs(2)[:8], 1))
    results = Results(records)
    for method in ("pgd", "anti"):
        found = valley_exit._largest_v(results, method)
        last = [abs(record.weights["w"][-1]) for record in
                results.select(method=method, lr=0.125, sigma=valley_exit.SIGMA)]  # fmt: skip
        assert len(found) == len(last) == 2
        assert all(value >= end * (1 - 1e-6) for value, end in zip(found, last, strict=True))
        assert max(found) < 12 * valley_exit.SIGMA
    assert {c.verdict for c in valley_exit._v_claims(results)} == {HOLDS}


def test_the_radius_is_the_distance_to_the_relaxed_weights(monkeypatch):
    monkeypatch.setattr(neighbourhood, "DIMENSIONS", (10, 20))
    monkeypatch.setattr(neighbourhood, "STEPS", 200)
    results = Results(run_local(neighbourhood.runs(2), 1))
    record = results.select(d=20)[1]
    gaps = np.array(record.weights["w"]) - np.array(record.weights["relaxed"])
    assert neighbourhood._radii(results)[1, 1] == pytest.approx(np.sqrt((gaps**2).sum()))
    assert {run.n for run in (dict_of(r) for r in results.records)} == {4, 8}


def dict_of(record):
    return type("Settings", (), dict(record.run.settings))


def test_exponents_of_the_radius(monkeypatch):
    d = np.array(neighbourhood.DIMENSIONS)
    for power, verdict in ((0.5, HOLDS), (0.75, FAILS), (1 / 3, FAILS)):
        table = 0.05 * d**power * SPREAD[:, None]
        monkeypatch.setattr(neighbourhood, "_radii", lambda results, table=table: table)
        made = Made(lambda place, **k: SPREAD * (1 if place == "relaxed" else 2))
        found = verdicts(neighbourhood.claims(made))
        assert found["root"] == verdict
        assert found["grows"] == found["metric_25"] == HOLDS


def test_tuning_takes_the_sigma_of_the_lowest_geometric_mean():
    losses = {s: np.array([1.0, 4.0]) for s in sensing_tuned.LEVELS["pgd"]}
    losses[0.005] = np.array([0.1, 20.0])  # geometric mean 1.41, arithmetic mean 10
    made = Made(lambda method, sigma, **k: losses[sigma] * (0.5 if method == "anti" else 1))
    assert sensing_tuned._best(made, "pgd")[0] == 0.005
    assert "σ = 0.03 and 0.005" in sensing_tuned.claims(made)[0].tested
