"""What is listed is what there is, and names that stand in users' stores stay what they were."""

import hashlib
import json
from importlib.resources import files

from antipgd.noise.taps import telescopes
from antipgd.paper.experiments import (
    EXPERIMENTS,
    OF_PAPER,
    is_scaled,
    load,
    runs_of,
    scaled_experiments,
)
from antipgd.paper.figures import COLOURS, NAMES
from antipgd.paper.methods import METHODS, SIMULATED, TRAINABLE, TRAINED
from antipgd.paper.networks import accepted, cost, gradients
from antipgd.paper.networks.accepted import WIDTHS
from antipgd.paper.networks.losses import LOSSES
from antipgd.paper.networks.models import _MAKERS, _NORMS
from antipgd.paper.networks.scales import ARMS, SCALES
from antipgd.paper.networks.shipped import shipped
from antipgd.paper.networks.spec import make_training
from antipgd.paper.simulation import stepping
from antipgd.paper.simulation.problems import PROBLEMS
from antipgd.paper.simulation.spec import make_run


def test_the_experiments_are_the_files_of_their_folder():
    folder = files("antipgd.paper.experiments")
    there = {path.name.removesuffix(".py") for path in folder.iterdir() if path.name[0] != "_"}
    assert there == set(EXPERIMENTS)
    for name in EXPERIMENTS:
        assert is_scaled(name) != hasattr(load(name), "SEEDS"), name
    assert scaled_experiments() == [
        "cifar",
        "recover",
        "anti_sgd_network",
        "no_norm",
        "when_it_helps",
        "is_it_flatness",
    ]


def test_every_problem_has_a_file_and_says_what_it_is():
    folder = files("antipgd.paper.simulation.problems")
    there = {path.name.removesuffix(".py") for path in folder.iterdir() if path.name[0] != "_"}
    shared = {"problem", "kernels", "codes", "layers", "products", "digit_images"}
    assert there - shared == set(PROBLEMS)
    for problem in PROBLEMS.values():
        assert "watch" in problem.about


def test_every_network_has_a_usual_width():
    assert set(WIDTHS) == set(_MAKERS)


def test_what_a_training_may_say_can_be_done():
    assert tuple(LOSSES) == accepted.LOSSES
    assert tuple(_NORMS) == accepted.NORMS


def test_every_method_can_be_run_where_it_says():
    assert SIMULATED.keys() | TRAINABLE.keys() == METHODS.keys()
    assert METHODS.keys() - SIMULATED.keys() == {"trace_penalty"}
    assert METHODS.keys() - TRAINED.keys() == {"noise", "two_point", "trace_penalty"}
    assert COLOURS.keys() == NAMES.keys() == METHODS.keys()
    assert len(set(COLOURS.values())) == len(METHODS)
    assert {method.gradient for method in TRAINABLE.values()} == gradients.GRADIENTS.keys()
    assert cost._PASSES.keys() == gradients.GRADIENTS.keys()
    assert {method.gradient for method in SIMULATED.values()} == stepping.GRADIENTS.keys()
    for name, method in SIMULATED.items():
        run = make_run("quadratic_regression", {}, name, lr=0.1, sigma=0.1, steps=1, seed=0)
        assert (run.taps, run.batch, run.sigma > 0) == (
            method.taps, 1 if method.batches else None, method.has_sigma,
        )  # fmt: skip
        assert run.has_clean_weights == (not method.taps or telescopes(method.taps))
    for name, method in TRAINABLE.items():
        run = make_training("digits", "cnn", name, batch=10, epochs=1, seed=0, sigma=0.1)
        assert (run.taps, run.sigma > 0) == (method.taps, method.has_sigma)
        assert (name in TRAINED) == (name in ARMS and ARMS[name].method == name)


# Of names, canonical JSON and shipped records, their runs without fields at the default. It may
# change only where runs are added, taken away or meant to be others: a store knows its records by
# these names.
# Last: all scales of networks are others, by the new rules, and their old records are gone; 1,440
# runs of `student_teacher`, 216 of `digits_networks` and `is_it_flatness` were added, and the first
# records of the new trainings ship: the map and `is_it_flatness`, which is trained to the end.
ITEMS, DIGEST = 17_204, "1bcf6a239de4be16fd8c0223209b7c4eec3b8463c02fae3a6257245c2b11573a"


def test_names_of_runs_and_shipped_records_are_what_they_were():
    digest, items = hashlib.sha256(), 0
    for name in OF_PAPER:
        for scale in SCALES.values() if is_scaled(name) else [None]:
            for run in runs_of(name, scale=scale):
                digest.update((name + run.name + run.canonical()).encode())
                items += 1
    for scale in SCALES:
        found = shipped(scale)
        records = {} if found is None else found.records
        for key, record in records.items():
            values = json.loads(record.to_json()) | {"run": record.run.canonical()}
            digest.update((key + json.dumps(values, sort_keys=True)).encode())
            items += 1
    assert (items, digest.hexdigest()) == (ITEMS, DIGEST)
