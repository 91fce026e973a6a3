"""The network experiments: scales, arms, claims, and all of it at `smoke` from the command line."""

import errno
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up import END, NOISY, gone_on, record, row, trained, tuned

from antipgd.cli import main
from antipgd.paper.experiments import load, runs_of, scaled_experiments
from antipgd.paper.experiments.recover import ONSET, jumps
from antipgd.paper.networks import arms, checkpoint, minima, shipped
from antipgd.paper.networks.cost import image_passes
from antipgd.paper.networks.scales import (
    ARMS,
    SCALES,
    TUNED,
    TUNING_SEED,
    UNTUNED,
    scale_named,
)
from antipgd.paper.networks.spec import make_training
from antipgd.paper.results import Results
from antipgd.paper.verdicts import network_runs

ON_ARMS = ["cifar", "recover", "anti_sgd_network", "no_norm"]  # of a scale, not of cells

# Scales


@pytest.mark.parametrize("name", SCALES)
def test_every_scale_can_be_planned_with_equal_budgets_and_seeds_of_its_own(name):
    scale = scale_named(name)
    for arm, field in TUNED.items():
        runs = scale.tuning(arm)
        assert len(runs) == len(scale.tuning("gd")), arm
        assert {getattr(run, field) for run in runs} == set(scale.grids[arm])
        assert all(run.tuned_on and run.seed >= TUNING_SEED and not run.trace_probes
                   for run in runs)  # fmt: skip
    runs = [run for name in ON_ARMS for run in runs_of(name, scale=scale)]
    tested = [run for run in runs if not run.tuned_on]
    assert all(run.seed < TUNING_SEED and run.trace_probes >= 32 for run in tested)
    assert all(run.flatness_images for run in tested)
    assert {(run.method, run.norm, run.batch) for run in tested} == {
        (one.method, one.norm, scale.batches[one.batch])
        for arm, one in ARMS.items() if arm not in UNTUNED
    }  # fmt: skip
    for norm, seeds in scale.seeds.items():
        assert {run.seed for run in tested if run.norm == norm} == set(range(seeds))


@pytest.mark.parametrize("name", SCALES)
def test_grids_go_up_by_one_factor_around_what_was_chosen(name):
    scale = scale_named(name)
    assert scale.grids.keys() == TUNED.keys()
    assert scale.chosen.keys() <= TUNED.keys()
    for arm, grid in scale.grids.items():
        factors = np.array(grid[1:]) / grid[:-1]
        assert (factors > 1.2).all()
        np.testing.assert_allclose(factors, factors[0], rtol=0.12, err_msg=arm)  # round numbers
        if arm in scale.chosen:
            assert grid[0] <= scale.chosen[arm] <= grid[-1], arm


@pytest.mark.parametrize("name", SCALES)
def test_what_is_judged_can_go_on(name):
    """Its noise ends before the training does, and where it ends is measured with all images."""
    scale = scale_named(name)
    for run in (scale.training("anti", 0), scale.recovering("anti", 0)):
        assert run.noise_stop < run.epochs
        assert run.extended(1).prefix() == run
        assert run.measured_fully(run.noise_stop)
    assert scale.training("anti", 0).noise_stop == scale.noisy
    late = scale.recovering("anti", 0)
    assert (late.noise_start, late.noise_stop, late.epochs) == scale.recover
    assert late.barriers
    assert late.sigma == scale.training("anti", 0).sigma


def test_large_batches_are_a_seventh_as_in_the_paper():
    for scale in SCALES.values():
        if scale.name == "smoke":
            continue
        images = scale.network.get("images") or 50_000
        assert images / scale.batches["large"] == pytest.approx(50_000 / 7_500, rel=0.06)
        assert scale.batches["middle"] == 8 * scale.batches["small"]


@pytest.mark.parametrize("name", ["small", "medium", "paper"])
def test_noise_and_rest_are_as_long_as_in_the_paper(name):
    run, late = scale_named(name).training("anti", 0), scale_named(name).recovering("anti", 0)
    assert (run.noise_stop, run.epochs - run.noise_stop) == (250, 50)
    assert (late.noise_start, late.noise_stop - late.noise_start) == (75, 225)


