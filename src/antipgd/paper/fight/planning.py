"""Which bouts follow from what is known: learning rates, everybody's own value, then judged ones.

All have as many values and seeds to be tuned with, and each of these bouts as many gradients: who
takes two a step has half of the steps. Bases tune the learning rate, the others of their order have
the base's. What was tuned at equal gradients is judged twice, at equal gradients and at equal
steps; for a method of one gradient these are the same bouts.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from antipgd.paper.fight.budgets import Card
from antipgd.paper.fight.contestant import ADAMW, BASES, RATE, Contestant
from antipgd.paper.fight.match import Match
from antipgd.paper.fight.problem import FULL, LOSS, VALIDATION
from antipgd.paper.fight.problems import sizes
from antipgd.paper.record import Record

GRADIENTS, STEPS = "equal gradients", "equal steps"
RANKINGS = (GRADIENTS, STEPS)


class Settled(NamedTuple):
    """What was tuned: the value, the learning rate, and whether it is at an end of the grid."""

    value: float
    lr: float
    at_end: bool


Settle = Callable[[Card, Contestant, float | None], Settled | None]


def steps_of(card: Card, one: Contestant, ranking: str) -> int:
    """The length of a bout."""
    steps = sizes(card.problem).steps
    return steps // one.gradients if ranking == GRADIENTS else steps


def _rate(card: Card, one: Contestant, value: float, base: float | None) -> float:
    return value * sizes(card.problem).lr if base is None else base


def tuning(card: Card, one: Contestant, base: float | None) -> dict[float, list[Match]]:
    """The bouts that tune a method, by value; `base` is the learning rate of its base."""
    steps = steps_of(card, one, GRADIENTS)
    return {
        value: [
            Match(card.problem, one.name, one.source, value, _rate(card, one, value, base), seed,
                  steps, VALIDATION)
            for seed in card.tuning_seeds
        ]
        for value in one.grid
    }  # fmt: skip


def judged(card: Card, one: Contestant, settled: Settled, ranking: str) -> list[Match]:
    """The bouts that are ranked."""
    steps = steps_of(card, one, ranking)
    return [
        Match(card.problem, one.name, one.source, settled.value, settled.lr, seed, steps)
        for seed in card.judged_seeds
    ]


def goodness(problem: str, record: Record | None) -> float:
    """What is ranked, the more the better: accuracy, or minus the logarithm of the test loss; −∞ of
    a bout that diverged."""
    if record is None or record.status != "ok":
        return -math.inf
    found = {name: value for _, name, value in record.points}
    if sizes(problem).kind != LOSS:
        return float(found["accuracy"])
    return -math.log(max(float(found["test_loss"]), 1e-300))


def settling(records: Mapping[str, Record]) -> Settle:
    """The best value by the mean over tuning seeds; None while bouts are missing, or if all
    diverged."""

    def settle(card: Card, one: Contestant, base: float | None) -> Settled | None:
        bouts = tuning(card, one, base)
        if any(match.name not in records for many in bouts.values() for match in many):
            return None
        means = {
            value: float(np.mean([goodness(card.problem, records[m.name]) for m in many]))
            for value, many in bouts.items()
        }
        best = max(means, key=lambda value: means[value])
        if means[best] == -math.inf:
            return None
        ends = (min(one.grid), max(one.grid))
        return Settled(best, bouts[best][0].lr, best in ends and len(one.grid) > 1)

    return settle


def in_the_middle(card: Card, one: Contestant, base: float | None) -> Settled:
    """Nothing is known yet: to count what there will be to do."""
    value = one.grid[len(one.grid) // 2]
    return Settled(value, _rate(card, one, value, base), False)


@dataclass(frozen=True)
class Plan:
    """Cards and contestants; bases are tuned whether they are contestants or not."""

    cards: Sequence[Card]
    contestants: Mapping[str, Contestant]
    bases: Mapping[str, Contestant]
    strangers: frozenset[str] = frozenset()  # whom every card carries

    def of(self, card: Card) -> list[Contestant]:
        """The contestants of a card."""
        named = card.methods or tuple(self.contestants)
        return [one for name, one in self.contestants.items()
                if (name in named or name in self.strangers)
                and (not one.only or card.problem in one.only)]  # fmt: skip

    def base(self, card: Card, one: Contestant) -> Contestant:
        """The method whose learning rate another has."""
        own = sizes(card.problem).optimizer == ADAMW and ADAMW in self.bases
        return self.bases[ADAMW if own else BASES[one.order]]

    def base_rate(self, card: Card, one: Contestant, settle: Settle) -> float | None:
        """The learning rate of a method's base; None while it is not known."""
        found = settle(card, self.base(card, one), None)
        return None if found is None else found.lr

    def settled(self, card: Card, one: Contestant, settle: Settle) -> Settled | None:
        """What was tuned of a method on a card."""
        if one.tunes == RATE:
            return settle(card, one, None)
        base = self.base_rate(card, one, settle)
        return None if base is None else settle(card, one, base)

    def _of_one(self, card: Card, one: Contestant, settle: Settle) -> Iterable[Match]:
        base = None
        if one.tunes != RATE:
            yield from _all(tuning(card, self.base(card, one), None))
            base = self.base_rate(card, one, settle)
            if base is None:
                return
        yield from _all(tuning(card, one, base))
        settled = settle(card, one, base)
        if settled is not None:
            for ranking in RANKINGS:
                yield from judged(card, one, settled, ranking)

    def following(self, settle: Settle) -> list[Match]:
        """All bouts that are known to be needed, each once."""
        found = {
            match.name: match
            for card in self.cards
            for one in self.of(card)
            for match in self._of_one(card, one, settle)
        }
        return [*found.values()]


def _all(bouts: Mapping[float, Sequence[Match]]) -> Iterable[Match]:
    for many in bouts.values():
        yield from many


def seconds(match: Match, one: Contestant) -> float:
    """What a bout will take on one core, about."""
    it = sizes(match.problem)
    each = (it.full_seconds or it.seconds) if one.order == FULL else it.seconds
    rest = it.judging if match.held_out != VALIDATION else min(it.judging, 0.3)
    return match.steps * one.gradients * each + rest
