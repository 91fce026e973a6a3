"""A small fight beside a large one, of made-up numbers whose answer is known."""

import math

import numpy as np
import pytest

from antipgd.paper.fight.agreeing import beside_what_ships, compare
from antipgd.paper.fight.budgets import Card
from antipgd.paper.fight.contestant import built_in, contestant
from antipgd.paper.fight.planning import GRADIENTS, RANKINGS, STEPS, Settled
from antipgd.paper.fight.ranking import ranked
from antipgd.paper.fight.standings import Standing, Table

SPREAD = np.linspace(-1, 1, 20)


def _table(scores, steps=None):
    """Goodness of each method by seed, at equal gradients and at equal steps."""
    by = {GRADIENTS: scores, STEPS: steps or scores}
    ranks = {r: ranked(np.array([*by[r].values()])) for r in RANKINGS}
    standings = [
        Standing(contestant(name, built_in()[name]), Settled(1.0, 0.1, False),
                 {r: np.array(by[r][name]) for r in RANKINGS},
                 {r: ranks[r][place] for r in RANKINGS}, {r: {} for r in RANKINGS})
        for place, name in enumerate(scores)
    ]  # fmt: skip
    return Table(Card("regression", len(next(iter(scores.values())))), standings, {})


def test_a_fight_agrees_with_itself():
    table = _table({"gd": 3 + SPREAD, "sam": SPREAD})
    found = compare([table], [table])
    assert (found.scores, found.ranks, found.diverged) == (3, 3, 0)  # SAM has two rankings
    assert found.widest == pytest.approx(1)
    assert not found.apart
    assert not found.ranks_apart
    assert not found.wider


def test_what_is_apart_and_what_is_wide_is_named():
    large = _table({"gd": 3 + SPREAD, "sam": SPREAD})
    small = _table({"gd": 3 + 3 * SPREAD, "sam": SPREAD}, {"gd": SPREAD, "sam": 9 + SPREAD})
    found = compare([small], [large])
    assert found.apart == ("sam on regression, equal steps",)
    assert found.wider == ("gd on regression, equal gradients",)
    assert found.widest == pytest.approx(3)
    assert found.ranks_apart == ("sam on regression, equal steps",)
    assert "2 of 3 intervals of scores overlap" in str(found)
    assert "3 times as wide, more than twice in 1 (not gd on regression" in str(found)


def test_a_method_that_diverged_is_counted_apart():
    lost = np.where(SPREAD < 0.9, SPREAD, -math.inf)
    found = compare([_table({"gd": lost, "pgd": SPREAD})], [_table({"gd": SPREAD, "pgd": SPREAD})])
    assert (found.scores, found.diverged) == (1, 1)


def test_a_method_that_diverged_in_every_seed_is_last_in_both():
    lost = np.full(20, -math.inf)
    small, large = (
        [_table({"gd": lost[:n], "pgd": SPREAD[:n], "label_noise": 1 + SPREAD[:n]})]
        for n in (3, 20)
    )
    found = compare(small, large)
    assert (found.diverged, found.ranks_apart) == (1, ())
    last = small[0].by_name()["gd"].ranks[GRADIENTS]
    assert (last.low, last.rank, last.high) == (3, 3, 3)


def test_only_what_both_have_is_compared(monkeypatch):
    found = compare([_table({"gd": SPREAD})], [_table({"pgd": SPREAD})])
    assert (found.scores, found.ranks) == (0, 0)
    assert beside_what_ships("night", []) is None
    monkeypatch.setattr("antipgd.paper.fight.agreeing.shipped", lambda budget: None)
    assert beside_what_ships("25m", [_table({"gd": SPREAD})]) is None
