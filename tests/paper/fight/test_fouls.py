"""What a method may not do is said by name, and the others go on."""

from dataclasses import replace
from pathlib import Path

import pytest

from antipgd.paper.fight import budgets
from antipgd.paper.fight.budgets import Card
from antipgd.paper.fight.contestant import contestant
from antipgd.paper.fight.fighting import enter, fight
from antipgd.paper.fight.match import Match
from antipgd.paper.fight.playing import play_one
from antipgd.paper.fight.problem import VALIDATION
from antipgd.paper.fight.problems import small
from antipgd.paper.fight.watching import FoulError
from antipgd.paper.fight.writing import who_is_out

HEAD = "import random\nimport numpy, torch\nGRADIENTS = 1\nGRID = (0.5, 1.0)\n"
PLAIN = "    return bout.descend(w, bout.gradient(w))\n"
FOULS = {
    "a_wrong_shape": ("    return w[:-1]\n", r"step returned torch.float64 of shape \(99,\)"),
    "another_type": ("    return w.float()\n", "step returned torch.float32"),
    "nothing": ("    pass\n", "step returned None, not weights"),
    "changed_data": ("    bout.problem.data.y[:] = 0\n" + PLAIN, "it changed the data"),
    "pythons": ("    random.random()\n" + PLAIN, "drew from Python's random global generator"),
    "numpys": ("    numpy.random.rand()\n" + PLAIN, "drew from NumPy's global generator"),
    "torchs": ("    torch.rand(1)\n" + PLAIN, "drew from torch's global generator"),
    "greedy": ("    bout.gradient(w)\n" + PLAIN, "declares GRADIENTS = 1"),
}


def _text(body: str) -> str:
    return f"{HEAD}def step(bout, w):\n{body}"


def _play(text: str, steps: int = 3):
    one = contestant("mine", text)
    match = Match("regression", "mine", one.source, 1.0, 0.05, 5000, steps, VALIDATION)
    return play_one(match, tell=lambda said: None, device="cpu", texts={one.source: text})[0]


@pytest.mark.parametrize("name", FOULS)
def test_a_foul_is_named(name: str) -> None:
    body, said = FOULS[name]
    with pytest.raises(FoulError, match=said):
        _play(_text(body))


def test_a_foul_at_the_last_step_is_seen_too() -> None:
    with pytest.raises(FoulError, match="it changed the data"):
        _play(_text("    if bout.n == 3: bout.problem.data.y[:] = 0\n" + PLAIN))


def test_weights_that_are_no_numbers_have_diverged() -> None:
    record = _play(_text("    return w * float('nan')\n"))
    assert (record.status, record.diverged_at) == ("diverged", 1)
    assert "test_loss" not in {name for _, name, _ in record.points}


def test_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = {name: replace(one, steps=24) for name, one in small.SIZES.items()}
    monkeypatch.setattr(small, "SIZES", short)
    monkeypatch.setitem(budgets.BUDGETS, "25m", (Card("regression", 2, 1),))
    files = {"shape": FOULS["a_wrong_shape"][0], "nan": "    return w * float('nan')\n",
             "broken": "    return 1 / 0\n", "fine": PLAIN}  # fmt: skip
    for name, body in files.items():
        (tmp_path / f"{name}.py").write_text(_text(body))
    (tmp_path / "unreadable.py").write_text("def step(:\n")
    paths = [tmp_path / f"{name}.py" for name in (*files, "unreadable")]
    entered = enter("25m", methods=["gd", "sgd", "sam"], strangers=paths)
    fought = fight("25m", entered, tmp_path / "out", count=1, show_progress=False)
    (table,) = fought.tables
    assert set(table.by_name()) == {"gd", "sgd", "sam", "fine"}
    assert "of shape (99,)" in table.out["shape"]
    assert "not finite numbers" in table.out["nan"]
    assert "division by zero" in table.out["broken"]
    assert "SyntaxError" in entered.refused[str(tmp_path / "unreadable.py")]
    assert all(name in who_is_out(fought.tables) for name in ("shape", "nan", "broken"))
    page = (tmp_path / "out" / "fight.md").read_text()
    assert "| SAM |" in page
    assert "division by zero" in page
    again = fight("25m", entered, tmp_path / "out", count=1, show_progress=False)
    assert again.outcome.found == len(again.outcome.records) + len(again.outcome.failures)
    assert (tmp_path / "out" / "fight.md").read_text() == page
