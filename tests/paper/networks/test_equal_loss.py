"""Trainings that are ended at one loss: where they end, what is measured, how they are tuned."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from made_up import row

from antipgd.paper.networks import arms
from antipgd.paper.networks.cells import RATES, SIGMAS, TUNING_SEED, Known, MissingRunsError
from antipgd.paper.networks.cost import image_passes
from antipgd.paper.networks.equal_loss import (
    CONTEST,
    GRIDS,
    LOSS,
    SMOKE,
    TUNED,
    arm_of,
    ended,
    following,
    settled,
)
from antipgd.paper.networks.minima import accuracy_at_minimum, at_minimum, better, flatter
from antipgd.paper.networks.spec import MEASURES, make_training, trace_at
from antipgd.paper.networks.train import train
from antipgd.paper.record import Record

VALUES = {"gd": 0.05, "anti": 0.02, "two_point": 0.01, "trace_penalty": 0.04, "decay": 0.001,
          "ema": 30.0}  # fmt: skip
MIDDLES = {arm: grid[1] for arm, grid in GRIDS.items()}
CHOSEN = replace(CONTEST, chosen=VALUES)
TRACED = {"trace_images": 40, "trace_probes": 32, "flatness_images": 40}


def spec(method="gd", **changes):
    values = {"batch": 20, "epochs": 16, "seed": 0, "images": 100, "width": 4, "lr": 0.02,
              "norm": "none", "measure": range(17), "sigma": 0.01}  # fmt: skip
    return make_training("digits", "lenet", method, **(values | changes))


def losses(record, place):
    return dict(zip(*record.column("train_loss", place), strict=True))


def traced(record, measure="trace"):
    index = 2 + MEASURES.index(measure)
    return [one[:2] for one in record.points if one[index] is not None]


def first_below(found, loss):
    return min(epoch for epoch, one in found.items() if epoch > 0 and one <= loss)


# Where a training ends


def test_the_average_ends_a_training_by_its_own_loss_and_is_traced_there_alone():
    run = spec(ema=0.9)
    whole = train(run)
    at_w, averaged = losses(whole, "w"), losses(whole, "ema")
    wanted = 1.2
    end = first_below(averaged, wanted)
    assert first_below(at_w, wanted) < end < run.epochs, "choose another loss"
    stopped = train(replace(run, stop_at_loss=wanted, **TRACED))
    assert max(epoch for epoch, *_ in stopped.points) == end
    assert traced(stopped) == [(end, "ema")]
    assert arms.value(stopped, "train_loss") == averaged[end]
    assert arms.value(stopped, "trace") > 0
    assert arms.value(whole, "train_loss") == at_w[run.epochs]  # by default not the average
    assert at_minimum(stopped)
    assert not at_minimum(whole)


@pytest.mark.parametrize("method", ["gd", "anti"])
def test_traces_are_measured_at_the_clean_weights_where_a_training_ends(method):
    run = spec(method, noise_stop=8 if method == "anti" else None)
    whole = train(run)
    place = {epoch: where for epoch, where in arms.cleanest(whole).items() if epoch > 0}
    found = {epoch: arms.value(whole, "train_loss", epoch) for epoch in place}
    wanted = (found[7] + found[8]) / 2
    assert first_below(found, wanted) == 8, "choose another epoch"
    stopped = train(replace(run, stop_at_loss=wanted, **TRACED))
    assert traced(stopped) == [(8, "z" if method == "anti" else "w")]
    assert arms.last_epoch(stopped) == 8
    assert arms.value(stopped, "train_loss") == found[8]
    missed = train(replace(run, stop_at_loss=0.0, **TRACED))
    assert traced(missed) == [(16, "w")]  # the last epoch is where it ends
    assert not at_minimum(missed)
    every = train(replace(run, **TRACED))
    assert len(traced(every)) == 17  # as it always was


def test_an_untrained_network_does_not_end_however_large_the_loss():
    record = train(spec(stop_at_loss=99.0, **TRACED))
    assert traced(record) == [(1, "w")]
    assert arms.last_epoch(record) == 1


def test_equal_loss_does_not_ask_that_every_image_is_right():
    points = [row(4, "w", train_loss=0.0099, train_accuracy=0.99)]
    run = spec(stop_at_loss=0.01, measure=(4,))
    one = Record(run, "ok", None, None, tuple(points), {}, None, None)
    assert at_minimum(one)
    assert not at_minimum(replace(one, run=replace(run, stop_at_loss=None)))
    above = row(4, "w", train_loss=0.0101, train_accuracy=1.0)
    assert not at_minimum(replace(one, points=(above,)))
    assert not at_minimum(replace(one, status="diverged", diverged_at=3))


def test_the_place_of_the_average_is_judged_where_it_ended_the_training():
    points = (row(4, "w", train_loss=0.001, test_accuracy=0.9, trace=1.0),
              row(4, "ema", train_loss=0.009, test_accuracy=0.5, trace=8.0))  # fmt: skip
    run = spec(ema=0.9, stop_at_loss=0.01)
    average = [Record(replace(run, seed=s), "ok", None, None, points, {}, None, None)
               for s in range(3)]  # fmt: skip
    plain = [replace(one, run=replace(one.run, ema=0.0), points=points[:1]) for one in average]
    words = ("a.b", "it is so", "§1", "here")
    assert better(*words, (average, None), (plain, None)).value == pytest.approx(-40)
    assert flatter(*words, "trace", (average, None), (plain, None)).value == pytest.approx(8)
    late = [replace(one, points=(points[0], row(4, "ema", train_loss=0.02, test_accuracy=0.5)))
            for one in average]  # fmt: skip
    claim = better(*words, (plain, None), (late, None))
    assert claim.verdict == "not at a minimum"
    assert "gd averaged in 3 of 3 seeds (training loss 0.02)" in claim.tested
    assert arms.cleanest(average[0]) == {4: "ema"}
    never = replace(average[0], run=replace(run, stop_at_loss=None, ema=0.9))
    assert arms.cleanest(never) == {4: "w"}


def test_a_trace_at_the_end_is_paid_for_once():
    every = spec(**TRACED)
    stopped = replace(every, stop_at_loss=0.01)
    once = 3 * TRACED["trace_images"] * TRACED["trace_probes"]
    assert image_passes(every) - image_passes(stopped) == pytest.approx(16 * once)


# The arms


@pytest.mark.parametrize("value", [0.048, 1.2, 6.0, 30.0, 150.0, 750.0, 3750.0, 0.00384])
def test_the_age_of_an_average_comes_back_as_it_was_given(value):
    run = CHOSEN.training("ema", 0, value)
    assert run.ema_age == value
    shares = [(1 - run.ema) * run.ema**k for k in range(200_000)]
    assert math.fsum(k * share for k, share in enumerate(shares)) == pytest.approx(value, rel=1e-3)


def test_every_arm_is_ended_at_the_loss_and_measured_every_second_epoch():
    every = tuple(range(2, 351, 2))
    for run in CHOSEN.judged():
        arm = arm_of(run)
        noisy = arm in ("anti", "two_point", "trace_penalty")
        assert run.stop_at_loss == LOSS == 0.01
        assert (run.epochs, run.lr, run.batch, run.images) == (350, 0.05, 36, 250)
        assert run.measure == every
        assert run.noise_stop == (250 if noisy else None)
        assert run.sigma == (VALUES[arm] if noisy else 0)
        assert run.weight_decay == (0.001 if arm == "decay" else 0)
        assert run.ema == (pytest.approx(30 / 31) if arm == "ema" else 0)
        assert (run.trace_images, run.trace_probes, run.flatness_images) == (100, 32, 250)
        assert run.held_out == 0
    assert [(arm_of(run), run.seed) for run in CHOSEN.judged()] == [
        (arm, seed) for arm in TUNED for seed in range(12)
    ]


def test_tuning_has_as_many_values_seeds_and_images_for_every_arm():
    for contest in (CHOSEN, replace(SMOKE, chosen=VALUES)):
        counts = set()
        for arm in TUNED:
            found = contest.tuning(arm)
            assert {arm_of(run) for run in found} == {arm}
            assert {getattr(run, TUNED[arm]) for run in found} == set(contest.grids[arm])
            assert all(run.held_out and run.seed >= TUNING_SEED for run in found)
            assert all(run.stop_at_loss == LOSS and not run.flatness_images for run in found)
            assert {run.held_out for run in found} == {contest.cell.held_out}
            counts.add(len(found))
        assert len(counts) == 1
    for grid in GRIDS.values():
        ratios = [b / a for a, b in pairwise(grid)]
        assert ratios == pytest.approx([ratios[0]] * 2)  # by one factor
    assert (GRIDS["gd"], GRIDS["anti"]) == (RATES, SIGMAS)


class Made:
    """Trainings nobody trained: accuracy falls away from an arm's best value; with values beyond
    its limit the loss is missed, and the accuracy there is high."""

    def __init__(self, optima, limits=None):
        self.optima, self.limits, self.runs = optima, limits or {}, {}

    def record(self, run):
        arm = arm_of(run)
        self.runs.setdefault(arm, {})[run.name] = run
        value = getattr(run, TUNED[arm])
        missed = value > self.limits.get(arm, math.inf)
        accuracy = 0.99 if missed else 0.8 - 0.01 * math.log2(value / self.optima[arm]) ** 2
        place = "ema" if run.ema else "w"
        found = {"test_accuracy": accuracy, "train_loss": 0.5 if missed else 0.009,
                 "train_accuracy": 1.0, trace_at(0.01): 4.0}  # fmt: skip
        others = [row(run.measure[0], "w", **found | {"test_accuracy": 0.1})] if run.ema else []
        points = (*others, row(run.measure[0], place, **found))
        return Record(run, "ok", None, None, points, {}, None, None)

    def __call__(self, runs):
        return [self.record(run) for run in runs]


def test_all_arms_are_tuned_with_as_many_trainings_at_gds_learning_rate():
    optima = VALUES | {"decay": 0.0002 / 25, "gd": 0.125}
    made = Made(optima)
    found = settled(CONTEST, made)
    assert found.chosen["ema"] == 30
    assert found.chosen["decay"] == pytest.approx(optima["decay"])
    assert found.chosen["gd"] == 0.125
    lengths = {arm: len(grid) for arm, grid in found.grids.items()}
    assert set(lengths.values()) == {6}  # 3, two more to reach it, and one beyond to see it fall
    for arm, runs in made.runs.items():
        final = [run for run in runs.values() if run.lr == 0.125 or arm == "gd"]
        assert len(final) == 3 * 6, arm


def test_a_value_with_which_the_loss_is_missed_is_not_chosen():
    made = Made(VALUES, {"decay": 0.0009, "anti": 0.02})
    found = settled(CONTEST, made)
    assert found.chosen["decay"] <= 0.0009
    assert found.chosen["anti"] == 0.02
    assert accuracy_at_minimum(made.record(CHOSEN.training("decay", 0, 0.005))) == 0
    assert accuracy_at_minimum(made.record(CHOSEN.training("ema", 0))) == pytest.approx(
        0.8
    )  # not that at w


def test_what_comes_next_follows_from_what_is_there():
    made, records, stages = Made(MIDDLES), [], []
    while runs := following(CONTEST, records):
        stages.append({arm_of(run) for run in runs})
        records += made(runs)
        if len(stages) < 3:
            assert ended(CONTEST, records) == {}
    assert stages == [{"gd"}, set(TUNED) - {"gd"}, set(TUNED)]
    found = ended(CONTEST, records)
    assert {arm: [one.run.seed for one in there] for arm, there in found.items()} == {
        arm: [*range(12)] for arm in TUNED
    }
    for arm, there in found.items():
        assert {getattr(one.run, TUNED[arm]) for one in there} == {MIDDLES[arm]}
        assert not any(one.run.tuned_on for one in there)
    with pytest.raises(MissingRunsError):
        settled(CONTEST, Known(records[1:]))
