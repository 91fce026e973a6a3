"""(Ours.) Is it flatness, or early stopping, weight decay, averaging?

The small network of the map's base cell, every arm ended at the first measured epoch, of every
second, with a training loss of at most 0.01 at its clean weights: GD (which is early stopping),
Anti-PGD, two-point smoothing, the penalty σ²/2 · tr H, GD with weight decay, and the moving average
of GD's weights, ended by its own loss. The three with σ have it until then (or epoch 250), so not
while they could drift on along the minima: what is compared is how they get there. GD's learning
rate, then σ, weight decay and the average's age are tuned with as many values and seeds, on other
seeds and images, where the arm ends; a training that misses the loss counts as accuracy 0 there.
Judged with twelve seeds; where one of an arm misses, nothing is said of that arm. Flatness is the
scaled trace at a training loss of 0.01 by temperature. If it is what helps, arms that are as flat
are as good, and the order by accuracy is that by flatness.
"""

import textwrap
from collections.abc import Sequence

import numpy as np
from scipy.stats import spearmanr

from antipgd.estimate import Estimate
from antipgd.paper import figures
from antipgd.paper.claims import FAILS, HOLDS, LEVEL, Claim, above
from antipgd.paper.networks.arms import Values, last_epoch, values
from antipgd.paper.networks.equal_loss import (
    CONTEST,
    SMOKE,
    TUNED,
    Contest,
    ended,
    following,
)
from antipgd.paper.networks.minima import Place, better, flatter, unmeasured
from antipgd.paper.networks.scales import Scale
from antipgd.paper.networks.spec import Training, trace_at
from antipgd.paper.record import Record
from antipgd.paper.results import Results

SCALED = True
REFERENCE = "§sec:exp"
TRACE = trace_at(0.01)
NAMES = {
    "gd": "GD stopped there",
    "anti": "Anti-PGD",
    "two_point": "two-point smoothing",
    "trace_penalty": "the trace penalty",
    "decay": "weight decay",
    "ema": "the average of GD's weights",
}
SYMBOLS = {"lr": "η", "sigma": "σ", "weight_decay": "decay", "ema_age": "age in steps"}
MARKERS = {"gd": "o", "decay": "s", "ema": "^"}  # in GD's colour; the others have their own


def contests_of(scale: Scale | None) -> list[Contest]:
    """The arms of a scale that has the map: in its base cell, or in a few digits."""
    if scale is None or "all" in scale.cells:
        return [CONTEST]
    return [SMOKE] if SMOKE.cell.name in scale.cells else []


def runs(seeds: int | None = None, scale: Scale | None = None) -> list[Training]:
    return [run for contest in contests_of(scale) for run in following(contest, [])]


def more(records: Sequence[Record], scale: Scale | None = None) -> list[Training]:
    return [run for contest in contests_of(scale) for run in following(contest, records)]


def _arms(results: Results) -> dict[str, list[Record]]:
    """What is compared, by arm; nothing if some of it has not been trained."""
    smoke = any(record.run.data == SMOKE.cell.base["data"] for record in results.records)
    return ended(SMOKE if smoke else CONTEST, results.records)


def _ending(arm: str, records: list[Record]) -> str:
    """An arm's value, and where it ended in the mean."""
    chosen = f"{SYMBOLS[TUNED[arm]]} {getattr(records[0].run, TUNED[arm]):g}"
    epochs = np.mean([last_epoch(record) for record in records])
    loss = values(records, "train_loss").mean()
    return f"{NAMES[arm]} ({chosen}) after {epochs:.0f} epochs at loss {loss:.2g}"


def claims(results: Results) -> list[Claim]:
    arms = _arms(results)
    if not arms:
        return []
    at: dict[str, Place] = {arm: (records, None) for arm, records in arms.items()}
    said = {arm: _ending(arm, records) for arm, records in arms.items()}
    found = [
        better(f"is_it_flatness.better_{arm}",
               f"(ours) at equal training loss Anti-PGD is better than {NAMES[arm]}", REFERENCE,
               f"{said['anti']}, {said[arm]}", at["anti"], at[arm])
        for arm in at if arm != "anti"
    ]  # fmt: skip
    pairs = [("flatter", arm, arm, "gd") for arm in at if arm != "gd"]
    pairs += [("than", arm, "anti", arm) for arm in at if arm not in ("gd", "anti")]
    found += [
        flatter(f"is_it_flatness.{kind}_{arm}",
                f"(ours) at equal training loss {NAMES[ours]} is flatter than {NAMES[theirs]}",
                REFERENCE, f"scaled trace at training loss 0.01, {said[ours]}, {said[theirs]}",
                TRACE, at[ours], at[theirs])
        for kind, arm, ours, theirs in pairs
    ]  # fmt: skip
    return [*found, _order(at)]


