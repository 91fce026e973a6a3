"""The network experiments: scales, arms, claims, tuning, shipped records, all of it at `smoke`."""

import errno
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from antipgd.cli import main
from antipgd.paper.experiments import SHOWN_SCALE, load, runs_of, scaled_experiments
from antipgd.paper.experiments.recover import jumps
from antipgd.paper.networks import arms, checkpoint
from antipgd.paper.networks.cost import image_passes
from antipgd.paper.networks.scales import (
    ARMS,
    SCALES,
    TUNED,
    TUNING_SEED,
    UNTUNED,
    scale_named,
)
from antipgd.paper.networks.shipped import lines, shipped, summary
from antipgd.paper.networks.spec import MEASURES, make_training
from antipgd.paper.networks.tuning import scale_to_use, tuning_table, winners
from antipgd.paper.record import Record
from antipgd.paper.results import Results
from antipgd.paper.store import Store
from antipgd.paper.verdicts import drawn, network_runs


def row(epoch, place, **values):
    return (epoch, place, *(values.get(measure) for measure in MEASURES))


def record(method="anti", batch=70, seed=0, points=(), **changes):
    settings = {"sigma": 0.1, "noise_stop": 2} if method not in ("gd", "sgd") else {}
    run = make_training("digits", "cnn", method, batch=batch, epochs=4, seed=seed,
                        **{**settings, **changes})  # fmt: skip
    return Record(run, "ok", None, None, tuple(points), {}, None, None)


def curve(method, accuracy, trace, loss, seed=0, batch=70, place="w_bn"):
    """Halving in every epoch, the loss falls to `loss` and the trace to `trace`; the accuracy rises
    to its value in the last one, by a tenth."""
    points = [
        row(epoch, place, test_accuracy=accuracy - 0.1 * (epoch < 4), train_accuracy=1.0,
            train_loss=2 ** (4 - epoch) * loss, test_loss=1.0, trace=2 ** (4 - epoch) * trace,
            scaled_trace=trace)
        for epoch in range(1, 5)
    ]  # fmt: skip
    return record(method, batch, seed, points)


@pytest.mark.parametrize("name", SCALES)
def test_every_scale_can_be_planned_with_equal_budgets_and_seeds_of_its_own(name):
    scale = scale_named(name)
    tuning = scale.tuning()
    counts = {method: sum(run.method == method for run in tuning) for method in TUNED}
    assert len(set(counts.values())) == 1
    assert all(run.validation and run.seed >= TUNING_SEED for run in tuning)
    tested = [run for run in network_runs(scale) if not run.validation]
    assert all(run.seed < TUNING_SEED and run.trace_probes >= 48 for run in tested)
    assert {(run.method, run.batch) for run in tested} == {
        (method, scale.batches[size]) for arm, (method, size) in ARMS.items() if arm not in UNTUNED
    }


def test_large_batches_are_a_seventh_as_in_the_paper():
    for scale in SCALES.values():
        if scale.name == "smoke":
            continue
        images = scale.network.get("images") or 50_000
        assert images / scale.batches["large"] == pytest.approx(50_000 / 7_500, rel=0.06)
        assert scale.batches["middle"] == 8 * scale.batches["small"]


def test_the_papers_scale_has_its_numbers():
    run = scale_named("paper").training("anti", 0)
    assert (run.batch, run.micro, run.lr, run.momentum) == (7500, 1500, 0.05, 0.9)
    assert (run.epochs, run.noise_stop, run.width, run.images) == (300, 250, 64, None)
    assert scale_named("paper").recovering("anti", 0).noise_start == 75


def test_unknown_scales_are_refused():
    with pytest.raises(ValueError, match="unknown scale 'smal'; did you mean 'small'"):
        scale_named("smal")


def test_values_are_read_at_the_cleanest_place():
    places = {(2, "w"): 0.1, (2, "w_bn"): 0.2, (2, "z"): 0.3, (2, "z_bn"): 0.4,
              (4, "running"): None, (4, "w"): 0.5, (4, "w_bn"): 0.6}  # fmt: skip
    one = record(points=[row(*where, test_accuracy=value) for where, value in places.items()])
    assert arms.cleanest(one) == {2: "z_bn", 4: "w_bn"}
    assert arms.value(one, "test_accuracy") == 0.6
    assert arms.value(one, "test_accuracy", 2) == 0.4
    assert arms.value(one, "test_accuracy", 2, "w") == 0.1
    assert arms.noisy_end(one) == 2
    with pytest.raises(LookupError, match="no trace at 'z_bn', epoch 2"):
        arms.value(one, "trace", 2)


