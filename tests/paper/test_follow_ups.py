"""What the experiments on other papers compute by themselves, against what it should be."""

import numpy as np
import pytest

from antipgd.paper.coverage import PaperClaim, paper_claims
from antipgd.paper.experiments import one_or_two_points, sam_and_noise, shuffling_and_rates
from antipgd.paper.experiments.shuffling_and_rates import Epoch, shares
from antipgd.paper.simulation.spec import make_run
from antipgd.paper.verdict_table import as_markdown
from antipgd.theory.finite_rate import variance_ratio


def test_twelve_rows_of_six_papers_each_with_a_sentence():
    rows = [row for row in paper_claims() if row.source]
    assert len(rows) >= 12
    assert len({row.source for row in rows}) >= 6
    for row in rows:
        assert row.kind == "question"
        assert row.reference == row.source
        assert "arXiv " in row.source
        assert len(row.quote.split()) >= 6


def test_a_table_says_whose_sentence_is_judged():
    from antipgd.paper.coverage import Decided

    row = PaperClaim("e", "X, arXiv 1", "", (), "question", "so", "It is so.", source="X, arXiv 1")
    line = as_markdown([Decided(row, "not judged", [])], 1)
    assert "It is so." not in line  # nothing was judged, so there is no table
    from antipgd.paper.claims import above

    part = above("e.a", "", "", "", [1.0, 1.1, 1.2], 0.0)
    table = as_markdown([Decided(row, part.verdict, [part])], 1)
    assert "| so | holds | 1 of 1 |  |" in table
    assert "- *so*, holds; X, arXiv 1: “It is so.”" in table


@pytest.mark.parametrize("seed", [1, 2])
def test_an_epoch_approaches_the_formulas_as_the_rate_falls(seed):
    sizes = (0.2, 0.02, 0.002)
    misses = np.abs(np.array([shares(seed, size) for size in sizes]) - 1)
    assert (misses[-1] < 0.01).all()  # not at 2/3, 3/2 or with the wrong sign
    assert (misses[1:] < misses[:-1] / 3).all()  # what is left is of higher order


def test_what_shuffling_adds_is_along_the_formula_and_nowhere_else():
    epoch = Epoch(5, 0.002)
    step = epoch.step(epoch.spread)
    added = epoch.shuffled() - epoch.drawn()
    assert np.linalg.norm(added - step) < 0.02 * np.linalg.norm(step)
    assert np.linalg.norm(added - epoch.step(epoch.norms)) > 0.1 * np.linalg.norm(step)


def test_spreads_are_those_of_one_point_and_of_two():
    """Of one point σ²·tr H² at a minimum; of two nothing of that order, but σ⁴."""
    run = make_run("quadratic_regression", {}, "gd", lr=0.1, steps=1, seed=0)
    problem = run.make_problem()
    data, w = run.make_data(problem), run.make_start(problem)
    for _ in range(3000):
        w = w - 0.05 * problem.gradient(w[None], data)[0]
    one, two = one_or_two_points.spreads(run, w)
    H = problem.hessian(w, data)
    expected = one_or_two_points.SMALL**2 * float(np.trace(H @ H))
    assert expected / 1.3 < one < expected * 1.3
    assert two < one / 20


def test_factors_of_equal_regulariser_are_within_what_the_law_allows():
    for (key, beta), factor in one_or_two_points.FACTORS.items():
        lr = one_or_two_points._lr(key, beta)
        assert 1 < factor**2 < float(variance_ratio(lr * 13 if key == "regression" else lr * 28,
                                                    momentum=beta))  # fmt: skip


def test_arms_are_told_apart_by_what_selects_them():
    for module in (one_or_two_points, sam_and_noise, shuffling_and_rates):
        runs = module.runs(2)
        assert len({run.name for run in runs}) == len(runs)
    keys = {
        tuple(sorted(one_or_two_points._wanted(key, beta, arm).items()))
        for key in one_or_two_points.KEYS
        for beta in one_or_two_points.MOMENTA
        for arm in one_or_two_points._arms(key, beta)
    }
    assert len(keys) == 28
