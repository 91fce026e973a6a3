"""One command: who takes part, what is run, and the page that comes out."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from antipgd.checks import nearest
from antipgd.paper import figures
from antipgd.paper.engines.on import HERE, On
from antipgd.paper.fight.budgets import BUDGETS, Card
from antipgd.paper.fight.carrying_out import carry_out
from antipgd.paper.fight.contestant import (
    ADAMW,
    BASES,
    Contestant,
    ContestantError,
    built_in,
    contestant,
    read,
)
from antipgd.paper.fight.drawing import draw
from antipgd.paper.fight.planning import Plan
from antipgd.paper.fight.problems import make
from antipgd.paper.fight.standings import Table, survivors, tables
from antipgd.paper.fight.surviving import panels
from antipgd.paper.fight.writing import frame, page
from antipgd.paper.files import FilesUsageError, write
from antipgd.paper.networks.data import DataError
from antipgd.paper.pipeline import Outcome
from antipgd.paper.progress import say


class FightError(FilesUsageError):
    """A fight cannot be as asked: a budget, a problem or a method that there is not."""


class Entered(NamedTuple):
    """Who and what takes part, and what does not, with the reason."""

    plan: Plan
    skipped: dict[str, str]
    refused: dict[str, str]


class Fought(NamedTuple):
    """A fight that was carried out."""

    entered: Entered
    outcome: Outcome
    tables: list[Table]


def _chosen(what: str, given: Sequence[str] | None, known: Iterable[str]) -> list[str]:
    """The names that were given, all if none were."""
    names = list(known)
    for name in given or ():
        if name not in names:
            raise FightError(f"unknown {what} {name!r}; {nearest(name, names)}")
    return [name for name in names if given is None or name in given]


def _strangers(
    paths: Sequence[Path], taken: Iterable[str]
) -> tuple[list[Contestant], dict[str, str]]:
    """The methods of other people's files; one that is no method is named, the others go on."""
    found: dict[str, Contestant] = {}
    refused = {}
    for path in paths:
        try:
            one = read(path, [*taken, *found])
            found[one.name] = one
        except ContestantError as error:
            refused[str(path)] = str(error)
    return [*found.values()], refused


def _there(cards: Sequence[Card]) -> tuple[list[Card], dict[str, str]]:
    """The cards whose data are there; of the others, how they are got."""
    found, skipped = [], {}
    for card in cards:
        try:
            make(card.problem, card.tuning_seeds[0])
            found.append(card)
        except DataError as error:
            skipped[card.problem] = str(error)
    return found, skipped


def enter(
    budget: str,
    *,
    only: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    strangers: Sequence[Path] = (),
    check: bool = True,
) -> Entered:
    """What a fight consists of; unless told otherwise, of problems whose data are here."""
    cards = BUDGETS[_chosen("budget", [budget], BUDGETS)[0]]
    names = _chosen("problem", only, [card.problem for card in cards])
    chosen = [card for card in cards if card.problem in names]
    there, skipped = _there(chosen) if check else (chosen, {})
    texts = built_in()
    own = {name: contestant(name, text) for name, text in texts.items()}
    others, refused = _strangers(strangers, own)
    taking_part = {name: own[name] for name in _chosen("method", methods, own)}
    bases = {name: own[name] for name in (*BASES.values(), ADAMW) if name in own}
    plan = Plan(there, taking_part | {one.name: one for one in others}, bases,
                frozenset(one.name for one in others))  # fmt: skip
    return Entered(plan, skipped, refused)


def fight(
    budget: str,
    entered: Entered,
    out: Path,
    *,
    count: int | None = None,
    retry: bool = False,
    on: On = HERE,
    show_progress: bool | None = None,
) -> Fought:
    """Carry a fight out and write fight.md, fight.csv and fight.svg into the folder."""
    outcome = carry_out(entered.plan, out, count, retry, on, say, show_progress)
    found = tables(entered.plan, outcome.records, outcome.failures)
    write_all(budget, found, {**entered.skipped, **entered.refused}, out)
    return Fought(entered, outcome, found)


def write_all(budget: str, found: Sequence[Table], skipped: Mapping[str, str], out: Path) -> None:
    """The files of a fight."""
    if any(table.standings for table in found):
        figure = draw(found)
        for kind in ("svg", "png"):
            write(out / f"fight.{kind}", figures.rendered(figure, kind))
    survival = _draw_survival(found, out)
    write(out / "fight.md", page(budget, found, skipped, "fight.png", survival).encode())
    write(out / "fight.csv", frame(found).to_csv(index=False, lineterminator="\n").encode())


def _draw_survival(found: Sequence[Table], out: Path) -> str | None:
    """What is lost against the scaled trace, as survival.png; None where there is no network."""
    drawn = [panel for table in found for panel in panels(survivors(table)) if panel.series]
    if not drawn:
        return None
    for kind in ("svg", "png"):
        write(out / f"survival.{kind}", figures.rendered(figures.draw(drawn), kind))
    return "survival.png"
