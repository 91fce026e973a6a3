"""A network on images: noise from the start, taken out late

GD, SGD, PGD, Anti-PGD and Anti-SGD with momentum 0.9; GD, PGD and Anti-PGD with a batch of a
seventh of the images. The noise acts on all weights and is taken out of them for the last sixth of
the epochs, as in the paper. Tuned with as many values and seeds for each: the learning rate of GD
and SGD, σ of the others at the learning rate of GD (Anti-SGD: of SGD); by the accuracy at the end
on images that are neither trained nor tested on, with seeds that are not used here. Judged at a
minimum only, as `docs/rules.md` has it: accuracies at the end, and at z where the noise ends;
flatness by the scaled trace at a training loss of 0.01 by temperature. Raw traces are drawn, never
judged: they fall with the loss. Each seed has images and a start of its own.
"""

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import Claim, above
from antipgd.paper.networks.arms import arm, noisy_end, panels, tuning_panels, values
from antipgd.paper.networks.minima import better, flatter
from antipgd.paper.networks.scales import ARMS, TUNED, Scale, scale_named
from antipgd.paper.networks.spec import EQUAL_LOSSES, Training, trace_at
from antipgd.paper.record import Record
from antipgd.paper.results import Results

SHOWS = (
    "Losses, accuracies and traces against the epoch, then the accuracy on held-out images by "
    "which η and σ were tuned. Lines are means over {seeds} seeds, bands one standard deviation."
)
SCALED = True  # a scale says how many seeds
METHODS = ("gd", "sgd", "pgd", "anti", "antisgd")
JUDGED = 0.01  # the training loss at which traces are judged; they are shown at the others
FIGURE, CAPTION = "fig:front_experiments (3rd)", "caption of fig:front_experiments"


def runs(seeds: int | None = None, scale: Scale | None = None) -> list[Training]:
    size = scale or scale_named("small")
    count = size.seeds["batch"] if seeds is None else seeds
    main = [size.training(name, seed) for name in METHODS for seed in range(count)]
    return main + [run for name in TUNED if ARMS[name].norm == "batch" for run in size.tuning(name)]


def claims(results: Results) -> list[Claim]:
    by = {method: arm(results, method) for method in METHODS}
    ours, noisy = (by["anti"], None), noisy_end(by["anti"][0])
    found = [
        better(f"cifar.anti_over_{other}",
               f"Anti-PGD ends with a higher test accuracy than {name}", FIGURE,
               "at the end, noise taken out before", ours, (by[other], None))
        for other, name in (("gd", "GD"), ("pgd", "PGD"))
    ]  # fmt: skip
    found += [_flatter(by["anti"], by[other]) for other in ("gd", "pgd")]
    found += [
        better("cifar.beats_sgd", "Anti-PGD ends with a higher test accuracy than SGD", CAPTION,
               "at the end, noise taken out before", ours, (by["sgd"], None)),
        better("cifar.beats_sgd_noisy", "Anti-PGD at z, noise still on, is above SGD's end",
               CAPTION, f"at z, epoch {noisy}, against SGD's at the end", (by["anti"], noisy),
               (by["sgd"], None)),
        above("cifar.stopping", "stopping the noise was needed for a good accuracy", "§sec:exp",
              f"test accuracy of Anti-PGD at the end minus that at w, epoch {noisy}, noise on (no "
              "minimum); points", _stopping(by["anti"], noisy), 0),
    ]  # fmt: skip
    return found


def _flatter(anti: list[Record], other: list[Record]) -> Claim:
    method = other[0].run.method
    shown = ", ".join(
        f"{loss:g}: {_ratio(anti, other, trace_at(loss))}"
        for loss in EQUAL_LOSSES
        if loss != JUDGED
    )
    return flatter(
        f"cifar.flatter_{method}",
        f"Anti-PGD ends in a flatter minimum than {figures.NAMES[method]}", FIGURE,
        f"scaled trace at training loss {JUDGED:g} by temperature, at the end (at {shown})",
        trace_at(JUDGED), (anti, None), (other, None),
    )  # fmt: skip


def _ratio(ours: list[Record], theirs: list[Record], measure: str) -> str:
    """The geometric mean of a ratio in words; not measured where a seed has no value or is lost."""
    try:
        a, b = values(ours, measure), values(theirs, measure)
    except LookupError:
        return "not measured"
    if not np.isfinite([a, b]).all():
        return "not measured"
    return f"{np.exp(np.log(a / b).mean()):.3g}"


def _stopping(anti: list[Record], noisy: int) -> list[float]:
    normed = any(row[1] == "w_bn" for row in anti[0].points)
    before = values(anti, "test_accuracy", noisy, "w_bn" if normed else "w")
    return list(100 * (values(anti, "test_accuracy") - before))


def plot(results: Results) -> figures.Figure:
    arms = [(figures.NAMES[method], arm(results, method)) for method in METHODS]
    return figures.draw([*panels(arms), *tuning_panels(results)], columns=3)