def test_the_papers_scale_has_its_numbers():
    run = scale_named("paper").training("anti", 0)
    assert (run.batch, run.micro, run.lr, run.momentum) == (7500, 1500, 0.05, 0.9)
    assert (run.epochs, run.noise_stop, run.width, run.images) == (300, 250, 64, None)


def test_an_arm_takes_its_settings_from_another_or_what_is_usual():
    scale = replace(scale_named("smoke"), chosen={"gd": 0.1, "sgd": 0.2, "anti": 0.3,
                                                  "antisgd": 0.4})  # fmt: skip
    expected = {"gd": (0.1, 0), "anti": (0.1, 0.3), "sgd_middle": (0.2, 0),
                "antisgd_middle": (0.2, 0.4), "label": (0.2, 0.1), "sam": (0.2, 0.05),
                "gd_none": (0.05, 0)}  # fmt: skip
    for arm, settings in expected.items():
        run = scale.training(arm, 0)
        assert (run.lr, run.sigma) == settings, arm
    assert {arm: one.tuned for arm, one in ARMS.items() if one.tuned} == TUNED
    assert {**dict.fromkeys(("gd", "sgd", "gd_none"), "lr"), **dict.fromkeys(
        ("pgd", "anti", "antisgd", "pgd_none", "anti_none"), "sigma")} == TUNED  # fmt: skip


def test_unknown_scales_are_refused():
    with pytest.raises(ValueError, match="unknown scale 'smal'; did you mean 'small'"):
        scale_named("smal")


# Arms


def test_values_are_read_at_the_cleanest_place():
    places = {(2, "w"): 0.1, (2, "w_bn"): 0.2, (2, "z"): 0.3, (2, "z_bn"): 0.4,
              (4, "running"): None, (4, "w"): 0.5, (4, "w_bn"): 0.6}  # fmt: skip
    one = record(points=[row(*where, test_accuracy=value) for where, value in places.items()])
    assert arms.cleanest(one) == {2: "z_bn", 4: "w_bn"}
    assert arms.value(one, "test_accuracy") == 0.6
    assert arms.value(one, "test_accuracy", 2) == 0.4
    assert arms.value(one, "test_accuracy", 2, "w") == 0.1
    assert arms.noisy_end(one) == 2
    assert arms.measured(one, "test_accuracy") == [2, 4]
    assert arms.measured(one, "trace") == []
    with pytest.raises(LookupError, match="no trace at 'z_bn', epoch 2"):
        arms.value(one, "trace", 2)


def test_a_diverged_training_counts_as_lost():
    lost = replace(trained(), status="diverged", diverged_at=3)
    assert arms.value(lost, "test_accuracy") == 0
    assert arms.value(lost, "train_loss") == np.inf
    assert arms.value(lost, "test_accuracy", NOISY) == pytest.approx(0.4)


def test_an_arm_is_the_records_to_be_tested_and_of_what_went_on_the_extension():
    short = [trained("anti", seed) for seed in (2, 0, 1)]
    late = record("anti", noise_start=1, noise_stop=3)
    records = [*short, gone_on(short[0]), late, tuned("anti", 0.2, 0.5), trained("sgd", 0, 16),
               trained("sgd", 0, 128), trained("anti", norm="none")]  # fmt: skip
    results = Results(records)
    found = arms.arm(results, "anti")
    assert [one.run.seed for one in found] == [0, 1, 2]
    assert [bool(one.run.extends) for one in found] == [False, False, True]
    assert arms.arm(results, "anti", late=True) == [late]
    assert arms.arm(results, "sgd")[0].run.batch == 16
    assert arms.arm(results, "sgd", "middle")[0].run.batch == 128
    assert arms.arm(results, "anti", norm="none")[0].run.norm == "none"


