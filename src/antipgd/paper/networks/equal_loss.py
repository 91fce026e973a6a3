"""Arms that are all ended at one training loss: noise beside its rivals, in one cell of the map.

GD ended there is early stopping; GD with weight decay, and the moving average of its weights, are
what else is said to make the difference; two-point smoothing and the penalty on the trace are what
the noise is said to be. Each arm is tuned with as many values and seeds, at the place at which it
is judged: the first measured epoch whose training loss is low enough. Sizes, grids and seeds are
here, before anything was trained; what comes next is a function of the records there are.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from antipgd.paper.methods import TRAINABLE
from antipgd.paper.networks.cells import (
    CELLS,
    RATES,
    SIGMAS,
    TUNING_SEED,
    Cell,
    Known,
    MissingRunsError,
)
from antipgd.paper.networks.minima import accuracy_at_minimum
from antipgd.paper.networks.spec import Training
from antipgd.paper.networks.tuning import Search
from antipgd.paper.record import Record

LOSS = 0.01
TUNED = {
    "gd": "lr", "anti": "sigma", "two_point": "sigma", "trace_penalty": "sigma",
    "decay": "weight_decay", "ema": "ema_age",
}  # fmt: skip
GRIDS = {
    "gd": RATES, "anti": SIGMAS, "two_point": SIGMAS, "trace_penalty": SIGMAS,
    "decay": (0.0002, 0.001, 0.005), "ema": (6.0, 30.0, 150.0),
}  # fmt: skip
FLATNESS = {"trace_images": 100, "trace_probes": 32, "flatness_images": 250}


@dataclass(frozen=True)
class Contest:
    """The arms in a cell of the map, whose sizes and seeds they take. They are measured every few
    epochs, and end at the first with that loss."""

    cell: Cell
    every: int = 2
    loss: float = LOSS
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
        noisy = TRAINABLE[method].has_sigma
        stop, end = int(settings["noise_stop"]), int(settings["epochs"])
        own = _setting(arm, self.chosen[arm] if value is None else value)
        if noisy:
            own["noise_stop"] = stop
        changes = {"lr": self.chosen.get("gd"), **own, **more}
        measure = range(self.every, end + 1, self.every)
        return self.cell.training(method, seed, measure=measure, stop_at_loss=self.loss, **changes)

    def judged(self) -> list[Training]:
        """What is compared: every arm on test images, its flatness measured where it ends."""
        return [self.training(arm, seed, **FLATNESS)
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
    """What comes next: grids, longer grids, what is judged; nothing when all of it is there."""
    known = Known(records)
    try:
        known(settled(contest, known).judged())
    except MissingRunsError as missing:
        return missing.runs
    return []


def ended(contest: Contest, records: Iterable[Record]) -> dict[str, list[Record]]:
    """What is compared, by arm, seeds ascending; nothing if some of it is missing."""
    known = Known(records)
    try:
        found = known(settled(contest, known).judged())
    except MissingRunsError:
        return {}
    return {arm: [one for one in found if arm_of(one.run) == arm] for arm in TUNED}


CONTEST = Contest(CELLS[0])
SMOKE = Contest(
    Cell("smoke", "base", "a few digits", seeds=2, tuning_seeds=1, most_values=2,
         base={"data": "digits", "model": "lenet", "width": 4, "images": 100, "batch": 20,
               "norm": "none", "epochs": 60, "noise_stop": 40}),
    grids={"gd": (0.02, 0.03), "anti": (0.005, 0.01), "two_point": (0.005, 0.01),
           "trace_penalty": (0.005, 0.01), "decay": (0.0001, 0.0002), "ema": (2.0, 4.0)},
)  # fmt: skip