def _order(at: dict[str, Place]) -> Claim:
    """The order of these arms, seed by seed; of other arms it says nothing."""
    what = (
        "is_it_flatness.order", "(ours) of these arms the flatter the better", REFERENCE,
        f"Spearman's correlation over {len(at)} arms of test accuracy and −log of the scaled trace "
        "at training loss 0.01, by seed",
    )  # fmt: skip
    missed = unmeasured(*what, [*at.values()])
    if missed is not None:
        return missed
    accuracy = np.array([values(records, "test_accuracy") for records, _ in at.values()])
    flat = -np.log([values(records, TRACE) for records, _ in at.values()])
    return above(*what, correlations(accuracy, flat), 0)


def correlations(first: Values, second: Values) -> list[float]:
    """Spearman's, of the columns of two tables; nought where all of a column is equal."""
    return [
        float(spearmanr(a, b).statistic) if np.ptp(a) and np.ptp(b) else 0.0
        for a, b in zip(first.T, second.T, strict=True)
    ]


def words(claims: Sequence[Claim]) -> str:
    """Which arms are as good as Anti-PGD, and which as flat."""
    by = {claim.id.partition(".")[2]: claim for claim in claims}
    if not by:
        return ""
    order = by["order"]
    return " ".join([
        f"As good as Anti-PGD, within a point: {_listed(by, 'better', LEVEL)}; worse: "
        f"{_listed(by, 'better', HOLDS)}; better: {_listed(by, 'better', FAILS)}.",
        f"As flat as Anti-PGD, within 5 %: {_listed(by, 'than', LEVEL)}; less flat: "
        f"{_listed(by, 'than', HOLDS)}; flatter: {_listed(by, 'than', FAILS)}.",
        f"Flatter than GD stopped at that loss: {_listed(by, 'flatter', HOLDS)}; as flat: "
        f"{_listed(by, 'flatter', LEVEL)}; less flat: {_listed(by, 'flatter', FAILS)}.",
        "What is not named is undecided or missed the loss.",
        f"That the flatter arm is the better: {order.verdict}.",
    ])  # fmt: skip


def _listed(by: dict[str, Claim], kind: str, verdict: str) -> str:
    """The arms of which this was said, with value and interval."""
    there = {arm: by[f"{kind}_{arm}"] for arm in NAMES if f"{kind}_{arm}" in by}
    said = [f"{NAMES[arm]} ({claim.value:.3g} [{claim.low:.3g}, {claim.high:.3g}])"
            for arm, claim in there.items() if claim.verdict == verdict]  # fmt: skip
    return "; ".join(said) if said else "none"


def plot(results: Results) -> figures.Figure:
    arms = _arms(results)
    accuracy = {arm: 100 * values(records, "test_accuracy") for arm, records in arms.items()}
    others = [arm for arm in arms if arm != "gd"]
    against = [mark for arm, records in arms.items()
               for mark in _against_trace(arm, records, accuracy[arm])]  # fmt: skip
    gains = [_mark(arm, at, Estimate.of(accuracy[arm] - accuracy["gd"]))
             for at, arm in enumerate(others)]  # fmt: skip
    level = figures.Series([-0.5, len(others) - 0.5], [0.0, 0.0], dash=":")
    ticks = [(float(at), textwrap.fill(NAMES[arm], 11)) for at, arm in enumerate(others)]
    panels = [
        figures.Panel("where the training ended", against, "scaled trace at training loss 0.01",
                      "test accuracy, %", "log", "linear"),
        figures.Panel("test accuracy over that of GD stopped there, points", [*gains, level], "",
                      "", "linear", "linear", ticks=ticks),
    ]  # fmt: skip
    return figures.draw(panels, columns=2, width=5.2, height=3.6)


def _mark(arm: str, x: float, estimate: Estimate) -> figures.Series:
    """A mean with its interval."""
    low, high = estimate.interval()
    colour = figures.COLOURS["gd" if arm in MARKERS else arm]
    return figures.Series([x], [estimate.mean], NAMES[arm], colour, "", MARKERS.get(arm, "D"),
                          [low], [high], bars=True)  # fmt: skip


def _against_trace(arm: str, records: list[Record], accuracy: Values) -> list[figures.Series]:
    """Accuracy against the trace, which has an interval too; nothing where some have none."""
    try:
        trace = Estimate.of(np.log(values(records, TRACE)))
    except LookupError:
        return []
    if not np.isfinite(trace.mean):  # some diverged
        return []
    mark = _mark(arm, float(np.exp(trace.mean)), Estimate.of(accuracy))
    across = figures.Series(np.exp(trace.interval()), [*np.asarray(mark.y)] * 2, colour=mark.colour)
    return [across, mark]
