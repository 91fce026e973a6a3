"""The network experiments at five sizes, from seconds to the paper's own.

A scale holds numbers: data, model, batches, epochs, and the learning rate and σ of each arm, chosen
by `antipgd tune` on images that are not trained on, with seeds that no experiment uses. "Large"
is the batch of GD, PGD and Anti-PGD: a seventh of the images, as the paper's 7,500 is of its
50,000. "Small" and "middle" are the batches of SGD, with and without noise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from antipgd.checks import one_of
from antipgd.paper.methods import TRAINED
from antipgd.paper.networks.spec import Training, make_training

TUNING_SEED = 900
EXTENSION = 50  # noise-free epochs more for all arms of a seed in which one is not at a minimum


@dataclass(frozen=True)
class Arm:
    """A method with a batch and a kind of norm. It takes the learning rate of the arm `base`, or
    all its settings from the arm `like`."""

    method: str
    batch: str
    norm: str = "batch"
    base: str = ""
    like: str = ""

    @property
    def tuned(self) -> str:
        """What `antipgd tune` chooses for it: the learning rate, σ, or nothing."""
        if self.like or self.method in UNTUNED:
            return ""
        return "sigma" if TRAINED[self.method].has_sigma else "lr"


UNTUNED = {"label": 0.1, "sam": 0.05}  # their strength: not in any claim; what is usual
ARMS = {
    "gd": Arm("gd", "large"),
    "sgd": Arm("sgd", "small"),
    "pgd": Arm("pgd", "large", base="gd"),
    "anti": Arm("anti", "large", base="gd"),
    "antisgd": Arm("antisgd", "small", base="sgd"),
    "sgd_middle": Arm("sgd", "middle", like="sgd"),
    "antisgd_middle": Arm("antisgd", "middle", like="antisgd"),
    "gd_none": Arm("gd", "large", "none"),
    "pgd_none": Arm("pgd", "large", "none", base="gd_none"),
    "anti_none": Arm("anti", "large", "none", base="gd_none"),
    "label": Arm("label", "small", base="sgd"),
    "sam": Arm("sam", "small", base="sgd"),
}
TUNED = {name: arm.tuned for name, arm in ARMS.items() if arm.tuned}
_RATE = 0.05  # the paper's


@dataclass(frozen=True)
class Scale:
    """One size. Noise acts in the first `noisy` of `epochs`. In `recover` it acts from one epoch to
    another, of so many: (first, last, epochs). `grids` are the values that are tried for each arm,
    in ascending order and by one factor, `chosen` those that won; `seeds` the least number of
    seeds, by kind of norm.
    """

    name: str
    about: str
    network: Mapping[str, Any]
    batches: Mapping[str, int]
    epochs: int
    noisy: int
    recover: tuple[int, int, int]
    measure: tuple[int, ...]
    recover_measure: tuple[int, ...]
    grids: Mapping[str, tuple[float, ...]]
    chosen: Mapping[str, float]
    seeds: Mapping[str, int] = field(default_factory=lambda: {"batch": 12, "none": 8})
    tuning_seeds: int = 3
    most_values: int = 7  # of a grid that is made longer
    held_out: int = 0
    micro: int | None = None
    cells: tuple[str, ...] = ()  # of the map of when noise helps, by name, or "all"
    trace: tuple[int, int] = (128, 32)  # images and probes
    flatness_images: int = 250
    test_images: int | None = 2000

    def setting(self, arm: str) -> dict[str, float]:
        """The learning rate and σ of an arm, as far as they have been chosen."""
        one = ARMS[arm]
        if one.like:
            return self.setting(one.like)
        rate = self.setting(one.base)["lr"] if one.base else _RATE
        found = {"lr": rate, "sigma": UNTUNED.get(one.method, 0.0)}
        return found | ({one.tuned: self.chosen[arm]} if arm in self.chosen else {})

    def training(
        self, arm: str, seed: int, *, validation: bool = False, traced: bool = True, **changes: Any,
    ) -> Training:  # fmt: skip
        """The training of an arm, with the settings chosen for it unless told otherwise; for
        `validation` it is tested on images of the training set that it is not trained on."""
        one, (images, probes) = ARMS[arm], self.trace if traced else (0, 0)
        batch = self.batches[one.batch]
        settings: dict[str, Any] = {
            "batch": batch,
            "micro": self.micro if self.micro and batch % self.micro == 0 else None,
            "epochs": self.epochs,
            "noise_stop": self.noisy if TRAINED[one.method].draws else None,
            "measure": self.measure,
            "test_images": self.test_images,
            "trace_images": images,
            "trace_probes": probes,
            "flatness_images": self.flatness_images if traced else 0,
            "validation": validation and not self.held_out,
            "held_out": self.held_out if validation else 0,
            "norm": one.norm,
            **self.setting(arm),
            **self.network,
            **changes,
        }
        data, model = settings.pop("data"), settings.pop("model")
        return make_training(data, model, one.method, seed=seed, **settings)

    def recovering(self, arm: str, seed: int) -> Training:
        """GD until it has converged, then this arm's noise, then a few epochs without again."""
        start, stop, epochs = self.recover
        return self.training(
            arm, seed, epochs=epochs, noise_start=start, noise_stop=stop, barriers=True,
            measure=self.recover_measure,
        )  # fmt: skip

    def tuning(self, arm: str) -> list[Training]:
        """An arm with every value of its grid."""
        field = TUNED[arm]
        return [
            self.training(arm, TUNING_SEED + seed, validation=True, traced=False, measure=(),
                          **{field: value})
            for value in self.grids[arm] for seed in range(self.tuning_seeds)
        ]  # fmt: skip


