"""Bouts that ship with the package, with their provenance, and the page that is made from them.

`python -m antipgd.paper.fight.shipping keep night fight OUT.jsonl.xz` packs the store of the folder
`fight`; `… page night docs/fight.md` writes figure, paragraphs and tables between the page's marks.
One line says which command made the records and where; then a line for each bout.
"""

import json
import lzma
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from antipgd.paper import figures
from antipgd.paper.fight.drawing import draw
from antipgd.paper.fight.fighting import enter
from antipgd.paper.fight.match import Match
from antipgd.paper.fight.planning import Plan, settling
from antipgd.paper.fight.standings import Table, tables
from antipgd.paper.fight.writing import paragraphs, tables_text
from antipgd.paper.files import write
from antipgd.paper.pipeline import Outcome, open_store, stored
from antipgd.paper.record import Record, record_from
from antipgd.paper.store import Store

MARKS = ("<!-- fight begins -->", "<!-- fight ends -->")
_MADE = ("antipgd", "code", "python", "torch", "processor", "time")


class Shipped(NamedTuple):
    """Records by the name of their bout, and how they were made."""

    records: dict[str, Record]
    command: str
    made: dict[str, str]


def known(plan: Plan, store: Store) -> Outcome:
    """What a store has of a fight, stage by stage."""
    outcome = Outcome()
    for _ in range(3):
        matches = plan.following(settling(outcome.records))
        outcome.absorb(stored(outcome.missing(matches), store))
    return outcome


def lines(budget: str, plan: Plan, store: Store) -> Iterator[str]:
    """The file of a budget, from a store."""
    records = [*known(plan, store).records.values()]
    if not records:
        raise ValueError(f"{store.root} has no bout of the budget {budget!r}")
    made = [store.provenance(record.run) or {} for record in records]
    kept = {key: _all([str(one.get(key)) for one in made]) for key in _MADE}
    yield json.dumps({"command": f"antipgd fight --budget {budget}", "made": kept})
    for record in records:
        yield json.dumps(_plain(record), separators=(",", ":"))


def _all(values: Sequence[str]) -> str:
    """The values that occur; of many the least, the largest and their number."""
    found = sorted({*values})
    if len(found) < 3:
        return ", ".join(found)
    return f"{found[0]} to {found[-1]} ({len(found)} different)"


def _plain(record: Record) -> dict[str, Any]:
    """What a bout is, and its numbers to six digits: more than their errors allow."""
    numbers = {name: None if value is None else float(f"{value:.6g}")
               for _, name, value in record.points}  # fmt: skip
    lost = {} if record.diverged_at is None else {"diverged_at": record.diverged_at}
    return {**asdict(record.run), **lost, "numbers": numbers}


def _record(plain: dict[str, Any]) -> Record:
    numbers, at = plain.pop("numbers"), plain.pop("diverged_at", None)
    points = [[plain["steps"], name, value] for name, value in numbers.items()]
    status = "ok" if at is None else "diverged"
    return record_from(
        {"run": plain, "status": status, "diverged_at": at, "left_at": None, "points": points,
         "weights": {}, "relax_steps": None, "relaxation_converged": None},
        Match.from_plain,
    )  # fmt: skip


def packed(budget: str, plan: Plan, store: Store) -> bytes:
    """The compressed file."""
    text = "\n".join(lines(budget, plan, store)) + "\n"
    return lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)


def unpacked(content: bytes) -> Shipped:
    """What a compressed file holds."""
    head, *rest = map(json.loads, lzma.decompress(content).decode().splitlines())
    records = [_record(plain) for plain in rest]
    return Shipped({one.run.name: one for one in records}, head["command"], head["made"])


def shipped(budget: str) -> Shipped | None:
    """What ships of a budget; None if nothing does."""
    path = files("antipgd.paper").joinpath("records", f"fight-{budget}.jsonl.xz")
    return unpacked(path.read_bytes()) if path.is_file() else None


def filled(page: str, budget: str, there: Shipped, found: Sequence[Table], figure: str) -> str:
    """A page with everything between its marks made anew."""
    before, rest = page.split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    made = ", ".join(f"{key} {value}" for key, value in there.made.items())
    inside = [f"As `{there.command}` printed it ({len(there.records):,} bouts; {made}).",
              f"![Ranks on each problem]({figure})",
              *paragraphs(found), tables_text(found)]  # fmt: skip
    return f"{before}{MARKS[0]}\n" + "\n\n".join(inside) + f"\n{MARKS[1]}{after}"


def _keep(budget: str, out: str, target: str) -> None:
    plan = enter(budget, check=False).plan
    write(Path(target), packed(budget, plan, open_store(Path(out))))


def _page(budget: str, target: str) -> None:
    there, path = shipped(budget), Path(target)
    if there is None:
        raise SystemExit(f"no records of the budget {budget!r} ship")
    found = tables(enter(budget, check=False).plan, there.records, {})
    figure = path.with_name(f"{path.stem}.png")
    write(figure, figures.rendered(draw(found), "png"))
    write(path, filled(path.read_text("utf-8"), budget, there, found, figure.name).encode())


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    (_keep if what == "keep" else _page)(*arguments)
