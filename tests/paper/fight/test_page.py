"""The page: its example is a contestant, and what ships comes back as it was."""

import re
from pathlib import Path

import pytest

from antipgd.paper.fight import shipping
from antipgd.paper.fight.contestant import built_in, contestant
from antipgd.paper.fight.fighting import enter
from antipgd.paper.fight.match import Match
from antipgd.paper.fight.planning import in_the_middle
from antipgd.paper.fight.playing import play_one
from antipgd.paper.fight.problem import VALIDATION
from antipgd.paper.fight.shipping import MARKS, filled, known, packed, shipped, unpack, unpacked
from antipgd.paper.fight.standings import MISSING, tables
from antipgd.paper.pipeline import open_store
from antipgd.paper.record import Failure, Record

PAGE = Path(__file__).parents[3] / "docs" / "fight.md"
NOTHING = "No budget has been run to its end yet."


def test_the_example_of_the_page_fights() -> None:
    text = re.search(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[1]  # type: ignore[index]
    one = contestant("mine", text)
    assert (one.title, len(one.grid)) == ("Half noise", 5)
    assert len(text.splitlines()) <= 20
    match = Match("regression", "mine", one.source, 0.1, 0.02, 5000, 24, VALIDATION)
    (record,) = play_one(match, tell=lambda said: None, device="cpu", texts={one.source: text})
    assert isinstance(record, Record)
    assert record.status == "ok"


def _loss(match: Match) -> float | None:
    return None if match.value > 3 else 1.0 + match.value + match.seed / 7


def _made(match: Match) -> Record:
    loss = _loss(match)
    points = ((match.steps, "seconds", 1.0),)
    if loss is None:
        return Record(match, "diverged", 1, None, points, {}, None, None)
    return Record(
        match, "ok", None, None, ((match.steps, "test_loss", loss), *points), {}, None, None
    )


@pytest.fixture
def packed_fight(tmp_path: Path) -> bytes:
    plan = enter("25m", only=["regression"], methods=["gd", "sam"], check=False).plan
    store = open_store(tmp_path)
    ill = None
    for match in plan.following(in_the_middle):
        if ill is None and match.method == "gd":
            ill = match
            store.put_failure(Failure(match, "its grandmother was ill", "where"))
        else:
            store.put(_made(match))
    return packed("25m", plan, store)


def test_what_is_packed_comes_back(packed_fight: bytes) -> None:
    there = unpacked(packed_fight)
    assert there.command == "antipgd fight --budget 25m"
    assert there.made["python"]
    assert there.records
    (failure,) = there.failures.values()
    assert failure.reason == "its grandmother was ill"
    assert all(name == r.run.name for name, r in there.records.items())
    for record in there.records.values():
        loss = _loss(record.run)
        assert record.status == ("diverged" if loss is None else "ok")
        if loss is not None:
            assert record.points[0][2] == pytest.approx(loss, rel=1e-5)


def test_a_fight_goes_on_from_what_ships(packed_fight: bytes, tmp_path: Path) -> None:
    there, store = unpacked(packed_fight), open_store(tmp_path / "elsewhere")
    assert unpack(there, store) == len(there.records)
    assert unpack(there, store) == 0
    plan = enter("25m", only=["regression"], methods=["gd", "sam"], check=False).plan
    assert known(plan, store).records == there.records
    store.put_failure(*there.failures.values())
    made = store.provenance(next(iter(there.records.values())).run)
    assert made == {**there.made, "shipped": "to six digits"}
    assert unpacked(packed("25m", plan, store)) == there


def test_a_part_is_called_one_and_is_gone_on_from(tmp_path: Path, monkeypatch, capsys) -> None:
    plan = enter("25m", only=["regression"], methods=["gd", "sam"], check=False).plan
    some, *_ = plan.following(in_the_middle)
    store = open_store(tmp_path / "fight")
    store.put(_made(some))
    assert shipping.missing(plan, store) > 0
    whole, part = (tmp_path / f"fight-25m{ending}.jsonl.xz" for ending in ("", shipping.PART))
    with pytest.raises(SystemExit, match=r"lacks [\d,]+ bouts.*must have '.part' in its name"):
        shipping._keep("25m", str(tmp_path / "fight"), str(whole))
    assert not whole.exists()
    shipping._keep("25m", str(tmp_path / "fight"), str(part))
    monkeypatch.setattr(shipping, "files", lambda package: tmp_path)
    (tmp_path / "records").mkdir()
    part.rename(tmp_path / "records" / part.name)
    assert shipped("25m") is None  # judged nowhere
    shipping._unpack("25m", str(tmp_path / "elsewhere"))
    assert "1 bouts put into" in capsys.readouterr().out
    assert open_store(tmp_path / "elsewhere").get(some) is not None
    monkeypatch.setattr(shipping, "missing", lambda plan, store: 0)
    with pytest.raises(SystemExit, match="and only then"):
        shipping._keep("25m", str(tmp_path / "fight"), str(part))
    shipping._keep("25m", str(tmp_path / "fight"), str(whole))
    assert whole.exists()


def test_the_page_is_filled_between_its_marks_only(packed_fight: bytes) -> None:
    plan = enter("25m", only=["regression"], methods=["gd", "sam"], check=False).plan
    there = unpacked(packed_fight)
    page = filled(f"before {MARKS[0]} old {MARKS[1]} after", "25m", there,
                  tables(plan, there.records, {}), "fight.png")  # fmt: skip
    assert page.startswith("before ")
    assert page.endswith(" after")
    assert " old " not in page
    assert there.command in page


def test_shipped_bouts_are_of_the_files_and_sizes_of_today() -> None:
    there = shipped("night")
    if there is None:
        assert NOTHING in PAGE.read_text("utf-8")
        return
    assert NOTHING not in PAGE.read_text("utf-8")
    sources = {contestant(name, text).source for name, text in built_in().items()}
    assert {record.run.source for record in there.records.values()} <= sources
    found = tables(enter("night", check=False).plan, there.records, there.failures)
    assert all(table.standings for table in found)
    assert not [why for table in found for why in table.out.values() if why == MISSING]


def test_what_older_code_made_does_not_count(packed_fight: bytes, monkeypatch) -> None:
    monkeypatch.setattr("antipgd.paper.fight.match.RESULTS_VERSION", 2)
    there = unpacked(packed_fight)
    assert not there.records
    assert not there.failures
