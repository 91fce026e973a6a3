"""Records that ship: as they were after the journey, extensions too, and small enough to carry."""

import json
import lzma
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files

import pytest
from made_up import gone_on, record, row, trained

from antipgd.paper import reproduce
from antipgd.paper import store as store_room
from antipgd.paper.experiments import SHOWN_SCALE, runs_of, scaled_experiments
from antipgd.paper.fight.budgets import BUDGETS
from antipgd.paper.fight.shipping import PART
from antipgd.paper.networks import shipped as room
from antipgd.paper.networks.scales import EXTENSION, SCALES, scale_named
from antipgd.paper.networks.shipped import (
    Shipped,
    digest_of,
    lines,
    records_digest,
    shipped,
    stored_records,
    summary,
    unpack,
)
from antipgd.paper.networks.spec import MEASURES, Training
from antipgd.paper.networks.train import train
from antipgd.paper.record import Record
from antipgd.paper.reproduce import _extended, _Plan, _shipped
from antipgd.paper.store import Store
from antipgd.paper.verdicts import drawn

SMOKE = scale_named("smoke")


def ended(run, **values):
    """A record of this run with one row, at its end."""
    found = {"train_loss": 0.001, "train_accuracy": 1.0, "test_accuracy": 0.5} | values
    return Record(run, "ok", None, None, (row(run.epochs, "w_bn", **found),), {}, None, None)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder that stands for that of the package's records."""
    monkeypatch.setattr(room, "_path", lambda scale: tmp_path / f"{scale}.jsonl.xz")
    shipped.cache_clear()
    yield tmp_path
    shipped.cache_clear()


def test_where_there_is_no_file_nothing_ships(elsewhere):
    assert shipped("smoke") is None
    assert records_digest("smoke") == ""


def test_all_that_ships_is_no_more_than_a_megabyte():
    folder = files("antipgd.paper").joinpath("records")
    there = list(folder.iterdir()) if folder.is_dir() else []
    fights = {f"fight-{budget}{ending}" for budget in BUDGETS for ending in ("", PART)}
    assert {path.name for path in there} <= {f"{name}.jsonl.xz" for name in fights | {*SCALES}}
    assert sum(len(path.read_bytes()) for path in there) <= 1_000_000


def test_a_store_survives_being_shipped_with_what_went_on(elsewhere, tmp_path):
    """By the very command that writes the file."""
    store = Store(tmp_path / "out" / "store")
    anti, gd, tuning = (SMOKE.training("anti", 0), SMOKE.training("gd", 1), SMOKE.tuning("gd")[0])
    records = [ended(anti, train_loss=0.3, test_loss=float("inf"), trace=0.1234564),
               ended(gd, test_accuracy=0.123456789), ended(tuning),
               ended(anti.extended(EXTENSION))]  # fmt: skip
    for one in records:
        store.put(one)
    path = elsewhere / "smoke.jsonl.xz"
    command = [sys.executable, "-m", "antipgd.paper.verdicts", "smoke", str(store.root), str(path)]
    subprocess.run([*command, "rules=abc", "code=def"], check=True, capture_output=True)
    found = shipped("smoke")
    assert found.records.keys() == {one.run.name for one in records}
    assert found.command == "antipgd paper --scale smoke"
    assert (found.made["rules"], found.made["code"]) == ("abc", "def")
    for one in records:
        again = found.records[one.run.name]
        assert again.run == one.run
        assert found.digests[one.run.name] == digest_of(one)
        assert (again.status, again.diverged_at) == (one.status, one.diverged_at)
        for now, before in zip(again.points[0], one.points[0], strict=True):
            assert now == (pytest.approx(before, rel=5e-6) if type(before) is float else before)
    assert found.records[gd.name].points[0][2 + MEASURES.index("test_accuracy")] == 0.123457
    before = records_digest("smoke")
    path.write_bytes(lzma.compress(b'{"command": "", "made": {}, "versions": {}}\n'))
    assert len(before) == 64
    assert records_digest("smoke") != before


