"""Rehearsals: the steps are those of a training, in turn, each method in its own process."""

from dataclasses import replace

import pytest

from antipgd.cli import main
from antipgd.paper.networks.data import DataError
from antipgd.paper.networks.rehearse import Turn, _Method, rehearse, show
from antipgd.paper.networks.scales import TUNING_SEED, scale_named
from antipgd.paper.networks.train import train

SMOKE = scale_named("smoke")


@pytest.mark.parametrize("method", ["sgd", "anti", "label", "sam"])
def test_an_epoch_of_it_is_the_first_epoch_of_the_training(method):
    spec = SMOKE.training(method, TUNING_SEED, traced=False)
    rehearsal = _Method(spec, 1, "cpu")
    steps = rehearsal.trainer.steps_per_epoch
    losses = [rehearsal.turn(1).loss for _ in range(steps)]
    rehearsal.turn(1)
    assert (rehearsal.trainer.progress.epoch, rehearsal.trainer.progress.step) == (0, 1)
    rehearsal.trainer.close()
    running = [row for row in train(spec).points if row[:2] == (1, "running")]
    named = dict(zip(spec.measures, running[0][2:], strict=True))
    assert sum(losses) / steps == named["train_loss"]


@pytest.mark.slow
def test_every_method_takes_its_turns():
    turns = rehearse(SMOKE, ("anti", "sgd"), steps=2, rounds=2, threads=1)
    assert list(turns) == ["anti", "sgd"]
    assert turns["anti"][0] == 280 // 40
    assert turns["sgd"][0] == 280 // 10
    for _, found in turns.values():
        assert [turn.steps for turn in found] == [2, 2]
        assert all(turn.memory > 50 and turn.cpu_seconds > 0 for turn in found)


def test_a_method_that_cannot_go_on_is_named():
    lost = replace(SMOKE, chosen={**SMOKE.chosen, "gd": 1e30})
    with pytest.raises(RuntimeError, match="gd: the loss is not finite any more"):
        rehearse(lost, ["gd"])


def test_what_cannot_be_made_is_an_error_of_its_own_kind(tmp_path, monkeypatch):
    monkeypatch.setenv("ANTIPGD_DATA", str(tmp_path))
    with pytest.raises(DataError, match="antipgd data cifar10"):
        rehearse(scale_named("small"), ["gd"])


def test_ratios_are_per_epoch_and_of_the_same_round():
    turns = {
        "sgd": (28, [Turn(28, 1.0, 1.0, 100, 2.0), Turn(28, 1.0, 10.0, 100, 2.0)]),
        "anti": (7, [Turn(1, 1.0, 0.3, 100, 2.0), Turn(1, 3.0, 3.0, 300, 1.5)]),
    }
    line = show(SMOKE, turns).splitlines()[-1].split()
    assert line == ["anti", "40", "2.000", "14.00", "2.100", "300", "1.500"]
    once = {method: (steps, found[:1]) for method, (steps, found) in turns.items()}
    assert len(show(SMOKE, once).splitlines()[-1].split()) == len(line) - 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "0"], "steps must be a whole number >= 1; got 0"),
        (["--rounds", "-1"], "rounds must be a whole number >= 1; got -1"),
        (["--only", "adam"], "unknown method 'adam'"),
        (["--device", "tpu"], "device must be cpu, cuda or cuda:INDEX; got 'tpu'"),
    ],
)
def test_bad_options_are_named(options, message, capsys):
    assert main(["rehearse", "--scale", "smoke", *options]) == 2
    assert message in capsys.readouterr().err


def test_the_command_shows_a_table(capsys):
    assert main(["rehearse", "--scale", "smoke", "--only", "gd", "--steps", "1"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == ["method", "gd"]
