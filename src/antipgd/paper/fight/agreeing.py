"""Does a fight say what the one that ships says? Its intervals beside those of the larger one.

Compared are the goodness of each method on each problem that both have, in each ranking (where a
step takes one gradient the two are one), and ranks. Methods that diverged in a seed have no
interval: they are counted apart.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from antipgd.estimate import Estimate
from antipgd.paper.fight.fighting import enter
from antipgd.paper.fight.planning import GRADIENTS, RANKINGS
from antipgd.paper.fight.shipping import Shipped, shipped
from antipgd.paper.fight.standings import Standing, Table, tables

LARGEST = "night"
TWICE = 2.0


@dataclass(frozen=True)
class Agreement:
    """How many intervals were compared, which do not overlap, and how much wider ours are."""

    scores: int
    apart: tuple[str, ...]
    widest: float
    """The largest ratio of the widths of two intervals of goodness, ours over theirs."""
    wider: tuple[str, ...]
    """Those that are more than twice as wide."""
    ranks: int
    ranks_apart: tuple[str, ...]
    diverged: int
    """Methods on problems that diverged in some seed of either: not compared."""

    def __str__(self) -> str:
        return (
            f"{self.scores - len(self.apart)} of {self.scores} intervals of scores overlap its "
            f"own{_named(self.apart)}; ours are at most {self.widest:.2g} times as wide, more than "
            f"twice in {len(self.wider)}{_named(self.wider)}; "
            f"{self.ranks - len(self.ranks_apart)} of {self.ranks} intervals of ranks overlap"
            f"{_named(self.ranks_apart)}; {self.diverged} diverged and have none"
        )


def _named(names: Sequence[str]) -> str:
    return f" (not {', '.join(names)})" if names else ""


def _pairs(
    ours: Sequence[Table], theirs: Sequence[Table]
) -> Iterator[tuple[str, str, Standing, Standing]]:
    """What both have: a name, the ranking, our standing and theirs."""
    large = {table.card.problem: table.by_name() for table in theirs}
    for table in ours:
        there = large.get(table.card.problem, {})
        for name, one in table.by_name().items():
            for ranking in RANKINGS if one.method.gradients > 1 else (GRADIENTS,):
                if name in there and there[name].method.source == one.method.source:
                    yield f"{name} on {table.card.problem}, {ranking}", ranking, one, there[name]


def _overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def compare(ours: Sequence[Table], theirs: Sequence[Table]) -> Agreement:
    """Tables of a fight beside those of a larger one."""
    ratios: dict[str, float] = {}
    apart, ranks_apart, ranks, diverged = [], [], 0, 0
    for name, ranking, one, other in _pairs(ours, theirs):
        small, large = (Estimate.of(it.samples[ranking]).interval() for it in (one, other))
        if math.isnan(sum(small) + sum(large)):
            diverged += 1
        else:
            width = large[1] - large[0]
            ratios[name] = (small[1] - small[0]) / width if width else math.nan
            apart += [] if _overlap(small, large) else [name]
        mine, its = (it.ranks[ranking] for it in (one, other))
        ranks += 1
        ranks_apart += [] if _overlap((mine.low, mine.high), (its.low, its.high)) else [name]
    known = [ratio for ratio in ratios.values() if not math.isnan(ratio)]
    return Agreement(len(ratios), tuple(apart), max(known, default=math.nan),
                     tuple(n for n, ratio in ratios.items() if ratio > TWICE),
                     ranks, tuple(ranks_apart), diverged)  # fmt: skip


def beside_what_ships(budget: str, ours: Sequence[Table]) -> str | None:
    """A sentence about a fight that was carried out; None where nothing larger ships."""
    there = shipped(LARGEST)
    if budget == LARGEST or there is None:
        return None
    found = compare(ours, _its_tables(there))
    if not found.ranks:
        return None
    return f"beside the budget {LARGEST} that ships, {there.made['time']}: {found}"


def _its_tables(there: Shipped) -> list[Table]:
    plan = enter(LARGEST, check=False).plan
    return tables(plan, there.records, there.failures)
