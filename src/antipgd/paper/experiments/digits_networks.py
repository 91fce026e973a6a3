"""A network on handwritten digits: squared loss and cross-entropy

(Ours.) 64-32-32-10 of ReLU without biases and norm, 128 images of scikit-learn's digits, so few
that every arm comes to a minimum; 597 others, the same for every seed, are tested on. All arms have
momentum 0.9. PGD and Anti-PGD with η = 0.05: a descent, noise, clean steps (1,000, 3,000 and 2,000
with squared loss, 500, 2,500 and 1,000 with cross-entropy); GD and SGD of batch 10 take as many.
Judged is the end. A minimum is a squared loss of at most 0.2 % of that of a network that says zero,
a cross-entropy of at most 0.01 with every training image right. σ of PGD and Anti-PGD and the
learning rate of GD and SGD are the best of five values at which two other seeds come to a minimum,
on images held out of the other 1,200, by the loss (squared) or the errors (cross-entropy).
Flatter means, with squared loss, a lower trace and a lower effective sharpness, of JᵀJ/n, which has
the trace of the Hessian and is the Hessian where the residuals are zero; with cross-entropy, a lower
scaled trace at the equal loss 0.01 by temperature. Raw traces of cross-entropy fall with the loss:
they are shown, never judged. Bands: one standard deviation.
"""

from dataclasses import dataclass

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import Claim, compare_difference, not_at_minimum
from antipgd.paper.record import Record
from antipgd.paper.results import Results, Values
from antipgd.paper.simulation import tuned
from antipgd.paper.simulation.problems import DigitsNetwork
from antipgd.paper.simulation.spec import Run, make_run
from antipgd.paper.simulation.temperature import LOSS, scaled_trace
from antipgd.paper.simulation.tuned import HELD_OUT, SHARE, Arm

SEEDS = 12
FIRST, TUNING = 100, (0, 1)
PROBLEM, IMAGES = "digits_network", 100
ETA, MOMENTUM, BATCH = 0.05, 0.9, 10
RIVALS = ("gd", "sgd", "pgd")


@dataclass(frozen=True)
class Loss:
    """One of the two losses: steps without noise, with it, without; the arms."""

    words: str
    phases: tuple[int, int, int]
    arms: dict[str, Arm]
    chosen: dict[str, float]  # by the tuning seeds

    @property
    def steps(self) -> int:
        """In all."""
        return sum(self.phases)


LOSSES = {
    "squared": Loss(
        "squared loss",
        (1_000, 3_000, 4_000),
        {
            "gd": Arm("gd", "lr", (0.025, 0.05, 0.075, 0.1, 0.15)),
            "sgd": Arm("sgd", "lr", (0.01, 0.02, 0.03, 0.05, 0.07)),
            "pgd": Arm("pgd", "sigma", (0.00025, 0.0005, 0.001, 0.002, 0.004)),
            "anti": Arm("anti", "sigma", (0.02, 0.03, 0.04, 0.06, 0.08)),
        },
        {"gd": 0.05, "sgd": 0.03, "pgd": 0.0005, "anti": 0.08},
    ),
    "cross_entropy": Loss(
        "cross-entropy",
        (500, 2_500, 1_000),
        {
            "gd": Arm("gd", "lr", (0.0125, 0.025, 0.05, 0.1, 0.2)),
            "sgd": Arm("sgd", "lr", (0.005, 0.01, 0.025, 0.05, 0.1)),
            "pgd": Arm("pgd", "sigma", (0.00025, 0.0005, 0.001, 0.002, 0.004)),
            "anti": Arm("anti", "sigma", (0.04, 0.08, 0.12, 0.16, 0.2)),
        },
        {"gd": 0.05, "sgd": 0.005, "pgd": 0.0005, "anti": 0.08},
    ),
}


def _run(loss: str, name: str, value: float, seed: int, tuning: bool) -> Run:
    kind = LOSSES[loss]
    arm, (descent, noisy, _) = kind.arms[name], kind.phases
    settings = {"n": IMAGES, "loss_name": loss, "held_out": HELD_OUT[tuning]}
    return make_run(PROBLEM, settings, arm.method, **arm.settings(value, ETA), steps=kind.steps,
                    seed=seed, measure=() if tuning else tuple(range(0, kind.steps, 250)),
                    relax=False, momentum=MOMENTUM, batch=BATCH if name == "sgd" else None,
                    start=descent, stop=descent + noisy)  # fmt: skip


def tuning_runs() -> list[Run]:
    """Every value of every grid on the tuning seeds."""
    return [
        _run(loss, name, value, seed, True)
        for loss, kind in LOSSES.items()
        for name, arm in kind.arms.items()
        for value in arm.grid
        for seed in TUNING
    ]


def runs(seeds: int) -> list[Run]:
    judged = [
        _run(loss, name, value, seed, False)
        for loss, kind in LOSSES.items()
        for name, value in kind.chosen.items()
        for seed in range(FIRST, FIRST + seeds)
    ]
    return judged + tuning_runs()


def _opened(record: Record) -> tuple[DigitsNetwork, object, Values]:
    problem = record.run.make_problem()
    assert isinstance(problem, DigitsNetwork)
    return problem, record.run.make_data(problem), np.array(record.weights["w"])


def _is_there(record: Record) -> bool:
    """Whether the end of a run is at a minimum."""
    if record.status == "diverged":
        return False
    problem, data, w = _opened(record)
    loss = float(record.column("train_loss", "w")[1][-1])
    if problem.entropy:
        return loss <= LOSS and problem.errors(w[None], data)[0] == 0
    return loss <= SHARE * problem.loss_of_nothing(data)


def score(record: Record) -> float:
    """What tuning makes small: the loss or the errors on held-out images, at a minimum only."""
    if not _is_there(record):
        return np.inf
    problem, data, w = _opened(record)
    if problem.entropy:
        return float(problem.errors(w[None], data, test=True)[0])
    return tuned.held_out_loss(record)
