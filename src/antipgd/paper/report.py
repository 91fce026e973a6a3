"""The page: every verdict, figure and number on one self-contained sheet of HTML.

Verdicts first, then one section per experiment, then where it all came from. It asks nothing of
the network and needs no script. Computes nothing: it shows the claims and pictures it is given,
and the same input gives the same bytes.
"""

import base64
import math
import re
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import NamedTuple

from antipgd.paper.claims import FAILS, HOLDS, LEVEL, NOT_AT_MINIMUM, UNDECIDED, Claim, worst
from antipgd.paper.coverage import KINDS, kind_of

TITLE = "Anticorrelated noise, executable"
LEAD = (
    "The experiments of A. Orvieto, H. Kersting, F. Proske, F. Bach and A. Lucchi, "
    "<cite>Anticorrelated Noise Injection for Improved Generalization</cite> (ICML 2022), "
    "run anew: which claims hold, which do not, and by how much."
)
RULE = (
    "A claim holds or fails when its whole 95 % interval lies on one side of a bound fixed "
    "beforehand, and it does so by Holm's step-down over all parts of its row; otherwise it is "
    "undecided. Two things compared are level when the whole interval lies within a margin fixed "
    "beforehand. A row takes the worst verdict of its parts. Checks of the machine can hardly "
    "fail; they and what we add are counted apart from the paper's claims."
)
SYMBOLS = {HOLDS: "✓", LEVEL: "=", UNDECIDED: "?", NOT_AT_MINIMUM: "⊘", FAILS: "✗"}
_ASIDE = {"paper": "", "ours": " (ours)", "machine": " (a check of the machine)"}
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# A larger drawing (dense paths, contours) is embedded as pixels, if those are fewer bytes.
_SVG_LIMIT = 1_500_000
_PNG_DPI, _SCREEN_DPI = 160, 96


@dataclass(frozen=True)
class Item:
    """An experiment as the page shows it: `about` is plain text, with code in `backticks`."""

    name: str
    title: str
    about: str
    claims: Sequence[Claim]
    svg: bytes | None
    png: bytes | None


@dataclass(frozen=True)
class Row:
    """A claim, its label in the paper, its verdict and the experiments that bear on it; what kind
    of claim it is, and the paper's own words."""

    id: str
    reference: str
    claim: str
    verdict: str
    experiments: Sequence[str]
    kind: str = "paper"
    quote: str = ""


class Erratum(NamedTuple):
    """A slip of the paper and what shows it."""

    where: str
    printed: str
    right: str
    shown_by: str


def page(
    items: Sequence[Item], *, rows: Sequence[Row], notes: Sequence[str],
    provenance: Mapping[str, str], command: str, errata: Sequence[Erratum] = (),
) -> str:  # fmt: skip
    """The whole page, to be written as UTF-8."""
    sections = [_section(number, item) for number, item in enumerate(items, 1)]
    return _HEAD + "\n".join(
        [
            f"<header><h1>{TITLE}</h1>\n<p>{LEAD}</p></header>",
            _verdicts(rows, notes, {item.name for item in items}),
            _contents(items, bool(errata)),
            *sections,
            _errata(errata) if errata else "",
            _provenance(provenance, command),
            "</main>\n</body>\n</html>\n",
        ]
    )


def number(value: float) -> str:
    """Three significant digits.

    >>> [number(x) for x in (0.00123456, -12345.6, 1.5e-7, 3.0, float("inf"))]
    ['0.00123', '−12,300', '1.5×10⁻⁷', '3', '∞']
    """
    if math.isnan(value):
        return "n/a"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    rounded = float(f"{value:.3g}")
    if rounded != 0 and not 1e-4 <= abs(rounded) < 1e6:
        digits, exponent = f"{rounded:.2e}".split("e")
        power = str(int(exponent)).translate(_SUPERSCRIPTS)
        return f"{float(digits):g}×10{power}".replace("-", "−")
    shown = f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:.3g}"
    return shown.replace("-", "−")


def measured(claim: Claim) -> str:
    """A claim's value with its interval, where it has one."""
    if math.isnan(claim.low) or math.isnan(claim.high):
        return number(claim.value)
    return f"{number(claim.value)} [{number(claim.low)}, {number(claim.high)}]"


def _anchor(kind: str, name: str) -> str:
    return f"{kind}-" + re.sub(r"[^\w.-]", "-", name, flags=re.ASCII)


