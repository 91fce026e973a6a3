"""Whether trainings ended at a minimum, by a rule fixed before they began; comparisons of those
that did, and epochs more for those that did not.

At a minimum: at the weights judged, on all training images, BatchNorm's statistics estimated anew,
the cross-entropy is at most 0.01 and every image is right, or the squared loss is at most 0.002 of
that of an output of zero. The weights judged are z while there is noise, or those after noise-free
epochs; w under noise is no minimum. If one arm of a seed misses, all arms of that seed go on for
the same number of noise-free epochs. If a seed of an arm still misses, comparisons with that arm
are not at a minimum: neither do they hold nor fail, their values are shown, and no seed is left
out.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from antipgd.paper.claims import (
    TRAINING_LOSS,
    Claim,
    Numbers,
    above,
    compare_difference,
    compare_ratio,
    not_at_minimum,
)
from antipgd.paper.networks.accepted import loss_at_zero
from antipgd.paper.networks.arms import Values, value, values
from antipgd.paper.networks.scales import EXTENSION
from antipgd.paper.networks.spec import Training
from antipgd.paper.record import Record

CROSS_ENTROPY = 0.01
SQUARED = 2e-3  # of the loss of an output of zero
LEVEL_POINTS = 1.0  # of accuracy, within which two arms are level

Place = tuple[Sequence[Record], int | None]
"""Records by seed, and the epoch at which they are compared; None for the last."""


def at_minimum(record: Record, epoch: int | None = None) -> bool:
    """Whether the cleanest weights of an epoch, by default the last, are at a minimum."""
    loss = value(record, "train_loss", epoch)
    if record.run.loss == "squared":
        return loss <= SQUARED * loss_at_zero("squared", 10)
    return loss <= CROSS_ENTROPY and value(record, "train_accuracy", epoch) == 1.0


def accuracy_at_minimum(record: Record) -> float:
    """What settings are chosen by: the accuracy at the end, and nothing for a training that did not
    end at a minimum, for it could not be judged."""
    return value(record, "test_accuracy") if at_minimum(record) else 0.0


def extensions(records: Sequence[Record]) -> list[Training]:
    """What goes on: all trainings of the seeds in which one did not end at a minimum."""
    judged = [r for r in records if not r.run.tuned_on and not r.run.extends]
    missed = {record.run.seed for record in judged if not at_minimum(record)}
    return [r.run.extended(EXTENSION) for r in judged if r.run.seed in missed]


def gone_on(judged: Iterable[Record], records: Iterable[Record]) -> list[Record]:
    """Of each of the judged, the record of its extension where there is one."""
    names = {record.run.name: record for record in records}
    return [names.get(one.run.extended(EXTENSION).name, one) for one in judged]


def _missing(*places: Place) -> str:
    """Who is not at a minimum, in how many seeds; nothing if all are."""
    said = []
    for records, epoch in places:
        lost = sum(not at_minimum(record, epoch) for record in records)
        if lost:
            losses = values(records, "train_loss", epoch)
            who = _who(records[0].run)
            said.append(
                f"{who} in {lost} of {len(records)} seeds (training loss {losses.max():.2g})"
            )
    return " and ".join(said)


def _who(run: Training) -> str:
    """A method, and what else tells its arm from others."""
    if run.averaged:
        return f"{run.method} averaged"
    return f"{run.method} with weight decay" if run.weight_decay else run.method


def better(
    id: str, statement: str, reference: str, tested: str, ours: Place, theirs: Place
) -> Claim:
    """Claims a higher test accuracy of one arm at a minimum than of another, in points."""
    difference: Values = 100 * (
        values(ours[0], "test_accuracy", ours[1]) - values(theirs[0], "test_accuracy", theirs[1])
    )
    return judged(id, statement, reference, f"test accuracy {tested}; points", difference,
                  (ours, theirs))  # fmt: skip


def judged(
    id: str, statement: str, reference: str, tested: str, difference: Numbers,
    places: Sequence[Place], margin: float | None = LEVEL_POINTS,
) -> Claim:  # fmt: skip
    """Claims that differences are positive, where all that was compared is at a minimum; without a
    margin nothing is level: they contain one already."""
    missing = _missing(*places)
    if missing:
        return not_at_minimum(id, statement, reference, f"{tested}; not at a minimum: {missing}",
                              difference)  # fmt: skip
    if margin is None:
        return above(id, statement, reference, tested, difference, 0)
    return compare_difference(id, statement, reference, tested, difference, margin)


def flatter(
    id: str, statement: str, reference: str, tested: str, measure: str, ours: Place, theirs: Place
) -> Claim:
    """Claims a smaller measure of one arm at a minimum than of another, as a ratio."""
    missed = unmeasured(id, statement, reference, tested, (ours, theirs))
    if missed is not None:
        return missed
    return compare_ratio(id, statement, reference, tested, values(ours[0], measure, ours[1]),
                         values(theirs[0], measure, theirs[1]))  # fmt: skip


def unmeasured(
    id: str, statement: str, reference: str, tested: str, places: Sequence[Place]
) -> Claim | None:
    """For what is measured at minima alone: says that some are none, with the largest training loss
    of each seed; None if all are."""
    missing = _missing(*places)
    if not missing:
        return None
    losses = np.max([values(records, "train_loss", epoch) for records, epoch in places], axis=0)
    return not_at_minimum(id, statement, reference, f"{tested}; largest training loss by seed; not "
                          f"at a minimum: {missing}", losses, TRAINING_LOSS)  # fmt: skip
