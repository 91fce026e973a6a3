"""The spec of a training: one spelling, one name, refusals that name the value."""

import json

import numpy as np
import pytest

from antipgd.flatness.planning import MIN_PRODUCTS
from antipgd.paper.networks.accepted import LEAST_PROBES
from antipgd.paper.networks.data import DATA_SETS, load
from antipgd.paper.networks.data.cifar10 import CIFAR10
from antipgd.paper.networks.spec import (
    MEASURES,
    Training,
    make_training,
)
from antipgd.paper.record import Failure, Record, failure_from, record_from
from antipgd.paper.results import Results
from antipgd.paper.store import Store


def spec(method="anti", **changes):
    values = {"batch": 714, "epochs": 10, "seed": 0, "sigma": 0.02, "images": 5000, "size": 16}
    return make_training("cifar10", "resnet18", method, **(values | changes))


def record(run, points=(), **changes):
    values = {"status": "ok", "diverged_at": None, "left_at": None, "points": points,
              "weights": {}, "relax_steps": None, "relaxation_converged": None}  # fmt: skip
    return Record(run, **(values | changes))


def point(epoch, place, value):
    return (epoch, place, value, *[None] * (len(MEASURES) - 1))


def test_a_training_survives_json_and_keeps_its_name():
    for one in (
        spec(),
        spec("gd"),
        spec("noise", taps=(1, -0.5), ema=0.9),
        spec("two_point"),
        spec("label", noise_stop=7, measure=(1, 3)),
        spec("sam"),
    ):
        again = Training.from_plain(json.loads(one.canonical()))
        assert again == one
        assert again.name == one.name
    assert spec().name == "4cab4caadb994740f1fd4963e3c46e98"  # a promise: stores are found by it


def test_defaults_are_not_in_the_name():
    assert spec(momentum=0.9, lr=0.05, validation=False) == spec()
    assert "momentum" not in spec().canonical()


def test_the_name_depends_on_every_part():
    names = {
        spec().name,
        *(spec(method).name for method in ("gd", "pgd", "antisgd", "label", "sam")),
        spec(lr=0.1).name,
        spec(momentum=0.0).name,
        spec(weight_decay=1e-4).name,
        spec(optimizer="adamw").name,
        spec(micro=102).name,
        spec(batch=128).name,
        spec(sigma=0.03).name,
        spec(law="rademacher").name,
        spec(relative=True).name,
        spec(noise_start=2).name,
        spec(noise_stop=7).name,
        spec(noisy="no_norms").name,
        spec(validation=True).name,
        spec(held_out=1000).name,
        spec(measure=(5,)).name,
        spec(test_images=1000).name,
        spec(trace_images=500, trace_probes=48).name,
        spec(trace_images=500, trace_probes=48, flatness_images=250).name,
        spec(barriers=True).name,
        spec(channels_last=False).name,
        spec(bf16=True).name,
        spec(norm="group").name,
        spec(norm="none").name,
        spec(loss="squared").name,
        *(spec(method).name for method in ("noise", "two_point", "trace_penalty")),
        spec("noise", taps=(1, -0.5)).name,
        spec("noise", form="forward").name,
        spec(form="forward").name,
        spec(ema=0.9).name,
        spec(augment="flip").name,
        spec(stop_at_loss=0.1).name,
        spec(width=8).name,
        spec(seed=1).name,
        spec(epochs=11).name,
        spec("gd").extended(1).name,
        spec("gd", epochs=11, measure=(10,)).name,
        spec(size=None).name,
        spec(images=None).name,
    }
    assert len(names) == 46


def test_one_training_has_one_spelling():
    assert spec("gd", law="rademacher", noise_start=3, relative=True) == spec("gd", sigma=0)
    assert spec(noise_stop=10) == spec()
    assert spec(micro=714) == spec()
    assert spec("label", law="rademacher", noisy="no_norms") == spec("label")
    assert spec(optimizer="adamw", momentum=0.3) == spec(optimizer="adamw")
    assert spec("noise", taps=(1, -1)) == spec("noise")
    assert spec("gd", form="forward") == spec("gd")
    mlp = {"batch": 50, "epochs": 3, "seed": 0}
    assert make_training("digits", "mlp", "gd", norm="none", **mlp) == make_training(
        "digits", "mlp", "gd", **mlp
    )