def test_a_diverged_training_counts_as_lost():
    lost = replace(record(), status="diverged", diverged_at=1)
    assert arms.value(lost, "test_accuracy") == 0
    assert arms.value(lost, "train_loss") == np.inf


def test_traces_are_compared_at_equal_losses():
    steep, flat = curve("gd", 0.5, 8.0, 0.01), curve("anti", 0.5, 2.0, 0.08)
    # gd passes 0.08 at its first measurement, where its trace is 64; anti ends there with 2.
    assert arms.matched_traces([flat], [steep]) == (pytest.approx([2.0]), pytest.approx([64.0]))
    assert arms.trace_at_loss(steep, 0.01 * 2**1.5) == pytest.approx(8 * 2**1.5)
    assert np.isnan(arms.trace_at_loss(steep, 0.09))
    assert np.isnan(arms.trace_at_loss(steep, 0.009))
    sparse = replace(steep, points=(steep.points[0], *steep.points[2:]))  # not at 0.04
    assert np.isnan(arms.trace_at_loss(sparse, 0.03))
    for loss, trace in ((0.08, 64), (0.02, 16), (0.01, 8)):
        assert arms.trace_at_loss(sparse, loss) == pytest.approx(trace)


def test_a_diverged_seed_has_the_larger_trace():
    good = [curve("gd", 0.5, 8.0, 0.01, seed) for seed in range(2)]
    lost = replace(curve("anti", 0.5, 2.0, 0.01), status="diverged", diverged_at=3)
    ours, theirs = arms.matched_traces([lost, curve("anti", 0.5, 2.0, 0.01, seed=1)], good)
    assert (ours > theirs).tolist() == [True, False]
    ours, theirs = arms.matched_traces(good[:1], [lost])
    assert ours < theirs


def test_jumps_are_epochs_above_twice_the_running_median():
    losses = [0.0, 0.1, 0.5, 0.9, 1.0, 1.0, 3.0, 1.0, 1.9, 9.0]  # the noise begins after the first
    points = [row(epoch + 1, "running", train_loss=loss) for epoch, loss in enumerate(losses)]
    noisy = record(points=points, noise_start=1, noise_stop=None)
    long = replace(noisy, run=replace(noisy.run, epochs=10))
    assert jumps(long) == 2


def tuning(sigma=0.1):
    """Held-out accuracies that make this σ the best of PGD, Anti-PGD and Anti-SGD."""
    return [
        record(method, 16 if method == "antisgd" else 70, TUNING_SEED, validation=True, sigma=one,
               points=[row(4, "w_bn", test_accuracy=0.9 if one == sigma else 0.8)])
        for method in TUNED for one in (0.1, 0.2)
    ]  # fmt: skip


@pytest.mark.parametrize(("better", "verdict"), [(0.05, "holds"), (-0.05, "fails")])
def test_claims_of_cifar_have_the_right_sign(better, verdict):
    records = tuning()
    for seed in range(4):
        wobble = 0.001 * seed
        for method, batch, gain, trace in (("gd", 70, 0, 8.0), ("sgd", 16, 0, 8.0),
                                           ("pgd", 70, 0, 8.0), ("anti", 70, better, 2.0),
                                           ("antisgd", 16, 0, 2.0)):  # fmt: skip
            records.append(curve(method, 0.5 + gain + wobble * (method == "anti"),
                                 trace * (1 + wobble), 0.01, seed, batch))  # fmt: skip
    claims = {claim.id: claim for claim in load("cifar").claims(Results(records))}
    for part in ("anti_over_gd", "anti_over_pgd", "beats_sgd", "pgd_tuned", "pgd_tuned_noisy"):
        assert claims[f"cifar.{part}"].verdict == verdict, part
        assert claims[f"cifar.{part}"].value == pytest.approx(100 * better + 0.15, abs=1e-9)
    noisy = claims["cifar.beats_sgd_noisy"]  # ours in mid-course, SGD's at the end
    assert noisy.value == pytest.approx(100 * better + 0.15 - 10, abs=1e-9)
    assert claims["cifar.trace_gd"].verdict == "holds"
    assert claims["cifar.trace_gd"].value == pytest.approx(0.25, rel=0.01)


