"""A contestant is its file: a stranger's is treated as one that ships."""

from dataclasses import replace
from pathlib import Path

import pytest

from antipgd.paper.fight.bout import Bout
from antipgd.paper.fight.contestant import (
    BASES,
    ContestantError,
    built_in,
    contestant,
    digest,
    read,
)
from antipgd.paper.fight.match import Match
from antipgd.paper.fight.playing import play_one
from antipgd.paper.fight.problem import VALIDATION
from antipgd.paper.record import Record

ASKED = {
    "gd", "sgd_replacement", "sgd", "sgd_ema", "sgd_weight_decay", "pgd", "anti_pgd",
    "anti_pgd_hold_2", "anti_pgd_antithetic", "anti_sgd", "label_noise", "sam", "asam", "f_sam",
    "two_point", "arwp", "m_rwp",
}  # fmt: skip


def _played(name: str, text: str, problem: str = "regression", steps: int = 40) -> Record:
    one = contestant(name, text)
    match = Match(problem, name, one.source, one.grid[1], 0.02, 5000, steps, VALIDATION)
    (record,) = play_one(match, tell=lambda said: None, device="cpu", texts={one.source: text})
    assert isinstance(record, Record)
    return record


def _numbers(record: Record) -> dict[str, float]:
    return {name: value for _, name, value in record.points if name != "seconds"}


def test_all_that_were_asked_for_are_there_and_a_base_for_every_order() -> None:
    assert set(built_in()) >= ASKED
    assert set(BASES.values()) <= ASKED


@pytest.mark.parametrize("problem", ["regression", "digits"])
def test_a_strangers_sam_gives_the_numbers_of_the_built_in_one(
    problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "a_strangers_idea.py"
    path.write_text(built_in()["sam"])
    mine = read(path, built_in())
    assert mine.name == "a_strangers_idea"
    own, other = (_played(name, mine.text, problem, 12) for name in ("sam", mine.name))
    assert _numbers(own) == _numbers(other)
    assert own.run.name != other.run.name


def test_a_changed_file_makes_other_bouts() -> None:
    text = built_in()["sam"]
    ones = [contestant("sam", one) for one in (text, text + "# changed\n")]
    match = Match("regression", "sam", ones[0].source, 0.01, 0.1, 0, 10)
    assert match.name != replace(match, source=ones[1].source).name
    assert ones[0].source == digest(text)


@pytest.mark.parametrize("name", sorted(ASKED))
def test_every_method_steps_on_matrices_and_vectors(name: str) -> None:
    for problem in ("regression", "student_teacher"):
        record = _played(name, built_in()[name], problem, 24)
        assert record.status == "ok"
        gradients = contestant(name, built_in()[name]).gradients
        assert _numbers(record)["gradients"] == 24 * gradients


def test_the_declaration_is_checked_by_name() -> None:
    whole = "GRADIENTS = 1\nGRID = (1,)\ndef step(bout, w): return w\n"
    assert contestant("fine", whole).grid == (1.0,)
    for text, said in [
        ("GRID = (1,)\ndef step(bout, w): return w\n", "mine: its file has no GRADIENTS"),
        (whole.replace("(1,)", "()"), "GRID needs at least one value"),
        (whole.replace("= 1\n", "= 0\n"), "GRADIENTS must be .* got 0"),
        (whole + "ORDER = 'sorted'\n", "'sorted'"),
        ("import nowhere_to_be_found\n", "its file cannot be run: ModuleNotFoundError"),
        ("raise SystemExit(3)\n", "its file cannot be run: SystemExit"),
    ]:
        with pytest.raises(ContestantError, match=said):
            contestant("mine", text)


def test_a_name_that_is_taken_and_a_file_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "sam.py").write_text(built_in()["sam"])
    with pytest.raises(ContestantError, match="there is a method called 'sam'; rename the file"):
        read(tmp_path / "sam.py", built_in())
    with pytest.raises(ContestantError, match="cannot be read"):
        read(tmp_path / "nowhere.py", ())


def test_anti_pgd_is_the_papers_in_the_weights_without_their_noise() -> None:
    """w-form: w ← w − η∇L(w) + σ(ξ_{n+1} − ξ_n); its w − σξ_n is the weights of the file."""
    from antipgd.paper.fight.problems import make

    problem, lr, steps = make("regression", 5000), 0.02, 9
    one = contestant("anti_pgd", built_in()["anti_pgd"])
    bout = Bout(problem, value=0.1, lr=lr, steps=600, seed=5000, order=one.order)
    sigma = 0.1 * bout.start_rms
    z = problem.start()
    w = z + sigma * bout.draw(1)
    for n in range(1, steps + 1):
        bout.begin(n)
        z = one.step(bout, z)
        w = w - lr * problem.gradient(w) + sigma * (bout.draw(n + 1) - bout.draw(n))
    assert float((w - sigma * bout.draw(steps + 1) - z).abs().max()) < 1e-12
