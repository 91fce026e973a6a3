"""Bouts that ship with the package, with their provenance, and the page that is made from them.

`python -m antipgd.paper.fight.shipping keep night fight OUT.jsonl.xz` packs the store of the folder
`fight`; `… unpack night fight` is the way back, to go on from what ships; `… page night
docs/fight.md` writes figure, paragraphs and tables between the page's marks. One line says which
command made the records and where; then a line for each bout. While bouts are missing the file is a
part, `fight-night.part.jsonl.xz`: gone on from, and judged nowhere.
"""

import json
import lzma
import sys
from collections.abc import Callable, Iterator, Sequence
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
from antipgd.paper.record import Failure, Record, record_from
from antipgd.paper.store import Store, together

MARKS = ("<!-- fight begins -->", "<!-- fight ends -->")
_MADE = ("antipgd", "code", "python", "numpy", "numba", "torch", "processor", "time")
_CHOOSING = ("accuracy", "test_loss")
PART = ".part"


class Shipped(NamedTuple):
    """Records and failures by the name of their bout, and how they were made."""

    records: dict[str, Record]
    failures: dict[str, Failure]
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
    there = known(plan, store)
    if not there.records:
        raise ValueError(f"{store.root} has no bout of the budget {budget!r}")
    made = [store.provenance(record.run) or {} for record in there.records.values()]
    kept = {key: together(str(one.get(key)) for one in made) for key in _MADE}
    versions: dict[str, int] = {}
    for record in there.records.values():
        versions |= record.run.versions
    yield json.dumps({"command": f"antipgd fight --budget {budget}", "made": kept,
                      "versions": versions})  # fmt: skip
    for record in there.records.values():
        yield json.dumps(_plain(record), separators=(",", ":"))
    for failure in there.failures.values():
        plain = {**asdict(failure.run), "reason": failure.reason}
        yield json.dumps(plain, separators=(",", ":"))


def _plain(record: Record) -> dict[str, Any]:
    """What a bout is, and its numbers to six digits: more than their errors allow. By which a value
    is chosen has all: what is tuned must come out the same."""
    numbers = {name: value if value is None or name in _CHOOSING else float(f"{value:.6g}")
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


def _result(plain: dict[str, Any]) -> Record | Failure:
    if "reason" not in plain:
        return _record(plain)
    reason = plain.pop("reason")
    return Failure(Match.from_plain(plain), reason, "")


def unpacked(content: bytes) -> Shipped:
    """What a compressed file holds that was made by code of the present versions."""
    head, *rest = map(json.loads, lzma.decompress(content).decode().splitlines())
    made_by = head["versions"].items()
    outcome = Outcome()
    for found in map(_result, rest):
        if found.run.versions.items() <= made_by:
            outcome.add(found)
    return Shipped(outcome.records, outcome.failures, head["command"], head["made"])


def shipped(budget: str, ending: str = "") -> Shipped | None:
    """What ships of a budget, with `PART` of one that is under way; None if nothing does."""
    path = files("antipgd.paper").joinpath("records", f"fight-{budget}{ending}.jsonl.xz")
    return unpacked(path.read_bytes()) if path.is_file() else None


def unpack(there: Shipped, store: Store) -> int:
    """Put bouts that ship into a store that lacks them; how many there were. Their numbers have six
    digits, and they say so."""
    missing = [record for record in there.records.values() if store.get(record.run) is None]
    for record in missing:
        store.put(record, {**there.made, "shipped": "to six digits"})
    return len(missing)


def filled(page: str, budget: str, there: Shipped, found: Sequence[Table], figure: str) -> str:
    """A page with everything between its marks made anew."""
    before, rest = page.split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    made = ", ".join(f"{key} {value}" for key, value in there.made.items())
    inside = [f"As `{there.command}` printed it ({len(there.records):,} bouts; {made}).",
              f"![Ranks on each problem]({figure})",
              *paragraphs(found), tables_text(found)]  # fmt: skip
    return f"{before}{MARKS[0]}\n" + "\n\n".join(inside) + f"\n{MARKS[1]}{after}"


def missing(plan: Plan, store: Store) -> int:
    """How many bouts a fight lacks, of those that follow from what is there."""
    outcome = known(plan, store)
    return len(outcome.missing(plan.following(settling(outcome.records))))


def _keep(budget: str, out: str, target: str) -> None:
    plan, store = enter(budget, check=False).plan, open_store(Path(out))
    lacking = missing(plan, store)
    if bool(lacking) != (PART in Path(target).suffixes):
        raise SystemExit(
            f"{out} lacks {lacking:,} bouts; {target!r} must have {PART!r} in its name while it "
            "lacks some, and only then"
        )
    write(Path(target), packed(budget, plan, store))


def _shipped(budget: str, *endings: str) -> Shipped:
    there = next((one for ending in ("", *endings) if (one := shipped(budget, ending))), None)
    if there is None:
        raise SystemExit(f"no records of the budget {budget!r} ship")
    return there


def _unpack(budget: str, out: str) -> None:
    print(f"{unpack(_shipped(budget, PART), open_store(Path(out)))} bouts put into {out}")


def _page(budget: str, target: str) -> None:
    there, path = _shipped(budget), Path(target)
    found = tables(enter(budget, check=False).plan, there.records, there.failures)
    figure = path.with_name(f"{path.stem}.png")
    write(figure, figures.rendered(draw(found), "png"))
    write(path, filled(path.read_text("utf-8"), budget, there, found, figure.name).encode())


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    does: dict[str, Callable[..., None]] = {"keep": _keep, "unpack": _unpack, "page": _page}
    does[what](*arguments)
