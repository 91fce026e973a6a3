"""What came out of a fight: who stands where, by how much, and who is out and why."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from antipgd.estimate import Estimate
from antipgd.paper.fight.budgets import Card
from antipgd.paper.fight.contestant import RATE, Contestant
from antipgd.paper.fight.planning import (
    GRADIENTS,
    RANKINGS,
    Plan,
    Settle,
    Settled,
    goodness,
    judged,
    settling,
    tuning,
)
from antipgd.paper.fight.problem import LOSS
from antipgd.paper.fight.problems import sizes
from antipgd.paper.fight.ranking import Array, Rank, ranked, ranked_over
from antipgd.paper.fight.surviving import Survivors
from antipgd.paper.record import Failure, Record

MISSING = "bouts are missing"


@dataclass(frozen=True)
class Standing:
    """A method on a problem: what was tuned; by ranking goodness of each seed, rank, and everything
    that was measured."""

    method: Contestant
    settled: Settled
    samples: Mapping[str, Array]
    ranks: Mapping[str, Rank]
    measures: Mapping[str, Mapping[str, list[float]]]

    @property
    def measured(self) -> Mapping[str, list[float]]:
        """At equal gradients."""
        return self.measures[GRADIENTS]

    def score(self, kind: str, ranking: str = GRADIENTS) -> str:
        """Test loss (geometric mean) or accuracy in percent, with its interval."""
        return score_text(kind, self.samples[ranking])

    def mean(self, name: str, ranking: str = GRADIENTS) -> float:
        """Of a measure over seeds; not a number where it is not known."""
        values = self.measures[ranking].get(name, [])
        return float(np.mean(values)) if values else math.nan


@dataclass(frozen=True)
class Table:
    """A problem: who was ranked, the best first, and who was not and why."""

    card: Card
    standings: Sequence[Standing]
    out: Mapping[str, str]

    @property
    def kind(self) -> str:
        return sizes(self.card.problem).kind

    def by_name(self) -> dict[str, Standing]:
        return {one.method.name: one for one in self.standings}


def survivors(table: Table) -> Survivors:
    """What survival is told from: the networks of a problem, at equal gradients."""
    measured = {one.method.title: one.measured for one in table.standings if "int4" in one.measured}
    return Survivors(table.card.problem, table.kind, measured)


def score_text(kind: str, samples: Array) -> str:
    """A mean with its interval, in the units of a kind."""
    lost = int(np.isinf(samples).sum())
    if lost:
        return f"diverged in {lost} of {len(samples)}"
    found = Estimate.of(samples)
    low, high = found.interval()
    if kind == LOSS:  # goodness is minus the logarithm
        mean, low, high = (math.exp(-x) for x in (found.mean, high, low))
        return f"{mean:.3g}" + ("" if math.isnan(low) else f" [{low:.3g}, {high:.3g}]")
    points = f"{100 * found.mean:.2f}"
    return points if math.isnan(low) else f"{points} [{100 * low:.2f}, {100 * high:.2f}]"


def _measured(records: Iterable[Record]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for record in records:
        for _, name, value in record.points:
            if value is not None:
                found.setdefault(name, []).append(value)
    return found


class _Results:
    """What is known of the bouts of a plan."""

    def __init__(
        self, plan: Plan, records: Mapping[str, Record], failures: Mapping[str, Failure]
    ) -> None:
        self.plan, self.records, self.failures = plan, records, failures
        self.settle: Settle = settling(records)

    def bouts(
        self, card: Card, one: Contestant, settled: Settled
    ) -> dict[str, list[Record | None]]:
        """Judged ones by ranking."""
        return {
            ranking: [self.records.get(m.name) for m in judged(card, one, settled, ranking)]
            for ranking in RANKINGS
        }

    def why_out(self, card: Card, one: Contestant) -> str:
        """Why a method is not ranked on a problem."""
        own = [f for f in self.failures.values()
               if f.run.problem == card.problem and f.run.source == one.source]  # fmt: skip
        if own:
            return f"{own[0].reason} ({len(own)} bouts)"
        base = None if one.tunes == RATE else self.plan.base_rate(card, one, self.settle)
        if one.tunes != RATE and base is None:
            return f"its base {self.plan.base(card, one).name} has no learning rate"
        known = [
            [self.records.get(m.name) for m in many] for many in tuning(card, one, base).values()
        ]
        if all(any(r is not None and r.status == "diverged" for r in many) for many in known):
            return "weights that are not finite numbers, at every value of its grid"
        return MISSING

    def table(self, card: Card) -> Table:
        """Who stands where on a problem."""
        found: list[tuple[Contestant, Settled, dict[str, list[Record]]]] = []
        out = {}
        for one in self.plan.of(card):
            settled = self.plan.settled(card, one, self.settle)
            bouts = {} if settled is None else self.bouts(card, one, settled)
            if settled is None or any(r is None for many in bouts.values() for r in many):
                out[one.name] = self.why_out(card, one)
            else:
                found.append((one, settled, bouts))  # type: ignore[arg-type]
        standings = _ranked(card, found)
        return Table(card, sorted(standings, key=lambda s: s.ranks[GRADIENTS].rank), out)


def _ranked(
    card: Card, found: Sequence[tuple[Contestant, Settled, dict[str, list[Record]]]]
) -> list[Standing]:
    samples = {
        ranking: np.array([[goodness(card.problem, r) for r in bouts[ranking]]
                           for _, _, bouts in found])
        for ranking in RANKINGS
    }  # fmt: skip
    by = {ranking: ranked(many) if len(many) else [] for ranking, many in samples.items()}
    return [
        Standing(one, settled, {r: samples[r][i] for r in RANKINGS},
                 {r: by[r][i] for r in RANKINGS}, {r: _measured(bouts[r]) for r in RANKINGS})
        for i, (one, settled, bouts) in enumerate(found)
    ]  # fmt: skip


def tables(
    plan: Plan, records: Mapping[str, Record], failures: Mapping[str, Failure]
) -> list[Table]:
    """A table for each problem of a fight."""
    results = _Results(plan, records, failures)
    return [results.table(card) for card in plan.cards]


def overall(tables: Sequence[Table], ranking: str) -> dict[str, Rank]:
    """Mean ranks over the problems that carry all methods, of the methods that are ranked on each
    of them, the best first."""
    whole = [table for table in tables if not table.card.few and table.standings]
    if not whole:
        return {}
    names = [name for name in whole[0].by_name() if all(name in t.by_name() for t in whole)]
    samples = [np.array([t.by_name()[name].samples[ranking] for name in names]) for t in whole]
    found = dict(zip(names, ranked_over(samples), strict=True)) if names else {}
    return dict(sorted(found.items(), key=lambda item: item[1].rank))
