"""The network experiments at five sizes, from seconds to the paper's own.

A scale holds numbers: data, model, batches, epochs, and which σ each method uses, chosen by
`antipgd tune` on images held out of the training set, with seeds that no experiment uses. "Large"
is the batch of GD, PGD and Anti-PGD: a seventh of the images, as the paper's 7,500 is of its
50,000. "Small" and "middle" are the batches of SGD, with and without noise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from antipgd.checks import one_of
from antipgd.paper.methods import TRAINED, Method
from antipgd.paper.networks.spec import Training, make_training

TUNING_SEED = 900
TUNED = ("pgd", "anti", "antisgd")  # the middle batch takes the σ of the small one
UNTUNED = {"label": 0.1, "sam": 0.05}  # not in any claim; what is usual


def _usual_batch(name: str, method: Method) -> str:
    return "small" if method.batches or name in UNTUNED else "large"


# arm: (method, batch); "middle" is eight times "small"
ARMS = {name: (name, _usual_batch(name, method)) for name, method in TRAINED.items()}
ARMS |= {f"{name}_middle": (name, "middle") for name, one in TRAINED.items() if one.batches}


@dataclass(frozen=True)
class Scale:
    """One size. Noise acts in the first `noisy` of `epochs`. In `recover` it acts from one epoch to
    another, of so many: (first, last, epochs). GD is also measured at `early` epochs, and PGD at
    `late` ones, in which they pass the training losses at which Anti-PGD ends.
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
    sigmas: Mapping[str, float]
    early: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    seeds: int = 6
    grid: tuple[float, ...] = (0.005, 0.01, 0.02, 0.04)
    tuning_seeds: int = 2
    micro: int | None = None
    trace: tuple[int, int] = (200, 48)  # images and probes
    test_images: int | None = 2000
    options: Mapping[str, Any] = field(default_factory=dict)

    def training(
        self, arm: str, seed: int, *, sigma: float | None = None, validation: bool = False,
        traced: bool = True, **changes: Any,
    ) -> Training:  # fmt: skip
        """The training of an arm: its method and batch, with its tuned σ unless told otherwise."""
        method, size = ARMS[arm]
        batch = self.batches[size]
        noisy = TRAINED[method].has_sigma
        sigmas = {**UNTUNED, **self.sigmas}
        images, probes = self.trace if traced else (0, 0)
        more = {"gd": self.early, "pgd": self.late}.get(arm, ())
        settings: dict[str, Any] = {
            "batch": batch,
            "micro": self.micro if self.micro and batch % self.micro == 0 else None,
            "epochs": self.epochs,
            "sigma": (sigmas[method] if sigma is None else sigma) if noisy else 0.0,
            "noise_stop": self.noisy if TRAINED[method].draws else None,
            "measure": (*self.measure, *more),
            "test_images": self.test_images,
            "trace_images": images,
            "trace_probes": probes,
            "validation": validation,
            **self.network,
            **self.options,
            **changes,
        }
        data, model = settings.pop("data"), settings.pop("model")
        return make_training(data, model, method, seed=seed, **settings)

    def recovering(self, arm: str, seed: int) -> Training:
        """GD until it has converged, then this arm's noise, then a few epochs without again."""
        start, stop, epochs = self.recover
        return self.training(
            arm, seed, epochs=epochs, noise_start=start, noise_stop=stop, barriers=True,
            measure=self.recover_measure,
        )  # fmt: skip

    def tuning(self) -> list[Training]:
        """Every tuned arm with every σ of the grid: equal budgets."""
        return [
            self.training(arm, TUNING_SEED + seed, sigma=sigma, validation=True, traced=False,
                          measure=())
            for arm in TUNED for sigma in self.grid for seed in range(self.tuning_seeds)
        ]  # fmt: skip


SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            name="smoke",
            about="digits, a tiny network, seconds: that everything runs",
            network={"data": "digits", "model": "cnn", "width": 2, "images": 280},
            batches={"large": 40, "small": 10, "middle": 80},
            epochs=3, noisy=2, recover=(1, 2, 3), seeds=2,
            measure=(1, 2, 3), recover_measure=(1, 2, 3), grid=(0.01, 0.02), tuning_seeds=1,
            trace=(40, 48), test_images=100,
            sigmas={"pgd": 0.01, "anti": 0.01, "antisgd": 0.01},
        ),
        Scale(
            name="digits",
            about="scikit-learn's digits, 8×8, minutes: the default that needs no download",
            network={"data": "digits", "model": "cnn", "width": 8, "images": 700},
            batches={"large": 100, "small": 16, "middle": 128},
            epochs=60, noisy=45, recover=(45, 70, 80),
            measure=(5, 15, 30, 45, 50, 60), recover_measure=(45, 55, 65, 70, 80),
            grid=(0.0025, 0.005, 0.01, 0.02, 0.04, 0.08), test_images=None, early=(1, 2, 3),
            sigmas={"pgd": 0.005, "anti": 0.04, "antisgd": 0.04},
        ),
        Scale(
            name="small",
            about="CIFAR-10, 5,000 images at 16×16, ResNet18 of width 8: 1 to 2 hours on 2 cores",
            network={"data": "cifar10", "model": "resnet18", "width": 8, "size": 16,
                     "images": 5000},
            batches={"large": 714, "small": 128, "middle": 1024},
            epochs=50, noisy=38, recover=(38, 58, 66),
            measure=(12, 25, 38, 50), recover_measure=(38, 48, 58, 66), trace=(128, 48),
            grid=(0.005, 0.01, 0.02, 0.04, 0.08), early=(3, 6, 9), late=(42, 44, 46, 48),
            sigmas={"pgd": 0.01, "anti": 0.04, "antisgd": 0.01},
        ),
        Scale(
            name="medium",
            about="CIFAR-10, all 50,000 images at 16×16, ResNet18 of width 8: hours",
            network={"data": "cifar10", "model": "resnet18", "width": 8, "size": 16},
            batches={"large": 7500, "small": 128, "middle": 1024}, micro=1500, seeds=3,
            epochs=60, noisy=45, recover=(45, 70, 80),
            measure=(10, 30, 45, 60), recover_measure=(45, 58, 70, 80),
            grid=(0.005, 0.01, 0.02, 0.04, 0.08), tuning_seeds=1, trace=(500, 48), early=(5, 20),
            sigmas={"pgd": 0.01, "anti": 0.04, "antisgd": 0.01},  # those of small until tuned
        ),
        Scale(
            name="paper",
            about="the paper's: CIFAR-10 at 32×32, ResNet18 of width 64, batch 7,500: GPUs",
            network={"data": "cifar10", "model": "resnet18", "width": 64},
            batches={"large": 7500, "small": 128, "middle": 1024}, micro=1500, seeds=3,
            epochs=300, noisy=250, recover=(75, 275, 300),
            measure=(10, 50, 100, 150, 200, 250, 275, 300),
            recover_measure=(75, 125, 175, 225, 275, 300),
            tuning_seeds=1, trace=(1000, 96), test_images=None, early=(5, 25),
            late=(255, 260, 265),
            sigmas={"pgd": 0.005, "anti": 0.01, "antisgd": 0.005},  # to be tuned
        ),
    )
}  # fmt: skip


def scale_named(name: str) -> Scale:
    """A scale by its name."""
    return SCALES[one_of("scale", name, SCALES)]
