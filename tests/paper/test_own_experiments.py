"""The experiments that the paper does not have: the finder for σ, the bound on real data."""

from dataclasses import replace

import numpy as np
import pytest

from antipgd.paper.experiments import find_sigma, pac_bayes_digits
from antipgd.paper.figures import rendered
from antipgd.paper.results import Results
from antipgd.paper.simulation.local import run_local


def test_the_finder_needs_no_torch():
    import subprocess
    import sys

    code = (
        "import sys\n"
        "from antipgd.paper.experiments import find_sigma, pac_bayes_digits\n"
        "print(len(find_sigma.runs(2)), len(pac_bayes_digits.runs(2)), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["16", "4", "False"]


def test_the_finder_is_judged_on_seeds_the_rule_has_not_seen():
    seeds = {run.seed for run in find_sigma.runs(3)}
    assert seeds == {200, 201, 202}
    assert find_sigma.SEEDS == 20
    assert {run.seed for run in pac_bayes_digits.runs(2)} == {200, 201}


def test_the_found_sigma_is_written_in_four_digits():
    sigmas = [find_sigma.found_sigma(seed) for seed in (200, 201)]
    assert sigmas == [float(f"{sigma:.4g}") for sigma in sigmas]
    assert all(0.02 < sigma < 0.08 for sigma in sigmas)


def test_claims_of_the_finder(monkeypatch):
    monkeypatch.setattr(find_sigma, "BUDGETS", (5, 20, 50))
    monkeypatch.setattr(find_sigma, "JUDGED", 20)
    monkeypatch.setattr(find_sigma, "SIGMAS", (0.02, 0.1))
    results = Results(run_local(find_sigma.runs(2), 1))
    claims = find_sigma.claims(results)
    names = [claim.id.partition(".")[2] for claim in claims]
    assert names == ["w_5", "w_20", "w_seeds", "w_50", "z_5", "z_20", "z_seeds", "z_50"]
    assert all(claim.n == 2 for claim in claims)
    assert rendered(find_sigma.plot(results), "png").startswith(b"\x89PNG")


@pytest.fixture(scope="module")
def small():
    """Fifteen steps of a small network, few draws."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pac_bayes_digits, "STEPS", 15)
        patch.setattr(pac_bayes_digits, "DRAWS", 20)
        patch.setattr(pac_bayes_digits, "PAIRS", 5)
        patch.setattr(pac_bayes_digits, "S_GRID", (0.1, 0.3))
        pac_bayes_digits._draws.cache_clear()
        yield Results(run_local(pac_bayes_digits.runs(2), 1))
    pac_bayes_digits._draws.cache_clear()


def test_claims_of_the_bound(small):
    claims = pac_bayes_digits.claims(small)
    assert len({claim.id for claim in claims}) == len(claims) == 17
    for claim in claims:
        assert claim.low <= claim.value <= claim.high
    assert rendered(pac_bayes_digits.plot(small), "png").startswith(b"\x89PNG")


def test_the_terms_add_up(small):
    (end, *_) = pac_bayes_digits._found(small)["gd"]
    for bound in end.bounds.values():
        terms = (bound.empirical, bound.sampling, bound.lambda_term, bound.divergence)
        assert bound.total == pytest.approx(sum(terms) + bound.confidence + bound.union)
    zero, start = end.bounds["zero"], end.bounds["start"]
    assert {zero.s, start.s} <= {0.1, 0.3}
    record = small.select(method="gd")[0]
    z = np.array(record.weights["z"])
    assert zero.kl == pytest.approx(z @ z / (2 * zero.s**2))


def test_a_run_that_diverged_has_no_bound(small):
    lost = [
        replace(record, status="diverged", diverged_at=9) if record.run.method == "anti" else record
        for record in small.records
    ]
    ends = pac_bayes_digits._found(Results(lost))
    assert all(end.trace == np.inf and end.bounds["zero"].total == np.inf for end in ends["anti"])
    assert all(np.isfinite(end.trace) for end in ends["gd"])
    claims = {claim.id.partition(".")[2]: claim for claim in pac_bayes_digits.claims(Results(lost))}
    assert claims["trace"].value == 1  # the share of seeds in which Anti-PGD has the larger one