def test_a_line_has_nothing_where_a_seed_was_not_extended():
    both = [trained("anti", 0), gone_on(trained("anti", 1))]
    line = arms.series(both, "test_accuracy", "")
    assert list(line.x) == [NOISY, END, both[1].run.epochs]
    assert np.isfinite(line.y).tolist() == [True, True, False]
    lost = replace(both[0], status="diverged", diverged_at=1, points=())
    assert list(arms.series([lost, both[1]], "trace", "").x) == [NOISY, END, both[1].run.epochs]


def test_tuning_is_drawn_against_what_was_tuned():
    records = [tuned("gd", 0.1, 0.6, "lr"), tuned("gd", 0.1, 0.8, "lr", TUNING_SEED + 1),
               tuned("gd", 0.05, 0.5, "lr"), tuned("anti", 0.2, 0.9), trained("pgd")]  # fmt: skip
    rates, sigmas = arms.tuning_panels(Results(records))
    assert (rates.xlabel, sigmas.xlabel) == ("learning rate", "σ")
    (line,) = rates.series
    assert (list(line.x), list(line.y)) == ([0.05, 0.1], [0.5, pytest.approx(0.7)])
    assert [list(line.x) for line in sigmas.series] == [[0.2]]
    assert arms.tuning_panels(Results([trained("pgd")])) == []


# Claims


FIVE = {"gd": 70, "sgd": 16, "pgd": 70, "anti": 70, "antisgd": 16}


def cifar(better=0.0, missed=(), longer=None, seeds=4, name="cifar", norm="batch"):
    """Claims on records of which Anti-PGD's are better by this, and more so by a tenth of a point a
    seed. Those missed, as (method, seed), end above a minimum. With `longer` all of these seeds
    went on: to a minimum, but for the methods it names."""
    records = []
    for method, batch in FIVE.items():
        for seed in range(seeds):
            gain = better + 0.001 * seed if method == "anti" else 0.0
            bad = {"loss": 0.5, "right": 0.9} if (method, seed) in missed else {}
            trace = {"anti": 2.0}.get(method, 8.0)
            one = trained(method, seed, batch, accuracy=0.5 + gain, trace=trace, norm=norm,
                          **bad)  # fmt: skip
            records.append(one)
            if longer is not None and seed in {seed for _, seed in missed}:
                still = {"loss": 0.3, "right": 0.95} if method in longer else {}
                records.append(gone_on(one, accuracy=0.6 + gain, trace=trace, **still))
    return {c.id.partition(".")[2]: c for c in load(name).claims(Results(records))}


@pytest.mark.parametrize(("better", "verdict"), [
    (0.05, "holds"), (-0.05, "fails"), (-0.0015, "level"),
])  # fmt: skip
def test_claims_of_cifar_have_the_right_sign(better, verdict):
    claims = cifar(better)
    for part in ("anti_over_gd", "anti_over_pgd", "beats_sgd"):
        assert claims[part].verdict == verdict, part
        assert (claims[part].value, claims[part].n) == (pytest.approx(100 * better + 0.15), 4)
    noisy = claims["beats_sgd_noisy"]  # ours at z where the noise ends, SGD's at the end
    assert noisy.value == pytest.approx(100 * better + 0.15 - 10)
    assert noisy.verdict == "fails"
    for part in ("flatter_gd", "flatter_pgd"):
        assert (claims[part].verdict, claims[part].value) == ("holds", pytest.approx(0.25))
        assert "(at 0.1: 4, 0.001: 4)" in claims[part].tested  # shown beside it
    assert claims["stopping"].value == pytest.approx(30)  # the end minus w, noise on
    assert claims["stopping"].verdict == "holds"