def test_when_it_is_measured():
    assert spec().measure == (10,)
    assert spec(measure=[0, 5], noise_start=2, noise_stop=7).measure == (0, 2, 5, 7, 10)
    noisy = spec(measure=(5,), noise_start=2, noise_stop=7)
    assert [epoch for epoch in range(1, 11) if noisy.noise_acts(epoch)] == [3, 4, 5, 6, 7]
    assert [epoch for epoch in range(11) if noisy.measured_fully(epoch)] == [2, 7, 10]


def test_the_noise_free_beginning_is_a_training_of_its_own():
    assert spec().prefix() is None
    before = spec("gd", epochs=4, measure=(1,))
    for method in ("anti", "pgd", "label", "noise", "two_point", "trace_penalty"):
        assert spec(method, noise_start=4, noise_stop=8, measure=(1, 6)).prefix() == before
    forward = spec("noise", taps=(1, -2, 1), form="forward", noise_start=4, measure=(1,))
    assert forward.prefix() == before


@pytest.mark.parametrize(("method", "window"), [
    ("gd", {}), ("anti", {"noise_stop": 8}), ("anti", {"noise_start": 4, "noise_stop": 8}),
])  # fmt: skip
def test_an_extension_begins_with_what_it_extends(method, window):
    run = spec(method, measure=(1, 5), test_images=100, **window)
    longer = run.extended(7)
    assert (longer.epochs, longer.extends, longer.measure) == (17, 10, (*run.measure, 17))
    assert longer.prefix() == run
    assert longer.prefix().name == run.name != longer.name
    assert Training.from_plain(json.loads(longer.canonical())) == longer
    assert [epoch for epoch in range(18) if longer.noise_acts(epoch)] == [
        epoch for epoch in range(18) if run.noise_acts(epoch)
    ]
    assert [epoch for epoch in range(18) if longer.measured_fully(epoch)] == [
        *(epoch for epoch in range(11) if run.measured_fully(epoch)), 17,
    ]  # fmt: skip
    assert longer.measured_fully(10)  # the old end


@pytest.mark.parametrize(("method", "changes"), [("anti", {}), ("gd", {"schedule": "cosine"})])
def test_what_depends_on_the_end_cannot_be_extended(method, changes):
    with pytest.raises(ValueError, match="cannot be extended: a cosine schedule, or noise that is"):
        spec(method, **changes).extended(5)


def test_a_training_that_settings_are_chosen_by_is_not_tested_on_test_images():
    assert [one.tuned_on for one in (spec(), spec(validation=True), spec(held_out=10))] == [
        False, True, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "ant"}, "unknown method 'ant'; did you mean 'anti'?"),
        ({"data": "svhn"}, "unknown data 'svhn'; accepted: digits, cifar10"),
        ({"model": "resnet"}, "unknown model 'resnet'; did you mean 'resnet18'?"),
        ({"optimizer": "adam"}, "unknown optimizer 'adam'"),
        ({"noisy": "some"}, "unknown noisy 'some'"),
        ({"loss": "mse"}, "unknown loss 'mse'; accepted: cross_entropy, squared"),
        ({"taps": (1, -0.5)}, "taps are for method 'noise'; got taps=(1, -0.5) for 'anti'"),
        ({"method": "noise", "taps": ()}, "taps must be one or more finite numbers"),
        ({"method": "noise", "taps": (1, -0.5), "form": "forward"}, "needs taps that sum to zero"),
        ({"method": "pgd", "form": "forward"}, "sum to zero, else the weights would carry noise"),
        ({"form": "passes"}, "unknown form 'passes'; accepted: weights, forward"),
        ({"ema": 1.0}, "ema must be a finite number >= 0 and < 1; got 1.0"),
        ({"method": "two_point", "relative": True}, "relative is for noise on the weights"),
        ({"method": "two_point", "sigma": 0}, "method 'two_point' needs sigma > 0; got 0"),
        ({"norm": "layer"}, "unknown norm 'layer'; accepted: batch, group, none"),
        ({"model": "mlp", "norm": "group"}, "an mlp has no norms: norm must be none"),
        ({"lr": 0}, "lr must be a finite number > 0; got 0"),
        ({"momentum": 1.0}, "momentum must be a finite number >= 0 and < 1; got 1.0"),
        ({"weight_decay": -1}, "weight_decay must be a finite number >= 0; got -1"),
        ({"batch": 0}, "batch must be a whole number >= 1; got 0"),
        ({"batch": 5001}, "batch must not exceed the 5000 training images; got batch=5001"),
        ({"images": 50_010}, "cifar10 has 50000 training images; got images=50010"),
        ({"micro": 500}, "micro must divide batch=714; got micro=500"),
        ({"epochs": 1.5}, "epochs must be a whole number >= 1; got 1.5"),
        ({"seed": -1}, "seed must be a whole number >= 0; got -1"),
        ({"sigma": -1.0}, "sigma"),
        ({"sigma": 0}, "method 'anti' needs sigma > 0; got 0"),
        ({"method": "label", "sigma": 2}, "sigma is a probability for method 'label'; got 2"),
        ({"law": "cauchy"}, "cauchy"),
        ({"noise_start": 10}, "noise_start=10, noise_stop=None"),
        ({"noise_start": 5, "noise_stop": 5}, "noise_start=5, noise_stop=5"),
        ({"noise_stop": 11}, "noise_stop <= epochs=10; got noise_start=0, noise_stop=11"),
        ({"measure": (11,)}, "measured epochs must lie between 0 and 10; got 11"),
        ({"trace_images": 100}, "both trace_images and trace_probes; got 100 and 0"),
        ({"trace_images": 9, "trace_probes": 9}, "trace_probes must be 0 or at least 32; got 9"),
        ({"flatness_images": 250}, "flatness_images=250 needs trace_probes; got 0"),
        ({"flatness_images": -1}, "flatness_images must be a whole number >= 0; got -1"),
        ({"held_out": 45_010}, "has 45000 training images beside images=5000; got held_out=45010"),
        ({"images": None, "held_out": 10}, "has 0 training images beside images=None"),
        ({"held_out": 10, "validation": True}, "either held_out or validation; got both"),
        ({"held_out": 1.5}, "held_out must be a whole number >= 0; got 1.5"),
    ],
)
def test_refusals_name_the_value_and_what_is_accepted(changes, message):
    values = {"data": "cifar10", "model": "resnet18", "method": "anti", "batch": 714,
              "epochs": 10, "seed": 0, "sigma": 0.02, "images": 5000} | changes  # fmt: skip
    with pytest.raises(ValueError) as error:
        make_training(**values)
    assert message in str(error.value)


