"""Arms that are compared at one training loss: noise beside its rivals, in one cell of the map.

GD with weight decay, and the moving average of its weights, are what else is said to make the
difference; two-point smoothing and the penalty on the trace are what the noise is said to be. All
are trained to the end of the cell's schedule, where they must be at a minimum, each tuned there
with as many values and seeds. Two of them are compared at the larger of their two last training
losses: the other is taken where it had that loss, as early stopping would have left it. Sizes,
grids and seeds are here, before anything was trained; what comes next is a function of the records
there are.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from antipgd.paper.methods import TRAINABLE
from antipgd.paper.networks.arms import Values, cleanest, last_epoch, value
from antipgd.paper.networks.cells import (
    CELLS,
    RATES,
    SIGMAS,
    TUNING_SEED,
    Cell,
    Known,
    MissingRunsError,
)
from antipgd.paper.networks.minima import accuracy_at_minimum, extensions
from antipgd.paper.networks.scales import EXTENSION
from antipgd.paper.networks.spec import Training
from antipgd.paper.networks.tuning import Search
from antipgd.paper.record import Record

TUNED = {
    "gd": "lr", "anti": "sigma", "two_point": "sigma", "trace_penalty": "sigma",
    "decay": "weight_decay", "ema": "ema_age",
}  # fmt: skip
GRIDS = {
    "gd": RATES, "anti": SIGMAS, "two_point": SIGMAS, "trace_penalty": SIGMAS,
    "decay": (0.0002, 0.001, 0.005), "ema": (6.0, 30.0, 150.0),
}  # fmt: skip
FLATNESS = {"trace_images": 100, "trace_probes": 32, "flatness_images": 250}
CLOSE = 1.25  # losses with a larger ratio are not equal
DENSE, EVERY, LATER = 100, 2, 10  # measured every second epoch until then, and every tenth after


@dataclass(frozen=True)
class Contest:
    """The arms in a cell of the map, whose schedule, sizes and seeds they take."""

    cell: Cell
    grids: Mapping[str, tuple[float, ...]] = field(default_factory=lambda: GRIDS)
    chosen: Mapping[str, float] = field(default_factory=dict)

    @property
    def most_values(self) -> int:
        """How long a grid may become."""
        return self.cell.most_values

    def training(self, arm: str, seed: int, value: float | None = None, **more: Any) -> Training:
        """The training of an arm, with the value chosen for it unless told another."""
        settings = {**self.cell.base, **self.cell.changes}
        method = "gd" if arm in ("decay", "ema") else arm
        own = _setting(arm, self.chosen[arm] if value is None else value)
        if TRAINABLE[method].has_sigma:
            own["noise_stop"] = int(settings["noise_stop"])
        changes = {"lr": self.chosen.get("gd"), **own, **more}
        return self.cell.training(method, seed, **changes)

    def judged(self) -> list[Training]:
        """What is compared: every arm on test images, its flatness measured at the end."""
        end = int({**self.cell.base, **self.cell.changes}["epochs"])
        early = range(EVERY, min(DENSE, end) + 1, EVERY)
        measure = (*early, *range(DENSE + LATER, end + 1, LATER))
        return [self.training(arm, seed, measure=measure, stop_at_loss=0.0, **FLATNESS)
                for arm in TUNED for seed in range(self.cell.seeds)]  # fmt: skip

    def tuning(self, arm: str) -> list[Training]:
        """An arm with every value of its grid, tested on images beside those it is trained on."""
        return [
            self.training(arm, TUNING_SEED + seed, value, held_out=self.cell.held_out)
            for value in self.grids[arm] for seed in range(self.cell.tuning_seeds)
        ]  # fmt: skip


def _setting(arm: str, value: float) -> dict[str, float]:
    """What a value of an arm's grid is for a training."""
    if arm == "ema":
        return {"ema": value / (1 + value)}  # the decay at which weights have that age in the mean
    return {TUNED[arm]: value}


def arm_of(run: Training) -> str:
    """The arm that a training belongs to."""
    if run.ema:
        return "ema"
    return "decay" if run.weight_decay else run.method


def settled(contest: Contest, known: Known) -> Contest:
    """The contest with the values that its tuning led to; raises what it still needs."""
    return Search(contest, known, TUNED, arm_of, accuracy_at_minimum).run()


def following(contest: Contest, records: Iterable[Record]) -> list[Training]:
    """What comes next: grids, longer grids, what is judged, and epochs more where that is not at a
    minimum; nothing when all of it is there."""
    known = Known(records)
    try:
        known(extensions(known(settled(contest, known).judged())))
    except MissingRunsError as missing:
        return missing.runs
    return []


def ended(contest: Contest, records: Sequence[Record]) -> dict[str, list[Record]]:
    """What is compared, by arm, seeds ascending, extended where it was; nothing if some of it is
    missing."""
    known, names = Known(records), {record.run.name: record for record in records}
    try:
        main = known(settled(contest, known).judged())
    except MissingRunsError:
        return {}
    found = [names.get(one.run.extended(EXTENSION).name, one) for one in main]
    return {arm: [one for one in found if arm_of(one.run) == arm] for arm in TUNED}


@dataclass(frozen=True)
class Equal:
    """Two arms at equal training losses, by seed: the epochs at which they had them, the largest
    ratio of these losses, and the difference of the test accuracies in points."""

    epochs: list[tuple[int, int]]
    ratio: float
    points: Values


def at_equal_loss(ours: Sequence[Record], theirs: Sequence[Record]) -> Equal:
    """Both at the larger of their last training losses; where one diverged, at their ends."""
    pairs = [*zip(ours, theirs, strict=True)]
    epochs = [_where_equal(*pair) for pair in pairs]
    losses, accuracies = (
        [[value(*one) for one in zip(pair, [measure] * 2, when, strict=True)]
         for pair, when in zip(pairs, epochs, strict=True)]
        for measure in ("train_loss", "test_accuracy")
    )  # fmt: skip
    ratios = [max(pair) / min(pair) for pair in losses if max(pair) < math.inf]
    points = [100 * (first - second) for first, second in accuracies]
    return Equal(epochs, max(ratios, default=math.inf), np.array(points))


def _where_equal(ours: Record, theirs: Record) -> tuple[int, int]:
    loss = max(value(ours, "train_loss"), value(theirs, "train_loss"))
    if math.isinf(loss):
        return last_epoch(ours), last_epoch(theirs)
    return nearest(ours, loss), nearest(theirs, loss)


def nearest(record: Record, loss: float) -> int:
    """The measured epoch with the training loss next to this one, by their ratio; the last of
    equals."""
    found = {epoch: value(record, "train_loss", epoch) for epoch in cleanest(record) if epoch}
    return min(found, key=lambda epoch: (abs(math.log(found[epoch] / loss)), -epoch))


CONTEST = Contest(CELLS[0])
SMOKE = Contest(
    Cell("smoke", "base", "a few digits", seeds=2, tuning_seeds=1, most_values=2,
         base={"data": "digits", "model": "lenet", "width": 4, "images": 100, "batch": 20,
               "norm": "none", "epochs": 60, "noise_stop": 40}),
    grids={"gd": (0.02, 0.03), "anti": (0.005, 0.01), "two_point": (0.005, 0.01),
           "trace_penalty": (0.005, 0.01), "decay": (0.0001, 0.0002), "ema": (2.0, 4.0)},
)  # fmt: skip
