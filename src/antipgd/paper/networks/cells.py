"""The map of when noise helps: one small network, and each factor varied alone.

A cell is a setting in which GD and Anti-PGD are compared, each tuned there with as many values and
seeds: GD's learning rate, then σ at that learning rate. All cells are listed here, before any was
trained. What comes next in a cell is a function of the records there are.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from antipgd.paper.networks.data import DATA_SETS
from antipgd.paper.networks.minima import accuracy_at_minimum, extensions
from antipgd.paper.networks.spec import Training, make_training
from antipgd.paper.networks.tuning import Search
from antipgd.paper.record import Record

TUNED = {"gd": "lr", "anti": "sigma"}
TUNING_SEED, HELD_OUT = 900, 5000
BASE: dict[str, Any] = {
    "data": "fashion-mnist", "model": "lenet", "width": 8, "size": 14, "images": 250, "batch": 36,
    "norm": "none", "loss": "cross_entropy", "optimizer": "sgd", "epochs": 350, "noise_stop": 250,
}  # fmt: skip
RATES, SIGMAS = (0.02, 0.05, 0.125), (0.01, 0.02, 0.04)
ADAMW = (0.0004, 0.001, 0.0025)


class MissingRunsError(Exception):
    """These trainings have to be made before it can be said what comes next."""

    def __init__(self, runs: list[Training]) -> None:
        super().__init__(f"{len(runs)} trainings are missing")
        self.runs = runs


@dataclass(frozen=True)
class Cell:
    """One cell: the factor that is varied, its value in words, and what is not as in the base."""

    name: str
    factor: str
    words: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    grids: Mapping[str, tuple[float, ...]] = field(
        default_factory=lambda: {"gd": RATES, "anti": SIGMAS}
    )
    chosen: Mapping[str, float] = field(default_factory=dict)
    seeds: int = 12
    tuning_seeds: int = 3
    most_values: int = 7
    base: Mapping[str, Any] = field(default_factory=lambda: BASE)

    def training(self, arm: str, seed: int, **changes: Any) -> Training:
        """The training of an arm, with the settings chosen for it unless told otherwise."""
        settings = {**self.base, **self.changes}
        stop = settings.pop("noise_stop")
        if arm == "anti":
            settings |= {"noise_stop": stop, "sigma": self.chosen.get("anti", 0.0)}
        settings |= {"lr": self.chosen.get("gd", RATES[1]), "running": False, **changes}
        return make_training(
            settings.pop("data"), settings.pop("model"), arm, seed=seed, **settings
        )

    def judged(self) -> list[Training]:
        """What is compared: both arms on test images, their flatness measured."""
        flat = {"trace_images": 100, "trace_probes": 32, "flatness_images": 250}
        return [self.training(arm, seed, **flat) for arm in TUNED for seed in range(self.seeds)]

    def tuning(self, arm: str) -> list[Training]:
        """An arm with every value of its grid, tested on images beside those it is trained on."""
        return [
            self.training(arm, TUNING_SEED + seed, held_out=self.held_out, **{TUNED[arm]: value})
            for value in self.grids[arm] for seed in range(self.tuning_seeds)
        ]  # fmt: skip

    @property
    def held_out(self) -> int:
        """How many images beside those trained on there are to tune by, in thousands."""
        settings = {**self.base, **self.changes}
        spare = DATA_SETS[settings["data"]].training - int(settings["images"])
        return min(HELD_OUT, spare // 1000 * 1000)


def _images(count: int) -> dict[str, int]:
    return {"images": count, "batch": count // 7}


CELLS = (
    Cell("base", "base", "250 of Fashion-MNIST, large batch, no norm, cross-entropy"),
    Cell("digits", "data", "digits, 8×8", {"data": "digits", "size": None}),
    Cell("cifar10", "data", "CIFAR-10, 16×16", {"data": "cifar10", "size": 16}),
    *(Cell(f"images_{n}", "images", f"{n:,} images", _images(n)) for n in (50, 100, 500, 1000)),
    Cell("batch_250", "batch", "all 250 images in a batch", {"batch": 250}),
    Cell("batch_12", "batch", "batch 12", {"batch": 12}),
    *(Cell(f"norm_{norm}", "norm", f"{norm} norm", {"norm": norm}) for norm in ("batch", "group")),
    Cell("squared", "loss", "squared loss", {"loss": "squared"}),
    *(Cell(f"width_{n}", "width", f"width {n}", {"width": n}) for n in (4, 16, 32)),
    Cell("short", "length", "a quarter of the epochs", {"epochs": 88, "noise_stop": 63}),
    Cell("half", "length", "half of the epochs", {"epochs": 175, "noise_stop": 125}),
    Cell("long", "length", "three times the epochs", {"epochs": 1050, "noise_stop": 750}),
    Cell("adamw", "optimizer", "AdamW", {"optimizer": "adamw"}, {"gd": ADAMW, "anti": SIGMAS}),
    Cell("mlp", "network", "an MLP of width 64", {"model": "mlp", "width": 64, "norm": "batch"}),
    Cell("resnet18", "network", "ResNet18 of width 4", {"model": "resnet18", "width": 4}),
    *(Cell(f"{norm}_squared", "norm × loss", f"{norm} norm, squared loss",
           {"norm": norm, "loss": "squared"}) for norm in ("batch", "group")),
    *(Cell(f"images_{n}_batch_{b}", "images × batch", f"{n:,} images, batch {b}",
           {"images": n, "batch": b}) for n, b in ((50, 50), (50, 4), (1000, 1000), (1000, 36))),
)  # fmt: skip


class Known:
    """Records by name, asked for as if they were trained."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._records = {record.run.name: record for record in records}

    def __call__(self, runs: list[Training]) -> list[Record]:
        missing = [run for run in runs if run.name not in self._records]
        if missing:
            raise MissingRunsError(missing)
        return [self._records[run.name] for run in runs]


def settled(cell: Cell, known: Known) -> Cell:
    """The cell with the grids and values that its tuning led to; raises what it still needs."""
    return Search(cell, known, TUNED, lambda run: run.method, accuracy_at_minimum).run()


def following(cells: Sequence[Cell], records: Iterable[Record]) -> list[Training]:
    """What comes next: grids, longer grids, what is judged, and epochs more where that is not at a
    minimum; nothing when all of it is there."""
    known, found = Known(records), []
    for cell in cells:
        try:
            main = known(settled(cell, known).judged())
            known(extensions(main))
        except MissingRunsError as missing:
            found += missing.runs
    return found
