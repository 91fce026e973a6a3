"""The verdicts, row by row: each in a line, with the paper's words beside it."""

from collections.abc import Mapping, Sequence

from antipgd.paper.coverage import KINDS, NOT_JUDGED
from antipgd.paper.report.content import Row
from antipgd.paper.report.markup import (
    anchor,
    badge,
    body,
    cell,
    counts,
    head_cell,
    line,
    sentence,
    shown_for,
    table,
    text,
)

RULE = (
    "A claim holds or fails when its whole 95 % interval lies on one side of a bound fixed "
    "beforehand, and it does so by Holm's step-down over all parts of its row; otherwise it is "
    "undecided. Two things compared are level when the whole interval lies within a margin fixed "
    "beforehand. A row takes the worst verdict of its parts. Checks of the machine can hardly "
    "fail; they and what we add are counted apart from the paper's claims."
)


def verdicts(
    rows: Sequence[Row], notes: Sequence[str], sections: Mapping[str, int], networks: set[str]
) -> str:
    """All rows, kind by kind, and the rule by which they are judged."""
    remarks = "".join(f"<li>{text(note, sections)}</li>\n" for note in notes)
    return "\n".join(
        [
            '<section id="verdicts">\n<h2>Verdicts</h2>',
            f"<details class=\"rule\"><summary>How a verdict is made</summary>\n<p>{RULE}</p>"
            + (f'\n<ul class="notes">\n{remarks}</ul>' if notes else "")
            + "</details>",
            *(_group(kind, group, sections, networks) for kind, group in by_kind(rows).items()),
            "</section>",
        ]
    )  # fmt: skip


def by_kind(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each kind; kinds of which nothing was judged come last."""
    found = {kind: [row for row in rows if row.kind == kind] for kind in KINDS}
    order = sorted(found, key=lambda kind: not _judged(found[kind]))
    return {kind: found[kind] for kind in order if found[kind]}


def _judged(rows: Sequence[Row]) -> bool:
    return any(row.verdict != NOT_JUDGED for row in rows)


def on_network(row: Row, networks: set[str]) -> bool:
    """Whether an experiment that bears on it trains a network."""
    return bool(networks.intersection(row.experiments))


def _group(kind: str, rows: Sequence[Row], sections: Mapping[str, int], networks: set[str]) -> str:
    """The rows of one kind under their counts."""
    beside = "about" if kind in ("ours", "machine") else "in the paper's words"
    heads = {"verdict": "verdict", "says": "claim", "quote": beside}
    found = [row.verdict for row in rows]
    shown = shown_for(found, any(on_network(row, networks) for row in rows))
    lines = (_row(row, sections, networks) for row in rows)
    shape = "rows" if any(row.quote for row in rows) else "rows unquoted"
    content = f"{counts(found)}\n{table(shape, heads, [body(lines)])}"
    if not _judged(rows):
        summary = f"None of its {len(rows)} rows is judged here"
        content = f"<details><summary>{summary}</summary>\n{content}</details>"
    return "\n".join(
        [
            f'<div class="{shown}">',
            f'<h3 id="{anchor("kind", kind)}">{KINDS[kind].capitalize()}</h3>',
            content,
            "</div>",
        ]
    )


def _row(row: Row, sections: Mapping[str, int], networks: set[str]) -> str:
    """A row in its own words; unfolded, what exactly was judged and where."""
    links = ", ".join(
        f'<a href="#{anchor("experiment", name)}">section {sections[name]}</a>'
        for name in row.experiments
        if name in sections
    )
    held = f"{row.held} of {row.parts} parts hold. " if row.parts else ""
    where = f"Figures and numbers: {links}." if links else "Its experiment is not on this page."
    says = (
        f"<details><summary>{text(sentence(row.title or row.claim))}</summary>\n"
        f"<p>{text(row.claim)} {held}{where}</p></details>"
    )
    place = f'<span class="ref">{text(sentence(row.reference))}</span>'
    return line(
        cell("verdict", badge(row.verdict))
        + head_cell("says", says)
        + cell("quote", (f"<q>{text(row.quote)}</q> " if row.quote else "") + place),
        shown_for([row.verdict], on_network(row, networks)),
        anchor("row", row.id),
    )