def cifar(losses, trace=2.0, sigma=0.1):
    """Claims on records whose Anti-PGD ends at these training losses, by seed; GD at 0.01."""
    records = tuning(sigma)
    for seed, loss in enumerate(losses):
        for method, batch in (("gd", 70), ("sgd", 16), ("pgd", 70), ("antisgd", 16)):
            records.append(curve(method, 0.5 + 0.001 * seed, 8.0, 0.01, seed, batch))
        records.append(curve("anti", 0.5, trace, loss, seed))
    return {claim.id: claim for claim in load("cifar").claims(Results(records))}


def test_traces_are_judged_on_the_seeds_that_can_be_matched():
    both = cifar([0.01, 0.02, 0.05])
    for part in ("trace_gd", "trace_pgd"):
        assert both[f"cifar.{part}"].verdict == "holds", part
        assert (both[f"cifar.{part}"].n, both[f"cifar.{part}"].value < 0.25) == (3, True)
    assert cifar([0.01, 0.02, 0.05], trace=80.0)["cifar.scaled_trace_gd"].verdict == "fails"
    some = cifar([0.01, 0.02, 0.5])["cifar.trace_gd"]  # GD was never measured above 0.08
    assert some.n == 2
    assert "on the 2 of 3 seeds" in some.tested
    none = cifar([0.5, 0.5])["cifar.scaled_trace_pgd"]
    assert (none.verdict, none.n) == ("undecided", 0)


def test_it_is_said_where_sigma_was_not_tuned():
    assert "not tuned" not in cifar([0.01, 0.02])["cifar.pgd_tuned"].tested
    assert "not tuned" in cifar([0.01, 0.02], sigma=0.2)["cifar.pgd_tuned"].tested


def recovering(method, seed, accuracies, lost=False):
    """Noise from epoch 1 to 3 of 4, measured at each turn; lost in epoch 2, if it is."""
    places = [(1, "w"), (3, "w"), (3, "z"), (3, "z_bn"), (4, "w_bn")]
    points = [row(epoch, "running", train_loss=2.0 if epoch == 3 else 0.5) for epoch in range(1, 5)]
    height = 0.5 if method == "pgd" else 0.3
    points += [row(epoch, place, test_accuracy=accuracy, barrier=height * (epoch == 4),
                   train_loss=1.0, trace=1.0, scaled_trace=1.0, test_loss=1.0, train_accuracy=1.0)
               for (epoch, place), accuracy in zip(places, accuracies, strict=True)]  # fmt: skip
    found = record(method, seed=seed, points=points, noise_start=1, noise_stop=3)
    if not lost:
        return found
    before = tuple(point for point in found.points if point[0] < 2)
    return replace(found, status="diverged", diverged_at=2, points=before)


def recovered(lost=False):
    found = []
    for seed in range(4):
        wobble = 0.002 * seed
        found += [
            recovering("anti", seed, (0.4, 0.41 + wobble, 0.45, 0.495 + wobble, 0.5 + wobble),
                       lost and seed == 0),
            recovering("pgd", seed, (0.4, 0.42, 0.42, 0.42, 0.42)),
            curve("sgd", 0.5 + 0.001 * seed, 1.0, 0.01, seed, 16),
        ]  # fmt: skip
    return Results(found)


def test_claims_of_recover_have_the_right_sign_and_place():
    claims = {claim.id.partition(".")[2]: claim for claim in load("recover").claims(recovered())}
    values = {name: claim.value for name, claim in claims.items()}
    assert values["anti"] == pytest.approx(9.8)  # at z_bn, over GD where the noise begins
    assert values["more_than_pgd"] == pytest.approx(7.8)
    assert values["near_sgd_w"] == pytest.approx(8.85)
    assert values["near_sgd_z"] == pytest.approx(5.15)
    assert values["near_sgd_z_bn"] == pytest.approx(0.35)
    assert values["near_sgd_relaxed"] == pytest.approx(-0.15)
    assert [claims[f"near_sgd_{place}"].verdict for place in ("z", "relaxed")] == ["fails", "holds"]
    assert values["jumps"] == 0  # in the onset of the noise
    assert values["barrier_anti"] == pytest.approx(0.3)  # of the relaxed weights
    assert values["barrier_pgd"] == pytest.approx(0.5)


