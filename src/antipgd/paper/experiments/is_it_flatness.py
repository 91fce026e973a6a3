"""(Ours.) Is it flatness, or early stopping, weight decay, averaging?

The small network of the map's base cell, six arms with its schedule: GD, Anti-PGD, two-point
smoothing, the penalty σ²/2 · tr H, GD with weight decay, and the moving average of GD's weights.
The three with σ have it in the first 250 of 350 epochs. GD's learning rate, then σ, weight decay
and the average's age are tuned with as many values and seeds, on other seeds and images, by the
accuracy at the end, where a training must be at a minimum. Judged with twelve seeds. An arm that
ends with a larger training loss than Anti-PGD could be better for that alone, as if it had been
stopped early; so accuracies are compared at the larger of the two last losses, the other arm at
the epoch at which it had that loss, of every second one until the hundredth and every tenth after.
Losses more than 1.25 × apart are not equal, and nothing is said. Flatness is the scaled trace at
the end, at a training loss of 0.01 by temperature. If it is what helps, arms that are as flat are
as good, and the order by accuracy is that by flatness. In the base cell nothing differed by a
point. After that was seen, the same was asked in the cell in which the map has the largest gain,
all images in a batch, on seeds that the map did not have. There tuning left nothing of the average:
with an age of 30 steps or more it misses the minimum, with less it is GD. After that had been seen,
an arm whose test accuracies are GD's in every seed is not judged as another arm.
"""

import textwrap
from collections.abc import Sequence

import numpy as np
from scipy.stats import spearmanr

from antipgd.estimate import Estimate
from antipgd.paper import figures
from antipgd.paper.claims import FAILS, HOLDS, LEVEL, TRAINING_LOSS, Claim, above, not_at_minimum
from antipgd.paper.networks.arms import Values, measured, value, values
from antipgd.paper.networks.equal_loss import (
    CLOSE,
    CONTESTS,
    SMOKE,
    TUNED,
    Contest,
    at_equal_loss,
    ended,
    following,
)
from antipgd.paper.networks.minima import Place, flatter, judged, unmeasured
from antipgd.paper.networks.scales import Scale
from antipgd.paper.networks.spec import Training, trace_at
from antipgd.paper.record import Record
from antipgd.paper.results import Results

SHOWS = (
    "For two settings: test accuracy against training loss from epoch to epoch; what each arm "
    "adds to GD's accuracy at equal training loss; accuracy against flatness at the end. Means "
    "over twelve seeds, bars 95 % intervals."
)
SCALED = True
REFERENCE = "§sec:exp"
TRACE = trace_at(0.01)
NAMES = {
    "gd": "GD",
    "anti": "Anti-PGD",
    "two_point": "two-point smoothing",
    "trace_penalty": "the trace penalty",
    "decay": "weight decay",
    "ema": "the average of GD's weights",
}
SYMBOLS = {"lr": "η", "sigma": "σ", "weight_decay": "decay", "ema_age": "age in steps"}
MARKERS = {"gd": "o", "decay": "s", "ema": "^"}  # in GD's colour; the others have their own


def contests_of(scale: Scale | None) -> list[Contest]:
    """The arms of a scale that has the map: in two of its cells, or in a few digits."""
    if scale is None or "all" in scale.cells:
        return [*CONTESTS]
    return [SMOKE] if SMOKE.cell.name in scale.cells else []


def runs(seeds: int | None = None, scale: Scale | None = None) -> list[Training]:
    return [run for contest in contests_of(scale) for run in following(contest, [])]


def more(records: Sequence[Record], scale: Scale | None = None) -> list[Training]:
    return [run for contest in contests_of(scale) for run in following(contest, records)]


Arms = dict[str, list[Record]]


def _found(results: Results) -> list[tuple[Contest, Arms]]:
    """What is compared, by arm, in each cell all of whose trainings are there."""
    smoke = any(record.run.data == SMOKE.cell.base["data"] for record in results.records)
    there = [(one, ended(one, results.records)) for one in ([SMOKE] if smoke else CONTESTS)]
    return [(contest, arms) for contest, arms in there if arms]


def _chosen(arm: str, records: list[Record]) -> str:
    """An arm with its value."""
    return f"{NAMES[arm]} ({SYMBOLS[TUNED[arm]]} {getattr(records[0].run, TUNED[arm]):g})"


