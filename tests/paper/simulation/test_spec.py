import dataclasses
import json

import pytest

from antipgd.paper.simulation.spec import Run, make_run, measured_steps

REGRESSION = "quadratic_regression"


def run(method="anti", **changes):
    values = {"lr": 0.1, "sigma": 0.05, "steps": 100, "seed": 0} | changes
    return make_run(REGRESSION, {}, method, **values)


def test_a_run_survives_json_and_keeps_its_name():
    for spec in (run(), run("gd"), run("sgd"), run("noise", taps=(1, -0.5), schedule="linear:0:9")):
        again = Run.from_plain(json.loads(spec.canonical()))
        assert again == spec
        assert again.name == spec.name


def test_the_name_depends_on_every_part():
    names = {
        run().name,
        run("pgd").name,
        run(lr=0.2).name,
        run(sigma=0.06).name,
        run(steps=101).name,
        run(seed=1).name,
        run(law="rademacher").name,
        run(start=5).name,
        run(stop=50).name,
        run(schedule="cosine:0:50").name,
        run(relax=False).name,
        run(measure=(7,)).name,
        make_run(REGRESSION, {"d": 50}, "anti", lr=0.1, sigma=0.05, steps=100, seed=0).name,
    }
    assert len(names) == 13
    assert run().name == "1e185f4b5682fa4ea8b5d774f55346c5"  # a promise: stores are found by it


def test_one_run_has_one_spelling():
    assert run() == make_run(REGRESSION, {"d": 100, "n": "40"}, "anti", lr=0.1, sigma=0.05,
                             steps=100, seed=0)  # fmt: skip
    assert run("gd", sigma=0.3, law="rademacher", start=4) == run("gd", sigma=0.0)
    assert run("sgd").batch == 1
    assert run("noise").taps == (1, -1)


def test_where_it_is_measured():
    assert measured_steps(1) == (0, 1)
    steps = measured_steps(20_000)
    assert steps[0] == 0
    assert steps[-1] == 20_000
    assert 30 < len(steps) <= 42
    assert run(measure=(50,)).measure == (0, 50, 100)


def test_clean_weights_exist_iff_the_taps_sum_to_zero():
    assert run().has_clean_weights
    assert run("gd").has_clean_weights
    assert not run("pgd").has_clean_weights
    assert run("noise", taps=(1, -0.5, -0.5)).has_clean_weights


def test_sigma_over_the_steps():
    spec = run(schedule="linear:0:10", start=2, stop=8)
    assert [spec.factor(n) for n in (2, 3, 8, 9)] == [0, 0.7, pytest.approx(0.2), 0]
    assert dataclasses.replace(spec, schedule=None).factor(5) == 1


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("ant", {}, "unknown method 'ant'; did you mean 'anti'"),
        ("anti", {"taps": (1,)}, "taps are for method 'noise'"),
        ("gd", {"batch": 3}, "batch is for sgd, antisgd, noise, sam, two_point; got batch=3"),
        ("sgd", {"batch": 0}, "batch must be a whole number >= 1; got 0"),
        ("anti", {"lr": 0}, "lr must be a finite number > 0; got 0"),
        ("anti", {"lr": float("nan")}, "lr must be a finite number > 0; got nan"),
        ("anti", {"sigma": -1}, "sigma must be a finite number >= 0"),
        ("anti", {"steps": 0}, "steps must be a whole number >= 1; got 0"),
        ("anti", {"seed": -1}, "seed must be a whole number >= 0; got -1"),
        ("anti", {"law": "cauchy"}, "unknown law 'cauchy'"),
        ("anti", {"schedule": "sine:3"}, "unknown schedule 'sine:3'; accepted: linear"),
        ("anti", {"stop": 3, "start": 3}, "a window needs 0 <= start < stop"),
        ("anti", {"measure": (101,)}, "must lie between 0 and 100"),
        ("anti", {"leave": (0, 1)}, "has no watched quantity"),
    ],
)
def test_bad_runs(method, changes, message):
    with pytest.raises(ValueError, match=message):
        run(method, **changes)


def test_a_valley_has_no_examples():
    with pytest.raises(ValueError, match="widening_valley has no examples, which method 'sgd'"):
        make_run("widening_valley", {}, "sgd", lr=0.1, steps=3, seed=0)
    with pytest.raises(ValueError, match="low < high"):
        make_run("widening_valley", {}, "gd", lr=0.1, steps=3, seed=0, leave=(2, 1))
