"""Ranks and their intervals."""

import numpy as np

from antipgd.paper.fight.ranking import counted, ranked, ranked_over, ranks


def test_ranks_count_the_better_ones_and_share_ties() -> None:
    assert ranks(np.array([3.0, 5.0, 1.0])).tolist() == [2, 1, 3]
    assert ranks(np.array([2.0, 2.0, 1.0])).tolist() == [1.5, 1.5, 3]


def test_a_bout_that_diverged_takes_the_value_of_the_worst_of_its_seed() -> None:
    samples = np.array([[1.0, 5.0], [-np.inf, 4.0], [0.0, -np.inf]])
    assert counted(samples).tolist() == [[1, 5], [0, 4], [0, 4]]
    assert counted(np.full((2, 1), -np.inf)).tolist() == [[0], [0]]


def test_who_diverged_is_behind_the_worst_that_did_not() -> None:
    """However many seeds there are, and whatever is resampled; who diverged as often is level."""
    for seeds in (3, 30):
        lost, worst = np.full(seeds, -np.inf), np.full(seeds, 0.9)
        found = ranked(np.stack([lost, worst, lost, worst + 0.01]))
        assert [(one.low, one.rank, one.high) for one in found] == [
            (3.5, 3.5, 3.5), (2, 2, 2), (3.5, 3.5, 3.5), (1, 1, 1)
        ]  # fmt: skip


def test_of_equal_means_who_diverged_less_often_is_ahead() -> None:
    once, twice, never = np.array([[0.5, 0.5, -np.inf], [0.5, -np.inf, -np.inf], [0.5, 0.5, 0.5]])
    assert [one.rank for one in ranked(np.stack([once, twice, never]))] == [2, 3, 1]


def test_a_bout_that_diverged_does_not_undo_what_is_ahead_on_other_seeds() -> None:
    samples = np.array([[3.0, 3.0, 3.0, -np.inf], [1.0, 1.0, 1.0, 1.0]])
    assert [one.rank for one in ranked(samples)] == [1, 2]


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
