"""How often ranks of fresh seeds, and true ranks, lie in the intervals of a fight: what the page
says of it is printed here, by `pytest -m slow tests/paper/fight/test_rank_intervals.py -s`.

Simulated goodness of a seed is normal with a deviation of 1. Resampling the seeds that there are
says less than it seems to where they are few, or where methods are level.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from antipgd.paper.fight.ranking import ranked, ranked_over, ranks

PAGE = Path(__file__).parents[3] / "docs" / "fight.md"
APART = 0.3  # from one method to the next
FIGHTS = 1000
PROBLEMS, METHODS = (30, 30, 30, 30, 10, 10), 17  # seeds of those that carry all methods

pytestmark = pytest.mark.slow


def _goodness(draw, true, seeds):
    return true[:, None] + draw.standard_normal((true.size, seeds))


def _inside(found, wanted):
    """The share of intervals that hold what is wanted."""
    return np.mean([one.low <= rank <= one.high for one, rank in zip(found, wanted, strict=True)])


def _of_a_problem(methods, seeds, apart):
    """Percent of the ranks of fresh seeds, and of the true ranks, that are inside."""
    draw, true, shares = np.random.default_rng(0), -apart * np.arange(methods), []
    for _ in range(FIGHTS):
        found, fresh = ranked(_goodness(draw, true, seeds)), _goodness(draw, true, seeds)
        shares.append((_inside(found, ranks(fresh.mean(1))), _inside(found, ranks(true))))
    return [round(100 * share) for share in np.mean(shares, axis=0)]


def _over_problems(spread):
    """The same of mean ranks; what a method gains on a problem has that deviation."""
    draw, shares = np.random.default_rng(0), []
    for _ in range(FIGHTS // 10):
        true = spread * draw.standard_normal((len(PROBLEMS), METHODS))
        one, fresh = (
            [_goodness(draw, by, seeds) for by, seeds in zip(true, PROBLEMS, strict=True)]
            for _ in range(2)
        )
        found, again = ranked_over(one), np.mean([ranks(many.mean(1)) for many in fresh], axis=0)
        shares.append((_inside(found, again), _inside(found, ranks(true).mean(0))))
    return [round(100 * share) for share in np.mean(shares, axis=0)]


def _says(words):
    text = re.sub(r"\s+", " ", PAGE.read_text("utf-8"))
    assert words in text, words


def test_ranks_of_fresh_seeds_leave_the_intervals_more_often_than_one_in_twenty():
    fresh, true = {}, {}
    for sizes in ((6, 3), (6, 5), (17, 10), (17, 30)):
        fresh[sizes], true[sizes] = _of_a_problem(*sizes, APART)
        print(sizes, "apart:", fresh[sizes], "% of fresh ranks inside,", true[sizes], "% of true")
    of = [f"{share} % ({methods} methods, {seeds} seeds)"
          for (methods, seeds), share in fresh.items()]  # fmt: skip
    _says(f"{', '.join(of[:-1])} and {of[-1]}")
    _says(f"True ranks lie inside in {min(true.values())} % and more")
    assert list(fresh.values()) == sorted(fresh.values())
    assert 70 < fresh[6, 3] < 85
    assert 90 < fresh[17, 30] <= 96
    assert min(true.values()) == true[6, 3] > 80


def test_it_is_worse_where_methods_are_level():
    fresh = [_of_a_problem(*sizes, 0.0)[0] for sizes in ((6, 3), (6, 5), (17, 10), (17, 30))]
    print("level:", fresh, "% of fresh ranks inside")
    _says(f"in {min(fresh)} to {max(fresh)} % where methods are level")
    assert 65 < min(fresh) < max(fresh) < 85


def test_mean_ranks_leave_theirs_too():
    found = {spread: _over_problems(spread) for spread in (0.0, 0.15, 0.3, 1.0)}
    print("mean ranks, fresh and true, by spread:", found)
    fresh, true = zip(*found.values(), strict=True)
    _says(f"Of mean ranks over problems {min(fresh)} to {max(fresh)} % are inside")
    _says(f"of true ones {min(true)} % and more")
    assert 70 < min(fresh) < max(fresh) < 93
    assert min(true) > 80