def test_what_ships_can_be_gone_on_from_elsewhere(elsewhere, tmp_path):
    """Unpacked, gone on from and shipped again: nothing is lost, and digests stay those of what was
    measured, not of what ships."""
    first, other = Store(tmp_path / "here"), Store(tmp_path / "there")
    runs = [SMOKE.training("gd", 0), SMOKE.training("anti", 0)]
    first.put(ended(runs[0], trace=1 / 3))
    path = elsewhere / "smoke.jsonl.xz"
    path.write_bytes(lzma.compress("\n".join(lines("smoke", first, runs)).encode()))
    assert unpack("smoke", other) == 1
    shipped.cache_clear()
    assert unpack("smoke", other) == 0
    assert other.get(runs[0]).points[0][2 + MEASURES.index("trace")] == 0.333333
    assert other.provenance(runs[0])["shipped"] == "to six digits"
    other.put(ended(runs[1]))
    path.write_bytes(lzma.compress("\n".join(lines("smoke", other, runs)).encode()))
    shipped.cache_clear()
    found = shipped("smoke")
    assert found.digests == {
        runs[0].name: digest_of(ended(runs[0], trace=1 / 3)),
        runs[1].name: digest_of(ended(runs[1])),
    }
    assert other.runs(Training.from_plain) == sorted(runs, key=lambda run: run.name)


def test_a_store_names_what_it_has_and_says_what_it_cannot_read(tmp_path):
    said = []
    store, run = Store(tmp_path / "store", said.append), SMOKE.training("gd", 0)
    store.put(ended(run))
    broken = store.root / "record" / "ab" / "abc.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("one\ntwo\n{}\n")
    assert store.runs(Training.from_plain) == [run]
    assert len(said) == 1
    assert "abc.json: it is left out, for it cannot be understood (KeyError('run'))" in said[0]


def test_a_digest_tells_the_last_bit():
    run = SMOKE.training("gd", 0)
    one = digest_of(ended(run, test_loss=0.1 + 0.2))
    assert one == digest_of(ended(run, test_loss=0.1 + 0.2)) != digest_of(ended(run, test_loss=0.3))


@pytest.mark.slow
def test_a_shipped_training_can_be_made_again_bit_for_bit():
    """On the kind of processor that made it; sums of other kinds differ in their last digits."""
    found = shipped(SHOWN_SCALE)
    assert found is not None
    small = [
        r for r in found.records.values() if r.run.model == "lenet" and r.run.data != "cifar10"
    ]
    one = min(small, key=lambda record: (record.run.epochs * record.run.images, record.run.name))
    again = train(one.run)
    if store_room._processor() in found.made["processor"]:
        assert digest_of(again) == found.digests[one.run.name]
    for now, before in zip(again.points, one.points, strict=True):
        assert now[:2] == before[:2]
        assert now[5] == pytest.approx(before[5], abs=0.02)  # test accuracy


def test_records_of_another_version_do_not_ship(elsewhere, tmp_path):
    run = SMOKE.training("gd", 0)
    store = Store(tmp_path / "store")
    store.put(ended(run))
    head, line = lines("smoke", store, [run, run])
    old = json.dumps(json.loads(head) | {"versions": {"training": 1}})
    (elsewhere / "smoke.jsonl.xz").write_bytes(lzma.compress(f"{old}\n{line}\n".encode()))
    assert shipped("smoke").records == {}
    with pytest.raises(ValueError, match="has no training of scale 'smoke'"):
        list(lines("smoke", Store(tmp_path / "other"), [run]))


def test_a_store_has_each_record_once_and_what_went_on_from_it(tmp_path):
    store, run = Store(tmp_path / "store"), SMOKE.training("anti", 0)
    for one in (run, run.extended(EXTENSION), SMOKE.tuning("gd")[0]):
        store.put(ended(one))
    runs = [run, run, SMOKE.training("gd", 0), SMOKE.tuning("gd")[0]]
    names = [one.run.name for one in stored_records(store, runs)]
    assert names == [run.name, SMOKE.tuning("gd")[0].name, run.extended(EXTENSION).name]
    asked = stored_records(store, [run, run.extended(EXTENSION)])
    assert len(asked) == 2


def test_the_summary_has_a_row_for_each_arm():
    records = [trained("gd", 0, accuracy=0.5), trained("gd", 1, accuracy=0.7)]
    records += [trained("anti", accuracy=0.8, trace=2.0), record("pgd", validation=True)]
    records += [gone_on(records[2], accuracy=0.9), trained("gd", 0, norm="none")]
    table = summary(records)
    assert list(table["method"]) == ["gd", "anti", "anti", "gd"]
    assert list(table["norm"]) == ["batch", "batch", "batch", "none"]
    assert list(table["seeds"]) == [2, 1, 1, 1]
    assert list(table["of"]) == [4, 4, 4 + EXTENSION, 4]
    assert table["test accuracy, %"][0].startswith("60 [")
    assert list(table["test accuracy, %"][1:3]) == ["80", "90"]
    assert table["scaled trace at loss 0.01"][1] == "2"
    assert list(table["noisy epochs"]) == ["", "1-2", "1-2", ""]
    lost = replace(records[0], status="diverged", diverged_at=1, points=())
    assert list(summary([lost, records[1]])["diverged"]) == [1]


