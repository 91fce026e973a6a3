"""Arms at one training loss: where trainings end, what is measured, how they are compared."""

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
    SMOKE,
    TUNED,
    arm_of,
    at_equal_loss,
    ended,
    following,
    nearest,
    settled,
)
from antipgd.paper.networks.minima import accuracy_at_minimum, better, flatter
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
    assert arms.value(whole, "train_loss") == averaged[run.epochs] != at_w[run.epochs]


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
    every = train(replace(run, **TRACED))
    assert len(traced(every)) == 17  # as it always was


def test_an_untrained_network_does_not_end_however_large_the_loss():
    record = train(spec(stop_at_loss=99.0, **TRACED))
    assert traced(record) == [(1, "w")]
    assert arms.last_epoch(record) == 1


def test_what_is_judged_of_an_average_is_the_average():
    right = {"train_accuracy": 1.0}
    points = (row(4, "w", train_loss=0.001, test_accuracy=0.9, trace=1.0, **right),
              row(4, "ema", train_loss=0.009, test_accuracy=0.5, trace=8.0, **right))  # fmt: skip
    run = spec(ema=0.9)
    average = [Record(replace(run, seed=s), "ok", None, None, points, {}, None, None)
               for s in range(3)]  # fmt: skip
    plain = [replace(one, run=replace(one.run, ema=0.0), points=points[:1]) for one in average]
    words = ("a.b", "it is so", "§1", "here")
    assert better(*words, (average, None), (plain, None)).value == pytest.approx(-40)
    assert flatter(*words, "trace", (average, None), (plain, None)).value == pytest.approx(8)
    missed = row(4, "ema", train_loss=0.02, test_accuracy=0.5, **right)
    late = [replace(one, points=(points[0], missed)) for one in average]
    claim = better(*words, (plain, None), (late, None))
    assert claim.verdict == "not at a minimum"
    assert "gd averaged in 3 of 3 seeds (training loss 0.02)" in claim.tested
    assert arms.cleanest(average[0]) == {4: "ema"}
    assert arms.cleanest(plain[0]) == {4: "w"}


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


def test_every_arm_has_the_schedule_and_is_measured_all_along():
    every = (*range(2, 101, 2), *range(110, 351, 10))
    for run in CHOSEN.judged():
        arm = arm_of(run)
        noisy = arm in ("anti", "two_point", "trace_penalty")
        assert run.stop_at_loss == 0
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
            assert not any(run.flatness_images or run.stop_at_loss is not None for run in found)
            assert {run.held_out for run in found} == {contest.cell.held_out}
            counts.add(len(found))
        assert len(counts) == 1
    for grid in GRIDS.values():
        ratios = [b / a for a, b in pairwise(grid)]
        assert ratios == pytest.approx([ratios[0]] * 2)  # by one factor
    assert (GRIDS["gd"], GRIDS["anti"]) == (RATES, SIGMAS)


def test_tuning_of_gd_and_anti_pgd_is_that_of_the_map():
    cell = replace(CONTEST.cell, chosen={"gd": 0.05})
    for arm in ("gd", "anti"):
        assert CHOSEN.tuning(arm) == cell.tuning(arm)


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


# At equal loss


def trained(losses, accuracies, arm="gd", status="ok", seed=0):
    """A record with these, every second epoch."""
    points = tuple(
        row(2 * at, "w", train_loss=loss, test_accuracy=accuracy, train_accuracy=1.0)
        for at, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=True))
    )
    run = replace(CHOSEN.training(arm, seed), measure=tuple(2 * at for at in range(len(losses))))
    diverged = 2 * len(losses) if status == "diverged" else None
    return Record(run, status, diverged, None, points, {}, None, None)


def test_the_one_with_the_smaller_last_loss_is_taken_where_it_had_the_larger():
    gd = trained([2.3, 0.1, 0.01, 0.001], [0.1, 0.6, 0.7, 0.5])
    anti = trained([2.3, 0.5, 0.1, 0.011], [0.1, 0.3, 0.7, 0.9])
    found = at_equal_loss([anti], [gd])
    assert found.epochs == [(6, 4)]
    assert found.points == pytest.approx([20])  # 40 at their ends
    assert found.ratio == pytest.approx(1.1)
    back = at_equal_loss([gd], [anti])
    assert (back.epochs, back.points) == ([(4, 6)], pytest.approx([-20]))
    both = at_equal_loss([anti, gd], [gd, gd])
    assert both.points == pytest.approx([20, 0])
    assert both.epochs[1] == (6, 6)


def test_nearest_is_by_ratio_and_never_the_beginning():
    one = trained([0.01, 1.0, 0.02, 0.004], [0.1] * 4)
    assert nearest(one, 0.01) == 4  # half of it is further than its double; epoch 0 does not count
    assert nearest(one, 0.008) == 6
    assert nearest(one, 50.0) == 2


def test_what_diverged_is_compared_at_its_end_and_gives_no_ratio():
    gone = trained([2.3, 5.0], [0.1, 0.2], status="diverged")
    gd = trained([2.3, 0.1, 0.01], [0.1, 0.6, 0.7])
    found = at_equal_loss([gd], [gone])
    assert found.epochs == [(4, 2)]
    assert found.points == pytest.approx([50])
    empty = replace(gone, points=(), diverged_at=1)
    assert at_equal_loss([gd], [empty]).ratio == math.inf


def test_a_seed_of_which_one_misses_goes_on_in_all_arms():
    made, records = Made(MIDDLES), []
    while runs := following(CONTEST, records):
        if any(run.extends for run in runs):
            break
        records += made(runs)
        missed = records[-1]
        if not missed.run.tuned_on:
            points = tuple((*one[:2], 0.5, *one[3:]) for one in missed.points)
            records[-1] = replace(missed, points=points)
    assert [(arm_of(run), run.seed, run.epochs) for run in runs] == [
        (arm, 11, 400) for arm in TUNED
    ]
    records += made(runs)
    assert following(CONTEST, records) == []
    assert {one.run.epochs for there in ended(CONTEST, records).values()
            for one in there if one.run.seed == 11} == {400}  # fmt: skip
