"""Trainings of before `norm`, `loss`, `schedule` and other later fields keep names and numbers.

The names are promises, for stores are found by them. Losses and accuracies were printed by the code
that had none of those fields; six digits, for the last ones depend on the processor.
"""

import pytest

from antipgd.paper.networks.spec import make_training
from antipgd.paper.networks.train import train

GOLDEN = {
    ("cnn", "gd"): ("41853f3b884bd26aeac26abd8944e2a0", 2.2939824, 0.115, 2.295219),
    ("mlp", "gd"): ("43872365c70a249c0b58eda7b1893558", 2.3414214, 0.1, 2.345384),
    ("cnn", "sgd"): ("6616afbbaf83c0775e7c2400c9c70f33", 2.2939824, 0.115, 2.295219),
    ("mlp", "sgd"): ("0858d07fc02820229f36bcfd2937c689", 2.3414214, 0.1, 2.345384),
    ("cnn", "pgd"): ("8cf8f3306a90bbe36a3bad02ae6be32a", 2.2998538, 0.155, 2.3023537),
    ("mlp", "pgd"): ("8ec3fd5562da5b448a4873c039a22c8a", 2.3518742, 0.1, 2.3535521),
    ("cnn", "anti"): ("25a6ae216c3f94e0ee68d48e9d6ec1e7", 2.2952316, 0.125, 2.2960334),
    ("mlp", "anti"): ("6f2f9f4794196b566e89dd5c51c054d6", 2.3434753, 0.1, 2.3465868),
    ("cnn", "antisgd"): ("6f6b6a596917a518ee3eb0ff78167287", 2.2952316, 0.125, 2.2960334),
    ("mlp", "antisgd"): ("7e28f93ebd258982e45422e5bcd5bda4", 2.3434753, 0.1, 2.3465868),
    ("cnn", "label"): ("efb874a0f38b2ffdb99c1d66b290d6fc", 2.2938737, 0.125, 2.2947928),
    ("mlp", "label"): ("c8b0155b03ef866d953d7c1a64a99d6a", 2.3399615, 0.1, 2.3445161),
    ("cnn", "sam"): ("559aad33d1d6c8f9f97e1d852fc828ef", 2.2944038, 0.125, 2.2956077),
    ("mlp", "sam"): ("544a4c8b9ae43004427a66ef09fbe15c", 2.343037, 0.1, 2.3460284),
}


@pytest.mark.parametrize("model", ["cnn", "mlp"])
@pytest.mark.parametrize("method", ["gd", "sgd", "pgd", "anti", "antisgd", "label", "sam"])
def test_trainings_of_before_have_their_names_and_numbers(model, method):
    name, *expected = GOLDEN[model, method]
    run = make_training(
        "digits", model, method, batch=40, epochs=2, seed=0, images=200, width=3, sigma=0.02,
        measure=(1,),
    )  # fmt: skip
    assert run.name == name
    *_, last = train(run).points  # training loss and accuracy, test loss at the cleanest place
    assert last[2:5] == pytest.approx(expected, rel=1e-6)
