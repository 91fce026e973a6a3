"""The arms of the network experiments in their records: who is who, measured where.

An arm is a method with a batch; SGD has a small and a middle one. BatchNorm's statistics are those
estimated anew at the weights measured, wherever the network has any. "Cleanest" is z while there is
noise that can be taken out, and w otherwise.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from antipgd.paper import figures
from antipgd.paper.networks.spec import MEASURES
from antipgd.paper.record import Record
from antipgd.paper.results import Results

Values = NDArray[np.float64]
PANELS = {
    "train_loss": ("training loss", "log"),
    "test_loss": ("test loss", "log"),
    "train_accuracy": ("training accuracy", "linear"),
    "test_accuracy": ("test accuracy", "linear"),
    "trace": ("trace of the Hessian", "log"),
    "scaled_trace": ("scale-normalised trace", "log"),
}
BRACKET = 2.0  # the most by which losses may differ between which a trace is interpolated


def arm(results: Results, method: str, batch: str = "") -> list[Record]:
    """The records of an arm that are tested on test images, seeds ascending."""
    records = results.select(method=method, validation=False)
    sizes = sorted({record.run.batch for record in records})
    chosen = sizes[-1] if batch == "middle" else sizes[0]
    return [record for record in records if record.run.batch == chosen]


def cleanest(record: Record) -> dict[int, str]:
    """The place to measure at by epoch, statistics estimated anew where there are any."""
    order = ("w", "w_bn", "z", "z_bn")
    found: dict[int, str] = {}
    for epoch, place, *_ in record.points:
        if place in order and order.index(place) >= order.index(found.get(epoch, "w")):
            found[epoch] = place
    return found


def value(record: Record, measure: str, epoch: int | None = None, place: str = "") -> float:
    """A measurement at an epoch, by default the last, and a place, by default the cleanest.

    Infinite losses and accuracy 0 for a training that diverged before.
    """
    if record.status == "diverged" and (epoch is None or epoch >= (record.diverged_at or 0)):
        return 0.0 if measure.endswith("accuracy") else float("inf")
    when = record.run.epochs if epoch is None else epoch
    where = place or cleanest(record)[when]
    index = 2 + MEASURES.index(measure)
    rows = [row[index] for row in record.points if row[:2] == (when, where)]
    if not rows or rows[0] is None:
        raise LookupError(f"{record.run.method} has no {measure} at {where!r}, epoch {when}")
    return float(rows[0])


def values(
    records: Sequence[Record], measure: str, epoch: int | None = None, place: str = ""
) -> Values:
    """The same for each record."""
    return np.array([value(record, measure, epoch, place) for record in records])


def noisy_end(record: Record) -> int:
    """The last epoch with noise, or the last one."""
    return int(record.run.noise_stop or record.run.epochs)


def gain(one: Sequence[Record], other: Sequence[Record], epoch: int | None = None) -> Values:
    """Differences of test accuracy in percentage points, seed by seed."""
    return 100 * (values(one, "test_accuracy", epoch) - values(other, "test_accuracy"))


def trace_at_loss(record: Record, loss: float, measure: str = "trace") -> float:
    """The trace where the training loss has a value, interpolated between measured epochs.

    Cross-entropy's Hessian shrinks with the loss, so traces are compared at equal losses. Not a
    number where the training was not measured on both sides of that loss, at losses that differ
    by a factor of `BRACKET` at most: between others the trace may do anything.
    """
    where = cleanest(record)
    curve = sorted((value(record, "train_loss", e), value(record, measure, e)) for e in where)
    losses, traces = np.array([max(a, 1e-300) for a, _ in curve]), np.array([b for _, b in curve])
    if not curve or not losses[0] <= loss <= losses[-1] or not (traces > 0).all():
        return float("nan")
    above = int(np.searchsorted(losses, loss))  # the first loss that is not smaller
    if losses[above] > loss and losses[above] > BRACKET * losses[above - 1]:
        return float("nan")
    return float(np.exp(np.interp(np.log(loss), np.log(losses), np.log(traces))))


def matched_traces(
    one: Sequence[Record], other: Sequence[Record], measure: str = "trace"
) -> tuple[Values, Values]:
    """Traces of two arms at the larger of their final training losses, seed by seed; infinite for
    one that diverged. Without the seeds in which one of them was not measured around that loss.
    """
    pairs = []
    for a, b in zip(one, other, strict=True):
        if "diverged" in (a.status, b.status):
            pair = tuple(np.inf if record.status == "diverged" else 1.0 for record in (a, b))
        else:
            loss = max(value(a, "train_loss"), value(b, "train_loss"))
            pair = trace_at_loss(a, loss, measure), trace_at_loss(b, loss, measure)
        if not np.isnan(pair).any():
            pairs.append(pair)
    table = np.array(pairs).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def series(records: Sequence[Record], measure: str, label: str, dash: str = "-") -> figures.Series:
    """The mean over seeds against the epoch with a band of one standard deviation."""
    epochs = sorted(set().union(*map(cleanest, records)))
    table = np.array([[value(record, measure, e) for e in epochs] for record in records])
    return figures.spread(
        epochs, table, 1, label=label, colour=figures.COLOURS[records[0].run.method], dash=dash,
        marker="o",
    )  # fmt: skip


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
