"""What a page says of made-up standings whose answer is known."""

import numpy as np

from antipgd.paper.fight.budgets import Card
from antipgd.paper.fight.contestant import built_in, contestant
from antipgd.paper.fight.planning import RANKINGS, Settled
from antipgd.paper.fight.ranking import ranked
from antipgd.paper.fight.standings import Standing, Table
from antipgd.paper.fight.writing import page, who_beats_whom

MEASURED = {"seconds": [1.0], "gradients": [10.0]}
PROBLEMS = ("digits", "fashion", "fashion_batch_norm", "cifar10", "cifar10_batch_norm")
WAVE = np.array([1.0, -1.0, 0.5, -0.5, 0.25, -0.25, 0.0, 0.0])


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


def _against(said, name):
    """What the paragraph says of Anti-SGD and another method."""
    title = contestant(name, built_in()[name]).title
    return said.split(f"against {title}: ")[1].split(". Anti-")[0]


def _fought(gains, seeds=WAVE, problem="digits"):
    """Anti-SGD's gain in points over each of some methods, with a spread of a point."""
    base = 0.8 + 0 * seeds
    return _table(problem, {"anti_sgd": base} | {
        name: base - (gain + spread * seeds) / 100 for name, (gain, spread) in gains.items()
    })  # fmt: skip


def test_who_beats_whom_is_better_worse_level_or_undecided():
    gains = {"sgd": (5, 1), "two_point": (-5, 1), "sam": (0.1, 0.1), "sgd_weight_decay": (0.5, 2)}
    said = who_beats_whom([_fought(gains)])
    assert "comparisons here (4)" in said
    for name, verdict in (
        ("sgd", "better (+5 points [+4.5, +5.5], 8 seeds)"),
        ("two_point", "worse (-5 points [-5.5, -4.5], 8 seeds)"),
        ("sam", "level (+0.1 points [+0.049, +0.15], 8 seeds)"),  # apart by nothing to speak of
        ("sgd_weight_decay", "undecided (+0.5 points"),
    ):
        assert _against(said, name).startswith(f"digits {verdict}")


def test_ratios_of_losses_are_level_within_a_twentieth():
    wave = WAVE / 100
    said = who_beats_whom([_table("regression", {"anti_sgd": wave, "sgd": 0 * wave - 0.02,
                                                 "sam": -wave - 0.5})])  # fmt: skip
    assert _against(said, "sgd").startswith("regression level (0.98×")
    assert _against(said, "sam").startswith("regression better (0.61×")


def test_verdicts_are_by_holm_over_all_comparisons_of_the_paragraph():
    """What one comparison decides, it does not among many that decide nothing."""
    decided, nothing = (2.0, 3.6), (0.0, 5.0)
    alone = who_beats_whom([_fought({"sgd": decided})])
    assert _against(alone, "sgd").startswith("digits better (+2 points")
    many = [_fought({"sgd": decided if problem == "digits" else nothing, "sam": nothing},
                    problem=problem) for problem in PROBLEMS]  # fmt: skip
    said = who_beats_whom(many)
    assert "comparisons here (10)" in said
    assert _against(said, "sgd").startswith("digits undecided by Holm (+2 points")


def test_level_is_by_holm_too():
    nearly = (0.3, 1.0)
    assert "digits level" in who_beats_whom([_fought({"sgd": nearly})])
    many = [_fought({"sgd": nearly if problem == "digits" else (0, 5)}, problem=problem)
            for problem in PROBLEMS]  # fmt: skip
    assert "digits undecided by Holm" in who_beats_whom(many)


def test_few_seeds_that_agree_or_are_one_are_no_trouble():
    same = np.zeros(3)
    said = who_beats_whom([_fought({"sgd": (0, 1), "sam": (2, 1)}, same)])
    assert _against(said, "sgd").startswith("digits level (+0 points [+0, +0], 3 seeds)")
    assert _against(said, "sam").startswith("digits better (+2 points")
    assert who_beats_whom([_fought({"sgd": (2, 1)}, np.zeros(1))]) == ""


def test_who_diverged_is_said_and_not_compared():
    lost = np.where(WAVE > 0, 0.5, -np.inf)
    said = who_beats_whom([_table("digits", {"anti_sgd": WAVE, "sgd": lost, "sam": WAVE - 5})])
    assert _against(said, "sgd").startswith("digits diverged in 5 of 8 seeds")
    assert "comparisons here (1)" in said
