"""Noise after GD has converged

GD for 75 epochs, which fits the training images, then noise on the weights with σ as in `cifar` for
225, left on; then noise-free epochs, to see the relaxed network. Judged at z while the noise is on,
BatchNorm's statistics estimated anew, and relaxed; PGD, which has no z, relaxed. At w, under noise,
nothing is at a minimum: judged apart. SGD is that of `cifar`. The noise is sudden if the mean loss
of its first epoch is ten times that of the last one before. A jump is an epoch, not one of the
first 20 with noise, whose mean loss exceeds the median of all noisy ones before by five robust
deviations (1.4826 times the median distance from it), so that what fluctuates hardly ever jumps;
such epochs in a row are one jump, "several" are two. The barrier is the rise of the training loss
on the line from GD's weights where the noise begins to the relaxed ones, above the larger end.
"""

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import Claim, above, mostly
from antipgd.paper.networks.arms import Values, arm, noisy_end, panels, values
from antipgd.paper.networks.minima import better, judged
from antipgd.paper.networks.scales import Scale, scale_named
from antipgd.paper.networks.spec import Training
from antipgd.paper.record import Record
from antipgd.paper.results import Results

SHOWS = (
    "Losses, accuracies and traces against the epoch; noise begins where GD has converged. Lines "
    "are means over {seeds} seeds, bands one standard deviation."
)
SCALED = True  # a scale says how many seeds
NEAR = 1.0  # points of accuracy
BARRIER = 0.05  # nats
SUDDEN = 10.0  # times the loss before
ONSET, ROBUST, SEVERAL = 20, 5.0, 2  # epochs, deviations, jumps
FIGURE = "fig:cifar-full-inj-init"


def runs(seeds: int | None = None, scale: Scale | None = None) -> list[Training]:
    size = scale or scale_named("small")
    count = size.seeds["batch"] if seeds is None else seeds
    found = [size.recovering(name, seed) for name in ("pgd", "anti") for seed in range(count)]
    return found + [size.training("sgd", seed) for seed in range(count)]


def _noisy_losses(record: Record) -> Values:
    epochs, losses = record.column("train_loss", "running")
    return losses[(epochs > record.run.noise_start) & (epochs <= noisy_end(record))]


def jumps(record: Record) -> int:
    """How often, after the noise's onset, the loss comes to stand out of all before."""
    losses, count, out = _noisy_losses(record), 0, False
    for index in range(ONSET, len(losses)):
        before = losses[:index]
        median = np.median(before)
        deviation = 1.4826 * np.median(np.abs(before - median))
        before_out, out = out, bool(losses[index] > median + ROBUST * deviation)
        count += out and not before_out
    return count


def _sudden(record: Record) -> bool:
    epochs, losses = record.column("train_loss", "running")
    before, first = (losses[epochs == record.run.noise_start + late] for late in (0, 1))
    return not len(first) or bool(first[0] > SUDDEN * before[0])  # a loss that is lost is sudden


def claims(results: Results) -> list[Claim]:
    anti, pgd, sgd = arm(results, "anti", late=True), arm(results, "pgd", late=True), \
        arm(results, "sgd")  # fmt: skip
    start, stop = anti[0].run.noise_start, noisy_end(anti[0])
    on = f"epoch {stop}, noise on"
    close = NEAR - 100 * (values(sgd, "test_accuracy") - values(anti, "test_accuracy", stop))
    found = [
        better("recover.anti", "Anti-PGD raises the test accuracy of the converged network",
               FIGURE, f"at z, {on}, against GD's at epoch {start}", (anti, stop), (anti, start)),
        judged("recover.near_sgd", f"Anti-PGD gets within {NEAR:g} point of SGD without stopping "
               "the noise", FIGURE, f"{NEAR:g} point minus SGD's final accuracy plus Anti-PGD's at "
               f"z, {on}; points", close, ((anti, stop), (sgd, None)), margin=None),
        better("recover.more_than_pgd", "Anti-PGD recovers much better than PGD", FIGURE,
               "both relaxed by noise-free epochs", (anti, None), (pgd, None)),
        above("recover.more_than_pgd_w", "(ours) also at w, under noise, which is no minimum",
              FIGURE, f"test accuracy, both at w, {on}; points",
              100 * (_at_w(anti, stop) - _at_w(pgd, stop)), 0),
        mostly("recover.sudden", "the noise makes the dynamics suddenly unstable", FIGURE,
               f"seeds in which the mean training loss of epoch {start + 1} is above {SUDDEN:g} "
               f"times that of epoch {start}", [_sudden(record) for record in anti]),
        mostly("recover.jumps", "there are several points where it probably switches minima",
               FIGURE, f"seeds with at least {SEVERAL} epochs whose mean training loss stands out "
               f"of those before, epochs {start + ONSET + 1} to {stop}",
               [jumps(record) >= SEVERAL for record in anti]),
    ]  # fmt: skip
    return found + [
        above(f"recover.barrier_{records[0].run.method}",
              f"(ours) {figures.NAMES[records[0].run.method]} leads to another minimum, beyond a "
              "barrier", FIGURE,
              f"training loss between the weights of epoch {start} and the relaxed ones, above the "
              f"larger end, at least {BARRIER:g}; nats", values(records, "barrier"), BARRIER)
        for records in (anti, pgd)
    ]  # fmt: skip


def _at_w(records: list[Record], epoch: int) -> Values:
    normed = any(row[1] == "w_bn" for row in records[0].points)
    return values(records, "test_accuracy", epoch, "w_bn" if normed else "w")


def _running(label: str, records: list[Record]) -> figures.Series:
    epochs = np.arange(1, max(record.run.epochs for record in records) + 1)
    table = np.full((len(records), len(epochs)), np.inf)  # where it diverged
    for row, record in zip(table, records, strict=True):
        measured, losses = record.column("train_loss", "running")
        row[measured - 1] = losses
        if record.status == "ok":
            row[record.run.epochs :] = np.nan
    return figures.spread(
        epochs, table, 1, label=label, colour=figures.COLOURS[records[0].run.method]
    )


def plot(results: Results) -> figures.Figure:
    arms = [(figures.NAMES[m], arm(results, m, late=m != "sgd")) for m in ("pgd", "anti", "sgd")]
    running = figures.Panel(
        "running training loss", [_running(*one) for one in arms], "epoch", xscale="linear"
    )
    return figures.draw([*panels(arms), running], columns=3)
