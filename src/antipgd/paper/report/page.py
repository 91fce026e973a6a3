"""The whole page: its parts in order, contents that stay in view, and what it may load: nothing."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files

from antipgd.paper.coverage import KINDS
from antipgd.paper.report.closing import provenance as provenance_of
from antipgd.paper.report.closing import slips
from antipgd.paper.report.content import Erratum, Item, Row
from antipgd.paper.report.experiments import chapters, experiments
from antipgd.paper.report.headlines import headlines
from antipgd.paper.report.markup import anchor
from antipgd.paper.report.opening import TITLE, opening
from antipgd.paper.report.rows import by_kind, verdicts
from antipgd.paper.sheet import head

FILTERS = {"all": "all", "fails": "fails", "undecided": "undecided", "network": "networks"}


def page(
    items: Sequence[Item], *, rows: Sequence[Row], notes: Sequence[str],
    provenance: Mapping[str, str], command: str, errata: Sequence[Erratum] = (),
    said: Sequence[str] = (), playground: str = "",
) -> str:  # fmt: skip
    """The whole page, to be written as UTF-8. `said` is what experiments say of networks in a
    sentence; `playground` a fragment of HTML, whose scripts the page admits."""
    sections = {item.name: place for place, item in enumerate(items, 1)}
    networks = {item.name for item in items if item.network}
    sentences = headlines(rows, errata, said)
    contents = _contents(items, rows, bool(sentences), bool(errata), bool(playground))
    main = "\n".join(
        [
            opening(items, sentences),
            f'<section id="try">\n<h2>Playground</h2>\n{playground}\n</section>'
            if playground
            else "",
            f'<div class="filtered">\n{_filter()}',
            verdicts(rows, notes, sections, networks),
            experiments(items, sections) + "\n</div>",
            slips(errata, sections) if errata else "",
            provenance_of(provenance, command),
        ]
    )
    scripts = [*re.findall(r"<script>(.*?)</script>", playground, re.S), _SCRIPT]
    return (
        f"{head(TITLE, _STYLE, scripts)}<body>\n"
        f'<aside><nav aria-label="Contents">\n{contents}</nav></aside>\n'
        f'<main>\n<details class="contents"><summary>Contents</summary>\n'
        f'<nav aria-label="Contents, folded">\n{contents}</nav></details>\n{main}\n</main>\n'
        f"<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )


def _contents(
    items: Sequence[Item], rows: Sequence[Row], sentences: bool, errata: bool, playground: bool
) -> str:
    """Sections of the page; kinds of rows and chapters below theirs."""
    kinds = [(anchor("kind", kind), KINDS[kind].capitalize()) for kind in by_kind(rows)]
    parts = [(anchor("chapter", name), name) for name, _ in chapters(items) if name]
    links: list[tuple[str, str, list[tuple[str, str]]]] = [
        ("method", "The method", []),
        *([("outcome", "What came out", [])] if sentences else []),
        *([("try", "Playground", [])] if playground else []),
        ("verdicts", "Verdicts", kinds),
        ("experiments", "Experiments", parts),
        *([("errata", "Slips in the paper", [])] if errata else []),
        ("provenance", "Provenance", []),
    ]
    lines = "\n".join(
        f'<li><a href="#{target}">{title}</a>{_inner(inner)}</li>' for target, title, inner in links
    )
    return f"<ul>\n{lines}\n</ul>\n"


def _inner(links: Sequence[tuple[str, str]]) -> str:
    if not links:
        return ""
    return (
        "<ul>"
        + "".join(f'<li><a href="#{to}">{escape(name)}</a></li>' for to, name in links)
        + "</ul>"
    )


def _filter() -> str:
    """Radio buttons: what is shown is the style sheet's affair."""
    buttons = "".join(
        f'<label><input type="radio" name="show" id="show-{name}"'
        f"{' checked' if name == 'all' else ''}><span>{words}</span></label>"
        for name, words in FILTERS.items()
    )
    return f'<fieldset class="filter"><legend>Show</legend>{buttons}</fieldset>'


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


# Every colour is named once per scheme; text has at least 4.5 times its ground's luminance.
_STYLE = _read("page.css")
_SCRIPT = _read("page.js")