def claims(results: Results) -> list[Claim]:
    return [claim for contest, arms in _found(results) for claim in _claims(contest, arms)]


def _claims(contest: Contest, arms: Arms) -> list[Claim]:
    name, where = f"is_it_flatness.{contest.prefix}", f"{contest.cell.words}, at the end"
    at: dict[str, Place] = {arm: (records, None) for arm, records in arms.items()}
    said = {arm: _chosen(arm, records) for arm, records in arms.items()}
    found = [_better(contest, arm, arms, said) for arm in at if arm != "anti"]
    pairs = [("flatter", arm, arm, "gd") for arm in at if arm != "gd"]
    pairs += [("than", arm, "anti", arm) for arm in at if arm not in ("gd", "anti")]
    for kind, arm, ours, theirs in pairs:
        what = (
            f"{name}{kind}_{arm}",
            f"(ours) at equal training loss {NAMES[ours]} is flatter than {NAMES[theirs]}",
            REFERENCE, f"scaled trace at training loss 0.01 by temperature, {where}, {said[ours]}, "
            f"{said[theirs]}",
        )  # fmt: skip
        idle = _idle(what, arms, arm)
        found.append(idle or flatter(*what, TRACE, at[ours], at[theirs]))
    return [*found, _order(contest, at)]


def _idle(what: tuple[str, str, str, str], arms: Arms, arm: str) -> Claim | None:
    """Says that tuning left nothing of an arm, if all its test accuracies are GD's."""
    gd, own = (values(arms[one], "test_accuracy") for one in ("gd", arm))
    if arm == "gd" or not np.array_equal(gd, own):
        return None
    why = "; tuned to nothing, it is GD; training loss, at no minimum with values that act"
    losses = values(arms[arm], "train_loss")
    return not_at_minimum(*what[:3], what[3] + why, losses, TRAINING_LOSS)


def _better(contest: Contest, arm: str, arms: Arms, said: dict[str, str]) -> Claim:
    """At equal training losses, if they could be had."""
    ours, theirs = arms["anti"], arms[arm]
    equal = at_equal_loss(ours, theirs)
    epochs = np.median(equal.epochs, axis=0)
    what = (
        f"is_it_flatness.{contest.prefix}better_{arm}",
        f"(ours) at equal training loss Anti-PGD is better than {NAMES[arm]}", REFERENCE,
        f"test accuracy, {contest.cell.words}, {said['anti']} after {epochs[0]:.0f} epochs in the "
        f"median, {said[arm]} after {epochs[1]:.0f}, training losses within {equal.ratio:.3g} ×; "
        "points",
    )  # fmt: skip
    if equal.ratio > CLOSE:
        return not_at_minimum(*what, equal.points)
    return _idle(what, arms, arm) or judged(*what, equal.points, ((ours, None), (theirs, None)))


