"""The map of when noise helps: signs and measures of its claims on made-up records, its words."""

import math
from dataclasses import replace

import pytest
from made_up import row

from antipgd.paper.coverage import judged_together, paper_claims
from antipgd.paper.experiments import when_it_helps as experiment
from antipgd.paper.figures import rendered
from antipgd.paper.networks.cells import CELLS, TUNED, following
from antipgd.paper.networks.spec import trace_at
from antipgd.paper.record import Record
from antipgd.paper.results import Results

NAMES = {cell.name: cell for cell in CELLS}
GAINS = {"base": 0.3, "images_1000": 3.0, "digits": -4.0, "cifar10": 0.9}


def cells():
    return [NAMES[name] for name in GAINS]


def cell_of(run):
    return next(cell for cell in cells() if all(
        getattr(run, name) == value for name, value in {**cell.base, **cell.changes}.items()
        if name in ("data", "images")))  # fmt: skip


def made(run, missed=()):
    """Anti-PGD has the cell's gain over 50 %, and half of GD's scaled trace at 0.01; at other
    losses, and of the plain trace, twice as much."""
    cell, anti = cell_of(run), run.method == "anti"
    off = math.log2(getattr(run, TUNED[run.method]) / cell.grids[run.method][1])
    wobble = 0.002 * ((run.seed + anti) % 3)
    accuracy = 0.5 + anti * GAINS[cell.name] / 100 - 0.05 * off**2 + wobble
    factor = 0.5 if anti else 1.0
    loss = 0.5 if (cell.name, run.method, run.seed) in missed else 0.001
    found = {"train_loss": loss, "train_accuracy": 1.0, "test_accuracy": accuracy,
             trace_at(0.01): factor, trace_at(0.1): 1 / factor, "trace": 1 / factor}  # fmt: skip
    return Record(run, "ok", None, None, (row(run.epochs, "w", **found),), {}, None, None)


def results(monkeypatch, missed=()):
    monkeypatch.setattr(experiment, "CELLS", tuple(cells()))
    records = []
    while runs := following(cells(), records):
        records += [made(run, missed) for run in runs]
    return Results(records)


def claims(results):
    return {one.id.partition(".")[2]: one for one in experiment.claims(results)}


def test_gains_are_in_points_and_flatness_is_the_scaled_trace_at_one_hundredth(monkeypatch):
    found = claims(results(monkeypatch))
    for name, gain in GAINS.items():
        assert found[f"gain_{name}"].value == pytest.approx(gain, abs=0.1), name
        assert found[f"gain_{name}"].n == 12
        assert found[f"flatter_{name}"].value == pytest.approx(0.5)
    assert {name: found[f"gain_{name}"].verdict for name in GAINS} == {
        "base": "level", "images_1000": "holds", "digits": "fails", "cifar10": "holds",
    }  # fmt: skip


def test_the_squared_loss_is_judged_by_the_trace():
    assert experiment._measure(NAMES["squared"])[0] == "trace"
    assert experiment._measure(NAMES["batch_squared"])[0] == "trace"
    assert experiment._measure(NAMES["base"])[0] == trace_at(0.01)


def test_one_seed_that_misses_goes_on_and_leaves_its_cell_open(monkeypatch):
    there = results(monkeypatch, missed={("digits", "gd", 4)})
    longer = [one.run for one in there.records if one.run.extends]
    assert {(run.method, run.seed, run.epochs) for run in longer} == {
        ("gd", 4, 400), ("anti", 4, 400),
    }  # fmt: skip
    found = claims(there)
    assert found["gain_digits"].verdict == found["flatter_digits"].verdict == "not at a minimum"
    assert found["gain_base"].verdict == "level"
    assert rendered(experiment.plot(there), "png").startswith(b"\x89PNG")


def test_a_sentence_and_the_advice(monkeypatch):
    found = experiment.claims(results(monkeypatch, missed={("cifar10", "anti", 0)}))
    said = experiment.words(found)
    assert said.startswith(experiment.summary(found))
    assert "4 settings, trained with Anti-PGD and without noise, tuned alike" in said
    assert "accuracy rose in 1 (by +3.00 [" in said
    assert "] points), fell in 1 and is level, the whole interval within a point, in 1; 1" in said
    assert "The minimum was flatter in 3." in said
    assert "Use it if your training is like these, where accuracy rose: 1,000 images (+3.00" in said
    assert "where it fell: digits, 8×8 (-4.00 [" in said
    assert f"was level: {NAMES['base'].words} (+0.3" in said
    only = said.rpartition("Flatter without a gain: ")[2]
    assert only == f"{NAMES['base'].words}; {NAMES['digits'].words}."
    assert experiment.words([]) == experiment.summary([]) == ""


def test_its_rows_control_the_share_of_wrong_cells(monkeypatch):
    rows = [row for row in paper_claims() if "when_it_helps" in row.experiments]
    assert {row.control for row in rows} == {"false discovery rate"}
    found = experiment.claims(results(monkeypatch))
    weak = [replace(one, p=0.04) if one.id.endswith("gain_cifar10") else one for one in found]
    by = {one.id: one.verdict for one in judged_together(weak, paper_claims())}
    assert by["when_it_helps.gain_images_1000"] == "holds"
    assert by["when_it_helps.gain_cifar10"] == "holds"  # the weakest of three: as if alone