@pytest.mark.parametrize(("missed", "open_"), [
    ("anti", {"anti_over_gd", "anti_over_pgd", "flatter_gd", "flatter_pgd", "beats_sgd",
              "beats_sgd_noisy"}),
    ("pgd", {"anti_over_pgd", "flatter_pgd"}),
    ("sgd", {"beats_sgd", "beats_sgd_noisy"}),
    ("antisgd", set()),
])  # fmt: skip
def test_one_seed_of_an_arm_that_missed_leaves_its_comparisons_open(missed, open_):
    claims, whole = cifar(0.05, [(missed, 2)]), cifar(0.05)
    assert {name for name, one in claims.items() if one.verdict == "not at a minimum"} == open_
    for name, one in claims.items():
        assert one.n == 4, name  # no seed is left out
        if "flatter" not in name or name not in open_:
            assert one.value == pytest.approx(whole[name].value), name


def test_the_extension_is_what_is_judged_of_the_seeds_that_went_on():
    """All arms of that seed: were it one alone, it would have gained ten points."""
    claims = cifar(0.05, [("anti", 2)], longer=())
    assert "not at a minimum" not in {
        one.verdict for name, one in claims.items() if name != "beats_sgd_noisy"
    }
    assert claims["anti_over_gd"].value == pytest.approx(5.15)
    assert claims["stopping"].value == pytest.approx(30 + 10 / 4)  # whose w is that of before
    assert claims["beats_sgd_noisy"].verdict == "not at a minimum"  # z while the noise was on


def test_an_extension_that_misses_too_is_not_at_a_minimum():
    claims = cifar(0.05, [("pgd", 2)], longer=("pgd",))
    for part in ("anti_over_pgd", "flatter_pgd"):
        assert claims[part].verdict == "not at a minimum"
        assert "pgd in 1 of 4 seeds (training loss 0.3)" in claims[part].tested
    assert claims["anti_over_gd"].verdict == "holds"


@pytest.mark.parametrize(("better", "verdict"), [(0.05, "holds"), (-0.05, "fails")])
def test_claims_without_norms(better, verdict):
    claims = cifar(better, name="no_norm", norm="none")
    assert claims.keys() == {"anti_over_gd", "anti_over_pgd", "flatter_gd", "flatter_pgd"}
    for other in ("gd", "pgd"):
        assert claims[f"anti_over_{other}"].verdict == verdict
        assert claims[f"flatter_{other}"].value == pytest.approx(0.25)
    missed = cifar(better, [("pgd", 1)], name="no_norm", norm="none")
    assert [missed[f"anti_over_{other}"].verdict for other in ("gd", "pgd")] == [
        verdict, "not at a minimum",
    ]  # fmt: skip


def running(losses, start=1):
    """A training whose noise begins after so many epochs, with these mean losses by epoch."""
    points = [row(epoch + 1, "running", train_loss=loss) for epoch, loss in enumerate(losses)]
    made = record(points=points)
    run = replace(made.run, epochs=len(losses), noise_start=start, noise_stop=None)
    return replace(made, run=run)


