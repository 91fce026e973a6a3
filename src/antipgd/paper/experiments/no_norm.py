"""(Ours.) The same network without norms

BatchNorm makes the loss blind to the scale of most weights, so noise and traces mean less there.
GD, PGD and Anti-PGD as in `cifar`, the network without any norm (its residual branches and its last
layer begin at zero), with a tuning of its own. Judged as there.
"""

from antipgd.paper import figures
from antipgd.paper.claims import Claim
from antipgd.paper.networks.arms import arm, panels, tuning_panels
from antipgd.paper.networks.minima import better, flatter
from antipgd.paper.networks.scales import ARMS, TUNED, Scale, scale_named
from antipgd.paper.networks.spec import Training, trace_at
from antipgd.paper.results import Results

SHOWS = (
    "Losses, accuracies and traces against the epoch, then the accuracy on held-out images by "
    "which η and σ were tuned. Lines are means over {seeds} seeds, bands one standard deviation."
)
SCALED = True  # a scale says how many seeds
METHODS = ("gd", "pgd", "anti")
FIGURE = "fig:front_experiments (3rd)"


def runs(seeds: int | None = None, scale: Scale | None = None) -> list[Training]:
    size = scale or scale_named("small")
    count = size.seeds["none"] if seeds is None else seeds
    main = [size.training(f"{name}_none", seed) for name in METHODS for seed in range(count)]
    return main + [run for name in TUNED if ARMS[name].norm == "none" for run in size.tuning(name)]


def claims(results: Results) -> list[Claim]:
    by = {method: arm(results, method, norm="none") for method in METHODS}
    found = []
    for other in ("gd", "pgd"):
        name, pair = figures.NAMES[other], ((by["anti"], None), (by[other], None))
        found += [
            better(f"no_norm.anti_over_{other}",
                   f"(ours) without norms Anti-PGD ends with a higher test accuracy than {name}",
                   FIGURE, "at the end, noise taken out before", *pair),
            flatter(f"no_norm.flatter_{other}",
                    f"(ours) without norms Anti-PGD ends in a flatter minimum than {name}", FIGURE,
                    "scaled trace at training loss 0.01 by temperature, at the end",
                    trace_at(0.01), *pair),
        ]  # fmt: skip
    return found


def plot(results: Results) -> figures.Figure:
    arms = [(figures.NAMES[method], arm(results, method, norm="none")) for method in METHODS]
    return figures.draw([*panels(arms), *tuning_panels(results)], columns=3)
