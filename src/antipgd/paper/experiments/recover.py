"""Noise after GD has converged

GD until it fits the training images, then noise on the weights with σ as in `cifar`, left on; then
a few noise-free epochs, to see the relaxed network. Judged while the noise is still on: at w, at z
and at z with BatchNorm's statistics estimated anew (PGD at w), and relaxed. SGD is that of `cifar`.
Jumps are epochs whose mean training loss is above twice its running median, not counting the first
three, in which the noise drives it up; a jump that is over within an epoch is not seen. The barrier
is the rise of the training loss on the line from GD's weights where the noise begins to the relaxed
ones, above the larger end.
"""

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import Claim, above, below, mostly
from antipgd.paper.networks.arms import arm, cleanest, noisy_end, panels, values
from antipgd.paper.networks.scales import Scale, scale_named
from antipgd.paper.networks.spec import Training
from antipgd.paper.record import Record
from antipgd.paper.results import Results

SCALED = True  # a scale says how many seeds
NEAR = 1.0  # points of accuracy
BARRIER = 0.05  # nats
ONSET = 3  # epochs in which the loss rises because there is noise now


def runs(seeds: int | None = None, scale: Scale | None = None) -> list[Training]:
    size = scale or scale_named("small")
    count = size.seeds if seeds is None else seeds
    found = [size.recovering(name, seed) for name in ("pgd", "anti") for seed in range(count)]
    return found + [size.training("sgd", seed) for seed in range(count)]


def jumps(record: Record) -> int:
    """Epochs with noise, after its onset, whose loss exceeds twice the median of those before."""
    epochs, losses = record.column("train_loss", "running")
    inside = losses[(epochs > record.run.noise_start + ONSET) & (epochs <= noisy_end(record))]
    medians = [np.median(inside[:index]) for index in range(1, len(inside))]
    return int((inside[1:] > 2 * np.array(medians)).sum())


def claims(results: Results) -> list[Claim]:
    by = {method: arm(results, method) for method in ("pgd", "anti", "sgd")}
    first = by["anti"][0].run
    start, stop = first.noise_start, noisy_end(by["anti"][0])
    before = 100 * values(by["anti"], "test_accuracy", start)
    sgd = 100 * values(by["sgd"], "test_accuracy")
    ours = 100 * values(by["anti"], "test_accuracy", stop)
    theirs = 100 * values(by["pgd"], "test_accuracy", stop)
    reference, on = "fig:cifar-full-inj-init", f"epoch {stop}, noise on"
    found = [
        above("recover.anti", "Anti-PGD raises the test accuracy of the converged network",
              reference, f"test accuracy at z, {on}, minus GD's at epoch {start}; points",
              ours - before, 0),
        above("recover.more_than_pgd", "PGD raises it less", reference,
              f"test accuracy, Anti-PGD at z minus PGD at w, {on}; points", ours - theirs, 0),
    ]  # fmt: skip
    last = next((p[stop] for r in by["anti"] if stop in (p := cleanest(r))), "z")
    places = dict.fromkeys(["w", "z", last])
    ends = {place: values(by["anti"], "test_accuracy", stop, place) for place in places}
    for place, at in (ends | {"relaxed": values(by["anti"], "test_accuracy")}).items():
        how = f"at {place}, without stopping the noise"
        how = "after noise-free epochs" if place == "relaxed" else how
        found.append(
            below(f"recover.near_sgd_{place}",
                  f"Anti-PGD recovers to within a point of SGD {how}", reference,
                  f"SGD's final accuracy minus Anti-PGD's at {place}; points", sgd - 100 * at, NEAR)
        )  # fmt: skip
    found += [
        mostly("recover.jumps", "Anti-PGD's training loss jumps", reference,
               f"seeds with an epoch above twice the running median, epochs {start + ONSET + 1} to "
               f"{stop}; means over epochs",
               [jumps(record) > 0 for record in by["anti"]]),
    ]  # fmt: skip
    return found + [
        above(f"recover.barrier_{method}",
              f"{figures.NAMES[method]} leads to another minimum, beyond a barrier", reference,
              f"training loss between the weights of epochs {start} and {first.epochs}, above the "
              "larger end; nats", values(by[method], "barrier"), BARRIER)
        for method in ("anti", "pgd")
    ]  # fmt: skip


def _running(label: str, records: list[Record]) -> figures.Series:
    epochs = np.arange(1, records[0].run.epochs + 1)
    table = np.full((len(records), len(epochs)), np.inf)  # where it diverged
    for row, record in zip(table, records, strict=True):
        measured, losses = record.column("train_loss", "running")
        row[measured - 1] = losses
    return figures.spread(
        epochs, table, 1, label=label, colour=figures.COLOURS[records[0].run.method]
    )


def plot(results: Results) -> figures.Figure:
    arms = [(figures.NAMES[method], arm(results, method)) for method in ("pgd", "anti", "sgd")]
    running = figures.Panel(
        "running training loss", [_running(*one) for one in arms], "epoch", xscale="linear"
    )
    return figures.draw([*panels(arms), running], columns=3)
