"""Ranks and their intervals."""

import numpy as np

from antipgd.paper.fight.ranking import counted, ranked, ranked_over, ranks


def test_ranks_count_the_better_ones_and_share_ties() -> None:
    assert ranks(np.array([3.0, 5.0, 1.0])).tolist() == [2, 1, 3]
    assert ranks(np.array([2.0, 2.0, 1.0])).tolist() == [1.5, 1.5, 3]


def test_a_bout_that_diverged_counts_as_the_worst_of_its_seed() -> None:
    samples = np.array([[1.0, 5.0], [-np.inf, 4.0], [0.0, -np.inf]])
    assert counted(samples).tolist() == [[1, 5], [0, 4], [0, 4]]
    assert counted(np.full((2, 1), -np.inf)).tolist() == [[0], [0]]


def test_what_is_apart_has_a_narrow_interval_and_what_is_level_a_wide_one() -> None:
    noise = np.random.default_rng(0).standard_normal((3, 40))
    first, *level = ranked(noise + np.array([[5.0], [0.0], [0.02]]))
    assert (first.rank, first.low, first.high) == (1, 1, 1)
    assert all((one.low, one.high) == (2, 3) for one in level)


def test_seeds_are_paired() -> None:
    """A difference much smaller than what seeds share is seen."""
    shared = 100 * np.random.default_rng(1).standard_normal(12)
    better, worse = ranked(np.stack([shared + 0.1, shared]))
    assert (better.high, worse.low) == (1, 2)


def test_mean_ranks_over_problems() -> None:
    one, two = np.array([[2.0, 2], [1, 1], [0, 0]]), np.array([[0.0, 0], [1, 1], [2, 2]])
    assert [rank.rank for rank in ranked_over([one, two])] == [2, 2, 2]
    assert [rank.rank for rank in ranked_over([one, one, two])] == [5 / 3, 2, 7 / 3]
