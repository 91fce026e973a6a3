"""The one figure of a fight: ranks of all methods on each problem."""

from collections.abc import Sequence
from textwrap import fill

from antipgd.paper import figures
from antipgd.paper.fight.planning import GRADIENTS
from antipgd.paper.fight.ranking import Rank
from antipgd.paper.fight.standings import Table, overall

_ANTI, _ONE, _TWO = "anticorrelated noise", "one gradient a step", "two gradients a step"
LEGEND = {_ANTI: figures.COLOURS["anti"], _ONE: "#555555", _TWO: figures.COLOURS["sgd"]}
_LETTERS = 10  # of a title: nine columns stand side by side
Mark = tuple[float, float, float, str] | str


def _colour(name: str, gradients: int) -> str:
    if name.startswith("anti_"):
        return LEGEND[_ANTI]
    return LEGEND[_ONE if gradients == 1 else _TWO]


def _mark(rank: Rank | None, colour: str) -> Mark:
    return "–" if rank is None else (rank.rank, rank.low, rank.high, colour)


def draw(tables: Sequence[Table]) -> figures.Figure:
    """Methods in the order of their mean rank; columns are all problems and each, at equal
    gradients."""
    methods = {one.method.name: one.method for table in tables for one in table.standings}
    over = overall(tables, GRADIENTS)
    names = [*over, *(name for name in methods if name not in over)]
    colours = {name: _colour(name, methods[name].gradients) for name in names}
    whole = [("mean rank", over)] if over else []
    by = whole + [(table.card.problem, {name: one.ranks[GRADIENTS]
                                        for name, one in table.by_name().items()})
                  for table in tables if table.standings]  # fmt: skip
    columns = [
        figures.Column(fill(title.replace("_", " "), _LETTERS),
                       [_mark(ranks.get(name), colours[name]) for name in names],
                       (len(ranks) + 1) / 2)
        for title, ranks in by
    ]  # fmt: skip
    return figures.rows([methods[name].title for name in names], columns, LEGEND)
