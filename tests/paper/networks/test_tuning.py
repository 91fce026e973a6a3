"""Tuning: made-up accuracies with known optima, inside the grids and beyond them."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from made_up import record, row, tuned

from antipgd.paper.networks import tuning
from antipgd.paper.networks.minima import accuracy_at_minimum
from antipgd.paper.networks.scales import ARMS, SCALES, TUNED, TUNING_SEED, scale_named
from antipgd.paper.networks.tuning import (
    Search,
    arm_of,
    at_the_end,
    best,
    longer,
    means,
    paired,
    scale_to_use,
    seeds_needed,
    tune,
    tuning_table,
    with_seeds,
)
from antipgd.paper.pipeline import Outcome
from antipgd.paper.record import Failure, Record

SCALE = scale_named("small")
MIDDLES = {arm: grid[1] for arm, grid in SCALE.grids.items()}


class Trainings:
    """Accuracies fall with the square of the distance from an arm's best value, in factors of two;
    remembers what was trained."""

    def __init__(self, optima, accuracy=None):
        self.optima, self.runs, self.accuracy = optima, {}, accuracy or self.parabola

    def parabola(self, arm, value, run):
        wobble = 0.002 * (run.seed - TUNING_SEED) * (len(arm) % 3)  # paired differences vary
        return 0.8 - 0.01 * math.log2(value / self.optima[arm]) ** 2 + wobble

    def __call__(self, runs):
        found = []
        for run in runs:
            arm = arm_of(run)
            self.runs.setdefault(arm, {})[run.name] = run
            accuracy = self.accuracy(arm, getattr(run, TUNED[arm]), run)
            points = (row(run.epochs, "w", test_accuracy=accuracy, train_loss=0.001,
                          train_accuracy=1.0),)  # fmt: skip
            found.append(Record(run, "ok", None, None, points, {}, None, None))
        return found


def test_optima_inside_the_grids_are_found_with_the_trainings_of_the_grids():
    train = Trainings(MIDDLES)
    search = Search(SCALE, train)
    chosen = search.run()
    assert chosen.chosen == MIDDLES
    assert chosen.grids == SCALE.grids
    assert {arm: len(runs) for arm, runs in train.runs.items()} == dict.fromkeys(TUNED, 9)
    assert all(run.held_out == 5000 and run.seed >= TUNING_SEED and not run.flatness_images
               for runs in train.runs.values() for run in runs.values())  # fmt: skip
    assert len(search.table) == 9 * len(TUNED)


def test_noise_has_the_learning_rate_that_was_chosen_for_what_it_is_added_to():
    train = Trainings(MIDDLES | {"gd": 0.125 * 0.9, "sgd": 0.005, "gd_none": 0.02})
    chosen = Search(SCALE, train).run()
    assert chosen.chosen["gd"] == 0.125
    for arm in TUNED:
        if base := ARMS[arm].base:
            used = {run.lr for run in train.runs[arm].values()}
            assert used == {chosen.chosen[base]}, arm
            assert chosen.training(arm, 0).lr == chosen.chosen[base]
    assert chosen.training("antisgd_middle", 0).lr == chosen.chosen["sgd"]
    assert chosen.training("antisgd_middle", 0).sigma == chosen.chosen["antisgd"]


@pytest.mark.parametrize(("far", "values"), [(1, 5), (2, 6), (40, 7)])
def test_a_best_value_beyond_its_grid_gives_all_arms_as_many_more(far, values):
    """By the factor two: 0.01, 0.02, 0.04 and then 0.08, and one beyond that to see it fall."""
    train = Trainings(MIDDLES | {"anti": 0.04 * 2**far})
    chosen = Search(SCALE, train).run()
    assert {arm: len(grid) for arm, grid in chosen.grids.items()} == dict.fromkeys(TUNED, values)
    assert {arm: len(runs) for arm, runs in train.runs.items()} == dict.fromkeys(TUNED, 3 * values)
    assert chosen.chosen == MIDDLES | {"anti": 0.04 * 2 ** min(far, values - 3)}
    for arm, grid in chosen.grids.items():
        assert set(SCALE.grids[arm]) <= set(grid)
        assert list(grid) == sorted(grid)


def test_where_a_longer_grid_finds_a_better_learning_rate_sigma_is_tried_again_at_it():
    """GD's second peak is seen only because Anti-PGD's σ needs more values."""
    rates = {0.02: 0.5, 0.05: 0.8, 0.125: 0.7, 0.312: 0.9}
    train = Trainings(MIDDLES | {"anti": 0.08})
    parabola = train.parabola
    train.accuracy = lambda arm, value, run: (
        rates.get(value, 0.1) if arm == "gd" else parabola(arm, value, run)
    )
    search = Search(SCALE, train)
    chosen = search.run()
    assert chosen.chosen["gd"] == 0.312
    counts = {arm: len(grid) for arm, grid in chosen.grids.items()}
    assert len(set(counts.values())) == 1
    for arm in ("pgd", "anti"):
        at_it = [run for run in train.runs[arm].values() if run.lr == 0.312]
        assert {run.sigma for run in at_it} == set(chosen.grids[arm])
        assert len(at_it) == (search.table["arm"] == arm).sum()


def test_one_seed_has_no_deviation_to_count_seeds_by():
    def seeds(scale, train):
        search = Search(scale, train)
        return with_seeds(search.run(), search.table).seeds

    assert seeds(replace(SCALE, tuning_seeds=1), Trainings(MIDDLES)) == SCALE.seeds
    wild = Trainings(MIDDLES)
    calm = wild.parabola
    wild.accuracy = lambda arm, value, run: (
        calm(arm, value, run) + 0.05 * (run.seed - TUNING_SEED) * (arm == "anti")
    )
    counted = seeds(SCALE, wild)
    assert counted["batch"] > SCALE.seeds["batch"]
    assert counted["none"] == SCALE.seeds["none"]  # the least


@pytest.mark.parametrize(("accuracies", "new"), [
    ({0.01: 0.9, 0.02: 0.5, 0.04: 0.3}, 0.005),  # the best is the first
    ({0.01: 0.3, 0.02: 0.5, 0.04: 0.9}, 0.08),  # the last
    ({0.01: 0.3, 0.02: 0.9, 0.04: 0.5}, 0.08),  # inside, beside the better neighbour
    ({0.01: 0.5, 0.02: 0.9, 0.04: 0.3}, 0.005),
    ({0.01: 0.5, 0.02: 0.9, 0.04: 0.5}, 0.005),
    ({0.02: 0.5, 0.05: 0.6, 0.125: 0.7}, 0.312),  # three digits
    ({0.02: 0.7, 0.05: 0.6, 0.125: 0.5}, 0.008),
])  # fmt: skip
def test_a_grid_gets_one_value_more_by_its_factor_where_it_is_good(accuracies, new):
    assert longer(accuracies) == tuple(sorted([*accuracies, new]))


def test_the_best_has_the_best_mean_not_the_best_run():
    table = tuning_table([
        tuned("anti", sigma, accuracy, seed=seed)
        for sigma, accuracies in ((0.3, (0.6, 0.6)), (0.1, (0.1, 0.9)), (0.2, (0.6, 0.6)))
        for seed, accuracy in enumerate(accuracies)
    ])  # fmt: skip
    found = means(table, "anti")
    assert found == {0.1: pytest.approx(0.5), 0.2: 0.6, 0.3: 0.6}
    assert best(found) == 0.2  # the smaller of equals
    assert not at_the_end(found)
    assert at_the_end({0.1: 0.5, 0.2: 0.4})


def test_a_tuning_run_knows_its_arm_and_a_lost_one_has_no_accuracy():
    assert {arm_of(run) for arm in TUNED for run in SCALE.tuning(arm)} == set(TUNED)
    for arm in TUNED:
        assert {arm_of(run) for run in SCALE.tuning(arm)} == {arm}
    lost = replace(record("anti", validation=True), status="diverged", diverged_at=1)
    assert tuning_table([lost])["accuracy"][0] == 0


# How many seeds


def power(seeds, deviation, points=1.5, trials=4000):
    """The share of made-up experiments whose 95 % interval, by hand, lies above nought."""
    from scipy.stats import t

    draws = np.random.default_rng(5).normal(points, deviation, (trials, seeds))
    half = t.ppf(0.975, seeds - 1) * draws.std(axis=1, ddof=1) / math.sqrt(seeds)
    return float((draws.mean(axis=1) > half).mean())


@pytest.mark.parametrize("deviation", [1.2, 2.0, 3.0])
def test_so_many_seeds_tell_the_points_four_times_in_five(deviation):
    groups = [[0.0, deviation, -deviation], [5.0, 5.0 + deviation, 5.0 - deviation]]
    seeds = seeds_needed(groups)
    assert 0.78 < power(seeds, deviation) < 0.88
    assert power(round(seeds * 2 / 3), deviation) < 0.7
    assert power(round(seeds * 3 / 2), deviation) > 0.92
    assert seeds_needed(groups, points=3.0) < seeds


def test_variances_are_pooled_about_the_mean_of_each_group():
    assert seeds_needed([[1.0, 3.0], [11.0, 11.0, 11.0]], points=1.0) == 8  # 2 of 3 degrees


def test_pairs_are_anti_minus_each_other_by_seed():
    rows = [("anti", 0.1, 2, 0.9), ("anti", 0.1, 1, 0.7), ("anti", 0.2, 1, 0.1),
            ("gd", 0.05, 1, 0.6), ("gd", 0.05, 2, 0.5), ("pgd", 0.3, 1, 0.8), ("pgd", 0.3, 2, 0.8),
            ("anti_none", 0.1, 1, 0.2), ("gd_none", 0.05, 1, 0.4)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["arm", "value", "seed", "accuracy"])
    chosen = {"gd": 0.05, "pgd": 0.3, "anti": 0.1, "gd_none": 0.05, "anti_none": 0.1}
    found = paired(table, chosen, "batch")
    np.testing.assert_allclose(found, [[10, 40], [-10, 10]])
    np.testing.assert_allclose(paired(table, chosen, "none"), [[-20]])


# The file


def tuned_file(folder, **changes):
    content = {"chosen": {"anti": 0.07}, "seeds": {"batch": 20}, "grids": {"anti": [0.05, 0.07]}}
    (folder / "tuned-smoke.json").write_text(json.dumps(content | changes))


def test_what_was_chosen_in_the_folder_is_used(tmp_path):
    assert scale_to_use("smoke", tmp_path) == SCALES["smoke"]
    tuned_file(tmp_path)
    scale = scale_to_use("smoke", tmp_path)
    assert scale.training("anti", 0).sigma == 0.07
    assert scale.training("pgd", 0).sigma == 0.01  # as it was
    assert scale.seeds == {"batch": 20, "none": 2}
    assert [run.sigma for run in scale.tuning("anti")] == [0.05, 0.07]


@pytest.mark.parametrize(("changes", "message"), [
    ({"chosen": {"antii": 0.07}}, "names 'antii'; accepted: gd, sgd, pgd, anti, antisgd, gd_none"),
    ({"grids": {"sam": [0.1, 0.2]}}, "names 'sam'; accepted: gd, sgd"),
    ({"chosen": {"anti": 0}}, "anti must be a finite number > 0; got 0"),
    ({"chosen": {"anti": "1"}}, "anti must be a finite number > 0; got '1'"),
    ({"grids": {"anti": [0, 0.1]}}, "anti must be a finite number > 0; got 0"),
    ({"grids": {"anti": [0.1]}}, "the grid of anti must have at least two values; got [0.1]"),
    ({"grids": {"anti": 0.1}}, "is not what `antipgd tune` writes"),
    ({"seeds": {"batch": 1}}, "seeds of batch must be a whole number >= 2; got 1"),
    ({"seeds": {"layer": 9}}, "names norm 'layer'; accepted: batch, none"),
    ({"chosen": [1]}, "is not what `antipgd tune` writes"),
])  # fmt: skip
def test_a_file_that_is_not_ours_is_refused(changes, message, tmp_path):
    tuned_file(tmp_path, **changes)
    with pytest.raises(ValueError) as error:
        scale_to_use("smoke", tmp_path)
    assert message in str(error.value)
    assert "tuned-smoke.json" in str(error.value)


@pytest.mark.parametrize("text", ["[", "[]", "{}", '{"anti": 0.07}', "\x00"])
def test_a_file_that_cannot_be_read_is_refused(text, tmp_path):
    (tmp_path / "tuned-smoke.json").write_text(text)
    with pytest.raises(ValueError, match="is not what `antipgd tune` writes"):
        scale_to_use("smoke", tmp_path)


def test_the_command_writes_what_is_used_then(tmp_path, monkeypatch, capsys):
    train = Trainings(MIDDLES | {"anti": 0.01 / 2**9})

    def complete(runs, store, threads, device, engine, retry):
        return Outcome({r.run.name: r for r in train(runs)})

    monkeypatch.setattr(tuning, "complete_trainings", complete)
    assert tune("small", tmp_path) == 0
    said = capsys.readouterr().out
    assert "the best sigma of anti is at the end of the grid" in said
    assert said.count("is at the end of the grid") == 1
    assert f"{3 * 7 * len(TUNED)} trainings, 0 found stored" in said
    scale = scale_to_use("small", tmp_path)
    assert scale.chosen == MIDDLES | {"anti": scale.grids["anti"][0]}
    assert {len(grid) for grid in scale.grids.values()} == {7}
    table = pd.read_csv(tmp_path / "tuning-small.csv")
    assert len(table) == 3 * 7 * len(TUNED)
    assert "seeds with norm 'batch': 12, for 1.5 points at 80 %" in said


def test_what_ends_at_no_minimum_is_not_chosen_however_accurate():
    found = {}
    for value, loss, accuracy in ((0.01, 0.001, 0.5), (0.02, 0.011, 0.9), (0.04, 0.005, 0.4)):
        run = SCALE.training("anti", TUNING_SEED, validation=True, sigma=value)
        right = row(run.epochs, "w", test_accuracy=accuracy, train_loss=loss, train_accuracy=1.0)
        one = Record(run, "ok", None, None, (right,), {}, None, None)
        found |= means(tuning_table([one], score=accuracy_at_minimum), "anti")
    assert found == {0.01: 0.5, 0.02: 0.0, 0.04: 0.4}
    assert best(found) == 0.01


def test_without_all_trainings_nothing_is_chosen(tmp_path, monkeypatch, capsys):
    def fail(runs, store, threads, device, engine, retry):
        return Outcome(failures={runs[0].name: Failure(runs[0], "out of luck", "")})

    monkeypatch.setattr(tuning, "complete_trainings", fail)
    assert tune("smoke", tmp_path) == 1
    said = capsys.readouterr().out
    assert "failed: gd: out of luck" in said
    assert "6 of 6 missing; --retry tries again" in said
    assert not (tmp_path / "tuned-smoke.json").exists()