def _each(arms: str, value: Any) -> dict[str, Any]:
    return dict.fromkeys(arms.split(), value)


SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            name="smoke",
            about="digits, a tiny network, seconds: that everything runs",
            network={"data": "digits", "model": "cnn", "width": 2, "images": 280},
            batches={"large": 40, "small": 10, "middle": 80},
            epochs=3, noisy=2, recover=(1, 2, 3), seeds={"batch": 2, "none": 2},
            measure=(1, 2, 3), recover_measure=(1, 2, 3), tuning_seeds=1, most_values=2,
            grids=_each("gd sgd gd_none", (0.05, 0.1))
            | _each("pgd anti antisgd pgd_none anti_none", (0.01, 0.02)),
            chosen=_each("pgd anti antisgd pgd_none anti_none", 0.01),
            trace=(40, 32), flatness_images=40, test_images=100, cells=("smoke",),
        ),
        Scale(
            name="digits",
            about="scikit-learn's digits, 8×8, minutes: the default that needs no download",
            network={"data": "digits", "model": "cnn", "width": 8, "images": 700},
            batches={"large": 100, "small": 16, "middle": 128},
            epochs=60, noisy=45, recover=(45, 70, 80), seeds={"batch": 6, "none": 6},
            measure=(5, 15, 30, 45, 50, 60), recover_measure=(45, 55, 65, 70, 80),
            grids=_each("gd sgd gd_none", (0.02, 0.05, 0.125))
            | _each("pgd pgd_none", (0.0025, 0.005, 0.01))
            | _each("anti antisgd anti_none", (0.02, 0.04, 0.08)),
            chosen=_each("pgd pgd_none", 0.005) | _each("anti antisgd anti_none", 0.04),
            test_images=None,
        ),
        Scale(
            name="small",
            about="CIFAR-10, 2,500 images at 16×16, ResNet18 of width 8, the paper's 250 + 50 "
            "epochs: 20 hours of a core",
            network={"data": "cifar10", "model": "resnet18", "width": 8, "size": 16,
                     "images": 2500},
            batches={"large": 357, "small": 13, "middle": 104}, held_out=5000, cells=("all",),
            epochs=300, noisy=250, recover=(75, 300, 350),
            measure=(25, 75, 150, 250, 275, 300), recover_measure=(75, 100, 150, 225, 300, 350),
            grids={"gd": (0.02, 0.05, 0.125), "sgd": (0.005, 0.016, 0.05),
                   "gd_none": (0.02, 0.05, 0.125),
                   **_each("pgd pgd_none", (0.0025, 0.0075, 0.0225)),
                   **_each("anti anti_none", (0.01, 0.02, 0.04)),
                   "antisgd": (0.003, 0.0095, 0.03)},
            chosen=_each("pgd pgd_none", 0.0075) | _each("anti anti_none", 0.02)
            | {"antisgd": 0.0095},
        ),
        Scale(
            name="medium",
            about="CIFAR-10, all 50,000 images at 16×16, ResNet18 of width 8: days",
            network={"data": "cifar10", "model": "resnet18", "width": 8, "size": 16},
            batches={"large": 7500, "small": 128, "middle": 1024}, micro=1500,
            seeds={"batch": 3, "none": 3},
            epochs=300, noisy=250, recover=(75, 300, 350),
            measure=(25, 75, 150, 250, 275, 300), recover_measure=(75, 100, 150, 225, 300, 350),
            grids=_each("gd sgd gd_none", (0.02, 0.05, 0.125))
            | _each("pgd pgd_none antisgd", (0.0025, 0.0075, 0.0225))
            | _each("anti anti_none", (0.01, 0.02, 0.04)),
            chosen=_each("pgd pgd_none antisgd", 0.0075) | _each("anti anti_none", 0.02),
            tuning_seeds=1, trace=(500, 48), flatness_images=1000,
        ),
        Scale(
            name="paper",
            about="the paper's: CIFAR-10 at 32×32, ResNet18 of width 64, batch 7,500: GPUs",
            network={"data": "cifar10", "model": "resnet18", "width": 64},
            batches={"large": 7500, "small": 128, "middle": 1024}, micro=1500,
            seeds={"batch": 3, "none": 3},
            epochs=300, noisy=250, recover=(75, 300, 350),
            measure=(10, 50, 100, 150, 200, 250, 275, 300),
            recover_measure=(75, 125, 175, 225, 300, 350),
            grids=_each("gd sgd gd_none", (0.02, 0.05, 0.125))
            | _each("pgd pgd_none antisgd", (0.0025, 0.005, 0.01))
            | _each("anti anti_none", (0.005, 0.01, 0.02)),
            chosen=_each("pgd pgd_none antisgd", 0.005) | _each("anti anti_none", 0.01),
            tuning_seeds=1, trace=(1000, 96), flatness_images=1000, test_images=None,
        ),
    )
}  # fmt: skip


def scale_named(name: str) -> Scale:
    """A scale by its name."""
    return SCALES[one_of("scale", name, SCALES)]
