"""Figures to expect from the paper's settings, and golden records that tell of changed results."""

import json
from pathlib import Path

import numpy as np
import pytest

from antipgd.estimate import Estimate
from antipgd.paper import sweep
from antipgd.paper.simulation.local import run_local
from antipgd.paper.simulation.spec import RESULTS_VERSION, make_run

GOLDEN = Path(__file__).parent / "golden.json"


def golden_runs():
    few = {"lr": 0.02, "sigma": 0.05, "steps": 300, "measure": (10, 100)}
    regression = [
        make_run("quadratic_regression", {}, method, seed=seed, **few)
        for method in ("gd", "sgd", "pgd", "anti", "antisgd", "label")
        for seed in (0, 1)
    ]
    valley = [
        make_run("widening_valley", {"v": 0.3}, "anti", seed=2, law=law, **few)
        for law in ("gaussian", "rademacher", "laplace")
    ]
    other = make_run("quadratic_regression", {"d": 9, "n": 4, "nonzero": 2}, "noise", seed=5,
                     taps=(1, -0.5, -0.25), schedule="linear:0:200", start=3, **few)  # fmt: skip
    return [*regression, *valley, other]


def measured():
    return {r.run.name: [list(point) for point in r.points] for r in run_local(golden_runs(), 2)}


def test_results_are_those_of_their_version():
    """If it fails and the change is meant: raise RESULTS_VERSION and run this file as a script."""
    golden = json.loads(GOLDEN.read_text())
    measured_now = measured()
    assert golden["results_version"] == RESULTS_VERSION
    assert golden["points"].keys() == measured_now.keys()
    for name, points in golden["points"].items():
        assert [p[:2] for p in points] == [p[:2] for p in measured_now[name]]
        for expected, actual in zip(points, measured_now[name], strict=True):
            found, wanted = (np.array(row[2:], np.float64) for row in (actual, expected))
            np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-14)


@pytest.fixture(scope="module")
def regression():
    return sweep(
        "quadratic_regression",
        method=["gd", "pgd", "sgd", "anti"],
        lr={"*": 0.1, "sgd": 0.01},
        sigma=0.05,
        steps=20_000,
        seeds=100,
        points=1,
        relax=False,
    )


@pytest.mark.parametrize(
    ("method", "test_loss", "trace"),
    [("gd", 18.7, 139), ("pgd", 29.6, 139), ("sgd", 8.3, 94), ("anti", 0.037, 19.6)],
)
def test_regression_ends_where_the_prototype_did(regression, method, test_loss, trace):
    """100 seeds of ours against the means over ten of another implementation, whose spread is not
    known and taken to be ours."""
    last = regression[(regression["step"] == 20_000) & (regression["place"] == "w")]
    rows = last[last["method"] == method]
    for column, expected in (("test_loss", test_loss), ("trace", trace)):
        ours = Estimate.of(rows[column])
        other_sem = ours.sem * np.sqrt(100 / 10)
        assert abs(ours.mean - expected) < 2 * np.hypot(ours.sem, other_sem), (column, str(ours))


@pytest.mark.parametrize("share", [1, 2])
def test_the_valley_is_left_where_and_when_it_should_be(share):
    """PGD after about D(1/α−1)/(dσ²) steps on the sharp side, Anti-PGD after about
    ln(1/α)/(2ησ²) on the flat one; 40 seeds, η = α/D and α/2D. The second is a limit for small
    ηD and σ: E v² is σ²/(1−η‖u‖²/2), and w meets the edge before z does."""
    alpha, D, d = 0.25, 1.0, 100
    lr, sigma = alpha / (share * D), 0.01
    table = sweep(
        "widening_valley",
        set={"d": d, "D": D},
        method=["pgd", "anti"],
        lr=lr,
        sigma=sigma,
        law="rademacher",
        leave=(alpha * D, D / alpha),
        steps=200_000,
        seeds=40,
        points=1,
        relax=False,
    )
    last = table[table["place"] == "w"].groupby(["method", "seed"]).last().reset_index()
    sides = last.groupby("method")["status"].agg(set).to_dict()
    assert sides == {"pgd": {"left high"}, "anti": {"left low"}}
    steps = {method: Estimate.of(rows) for method, rows in last.groupby("method")["step"]}
    assert steps["pgd"].mean == pytest.approx(D * (1 / alpha - 1) / (d * sigma**2), rel=0.1)
    assert steps["anti"].mean == pytest.approx(np.log(1 / alpha) / (2 * lr * sigma**2), rel=0.15)


if __name__ == "__main__":
    text = json.dumps({"results_version": RESULTS_VERSION, "points": measured()}, indent=0)
    GOLDEN.write_text(text + "\n")