def test_a_diverged_seed_costs_neither_claims_nor_figure():
    module = load("recover")
    claims = {claim.id: claim for claim in module.claims(recovered(lost=True))}
    assert claims["recover.anti"].value < 0  # accuracy 0 in that seed
    module.plot(recovered(lost=True))
    lost = replace(curve("anti", 0.5, 2.0, 0.1), status="diverged", diverged_at=1, points=())
    assert np.isnan(arms.trace_at_loss(lost, 0.1))
    both = [lost, curve("anti", 0.5, 2.0, 0.1, seed=1)]
    assert list(arms.series(both, "trace", "").x) == [1, 2, 3, 4]


def test_claims_of_anti_sgd_compare_the_gains_at_both_batches():
    records = []
    for seed in range(4):
        for method, batch, accuracy in (("sgd", 16, 0.50), ("antisgd", 16, 0.51),
                                        ("sgd", 128, 0.40), ("antisgd", 128, 0.45)):  # fmt: skip
            accuracy += 0.001 * seed * (method == "antisgd") * (1 + (batch > 16))
            records.append(curve(method, accuracy, 1 / accuracy, 0.01, seed, batch))
    claims = {c.id: c for c in load("anti_sgd_network").claims(Results(records))}
    assert claims["anti_sgd_network.gain_16"].value == pytest.approx(1.15)
    assert claims["anti_sgd_network.larger"].verdict == "holds"
    assert claims["anti_sgd_network.larger"].value == pytest.approx(4.15)
    assert claims["anti_sgd_network.moderate"].verdict == "fails"
    assert claims["anti_sgd_network.order"].value == 1
    assert claims["anti_sgd_network.lowest"].value == 1
    swapped = [curve("sgd", 0.39, 0.5, 0.01, r.run.seed, 128) if r.run.batch == 128
               and r.run.method == "sgd" else r for r in records]  # fmt: skip
    claims = {c.id: c for c in load("anti_sgd_network").claims(Results(swapped))}
    assert claims["anti_sgd_network.order"].value == 0
    assert claims["anti_sgd_network.lowest"].value == 0
    sharp = [curve("sgd", 0.39, 2.1, 0.01, r.run.seed, 128) if r.run.batch == 128
             and r.run.method == "sgd" else r for r in records]  # fmt: skip
    claims = {c.id: c for c in load("anti_sgd_network").claims(Results(sharp))}
    assert claims["anti_sgd_network.order"].value == 0
    assert claims["anti_sgd_network.lowest"].value == 1


def test_the_winner_has_the_best_mean_not_the_best_run():
    found = [
        record("anti", seed=seed, sigma=sigma, validation=True,
               points=[row(4, "w", test_accuracy=accuracy)])
        for sigma, accuracies in ((0.1, (0.1, 0.9)), (0.2, (0.6, 0.6)), (0.3, (0.6, 0.6)))
        for seed, accuracy in enumerate(accuracies)
    ]  # fmt: skip
    assert winners(tuning_table(found)) == {"anti": 0.2}


def test_winners_in_the_folder_are_used(tmp_path):
    assert scale_to_use("smoke", tmp_path).sigmas == SCALES["smoke"].sigmas
    (tmp_path / "tuned-smoke.json").write_text('{"anti": 0.07}')
    assert scale_to_use("smoke", tmp_path).training("anti", 0).sigma == 0.07
    (tmp_path / "tuned-smoke.json").write_text('{"antii": 0.07}')
    with pytest.raises(ValueError, match="names 'antii'; accepted: pgd, anti, antisgd"):
        scale_to_use("smoke", tmp_path)
    (tmp_path / "tuned-smoke.json").write_text("[")
    with pytest.raises(ValueError, match="is not what `antipgd tune` writes"):
        scale_to_use("smoke", tmp_path)


def test_costs_count_epochs_measurements_and_traces():
    plain = make_training("digits", "cnn", "sgd", batch=10, epochs=3, seed=0, images=300)
    assert image_passes(plain) == pytest.approx(900 + 2 * (655 + 300) / 3)
    sam = make_training("digits", "cnn", "sam", batch=10, epochs=3, seed=0, images=300, sigma=0.1)
    assert image_passes(sam) - image_passes(plain) == pytest.approx(900)


