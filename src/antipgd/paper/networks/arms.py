"""The arms of the network experiments in their records: who is who, measured where.

An arm is a method with a batch; SGD has a small and a middle one. BatchNorm's statistics are those
estimated anew at the weights measured, wherever the network has any. "Cleanest" is z while there is
noise that can be taken out, and w otherwise; the average of a training that has one.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from antipgd.paper import figures
from antipgd.paper.methods import TRAINED
from antipgd.paper.networks.spec import MEASURES, trace_at
from antipgd.paper.record import Record
from antipgd.paper.results import Results

Values = NDArray[np.float64]
PANELS = {
    "train_loss": ("training loss", "log"),
    "test_loss": ("test loss", "log"),
    "train_accuracy": ("training accuracy", "linear"),
    "test_accuracy": ("test accuracy", "linear"),
    "trace": ("trace of the Hessian", "log"),
    trace_at(0.01): ("scaled trace at training loss 0.01", "log"),
}


def arm(
    results: Results, method: str, batch: str = "", norm: str = "batch", late: bool = False
) -> list[Record]:
    """The records of an arm that are tested on test images, seeds ascending: with noise from the
    beginning, or from `late` on. Of a training that was extended, the extension."""
    records = [r for r in results.select(method=method, norm=norm)
               if not r.run.tuned_on and bool(r.run.noise_start) == late]  # fmt: skip
    sizes = sorted({record.run.batch for record in records})
    chosen = sizes[-1] if batch == "middle" else sizes[0]
    longest: dict[int, Record] = {}
    for record in sorted(records, key=lambda one: one.run.epochs):
        if record.run.batch == chosen:
            longest[record.run.seed] = record
    return [longest[seed] for seed in sorted(longest)]


def cleanest(record: Record) -> dict[int, str]:
    """The place to measure at by epoch, statistics estimated anew where there are any."""
    order = ("ema",) if record.run.averaged else ("w", "w_bn", "z", "z_bn")
    found: dict[int, str] = {}
    for epoch, place, *_ in record.points:
        if place in order and order.index(place) >= order.index(found.get(epoch, order[0])):
            found[epoch] = place
    return found


def value(record: Record, measure: str, epoch: int | None = None, place: str = "") -> float:
    """A measurement at an epoch, by default the last one, and a place, by default the cleanest.

    Infinite losses and accuracy 0 for a training that diverged before.
    """
    if record.status == "diverged" and (epoch is None or epoch >= (record.diverged_at or 0)):
        return 0.0 if measure.endswith("accuracy") else float("inf")
    when = last_epoch(record) if epoch is None else epoch
    where = place or cleanest(record)[when]
    index = 2 + MEASURES.index(measure)
    rows = [row[index] for row in record.points if row[:2] == (when, where)]
    if not rows or rows[0] is None:
        raise LookupError(f"{record.run.method} has no {measure} at {where!r}, epoch {when}")
    return float(rows[0])


def last_epoch(record: Record) -> int:
    """The last epoch that was measured: that at which a training ended, early or not."""
    return max(cleanest(record), default=int(record.run.epochs))


def values(
    records: Sequence[Record], measure: str, epoch: int | None = None, place: str = ""
) -> Values:
    """The same for each record."""
    return np.array([value(record, measure, epoch, place) for record in records])


def noisy_end(record: Record) -> int:
    """The last epoch with noise, or the last one."""
    return int(record.run.noise_stop or record.run.epochs)


def measured(record: Record, measure: str) -> list[int]:
    """The epochs at whose cleanest weights something was measured."""
    index = 2 + MEASURES.index(measure)
    there = {row[:2] for row in record.points if row[index] is not None}
    return [epoch for epoch, place in cleanest(record).items() if (epoch, place) in there]


def series(records: Sequence[Record], measure: str, label: str, dash: str = "-") -> figures.Series:
    """The mean over seeds against the epoch with a band of one standard deviation."""
    epochs = sorted(set().union(*(measured(record, measure) for record in records)))
    table = np.array([[_known(record, measure, e) for e in epochs] for record in records])
    return figures.spread(
        epochs, table, 1, label=label, colour=figures.COLOURS[records[0].run.method], dash=dash,
        marker="o",
    )  # fmt: skip


def _known(record: Record, measure: str, epoch: int) -> float:
    """A measurement, or not a number where there is none: of a seed that was not extended."""
    try:
        return value(record, measure, epoch)
    except LookupError:
        return float("nan")


def panels(
    arms: Sequence[tuple[str, list[Record]]], measures: Sequence[str] = tuple(PANELS)
) -> list[figures.Panel]:
    """A panel for each measure against the epoch, with a line for each arm."""
    smallest: dict[str, int] = {}
    for _, records in arms:
        run = records[0].run
        smallest[run.method] = min(run.batch, smallest.get(run.method, run.batch))
    dashes = ["-" if r[0].run.batch == smallest[r[0].run.method] else "--" for _, r in arms]
    found = []
    for measure in measures:
        title, scale = PANELS[measure]
        lines = [series(records, measure, label, dash)
                 for (label, records), dash in zip(arms, dashes, strict=True)]  # fmt: skip
        found.append(figures.Panel(title, lines, "epoch", xscale="linear", yscale=scale))
    return found


def held_out(results: Results, method: str, field: str) -> dict[float, float]:
    """The mean accuracy on held-out images by the value that was tuned, ascending."""
    records = [r for r in results.select(method=method) if r.run.tuned_on]
    by: dict[float, list[float]] = {}
    for record in records:
        by.setdefault(getattr(record.run, field), []).append(value(record, "test_accuracy"))
    return {key: float(np.mean(by[key])) for key in sorted(by)}


def tuning_panels(results: Results) -> list[figures.Panel]:
    """Accuracy on held-out images against the learning rate, and against σ; none if nothing was
    tuned."""
    found = []
    for field, title in (("lr", "learning rate"), ("sigma", "σ")):
        lines = []
        for method in dict.fromkeys(r.run.method for r in results.records if r.run.tuned_on):
            if TRAINED[method].has_sigma == (field == "sigma"):
                means = held_out(results, method, field)
                lines.append(figures.Series([*means], [*means.values()], figures.NAMES[method],
                                            figures.COLOURS[method], marker="o"))  # fmt: skip
        if lines:
            found.append(figures.Panel("tuning: held-out accuracy", lines, title, xscale="log",
                                       yscale="linear"))  # fmt: skip
    return found