def _text(text: str) -> str:
    """Escaped, with `code`."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _label(text: str) -> str:
    """An identifier, which may break after a dot, colon, dash or underscore."""
    return re.sub(r"([._:-])(?=\w)", r"\1<wbr>", escape(text))


def _paragraphs(text: str) -> str:
    parts = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip()))
    return "\n".join(f"<p>{_text(part)}</p>" for part in parts if part)


def _badge(verdict: str) -> str:
    kind = verdict.replace(" ", "-") if verdict in SYMBOLS else "other"
    symbol = SYMBOLS.get(verdict, "–")
    return (
        f'<span class="badge {kind}"><span aria-hidden="true">{symbol}</span>'
        f" {escape(verdict)}</span>"
    )


def _table(kind: str, heads: Mapping[str, str], lines: Iterable[str]) -> str:
    """Lines under heads. Roles keep it a table where narrow screens stack its cells."""
    top = "".join(
        f'<th role="columnheader" scope="col" class="{name}">{title}</th>'
        for name, title in heads.items()
    )
    body = "\n".join(f'<tr role="row">{line}</tr>' for line in lines)
    return (
        f'<table role="table" class="{kind}">\n'
        f'<thead role="rowgroup"><tr role="row">{top}</tr></thead>\n'
        f'<tbody role="rowgroup">\n{body}\n</tbody></table>'
    )


def _cell(kind: str, content: str) -> str:
    return f'<td role="cell" class="{kind}">{content}</td>'


# Verdicts


def _verdicts(rows: Sequence[Row], notes: Sequence[str], shown: set[str]) -> str:
    remarks = "".join(f"<li>{_text(note)}</li>\n" for note in notes)
    groups = {kind: [row for row in rows if row.kind == kind] for kind in KINDS}
    return "\n".join(
        [
            '<section id="verdicts">\n<h2>Verdicts</h2>',
            *(_group(kind, group, shown) for kind, group in groups.items() if group),
            f'<p class="rule">{RULE}</p>',
            f'<ul class="notes">\n{remarks}</ul>' if notes else "",
            "</section>",
        ]
    )


def _group(kind: str, rows: Sequence[Row], shown: set[str]) -> str:
    """The rows of one kind under their counts."""
    says = "what the paper says" if kind == "paper" else "what is said"
    heads = {"id": "claim", "says": says, "ref": "label", "verdict": "verdict"}
    return "\n".join(
        [
            f'<h3 id="{_anchor("kind", kind)}">{KINDS[kind].capitalize()}</h3>',
            _counts([row.verdict for row in rows]),
            _table("rows", heads, (_row(row, shown) for row in rows)),
        ]
    )


def _counts(verdicts: Sequence[str]) -> str:
    found = Counter(verdicts)
    order = [name for name in (*SYMBOLS, *sorted(set(found) - set(SYMBOLS))) if found[name]]
    badges = "".join(f"<li>{_badge(name)} {found[name]}</li>" for name in order)
    return f'<ul class="counts"><li>{len(verdicts)} rows</li>{badges}</ul>'


def _row(row: Row, shown: set[str]) -> str:
    """A row leads to its figures, of which there are none if the experiment is not on the page."""
    there = [name for name in row.experiments if name in shown]
    name = _label(row.id)
    if there:
        name = f'<a href="#{_anchor("experiment", there[0])}">{name}</a>'
    more = "".join(
        f' <a class="also" href="#{_anchor("experiment", other)}">+ {_label(other)}</a>'
        for other in there[1:]
    )
    return (
        f'<th role="rowheader" scope="row" class="id">{name}{more}</th>'
        + _cell("says", _text(row.claim) + _quote(row.quote))
        + _cell("ref", _label(row.reference))
        + _cell("verdict", _badge(row.verdict))
    )


def _quote(words: str) -> str:
    return f"<q>{escape(words)}</q>" if words else ""


def _contents(items: Sequence[Item], errata: bool) -> str:
    lines = "\n".join(
        f'<li><a href="#{_anchor("experiment", item.name)}">{_text(item.title)}</a>'
        + (f" {_badge(worst(claim.verdict for claim in item.claims))}" if item.claims else "")
        + "</li>"
        for item in items
    )
    return (
        f'<nav id="contents" aria-labelledby="contents-title">\n'
        f'<h2 id="contents-title">Contents</h2>\n<ol>\n{lines}\n</ol>\n'
        + ('<p><a href="#errata">Slips in the paper</a></p>\n' if errata else "")
        + '<p><a href="#provenance">Provenance</a></p>\n</nav>'
    )


# Experiments


def _section(position: int, item: Item) -> str:
    return "\n".join(
        [
            f'<section id="{_anchor("experiment", item.name)}">',
            f'<h2><span class="count">{position}</span> {_text(item.title)}</h2>',
            _paragraphs(item.about),
            _figure(position, item),
            _claims(item.claims),
            f'<p class="rerun">Run again: <code>antipgd paper --only {escape(item.name)}</code>'
            ' <a href="#verdicts">Back to the verdicts</a></p>',
            "</section>",
        ]
    )


def _claims(claims: Sequence[Claim]) -> str:
    if not claims:
        return '<p class="rule">Nothing is claimed of this figure.</p>'
    heads = {
        "says": "claim",
        "tested": "tested",
        "value": "value [95 % interval]",
        "n": "n",
        "verdict": "verdict",
    }
    return _table("claims", heads, map(_claim, claims))


def _claim(claim: Claim) -> str:
    kind = _ASIDE[kind_of(claim)]
    says = (
        f'<span id="{_anchor("claim", claim.id)}">{_text(claim.statement)}</span>'
        f'<span class="ref"><code>{_label(claim.id)}</code> {_label(claim.reference)}{kind}</span>'
    )
    decide = f'<span class="ref">{claim.needed:,} would decide</span>' if claim.needed else ""
    return (
        f'<th role="rowheader" scope="row" class="says">{says}</th>'
        + _cell("tested", _text(claim.tested))
        + _cell("value", measured(claim))
        + _cell("n", f"{claim.n:,}{decide}")
        + _cell("verdict", _badge(claim.verdict))
    )


def _figure(position: int, item: Item) -> str:
    """The picture on a white card: an image, because the ids of inlined drawings would collide."""
    picture = _picture(item.svg, item.png)
    if picture is None:
        return '<p class="rule">There is no figure.</p>'
    kind, data, (width, height) = picture
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return (
        f'<figure style="--width: {width}px">\n<div class="card"><img src="{source}" '
        f'alt="Figure {position}: {escape(item.title.rstrip("."))}. Its claims follow in numbers." '
        f'width="{width}" height="{height}"></div>\n'
        f"<figcaption>Figure {position}. <code>{_label(item.name)}</code></figcaption>\n</figure>"
    )


def _picture(svg: bytes | None, png: bytes | None) -> tuple[str, bytes, tuple[int, int]] | None:
    """Kind, bytes and size on a screen."""
    if svg is not None and (png is None or len(svg) <= max(_SVG_LIMIT, len(png))):
        return "svg+xml", svg, _svg_size(svg)
    if png is not None:
        width, height = struct.unpack(">II", png[16:24])
        return "png", png, (_pixels(width, _PNG_DPI), _pixels(height, _PNG_DPI))
    return None


def _svg_size(svg: bytes) -> tuple[int, int]:
    """From width and height in points, as matplotlib writes them."""
    tag = re.search(rb"<svg\b[^>]*>", svg)
    points = dict(re.findall(rb'\b(width|height)="([\d.]+)pt"', tag[0] if tag else b""))
    if len(points) < 2:
        raise ValueError(f"an SVG figure needs its width and height in pt; got {svg[:80]!r}")
    return _pixels(float(points[b"width"]), 72), _pixels(float(points[b"height"]), 72)


def _pixels(length: float, dpi: int) -> int:
    return round(length * _SCREEN_DPI / dpi)


def _errata(errata: Sequence[Erratum]) -> str:
    heads = {"says": "printed", "tested": "right", "value": "shown by", "ref": "where"}
    lines = (
        f'<th role="rowheader" scope="row" class="says">{_text(slip.printed)}</th>'
        + _cell("tested", _text(slip.right))
        + _cell("value", _text(slip.shown_by))
        + _cell("ref", _label(slip.where))
        for slip in errata
    )
    return (
        f'<section id="errata">\n<h2>Slips in the paper</h2>\n{_table("errata", heads, lines)}\n'
        '<p><a href="#verdicts">Back to the verdicts</a></p>\n</section>'
    )


def _provenance(provenance: Mapping[str, str], command: str) -> str:
    pairs = {"command": command, **provenance}
    lines = "\n".join(f"<dt>{escape(key)}</dt><dd>{escape(pairs[key])}</dd>" for key in pairs)
    return (
        f'<section id="provenance">\n<h2>Provenance</h2>\n<dl>\n{lines}\n</dl>\n'
        '<p><a href="#verdicts">Back to the verdicts</a></p>\n</section>'
    )


# Every colour is named once per scheme; text has at least 4.5 times its ground's luminance.
_STYLE = files(__package__).joinpath("report.css").read_text("utf-8")

# The policy makes the browser refuse outside requests; an empty icon keeps it from asking for one.
_HEAD = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{TITLE}</title>
<link rel="icon" href="data:,">
<style>
{_STYLE}</style>
</head>
<body>
<main>
"""