def test_records_survive_being_shipped(tmp_path):
    store = Store(tmp_path / "store")
    run = scale_named("smoke").training("anti", 0)
    exact = Record(run, "ok", None, None, (row(3, "w", test_accuracy=0.123456789),), {}, None, None)
    store.put(exact)
    head, line = lines("smoke", store, [run, run])
    assert json.loads(head)["command"] == "antipgd paper --scale smoke"
    assert json.loads(line)["points"][0][2 + MEASURES.index("test_accuracy")] == 0.123457
    with pytest.raises(ValueError, match="has no training of scale 'smoke'"):
        list(lines("smoke", Store(tmp_path / "other"), [run]))


def test_shipped_records_are_those_of_the_scale_and_its_winners_are_used():
    found = shipped(SHOWN_SCALE)
    assert found is not None
    wanted = {run.name for run in network_runs(scale_named(SHOWN_SCALE))}
    assert found.records.keys() == wanted
    tuned = [r for r in found.records.values() if r.run.validation]
    assert winners(tuning_table(tuned)) == dict(SCALES[SHOWN_SCALE].sigmas)


def test_of_medium_ship_trainings_of_every_arm_of_the_scale():
    found, scale = shipped("medium"), scale_named("medium")
    assert found is not None
    wanted = {run.name: run for run in network_runs(scale)}
    assert found.records.keys() <= wanted.keys()
    arms = {(run.method, run.batch, run.noise_start) for run in wanted.values()}
    assert {(r.run.method, r.run.batch, r.run.noise_start) for r in found.records.values()} == arms
    assert list(drawn(found.records.values(), scale)) == list(scaled_experiments())


def test_the_summary_has_a_row_for_each_arm():
    records = [curve("gd", 0.5, 3.0, 0.1), curve("gd", 0.7, 5.0, 0.1, seed=1)]
    records += [curve("anti", 0.8, 2.0, 0.2), replace(record("pgd", validation=True))]
    table = summary(records)
    assert list(table["method"]) == ["gd", "anti"]
    assert list(table["seeds"]) == [2, 1]
    assert table["test accuracy, %"][0].startswith("60 [")
    assert table["test accuracy, %"][1] == "80"
    assert table["trace"][1] == "2"
    assert list(table["noisy epochs"]) == ["", "1-2"]


def test_figures_of_what_is_there_need_one_seed_of_every_arm():
    found = shipped(SHOWN_SCALE)
    assert found is not None
    first = [r for r in found.records.values() if r.run.seed == 1 and not r.run.validation]
    scale = scale_named(SHOWN_SCALE)
    figures = drawn(first, scale)
    assert list(figures) == list(scaled_experiments())
    titles = [axes.get_title() for axes in figures["cifar"].axes]
    assert len([title for title in titles if title]) == 6  # no panel for tuning
    without_gd = [r for r in first if r.run.method != "gd"]
    assert list(drawn(without_gd, scale)) == ["recover", "anti_sgd_network"]


def test_everything_runs_at_the_smallest_scale_and_is_not_run_again(tmp_path, capsys):
    out = str(tmp_path / "out")
    assert main(["tune", "--scale", "smoke", "--out", out]) == 0
    said = capsys.readouterr().out
    assert "accuracy on held-out images; best: pgd" in said
    assert said.count("is at the end of the grid") == 3  # which has but two values
    command = ["paper", "--only", ",".join(scaled_experiments()), "--scale", "smoke", "--out", out]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "scale smoke (digits, a tiny network" in said
    claims = json.loads((Path(out) / "claims.json").read_text())
    assert {claim["id"].split(".")[0] for claim in claims} == set(scaled_experiments())
    assert main([*command, "--dry-run"]) == 0
    assert "0 runs to do" in capsys.readouterr().out
    page = (Path(out) / "report.html").read_text()
    assert page.count("Shown at scale <code>smoke</code>: digits, a tiny network") == 3
    assert main(["records", "smoke", "--out", out, "--figures", str(tmp_path / "drawn")]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown[1:6]] == ["gd", "sgd", "pgd", "anti", "antisgd"]
    assert shown[-4] == "24 of 24 trainings, 6 of them to tune σ"
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
    plans = {scale.name: {run.name for run in network_runs(scale)} for scale in SCALES.values()}
    assert sum(map(len, plans.values())) == len(set().union(*plans.values()))
    sgd, small = {run.name for run in runs_of("cifar")}, runs_of("recover")
    assert {run.name for run in small if run.method == "sgd"} < sgd
