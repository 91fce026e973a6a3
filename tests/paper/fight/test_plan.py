"""Equal budgets, and who is judged where."""

from collections import Counter
from pathlib import Path

import pytest

from antipgd.paper.fight.budgets import BUDGETS, CHEAP, TUNING_SEEDS, Card
from antipgd.paper.fight.contestant import BASES, RATE, built_in, contestant
from antipgd.paper.fight.match import Match
from antipgd.paper.fight.planning import Plan, in_the_middle, settling
from antipgd.paper.fight.problem import VALIDATION
from antipgd.paper.fight.problems import sizes
from antipgd.paper.record import Record

ALL = {name: contestant(name, text) for name, text in built_in().items()}
GENERAL = {name: one for name, one in ALL.items() if not one.only}
PAGE = Path(__file__).parents[3] / "docs" / "fight.md"
CARD = Card("regression", 4, 3)


def _plan(names=tuple(GENERAL)) -> Plan:
    return Plan([CARD], {name: ALL[name] for name in names}, {n: ALL[n] for n in BASES.values()})


def _gradients(match: Match) -> int:
    return match.steps * ALL[match.method].gradients


def test_every_method_is_tuned_with_as_many_gradients() -> None:
    matches = [m for m in _plan().following(in_the_middle) if m.held_out == VALIDATION]
    spent: Counter[str] = Counter()
    for match in matches:
        spent[match.method] += _gradients(match)
    assert set(spent) == set(GENERAL)
    assert set(spent.values()) == {5 * 3 * sizes("regression").steps}


def test_tuning_and_judging_share_no_seed() -> None:
    for cards in BUDGETS.values():
        for card in cards:
            assert not {*card.judged_seeds} & {*card.tuning_seeds}
            assert card.seeds < TUNING_SEEDS


def test_two_gradients_a_step_are_judged_at_half_the_steps_and_at_all() -> None:
    judged = [m for m in _plan(("sam", "sgd")).following(in_the_middle) if m.held_out != VALIDATION]
    steps = sizes("regression").steps
    lengths = Counter((m.method, m.steps) for m in judged)
    assert lengths == {("sam", steps // 2): 4, ("sam", steps): 4, ("sgd", steps): 4}


def test_a_smaller_budget_is_part_of_a_larger_one() -> None:
    small, large = ({card.problem: card for card in BUDGETS[name]} for name in ("25m", "night"))
    assert set(small) == set(CHEAP) <= set(large)
    for name, card in small.items():
        assert card.tuning == large[name].tuning
        assert card.seeds >= 10
        assert 30 <= large[name].seeds <= 3 * card.seeds


def test_dear_problems_have_six_methods_and_three_seeds_at_least() -> None:
    for card in BUDGETS["night"]:
        if card.few:
            assert len(card.methods or ()) <= 6
            assert card.seeds >= 3


def _made(match: Match, loss: float | None) -> Record:
    row = (match.steps, "test_loss", loss)
    if loss is None:
        return Record(match, "diverged", 1, None, ((match.steps, "seconds", 1.0),), {}, None, None)
    return Record(match, "ok", None, None, (row,), {}, None, None)


def _records(plan: Plan, loss) -> dict[str, Record]:
    records: dict[str, Record] = {}
    for _ in range(3):
        for match in plan.following(settling(records)):
            records.setdefault(match.name, _made(match, loss(match)))
    return records


def test_others_have_the_rate_of_their_base_and_the_value_that_was_best() -> None:
    plan = _plan(("sam", "anti_pgd"))
    best = {"sgd": 0.5, "gd": 2.0, "sam": 0.01, "anti_pgd": 0.2}
    records = _records(plan, lambda m: 1.0 + abs(m.value - best[m.method]))
    judged = {r.run.method: r.run for r in records.values() if r.run.held_out != VALIDATION}
    lr = sizes("regression").lr
    assert (judged["sam"].value, judged["sam"].lr) == (0.01, 0.5 * lr)
    assert (judged["anti_pgd"].value, judged["anti_pgd"].lr) == (0.2, 2.0 * lr)
    assert set(judged) == {"sam", "anti_pgd"}  # bases are tuned for them, not judged


def test_at_equal_steps_the_value_is_that_of_half_the_steps_and_the_page_says_so() -> None:
    best = {"sgd": 0.5, "sam": 0.01}
    records = _records(_plan(("sam",)), lambda m: 1.0 + abs(m.value - best[m.method]))
    of_sam = [record.run for record in records.values() if record.run.method == "sam"]
    tuned = {run.steps for run in of_sam if run.held_out == VALIDATION}
    judged = {(run.steps, run.value) for run in of_sam if run.held_out != VALIDATION}
    steps = sizes("regression").steps
    assert tuned == {steps // 2}
    assert judged == {(steps // 2, 0.01), (steps, 0.01)}
    text = " ".join(PAGE.read_text("utf-8").split())
    assert "At equal steps these have the value that was tuned at half of those steps" in text


def test_a_value_that_diverges_once_is_not_chosen_and_an_end_of_the_grid_is_said() -> None:
    plan = _plan(("sgd",))
    records = _records(plan, lambda m: None if m.value == 2.0 and m.seed == 1001 else 1 / m.value)
    settled = plan.settled(CARD, ALL["sgd"], settling(records))
    assert settled is not None
    assert settled.value == 1.0
    assert not settled.at_end
    larger = plan.settled(CARD, ALL["sgd"], settling(_records(plan, lambda m: 1 / m.value)))
    assert larger is not None
    assert larger.value == 2.0
    assert larger.at_end


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_method_has_as_many_values(name: str) -> None:
    assert len(ALL[name].grid) == 5
    assert ALL[name].tunes == RATE or ALL[name].order in BASES