# What the page makes of them


NAMES = ["cifar", "recover", "anti_sgd_network", "no_norm"]


def shipping(monkeypatch, missed=(), longer=True):
    """All trainings of the shown scale, of which some (method, seed) missed; with extensions."""
    found = {}
    for name in NAMES:
        for run in runs_of(name, scale=scale_named(SHOWN_SCALE)):
            bad = (run.method, run.seed) in missed and not run.noise_start
            found[run.name] = ended(run, train_loss=0.5 if bad else 0.001)
            if longer and not run.tuned_on:
                more = run.extended(EXTENSION)
                found[more.name] = ended(more)
    monkeypatch.setattr(reproduce, "shipped", lambda scale: Shipped(found, "", {}, {}))


def extended(plan, name):
    return {(run.method, run.seed) for run in plan.runs[name] if run.extends}


def test_only_seeds_that_missed_are_judged_by_their_extensions(monkeypatch):
    shipping(monkeypatch, missed=[("gd", 3)])
    plan = _Plan(NAMES, None, None)
    outcome = _shipped(plan)
    five = {(method, 3) for method in ("gd", "sgd", "pgd", "anti", "antisgd")}
    assert extended(plan, "cifar") == five
    assert extended(plan, "recover") == extended(plan, "anti_sgd_network") == set()
    assert extended(plan, "no_norm") == {(method, 3) for method in ("gd", "pgd", "anti")}
    for name in NAMES:
        assert len({run.name for run in plan.runs[name]}) == len(plan.runs[name])
        assert all(run.name in outcome.records for run in plan.runs[name])


def test_an_extension_that_is_not_there_is_missing(monkeypatch):
    shipping(monkeypatch, missed=[("pgd", 1)], longer=False)
    plan = _Plan(NAMES, None, None)
    outcome = _shipped(plan)
    absent = [run for run in plan.runs["cifar"] if run.name not in outcome.records]
    assert {(run.method, run.seed) for run in absent} == {
        (method, 1) for method in ("gd", "sgd", "pgd", "anti", "antisgd")
    }
    assert all(run.extends for run in absent)


def test_what_goes_on_is_asked_for_once(monkeypatch):
    plan, asked = _Plan(["cifar"], 2, SMOKE), []

    def train(runs):
        asked.append([run.name for run in runs])
        return reproduce.Outcome({run.name: ended(run, train_loss=0.5) for run in runs})

    outcome = _extended(plan, train(plan.trainings), train)
    assert len(asked) == 2
    assert len(asked[1]) == 10  # five arms, two seeds, whatever came of them
    assert len(outcome.records) == len(plan.trainings) == len(asked[0]) + 10


def test_figures_of_what_is_there_need_one_seed_of_every_arm():
    runs = {run.name: run for name in NAMES for run in runs_of(name, scale=SMOKE)}
    first = []
    for run in runs.values():
        if run.seed == 1 and not run.tuned_on:
            places = [(epoch, place) for epoch in run.measure for place in ("w_bn", "z_bn")
                      if place == "w_bn" or run.noise_acts(epoch)]  # fmt: skip
            points = [row(*at, train_loss=0.001, train_accuracy=1.0, test_accuracy=0.5, trace=1.0,
                          test_loss=1.0, **{"trace_at_0.01": 1.0}) for at in places]  # fmt: skip
            points += [row(epoch, "running", train_loss=0.1) for epoch in range(1, run.epochs + 1)]
            first.append(Record(run, "ok", None, None, tuple(points), {}, None, None))
    figures = drawn(first, SMOKE)
    assert list(figures) == NAMES
    titles = [axes.get_title("left") for axes in figures["cifar"].axes]
    assert len([title for title in titles if title]) == 6  # no panel for tuning
    without_gd = [r for r in first if r.run.method != "gd"]
    assert list(drawn(without_gd, SMOKE)) == ["recover", "anti_sgd_network"]
    assert set(NAMES) < set(scaled_experiments())
