"""What flatness is bought for, in a table, a figure's panels and a paragraph, all generated.

Asks of each problem two things: who loses least to rounding, noise and a second task, and whether
flatter minima lose less. The first is asked of methods whose score is not worse than that of the
best: who learned nothing has nothing to lose. Damage is in points of accuracy or in nats of the
held-out loss. Rank correlations are over the methods that are there; their intervals resample
methods and seeds: a few methods may be flat and robust together by chance, however many seeds tell
so.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from antipgd.estimate import Estimate
from antipgd.paper.claims import FAILS
from antipgd.paper.fight.comparing import compared
from antipgd.paper.fight.problem import ACCURACY
from antipgd.paper.fight.ranking import RESAMPLED, Array, ranked, ranks
from antipgd.paper.figures import Panel, Series

Measured = Mapping[str, Sequence[float]]
"""A method's numbers by column, one for each seed."""

SCORES = {
    "score": "as trained",
    "int8": "int8",
    "int4": "int4",
    "noise1": "noise 1 %",
    "noise3": "noise 3 %",
    "noise10": "noise 10 %",
    "first_after_second": "after a second task",
}
FLAT = "scaled_trace"
BESIDE = {
    FLAT: "scaled trace",
    "effective_sharpness": "effective sharpness",
    "seconds": "seconds",
    "bytes": "bytes kept",
}
JUDGED = {
    "int4": "rounding to 4 bits",
    "noise10": "noise of 10 %",
    "first_after_second": "training on a second task",
}
"""Where damage is large enough to be compared: fixed before anything was run."""
FEWEST = 6
"""Methods of which a rank correlation says anything: of five whose traces and damages have nothing
to do with each other, more than a tenth of the intervals leave 0 out, of six fewer than 5 %."""


@dataclass(frozen=True)
class Survivors:
    """The methods on one problem, by what tables call them."""

    title: str
    kind: str
    methods: Mapping[str, Measured]

    def samples(self, column: str) -> dict[str, Array]:
        """Of the methods that have a number for every seed."""
        seeds = max((len(one["score"]) for one in self.methods.values()), default=0)
        found = {name: np.array(one.get(column, ())) for name, one in self.methods.items()}
        return {name: values for name, values in found.items() if len(values) == seeds > 0}

    def damage(self, column: str) -> dict[str, Array]:
        """What a treatment takes from the score of each seed: points, or nats."""
        before, after = self.samples("score"), self.samples(column)
        lost = {name: before[name] - after[name] for name in after if name in before}
        return {name: 100 * d if self.kind == ACCURACY else -d for name, d in lost.items()}

    def goodness(self) -> dict[str, Array]:
        """The score of each seed, the more the better: of losses minus the logarithm."""
        scores = self.samples("score")
        return {n: s if self.kind == ACCURACY else -np.log(s) for n, s in scores.items()}

    def beaten(self) -> list[str]:
        """Methods whose score is worse than the best one's, seed by seed: not level with it, and
        not undecided."""
        good = self.goodness()
        if not good:
            return []
        best = max(good.values(), key=np.mean)
        return [n for n, own in good.items() if compared(self.kind, own, best).verdict == FAILS]

    @property
    def unit(self) -> str:
        return "points" if self.kind == ACCURACY else "nats"


@dataclass(frozen=True)
class Correlation:
    """Spearman's, with the interval that holds 95 % of its resampled values."""

    value: float
    low: float
    high: float
    methods: int
    seeds: int

    @property
    def verdict(self) -> str:
        """Whether flatter methods lose less: by the interval alone."""
        if self.low > 0:
            return "flatter minima lose less"
        return "flatter minima lose more" if self.high < 0 else "undecided"

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def spearman(one: Array, other: Array) -> float:
    """The correlation of ranks; 0 where one of them does not vary."""
    a, b = (r - r.mean() for r in (ranks(one), ranks(other)))
    size = math.sqrt(float((a @ a) * (b @ b)))
    return float(a @ b) / size if size else 0.0


def correlation(flat: Array, lost: Array, key: int = 0) -> Correlation:
    """Of traces and damages, (methods, seeds) each, by their means over seeds."""
    methods, seeds = flat.shape
    draw = np.random.Generator(np.random.Philox(key=key))
    who = draw.integers(methods, size=(RESAMPLED, methods))
    when = draw.integers(seeds, size=(RESAMPLED, seeds))
    found = [
        spearman(*(one[some][:, chosen].mean(1) for one in (flat, lost)))
        for some, chosen in zip(who, when, strict=True)
    ]
    low, high = np.quantile(found, [0.025, 0.975], method="inverted_cdf")
    return Correlation(
        spearman(flat.mean(1), lost.mean(1)), float(low), float(high), methods, seeds
    )


def flat_against(survivors: Survivors, column: str) -> Correlation | None:
    """Do flatter minima lose less to a treatment? None where too few methods have a trace."""
    flat, lost = survivors.samples(FLAT), survivors.damage(column)
    both = [name for name in flat if name in lost]
    if len(both) < FEWEST:
        return None
    return correlation(np.stack([flat[n] for n in both]), np.stack([lost[n] for n in both]))