def _order(contest: Contest, at: dict[str, Place]) -> Claim:
    """The order of these arms, seed by seed; of other arms it says nothing."""
    what = (
        f"is_it_flatness.{contest.prefix}order", "(ours) of these arms the flatter the better",
        REFERENCE,
        f"Spearman's correlation over {len(at)} arms of test accuracy and −log of the scaled trace "
        f"at training loss 0.01, {contest.cell.words}, at the end, by seed",
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
    """Which arms are as good as Anti-PGD, and which as flat, cell by cell."""
    by = {claim.id.partition(".")[2]: claim for claim in claims}
    said = []
    for contest in CONTESTS:
        own = {name.removeprefix(contest.prefix): claim for name, claim in by.items()
               if name.startswith("full_") == bool(contest.prefix)}  # fmt: skip
        if own:
            said.append(f"{contest.cell.words}: {_said(own)}")
    return " ".join(said)


def _said(by: dict[str, Claim]) -> str:
    order = by["order"]
    return " ".join([
        f"As good as Anti-PGD at equal training loss, within a point: "
        f"{_listed(by, 'better', LEVEL)}; worse: {_listed(by, 'better', HOLDS)}; better: "
        f"{_listed(by, 'better', FAILS)}.",
        f"As flat as Anti-PGD, within 5 %: {_listed(by, 'than', LEVEL)}; less flat: "
        f"{_listed(by, 'than', HOLDS)}; flatter: {_listed(by, 'than', FAILS)}.",
        f"Flatter than GD: {_listed(by, 'flatter', HOLDS)}; as flat: "
        f"{_listed(by, 'flatter', LEVEL)}; less flat: {_listed(by, 'flatter', FAILS)}.",
        "What is not named is undecided or not at a minimum.",
        f"That the flatter arm is the better: {order.verdict}.",
    ])  # fmt: skip


def _listed(by: dict[str, Claim], kind: str, verdict: str) -> str:
    """The arms of which this was said, with value and interval."""
    there = {arm: by[f"{kind}_{arm}"] for arm in NAMES if f"{kind}_{arm}" in by}
    said = [f"{NAMES[arm]} ({claim.value:.3g} [{claim.low:.3g}, {claim.high:.3g}])"
            for arm, claim in there.items() if claim.verdict == verdict]  # fmt: skip
    return "; ".join(said) if said else "none"


def plot(results: Results) -> figures.Figure:
    panels = [panel for found in _found(results) for panel in _panels(*found)]
    nothing = figures.Panel("nothing is trained to the end yet", [], yscale="linear")
    return figures.draw(panels or [nothing], columns=3, width=4.6, height=3.6)


def _panels(contest: Contest, arms: Arms) -> list[figures.Panel]:
    others = [arm for arm in arms if arm != "gd"]
    against = [mark for arm, records in arms.items() for mark in _against_trace(arm, records)]
    gains = [_mark(arm, at, Estimate.of(at_equal_loss(arms[arm], arms["gd"]).points))
             for at, arm in enumerate(others)]  # fmt: skip
    level = figures.Series([-0.5, len(others) - 0.5], [0.0, 0.0], dash=":")
    ticks = [(float(at), textwrap.fill(NAMES[arm], 11)) for at, arm in enumerate(others)]
    return [
        figures.Panel(f"{contest.cell.words}", [_path(*one) for one in arms.items()],
                      "training loss", "test accuracy, %", "log", "linear"),
        figures.Panel("test accuracy over GD's at equal training loss, points", [*gains, level],
                      "", "", "linear", "linear", ticks=ticks),
        figures.Panel("at the end", against, "scaled trace at training loss 0.01",
                      "test accuracy, %", "log", "linear"),
    ]  # fmt: skip


def _colour(arm: str) -> str:
    return figures.COLOURS["gd" if arm in MARKERS else arm]


def _path(arm: str, records: list[Record]) -> figures.Series:
    """Mean accuracy against mean training loss from epoch to epoch, of seeds that did not
    diverge."""
    there = [record for record in records if record.status != "diverged"]
    epochs = sorted(set.intersection(*(set(measured(one, "train_loss")) for one in there))
                    - {0}) if there else []  # fmt: skip
    loss = [np.exp(np.mean(np.log([value(one, "train_loss", e) for one in there]))) for e in epochs]
    right = [100 * np.mean([value(one, "test_accuracy", e) for one in there]) for e in epochs]
    return figures.Series(loss, right, NAMES[arm], _colour(arm),
                          {"decay": "--", "ema": ":"}.get(arm, "-"))  # fmt: skip


def _mark(arm: str, x: float, estimate: Estimate) -> figures.Series:
    """A mean with its interval."""
    low, high = estimate.interval()
    return figures.Series([x], [estimate.mean], NAMES[arm], _colour(arm), "", MARKERS.get(arm, "D"),
                          [low], [high], bars=True)  # fmt: skip


def _against_trace(arm: str, records: list[Record]) -> list[figures.Series]:
    """Accuracy against the trace, which has an interval too; nothing where some have none."""
    accuracy = 100 * values(records, "test_accuracy")
    try:
        trace = Estimate.of(np.log(values(records, TRACE)))
    except LookupError:
        return []
    if not np.isfinite(trace.mean):  # some diverged
        return []
    mark = _mark(arm, float(np.exp(trace.mean)), Estimate.of(accuracy))
    across = figures.Series(np.exp(trace.interval()), [*np.asarray(mark.y)] * 2, colour=mark.colour)
    return [across, mark]
