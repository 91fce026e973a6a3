"""Is it flatness? Signs and places of its claims on made-up records, what it says, all at smoke."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from antipgd.cli import main
from antipgd.paper.claims import SEVERITY
from antipgd.paper.coverage import paper_claims
from antipgd.paper.experiments import is_it_flatness as experiment
from antipgd.paper.figures import rendered
from antipgd.paper.networks.equal_loss import (
    CONTEST,
    CONTESTS,
    FULL,
    SMOKE,
    TUNED,
    arm_of,
    following,
)
from antipgd.paper.networks.scales import SCALES, scale_named
from antipgd.paper.networks.spec import MEASURES, trace_at
from antipgd.paper.record import Record
from antipgd.paper.results import Results

MIDDLES = {arm: grid[1] for arm, grid in CONTEST.grids.items()}
GAINS = {"gd": 0, "anti": 5, "two_point": 5.2, "trace_penalty": 8, "decay": 2, "ema": 5}
TRACES = {"gd": 8.0, "anti": 2.0, "two_point": 2.02, "trace_penalty": 1.0, "decay": 8.1, "ema": 4.0}
RIVALS = [arm for arm in TUNED if arm != "anti"]


LAST = {"gd": 0.001, "anti": 0.004, "decay": 0.008}  # training losses at the end; others 0.004


def record(run, gains, traces, missed, apart=1.0, idle=None):
    """Accuracy 50 % and so many points, at the place where the arm is judged; elsewhere none of it.
    Traces at other losses than 0.01 are in the opposite order. At epoch 2 every arm has a loss of
    0.009 and 9 points less, at epoch 50 it is `apart` × 0.004, or 0.0045, with 1 point more. What
    is `idle` is GD."""
    arm = arm_of(run)
    like = "gd" if arm == idle else arm
    accuracy = (
        0.5 + gains[arm] / 100 - 0.01 * math.log2(getattr(run, TUNED[arm]) / MIDDLES[arm]) ** 2
    )
    if arm == idle:
        accuracy = 0.5 + gains[like] / 100
    wobble = 1 + 0.001 * (run.seed % 7) * (len(like) % 3)
    trace = traces[arm] * wobble
    found = {"test_accuracy": accuracy * wobble, "train_accuracy": 1.0,
             "train_loss": 0.02 if (arm, run.seed) in missed else LAST.get(like, 0.004),
             trace_at(0.1): 1 / trace, trace_at(0.001): 1 / trace}  # fmt: skip
    if (arm, run.seed) not in missed:
        found[trace_at(0.01)] = trace
    place = {"anti": "z", "ema": "ema"}.get(arm, "w")
    rows = [(place, found)]
    if place != "w":
        rows.insert(0, ("w", {"test_accuracy": 0.1, "train_loss": 3.0, "train_accuracy": 0.1}))
    along = [(2, 0.009, -0.09), (50, 0.004 * apart, 0.01)] if len(run.measure) > 9 else []
    points = tuple((epoch, place, *({"train_loss": loss, "test_accuracy": accuracy * wobble + more,
                                     "train_accuracy": 1.0}.get(m) for m in MEASURES))
                   for epoch, loss, more in along)  # fmt: skip
    points += tuple((run.epochs, where, *(values.get(m) for m in MEASURES))
                    for where, values in rows)  # fmt: skip
    return Record(run, "ok", None, None, points, {}, None, None)


def results(gains=GAINS, traces=TRACES, missed=(), apart=1.0, contests=(CONTEST,), idle=None):
    records = []
    while runs := [run for one in contests for run in following(one, records)]:
        records += [record(run, gains, traces, missed, apart, idle) for run in runs]
    return Results(records)


def claims(**how):
    return {one.id.partition(".")[2]: one for one in experiment.claims(results(**how))}


def test_better_is_in_points_over_each_other_arm_and_level_where_it_does_as_well():
    found = claims()
    verdicts = {arm: found[f"better_{arm}"].verdict for arm in RIVALS}
    assert verdicts == {"gd": "holds", "two_point": "level", "trace_penalty": "fails",
                        "decay": "fails", "ema": "level"}  # fmt: skip
    assert all(found[f"better_{arm}"].n == 12 for arm in RIVALS)
    # GD is taken where it had Anti-PGD's loss, Anti-PGD where it had that of weight decay.
    away = {"gd": -1, "decay": -9}
    for arm in RIVALS:
        expected = 5 - GAINS[arm] + away.get(arm, 0)
        assert found[f"better_{arm}"].value == pytest.approx(expected, abs=0.5), arm
    worse = claims(gains=GAINS | {"anti": -3})
    assert {worse[f"better_{arm}"].verdict for arm in RIVALS} == {"fails"}


def test_an_arm_that_tuning_turned_off_is_not_judged_as_another_arm():
    same = {"gains": GAINS | {"ema": 0}, "traces": TRACES | {"ema": 8.0}}
    assert claims(**same)["better_ema"].verdict == "holds"  # seeds differ: it does something
    found = claims(**same, idle="ema")
    for name in ("better_ema", "flatter_ema", "than_ema"):
        assert (found[name].verdict, found[name].unit) == ("not at a minimum", "training loss")
        assert (found[name].p, found[name].value) == (None, pytest.approx(0.001))
    assert found["better_decay"].verdict == claims(**same)["better_decay"].verdict


def test_flatter_is_a_ratio_of_scaled_traces_at_a_loss_of_one_hundredth():
    found = claims()
    over_gd = {arm: found[f"flatter_{arm}"] for arm in TUNED if arm != "gd"}
    assert {arm: one.verdict for arm, one in over_gd.items()} == {
        "anti": "holds", "two_point": "holds", "trace_penalty": "holds", "decay": "level",
        "ema": "holds",
    }  # fmt: skip
    assert over_gd["anti"].value == pytest.approx(1 / 4, rel=0.02)
    assert over_gd["ema"].value == pytest.approx(1 / 2, rel=0.02)
    than = {arm: found[f"than_{arm}"] for arm in RIVALS if arm != "gd"}
    assert {arm: one.verdict for arm, one in than.items()} == {
        "two_point": "level", "trace_penalty": "fails", "decay": "holds", "ema": "holds",
    }  # fmt: skip
    assert than["trace_penalty"].value == pytest.approx(2, rel=0.02)
    assert claims(traces=TRACES | {"ema": 16.0})["flatter_ema"].verdict == "fails"


def test_the_order_is_that_of_accuracy_and_flatness():
    along = {arm: 8.0 / (1 + gain) for arm, gain in GAINS.items()}
    order = claims(traces=along)["order"]
    assert (order.verdict, order.n) == ("holds", 12)
    assert order.value > 0.9
    against = claims(traces={arm: 1 / trace for arm, trace in along.items()})["order"]
    assert against.verdict == "fails"
    assert against.value < -0.9


def test_correlations_are_of_ranks_seed_by_seed():
    accuracy = np.array([[0.1, 0.3, 0.5], [0.2, 0.2, 0.5], [0.9, 0.1, 0.5]])
    flat = np.array([[-9.0, 1.0, 1.0], [-1.0, 2.0, 2.0], [0.0, 4.0, 3.0]])
    assert experiment.correlations(accuracy, flat) == pytest.approx([1, -1, 0])


def test_an_arm_that_misses_the_loss_leaves_what_is_said_of_it_open():
    found = claims(missed={("ema", 3)})
    for part in ("better_ema", "flatter_ema", "than_ema", "order"):
        assert found[part].verdict == "not at a minimum", part
        if part == "better_ema":  # nor at a loss that Anti-PGD had
            assert "training losses within 2.22 ×" in found[part].tested
            continue
        assert "gd averaged in 1 of 12 seeds (training loss 0.02)" in found[part].tested
    assert found["better_gd"].verdict == "holds"
    base = claims(missed={("gd", 0)})
    assert {base[part].verdict for part in base if part.startswith("flatter")} == {
        "not at a minimum"
    }
    ours = claims(missed={("anti", 0)})
    assert {ours[f"better_{arm}"].verdict for arm in RIVALS} == {"not at a minimum"}


def test_losses_that_are_not_equal_decide_nothing():
    found = claims(apart=1.3)  # GD, at 0.004 × 1.3, is nearest to Anti-PGD's 0.004
    assert found["better_gd"].verdict == "not at a minimum"
    assert "training losses within 1.3 ×" in found["better_gd"].tested
    assert claims(apart=1.2)["better_gd"].verdict == "holds"


def test_it_is_said_with_which_value_and_where_each_was_taken():
    tested = claims()["better_decay"].tested
    assert "Anti-PGD (σ 0.02) after 2 epochs in the median" in tested
    assert "weight decay (decay 0.001) after 350, training losses within 1.12 ×" in tested
    assert "the average of GD's weights (age in steps 30)" in claims()["better_ema"].tested


def test_words_name_who_is_as_good_and_who_as_flat():
    said = experiment.words([*experiment.claims(results())])
    said = said.removeprefix(f"{CONTEST.cell.words}: ")
    good, flat, than_gd, *_ = said.split(". ")
    start = "As good as Anti-PGD at equal training loss, within a point: two-point smoothing ("
    assert good.startswith(start)
    equal, worse, better = good.split("; worse: ")[0], *good.split("; worse: ")[1].split("; better")
    assert "the average of GD's weights" in equal
    assert worse.startswith("GD (")
    assert "weight decay" in better
    assert "the trace penalty" in better
    assert flat.startswith("As flat as Anti-PGD, within 5 %: two-point smoothing (")
    assert "flatter: the trace penalty" in flat
    assert "weight decay" not in than_gd.split("; as flat: ")[0]
    assert "weight decay" in than_gd.split("; as flat: ")[1]
    assert said.endswith("That the flatter arm is the better: holds.")
    assert experiment.words([]) == ""


def test_without_all_trainings_nothing_is_claimed():
    half = results().records[:50]
    assert experiment.claims(Results(half)) == []
    assert rendered(experiment.plot(Results(half)), "png").startswith(b"\x89PNG")


def test_every_claim_is_in_one_row_of_ours():
    ids = [one.id for one in experiment.claims(results())]
    assert len(ids) == len(set(ids)) == 5 + 5 + 4 + 1
    both = experiment.claims(results(contests=CONTESTS))
    assert [one.id.replace(".full_", ".") for one in both] == ids * 2
    for claim in both:
        assert [row.kind for row in paper_claims() if row.decides(claim)] == ["ours"]


def test_the_shown_scale_has_the_base_cell_and_the_smallest_a_smaller_one():
    assert experiment.contests_of(scale_named("smoke")) == [SMOKE]
    assert experiment.contests_of(None) == [CONTEST, FULL]
    assert experiment.contests_of(scale_named("small")) == [CONTEST, FULL]
    assert [name for name, scale in SCALES.items() if experiment.contests_of(scale)] == [
        "smoke", "small",
    ]  # fmt: skip
    assert {arm_of(run) for run in experiment.runs()} == {"gd"}  # then what follows from them
    assert (CONTEST.cell.seeds, CONTEST.cell.tuning_seeds) == (12, 3)


def test_the_second_cell_is_that_of_all_images_on_seeds_of_its_own():
    assert (FULL.cell.name, FULL.cell.changes) == ("batch_250", {"batch": 250})
    chosen = replace(FULL, chosen=MIDDLES).judged()
    assert {(run.seed, run.batch, run.images) for run in chosen} == {
        (seed, 250, 250) for seed in range(100, 112)
    }
    there = experiment.claims(results(contests=CONTESTS))
    assert {one.n for one in there} == {12}
    said = experiment.words(there)
    assert said.startswith(f"{CONTEST.cell.words}: As good as Anti-PGD")
    assert f" {FULL.cell.words}: As good as Anti-PGD" in said
    assert rendered(experiment.plot(results(contests=CONTESTS)), "png").startswith(b"\x89PNG")


@pytest.mark.slow
def test_everything_runs_at_the_smallest_scale_and_is_not_run_again(tmp_path, capsys):
    out = str(tmp_path / "out")
    command = ["paper", "--only", "is_it_flatness", "--scale", "smoke", "--out", out]
    assert main([*command, "--threads", "1"]) == 0
    said = capsys.readouterr().out
    assert "24 runs, 15 claims" in said  # 2 values of 6 arms, 2 seeds of 6 arms
    found = json.loads((Path(out) / "claims.json").read_text())
    assert {one["verdict"] for one in found} <= {*SEVERITY}
    assert (
        "As good as Anti-PGD at equal training loss, within a point"
        in (Path(out) / "report.html").read_text()
    )
    assert main([*command, "--dry-run"]) == 0
    assert "0 runs to do" in capsys.readouterr().out