def _number(values: Sequence[float] | Array, scale: float = 1.0) -> str:
    """A mean with its interval; a dash where there is none."""
    if not len(values):
        return "–"
    found = Estimate.of(scale * value for value in values)
    low, high = found.interval()
    known = low < high  # one seed has no interval, and what never varies needs none
    return f"{found.mean:.4g}" + (f" [{low:.4g}, {high:.4g}]" if known else "")


def _cells(survivors: Survivors, one: Measured) -> Iterator[str]:
    scale = 100.0 if survivors.kind == ACCURACY else 1.0
    for column in SCORES:
        yield _number(one.get(column, ()), scale)
    for column in BESIDE:
        stable = column != "effective_sharpness" or not any(one.get("at_limit", ()))
        yield _number(one.get(column, ())) if stable else "at the limit"


def markdown(survivors: Survivors) -> str:
    """A row for each method: scores, then what is beside them, each with its 95 % interval."""
    heads = ["method", *SCORES.values(), *BESIDE.values()]
    rows = [heads, ["---"] * len(heads)]
    rows += [[name, *_cells(survivors, one)] for name, one in survivors.methods.items()]
    unit = "accuracy in %" if survivors.kind == ACCURACY else "held-out loss in nats"
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"**{survivors.title}**: {unit}; mean over seeds [95 %].\n\n{table}\n"


def _score(survivors: Survivors, name: str) -> str:
    """As trained, with its interval."""
    scale, unit = (100.0, "%") if survivors.kind == ACCURACY else (1.0, "nats")
    return f"{_number(survivors.samples('score')[name], scale)} {unit}"


def _least(survivors: Survivors, lost: Mapping[str, Array]) -> str:
    """Who of these loses least, with its score, and who cannot be told from it."""
    names, table = list(lost), np.stack([*lost.values()])
    places = ranked(-table)
    best = min(range(len(names)), key=lambda i: places[i].rank)
    near = [
        name for i, name in enumerate(names) if i != best and places[i].low <= places[best].high
    ]
    beside = f"; not to be told from it: {', '.join(near)}" if near else ""
    said = "loses least" if len(names) > 1 else "is compared with nobody"
    damage, score = _number(lost[names[best]]), _score(survivors, names[best])
    return f"{names[best]} ({damage} {survivors.unit} of {score}{beside}) {said}"


Found = Mapping[str, Correlation | None]


def _answers(survivors: Survivors, beaten: Sequence[str], found: Found) -> Iterator[str]:
    """A sentence for each treatment that was measured."""
    for column, words in JUDGED.items():
        damage = survivors.damage(column)
        lost = {name: values for name, values in damage.items() if name not in beaten}
        least = _least(survivors, lost) if lost else "nobody is compared"
        flat = found[column]
        if damage:
            yield f"To {words} {least}{'' if flat is None else f'; {flat.verdict}, {flat}'}."


def _rules(beaten: Sequence[str], found: Found) -> str:
    """What the sentences are by, and of whom."""
    if any(found.values()):
        by = "verdicts by the rank correlation of scaled trace and damage"
    else:
        by = "too few methods have a trace to speak of flatness"
    left = f"; not asked who loses least, for their scores are worse: {', '.join(beaten)}"
    return by + (left if beaten else "")


def paragraph(survivors: Survivors) -> str:
    """Who wins, and whether it is by flatness."""
    scores, beaten = survivors.samples("score"), survivors.beaten()
    found = {column: flat_against(survivors, column) for column in JUDGED}
    said = " ".join(_answers(survivors, beaten, found)) or "nothing was measured."
    seeds = max(map(len, scores.values()), default=0)
    return (
        f"{survivors.title} ({len(scores)} methods, {seeds} seeds; {_rules(beaten, found)}): {said}"
    )


def panels(survivors: Survivors) -> list[Panel]:
    """Damage against the scaled trace, a point for each method with its interval."""
    flat = survivors.samples(FLAT)
    return [
        Panel(
            f"{survivors.title}: lost to {words}",
            [_point(name, flat[name], lost, number) for number, (name, lost) in
             enumerate(survivors.damage(column).items()) if name in flat],
            xlabel="scaled trace", ylabel=survivors.unit, xscale="log", yscale="linear",
        )
        for column, words in JUDGED.items()
    ]  # fmt: skip


_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6f6f69", "#222222")
_MARKERS = "os^Dv"


def _point(name: str, flat: Array, lost: Array, number: int) -> Series:
    found = Estimate.of(lost)
    low, high = ([edge] for edge in found.interval())
    bars = not math.isnan(low[0])
    return Series(
        [float(flat.mean())], [found.mean], label=name, dash="", bars=bars,
        colour=_COLOURS[number % len(_COLOURS)],
        marker=_MARKERS[number // len(_COLOURS) % len(_MARKERS)],
        low=low if bars else None, high=high if bars else None,
    )  # fmt: skip