def test_jumps_stand_out_of_all_noisy_epochs_before():
    """The median is 1 and the median distance from it 0.1, so that the bar is at 1.7413."""
    onset = [0.9, 1.0, 1.1] * (ONSET // 3 + 1)
    assert len(onset) >= ONSET
    assert jumps(running([0.001, *onset, 1.74, 1.0])) == 0
    assert jumps(running([0.001, *onset, 1.75, 1.0])) == 1
    assert jumps(running([0.001, *onset, 9.0, 0.1, 9.0, 1.0])) == 2  # up, not down
    assert jumps(running([0.001, *onset[: ONSET - 1], 9.0])) == 0  # one of the first 20
    assert jumps(running([0.001, *onset[:ONSET], 9.0])) == 1
    assert jumps(running([9.0] * 30 + onset, start=30)) == 0  # GD's are none of them


def recovering(method, seed, at_z, at_w, relaxed, loss=0.001):
    """Noise in epochs 2 and 3 of 4, GD before at 0.4; the loss rises from 0.01 to 0.2 when it
    begins, for odd seeds to 0.05 only."""
    fits = {"train_loss": 0.001, "train_accuracy": 1.0, "test_loss": 1.0, "trace": 1.0}
    height = 0.5 if method == "pgd" else 0.03
    first = 0.2 if seed % 2 == 0 else 0.05
    points = [row(epoch, "running", train_loss=one)
              for epoch, one in enumerate((0.01, first, first, 0.01), 1)]  # fmt: skip
    points += [row(1, "w_bn", test_accuracy=0.4, **fits),
               row(3, "w_bn", test_accuracy=at_w, **fits | {"train_loss": 1.0}),
               row(4, "w_bn", test_accuracy=relaxed, barrier=height, **fits)]  # fmt: skip
    if method == "anti":
        points += [row(3, "z_bn", test_accuracy=at_z, barrier=9.0, **fits | {"train_loss": loss})]
    return record(method, seed=seed, points=points, noise_start=1, noise_stop=3)


def recovered(at_z=0.495, loss=0.001, seeds=4):
    found = []
    for seed in range(seeds):
        found += [recovering("anti", seed, at_z + 0.002 * seed, 0.45, 0.5 + 0.002 * seed, loss),
                  recovering("pgd", seed, None, 0.42 + 0.001 * seed, 0.42),
                  trained("sgd", seed, 16, accuracy=0.5)]  # fmt: skip
    return found


def claims_of(name, records):
    return {c.id.partition(".")[2]: c for c in load(name).claims(Results(records))}


def test_claims_of_recover_have_the_right_sign_and_place():
    claims = claims_of("recover", recovered())
    values = {name: claim.value for name, claim in claims.items()}
    assert values == {
        "anti": pytest.approx(9.8),  # at z, over GD where the noise begins
        "near_sgd": pytest.approx(0.8),  # a point, less the 0.2 it is short of SGD
        "more_than_pgd": pytest.approx(8.3),  # both relaxed
        "more_than_pgd_w": pytest.approx(2.85),
        "sudden": 0.5, "jumps": 0.0,
        "barrier_anti": pytest.approx(0.03), "barrier_pgd": pytest.approx(0.5),
    }  # fmt: skip
    verdicts = {name: claim.verdict for name, claim in claims.items()}
    assert verdicts == {
        "anti": "holds", "near_sgd": "holds", "more_than_pgd": "holds", "more_than_pgd_w": "holds",
        "sudden": "undecided", "jumps": "undecided", "barrier_anti": "fails",
        "barrier_pgd": "holds",
    }  # fmt: skip


@pytest.mark.parametrize(("at_z", "verdict"), [
    (0.4915, "holds"), (0.4825, "fails"), (0.487, "undecided"), (0.52, "holds"),
])  # fmt: skip
def test_within_a_point_of_sgd_is_never_level(at_z, verdict):
    """Its seeds are 0.3 points better in the mean, with an interval of 0.41; SGD has 0.5."""
    claim = claims_of("recover", recovered(at_z))["near_sgd"]
    assert (claim.verdict, claim.value) == (verdict, pytest.approx(100 * at_z - 48.7))


def test_what_is_judged_at_z_needs_a_minimum_there():
    claims = claims_of("recover", recovered(loss=0.02))
    missed = {name for name, claim in claims.items() if claim.verdict == "not at a minimum"}
    assert missed == {"anti", "near_sgd"}
    assert claims["anti"].value == pytest.approx(9.8)


def test_a_seed_that_went_on_is_judged_where_it_relaxed_longer():
    records = recovered()
    records += [replace(gone_on(one, accuracy=0.9 if one.run.method == "anti" else 0.6))
                for one in records if one.run.seed == 3]  # fmt: skip
    for at, one in enumerate(records):  # whose last row has the barrier
        if one.run.extends and one.run.noise_start:
            barrier = list(one.points[-1])
            barrier[2 + one.run.measures.index("barrier")] = 0.5
            records[at] = replace(one, points=(*one.points[:-1], tuple(barrier)))
    claims = claims_of("recover", records)
    assert claims["more_than_pgd"].value == pytest.approx((8 + 8.2 + 8.4 + 30) / 4)
    assert claims["anti"].value == pytest.approx(9.8)  # as before: at z, noise on
    assert claims["barrier_anti"].value == pytest.approx((3 * 0.03 + 0.5) / 4)
    load("recover").plot(Results(records))


def test_a_diverged_seed_costs_neither_claims_nor_figure():
    records = recovered()
    early = tuple(point for point in records[0].points if point[0] < 2)
    records[0] = replace(records[0], status="diverged", diverged_at=2, points=early)
    claims = claims_of("recover", records)
    assert claims["anti"].verdict == "not at a minimum"
    assert claims["anti"].value == pytest.approx(((0 - 40) + 9.7 + 9.9 + 10.1) / 4)
    load("recover").plot(Results(records))


FOUR = (("sgd", 16, 0.50), ("antisgd", 16, 0.51), ("sgd", 128, 0.40), ("antisgd", 128, 0.45))


def anti_sgd(trace=lambda accuracy: 1 / accuracy, missed=(), seeds=4):
    records = []
    for seed in range(seeds):
        for method, batch, accuracy in FOUR:
            accuracy += 0.001 * seed * (method == "antisgd") * (1 + (batch > 16))
            bad = {"loss": 0.5, "right": 0.9} if (method, batch, seed) in missed else {}
            records.append(trained(method, seed, batch, accuracy=accuracy, trace=trace(accuracy),
                                   **bad))  # fmt: skip
    return claims_of("anti_sgd_network", records)


def test_claims_of_anti_sgd_compare_the_gains_at_both_batches():
    claims = anti_sgd()
    assert {name: claim.value for name, claim in claims.items()} == {
        "gain_16": pytest.approx(1.15), "gain_128": pytest.approx(5.3),
        "larger": pytest.approx(4.15), "moderate": pytest.approx(-5.85), "trend": 1.0,
    }  # fmt: skip
    assert {name: claim.verdict for name, claim in claims.items()} == {
        "gain_16": "holds", "gain_128": "holds", "larger": "holds", "moderate": "fails",
        "trend": "holds",
    }  # fmt: skip
    assert anti_sgd(lambda accuracy: accuracy)["trend"].verdict == "fails"
    assert anti_sgd(lambda accuracy: accuracy)["trend"].value == -1
    assert anti_sgd(lambda accuracy: 3.0)["trend"].value == 0  # all the same


def test_an_arm_that_missed_leaves_the_comparisons_of_four_open():
    claims = anti_sgd(missed=[("sgd", 128, 1)])
    assert {name for name, claim in claims.items() if claim.verdict == "not at a minimum"} == {
        "gain_128", "larger", "trend",
    }  # fmt: skip
    assert claims["larger"].value == pytest.approx(4.15)
    assert claims["trend"].value == pytest.approx(
        (0.5 + 3 * 0.001) / 4
    )  # losses, for want of traces


# From the command line


def test_costs_count_epochs_measurements_and_traces():
    plain = make_training("digits", "cnn", "sgd", batch=10, epochs=3, seed=0, images=300)
    assert image_passes(plain) == pytest.approx(900 + 2 * (655 + 300) / 3)
    sam = make_training("digits", "cnn", "sam", batch=10, epochs=3, seed=0, images=300, sigma=0.1)
    assert image_passes(sam) - image_passes(plain) == pytest.approx(900)
    traced = replace(plain, trace_images=40, trace_probes=32, measure=(1, 2, 3))
    flat = replace(traced, flatness_images=50)
    products = 3 * 32  # at three losses, at the end alone
    assert image_passes(flat) - image_passes(traced) == pytest.approx(3 * 50 * products)


@pytest.mark.slow
def test_everything_runs_at_the_smallest_scale_and_is_not_run_again(tmp_path, capsys, monkeypatch):
    for module in (minima, shipped):
        monkeypatch.setattr(module, "EXTENSION", 1)  # of which nothing becomes a minimum here
    out = str(tmp_path / "out")
    assert main(["tune", "--scale", "smoke", "--out", out]) == 0
    said = capsys.readouterr().out
    assert "accuracy on held-out images" in said
    assert said.count("is at the end of the grid") == len(TUNED)  # which has but two values
    command = ["paper", "--only", ",".join(scaled_experiments()), "--scale", "smoke", "--out", out]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "scale smoke (digits, a tiny network" in said
    claims = json.loads((Path(out) / "claims.json").read_text())
    assert {claim["id"].split(".")[0] for claim in claims} == set(scaled_experiments())
    compared = [c for c in claims if ".anti_over" in c["id"] or "cifar.flatter" in c["id"]]
    assert {claim["verdict"] for claim in compared} == {"not at a minimum"}
    assert not list((Path(out) / "checkpoints").rglob("checkpoint.pt"))
    assert main([*command, "--dry-run"]) == 0
    assert "0 runs to do" in capsys.readouterr().out
    page = (Path(out) / "report.html").read_text()
    # the map and the arms at one loss have sizes of their own
    assert page.count("Shown at scale <code>smoke</code>: digits, a tiny network") == 4
    assert main(["records", "smoke", "--out", out, "--figures", str(tmp_path / "drawn")]) == 0
    shown = capsys.readouterr().out
    planned = {run.name: run for run in network_runs(scale_named("smoke"))}
    tuning = sum(run.tuned_on for run in planned.values())
    assert f"{len(planned)} of {len(planned)} trainings, {tuning} of them to tune; " in shown
    for name in scaled_experiments():  # the same as on the page
        drawn_again = (tmp_path / "drawn" / f"{name}.png").read_bytes()
        assert drawn_again == (Path(out) / "figures" / f"{name}.png").read_bytes()


def test_a_single_training_from_the_command_line(tmp_path, capsys):
    words = ["train", "--data", "digits", "--model", "cnn", "--width", "2", "--images", "200",
             "--method", "anti", "--sigma", "0.01", "--optimizer", "adamw", "--lr", "0.01",
             "--batch", "50", "--epochs", "2", "--out", str(tmp_path)]  # fmt: skip
    assert main(words) == 0
    assert "epoch 2, at z" in capsys.readouterr().out
    assert list(tmp_path.rglob("log.csv"))


def test_a_disk_that_is_full_is_no_traceback(tmp_path, capsys, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_atomically", full)
    words = f"train --data digits --method gd --batch 50 --epochs 1 --out {tmp_path}"
    assert main(words.split()) == 1
    assert "antipgd: [Errno 28] No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "message"), [
    ("tune --scale smal", "unknown scale 'smal'"),
    ("paper --scale smal", "unknown scale 'smal'"),
    ("records smal", "unknown scale 'smal'"),
    ("records smoke --out nowhere", "nowhere is not a folder with results"),
    ("tune --scale smoke --threads 0", "--threads must be at least 1; got 0"),
    ("train --data digits --method anti --batch 10 --epochs 1", "needs sigma > 0; got 0.0"),
    ("train --data digits --method gd --batch 10 --epochs 1 --measure-every 0", "at least 1"),
    ("train --data digits --method gd --batch 10 --epochs 1 --images 55", "55"),
    (f"train --data digits --method gd --batch 10 --epochs 1 --out {__file__}",
     "--out must be a folder"),
    ("train --data mnist --method gd --batch 10 --epochs 1", "unknown data 'mnist'"),
    ("train --data digits --method gd --batch 10 --epochs 1 --device tpux", "got 'tpux'"),
    ("train --data digits --method gd --batch 10 --epochs 1 --device cuda:7", "is not there"),
])  # fmt: skip
def test_mistakes_are_named_before_anything_is_made(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_plans_differ_between_scales_and_experiments_share_their_trainings():
    plans = {
        scale.name: {run.name for name in ON_ARMS for run in runs_of(name, scale=scale)}
        for scale in SCALES.values()
    }
    assert sum(map(len, plans.values())) == len(set().union(*plans.values()))
    sgd, small = {run.name for run in runs_of("cifar")}, runs_of("recover")
    assert {run.name for run in small if run.method == "sgd"} < sgd