def test_what_is_said_of_other_rooms_is_true():
    for name, known in DATA_SETS.items():
        assert known.name == name
    digits, images = DATA_SETS["digits"], load("digits")
    assert (digits.training, digits.testing) == (len(images.train_labels), len(images.test_labels))
    assert digits.shape == (1, *images.shape[:2])
    cifar10 = DATA_SETS["cifar10"]
    assert (cifar10.training, cifar10.testing) == (5 * CIFAR10.images, CIFAR10.images)
    assert MIN_PRODUCTS["hutchinson"] <= LEAST_PROBES


def test_records_of_trainings_are_stored_and_found(tmp_path):
    store = Store(tmp_path / "store")
    made = record(spec(), (point(5, "w", 0.5), point(10, "z_bn", 1 / 3)))
    assert store.state(spec()) == "missing"
    store.put(made)
    assert store.get(spec()) == made
    assert record_from(json.loads(made.to_json()), Training.from_plain) == made
    failure = Failure(spec(seed=1), "why", "where")
    store.put_failure(failure)
    assert (
        store.failure(spec(seed=1))
        == failure
        == failure_from(json.loads(failure.to_json()), Training.from_plain)
    )
    assert store.state(spec(seed=1)) == "failed"


def test_a_record_of_another_version_is_stale(tmp_path, monkeypatch):
    store = Store(tmp_path / "store")
    store.put(record(spec(), (point(5, "w", 0.5),)))
    monkeypatch.setattr("antipgd.paper.networks.spec.TRAINING_VERSION", 99)
    assert store.state(spec()) == "stale"


def test_results_find_trainings_by_their_fields():
    first = spec(measure=(4, 8), noise_start=4)
    rows = (point(4, "w", 3.0), point(8, "w", 2.0), point(8, "z", 1.5), point(10, "z", 1.0))
    lost = record(spec(seed=1, measure=(4, 8), noise_start=4), (point(4, "w", 3.0),),
                  status="diverged", diverged_at=6)  # fmt: skip
    results = Results([record(first, rows), lost])
    assert results.select(method="anti", sigma=0.02, seed=0)[0].run == first
    np.testing.assert_array_equal(results.final("train_loss", "z"), [1.0, np.inf])
    steps, table = results.curves("train_loss", "z")
    assert steps.tolist() == [4, 8, 10]
    np.testing.assert_array_equal(table, [[np.nan, 1.5, 1.0], [np.nan, np.inf, np.inf]])
    assert results.diverged(method="anti") == (1, 2)
    with pytest.raises(LookupError, match="no measurements at 'w_bn'"):
        results.final("train_loss", "w_bn", seed=0)
