"""What a page says of made-up standings whose answer is known."""

import numpy as np

from antipgd.paper.fight.budgets import Card
from antipgd.paper.fight.contestant import built_in, contestant
from antipgd.paper.fight.planning import RANKINGS, Settled
from antipgd.paper.fight.ranking import ranked
from antipgd.paper.fight.standings import Standing, Table
from antipgd.paper.fight.writing import page

MEASURED = {"seconds": [1.0], "gradients": [10.0]}


def _table(problem, scores):
    """Goodness of each method by seed, the same in both rankings."""
    ranks = ranked(np.array([*scores.values()]))
    standings = [
        Standing(contestant(name, built_in()[name]), Settled(1.0, 0.1, False),
                 dict.fromkeys(RANKINGS, np.array(samples)), dict.fromkeys(RANKINGS, rank),
                 dict.fromkeys(RANKINGS, MEASURED))
        for (name, samples), rank in zip(scores.items(), ranks, strict=True)
    ]  # fmt: skip
    return Table(Card(problem, len(next(iter(scores.values())))), standings, {})


def test_a_page_says_what_its_brackets_hold():
    said = page("25m", [_table("digits", {"sgd": [0.8, 0.9, 0.7]})], {}, "fight.png")
    assert "95 % of the ranks when these seeds are resampled" in said
    assert "anew" not in said
