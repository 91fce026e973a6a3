"""The experiments, chapter by chapter, each folded to a line: figure, text and claims inside."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby

from antipgd.paper.claims import Claim
from antipgd.paper.coverage import kind_of
from antipgd.paper.report.content import Item
from antipgd.paper.report.markup import (
    anchor,
    badge,
    body,
    cell,
    head_cell,
    line,
    measured,
    paragraphs,
    sentence,
    shown_for,
    table,
    tally,
    text,
)
from antipgd.paper.report.pictures import figure

_ASIDE = {"paper": "", "ours": " (ours)", "machine": " (a check of the machine)", "question": ""}
_FEW = 8  # claims that are shown at once


def chapters(items: Sequence[Item]) -> list[tuple[str, list[Item]]]:
    """Items under the chapters they stand in, in their order."""
    return [(name, [*found]) for name, found in groupby(items, key=lambda item: item.chapter)]


def experiments(items: Sequence[Item], sections: Mapping[str, int]) -> str:
    """All of them, under the titles of their chapters."""
    found = []
    for name, group in chapters(items):
        verdicts = [claim.verdict for item in group for claim in item.claims]
        shown = shown_for(verdicts, any(item.network for item in group))
        title = f'<h3 id="{anchor("chapter", name)}">{escape(name)}</h3>' if name else ""
        inner = "\n".join(_section(item, sections) for item in group)
        found.append(f'<div class="chapter {shown}">\n{title}\n{inner}\n</div>')
    listed = "\n".join(found)
    return f'<section id="experiments">\n<h2>Experiments</h2>\n{listed}\n</section>'


def _section(item: Item, sections: Mapping[str, int]) -> str:
    place = sections[item.name]
    shown = shown_for([claim.verdict for claim in item.claims], item.network)
    return "\n".join(
        [
            f'<section class="experiment {shown}" id="{anchor("experiment", item.name)}">',
            f'<details><summary><span class="count">{place}</span>'
            f'<h4>{text(item.title.removeprefix("(Ours.) "))}</h4>{_badges(item.claims)}'
            f'<span class="caption">{text(_first_sentence(item))}</span></summary>',
            '<div class="inside">',
            figure(item, f"Figure {place}", item.caption),
            paragraphs(item.about, sections),
            _claims(item.claims),
            f'<p class="rerun">Run again: <code>antipgd paper --only {escape(item.name)}'
            "</code></p>",
            "</div></details>\n</section>",
        ]
    )  # fmt: skip


def _badges(claims: Sequence[Claim]) -> str:
    found = tally([claim.verdict for claim in claims])
    return '<span class="badges">' + " ".join(badge(*one) for one in found) + "</span>"


def _first_sentence(item: Item) -> str:
    """Of the caption: what is plotted."""
    return item.caption.split(". ")[0].rstrip(".")


def _claims(claims: Sequence[Claim]) -> str:
    """The claims in groups that were tested alike, said once; many are folded."""
    if not claims:
        return '<p class="rule">Nothing is claimed of this figure.</p>'
    heads = {"says": "claim", "value": "value [95 % interval]", "verdict": "verdict"}
    groups: dict[str, list[Claim]] = {}
    for claim in claims:
        groups.setdefault(_tested(claim), []).append(claim)
    found = table("claims", heads, [_group(*one) for one in groups.items()])
    if len(claims) <= _FEW:
        return found
    return f'<details class="many"><summary>{len(claims)} claims</summary>\n{found}</details>'


def _tested(claim: Claim) -> str:
    """What was tested, n, what of the paper it is about, and whose claim it is."""
    place = f'<span class="ref">{text(sentence(claim.reference))}{_ASIDE[kind_of(claim)]}</span>'
    return f"{text(claim.tested)}; <i>n</i> = {claim.n:,} {place}"


def _group(tested: str, claims: Sequence[Claim]) -> str:
    """Claims with the same test under what that is."""
    head = f'<td role="cell" colspan="3" class="tested">{tested}</td>'
    shown = shown_for([claim.verdict for claim in claims], network=True)
    return body([line(head), *map(_claim, claims)], shown)


def _claim(claim: Claim) -> str:
    says = text(sentence(claim.statement.removeprefix("(ours) ")))
    value = measured(claim)
    if claim.needed:
        value += f' <span class="ref"><i>n</i> = {claim.needed:,} would decide</span>'
    return line(
        head_cell("says", says) + cell("value", value) + cell("verdict", badge(claim.verdict)),
        shown_for([claim.verdict], network=True),
        anchor("claim", claim.id),
    )
