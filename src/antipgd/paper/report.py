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
from typing import NamedTuple

from antipgd.paper.claims import FAILS, HOLDS, UNDECIDED, Claim, worst

TITLE = "Anticorrelated noise, executable"
LEAD = (
    "The experiments of A. Orvieto, H. Kersting, F. Proske, F. Bach and A. Lucchi, "
    "<cite>Anticorrelated Noise Injection for Improved Generalization</cite> (ICML 2022), "
    "run anew: which claims hold, which do not, and by how much."
)
RULE = (
    "A claim holds or fails when its whole 95 % interval lies on one side of a bound fixed "
    "beforehand; otherwise it is undecided. A row takes the worst verdict of its parts."
)
SYMBOLS = {HOLDS: "✓", UNDECIDED: "?", FAILS: "✗"}
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
    """A claim of the paper, its label there, its verdict and the experiments that bear on it."""

    id: str
    reference: str
    claim: str
    verdict: str
    experiments: Sequence[str]


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
    kind = verdict if verdict in SYMBOLS else "other"
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
    heads = {"id": "claim", "says": "what the paper says", "ref": "label", "verdict": "verdict"}
    remarks = "".join(f"<li>{_text(note)}</li>\n" for note in notes)
    return "\n".join(
        [
            '<section id="verdicts">\n<h2>Verdicts</h2>',
            _counts([row.verdict for row in rows]),
            _table("rows", heads, (_row(row, shown) for row in rows)),
            f'<p class="rule">{RULE}</p>',
            f'<ul class="notes">\n{remarks}</ul>' if notes else "",
            "</section>",
        ]
    )


def _counts(verdicts: Sequence[str]) -> str:
    found = Counter(verdicts)
    order = [*SYMBOLS, *sorted(set(found) - set(SYMBOLS))]
    badges = "".join(f"<li>{_badge(name)} {found[name]}</li>" for name in order)
    return f'<ul class="counts"><li>{len(verdicts)} claims</li>{badges}</ul>'


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
        + _cell("says", _text(row.claim))
        + _cell("ref", _label(row.reference))
        + _cell("verdict", _badge(row.verdict))
    )


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
    says = (
        f'<span id="{_anchor("claim", claim.id)}">{_text(claim.statement)}</span>'
        f'<span class="ref"><code>{_label(claim.id)}</code> {_label(claim.reference)}</span>'
    )
    return (
        f'<th role="rowheader" scope="row" class="says">{says}</th>'
        + _cell("tested", _text(claim.tested))
        + _cell("value", measured(claim))
        + _cell("n", f"{claim.n:,}")
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


# Style: every colour is named once per scheme; text has at least 4.5 times its ground's luminance.

_STYLE = """
:root {
  color-scheme: light dark;
  --ground: #fcfcfa; --text: #1d1d1b; --quiet: #5c5c57; --link: #1b5a92; --line: #dcdcd6;
  --code: #f0f0ec;
  --holds: #14532d; --holds-ground: #dcf1e2; --undecided: #644500; --undecided-ground: #f9ebc8;
  --fails: #8a1c12; --fails-ground: #fae0dc; --other: #44443f; --other-ground: #e9e9e4;
  --serif: Charter, "Bitstream Charter", "Sitka Text", Cambria, Georgia, serif;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  --mono: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --ground: #15171a; --text: #e4e4e0; --quiet: #a6a9ae; --link: #8dbdea; --line: #353a40;
    --code: #23272c;
    --holds: #a5e0b6; --holds-ground: #133621; --undecided: #f0d388; --undecided-ground: #3a2e0b;
    --fails: #ffb6ab; --fails-ground: #4b1a14; --other: #cfcfca; --other-ground: #2e3236;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; scroll-padding-top: 1rem; }
body {
  margin: 0; background: var(--ground); color: var(--text);
  font: 1.0625rem/1.6 var(--serif); overflow-wrap: break-word;
}
main { max-width: 64.5rem; margin: 0 auto; padding: 3rem 1.25rem 4rem; }
p, ul, ol, dl { max-width: 46rem; }
h1 { font-size: 2.25rem; line-height: 1.15; letter-spacing: -0.015em; margin: 0 0 1rem; }
h2 { font-size: 1.45rem; line-height: 1.25; letter-spacing: -0.01em; margin: 0 0 0.9rem; }
header p { font-size: 1.15rem; color: var(--quiet); text-wrap: pretty; }
section, nav { margin-top: 3.5rem; }
header + section { margin-top: 2.5rem; }
a { color: var(--link); text-decoration-thickness: 0.06em; text-underline-offset: 0.18em; }
a:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; border-radius: 2px; }
code { font: 0.86em var(--mono); background: var(--code); padding: 0.1em 0.3em;
  border-radius: 0.25em; overflow-wrap: anywhere; }
.count { color: var(--quiet); font-weight: normal; margin-right: 0.35em; }
.rule, .notes, .rerun, figcaption { font: 0.875rem/1.5 var(--sans); color: var(--quiet); }
.notes { padding-left: 1.2em; }
.rerun a { margin-left: 1em; white-space: nowrap; }
.badge { display: inline-block; font: 600 0.8125rem/1.2 var(--sans); white-space: nowrap;
  padding: 0.22em 0.6em; border-radius: 1em; color: var(--other);
  background: var(--other-ground); }
.holds { color: var(--holds); background: var(--holds-ground); }
.undecided { color: var(--undecided); background: var(--undecided-ground); }
.fails { color: var(--fails); background: var(--fails-ground); }
.counts { display: flex; flex-wrap: wrap; gap: 0.4rem 1.25rem; list-style: none; padding: 0;
  font: 0.9375rem/1.6 var(--sans); font-variant-numeric: tabular-nums; }
nav ol { padding-left: 1.6em; }
nav li { margin: 0.3em 0; }
nav li::marker { color: var(--quiet); }

table { width: 100%; table-layout: fixed; overflow-wrap: anywhere; border-collapse: collapse;
  margin: 1.25rem 0;  font: 0.9rem/1.45 var(--sans); border-bottom: 1.5px solid var(--text); }
th, td { text-align: left; vertical-align: top; padding: 0.55rem 0.75rem; font-weight: normal;
  border-top: 1px solid var(--line); }
th:first-child, td:first-child { padding-left: 0; }
th:last-child, td:last-child { padding-right: 0; }
thead th { font-size: 0.8125rem; color: var(--quiet); vertical-align: bottom;
  border-top: 1.5px solid var(--text); }
tbody tr:first-child > * { border-top-color: var(--text); }
tbody tr:has(:target) { background: var(--code); }
.id { width: 22%; }
tbody .id { font-weight: 600; }
.also { display: block; font-weight: normal; font-size: 0.8125rem; }
.ref { font-size: 0.8125rem; color: var(--quiet); }
td.ref, .rows thead .ref { width: 24%; }
.claims .ref { display: block; margin-top: 0.2rem; }
.tested { width: 24%; }
.value { width: 21%; font-variant-numeric: tabular-nums; }
.n { width: 3.75rem; text-align: right; font-variant-numeric: tabular-nums; }
.verdict { width: 7.75rem; }

figure { margin: 1.75rem 0; }
.card { background: #fff; border: 1px solid var(--line); border-radius: 0.5rem;
  padding: 0.75rem; overflow-x: auto; max-width: calc(var(--width) * 1.15); }
.card img { display: block; width: 100%; height: auto; margin: 0 auto;
  min-width: calc(var(--width) * 0.6); }
figcaption { margin-top: 0.5rem; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0.4rem 1.5rem;
  font: 0.875rem/1.5 var(--sans); }
dt { color: var(--quiet); }
dd { margin: 0; font: 0.8125rem/1.6 var(--mono); overflow-wrap: anywhere; }

@media screen and (max-width: 46rem) {
  body { font-size: 1rem; }
  main { padding: 1.75rem 1rem 3rem; }
  h1 { font-size: 1.8rem; }
  h2 { font-size: 1.3rem; }
  header p { font-size: 1.05rem; }
  section, nav { margin-top: 2.75rem; }
  table, tbody { display: block; }
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  tbody tr { display: grid; gap: 0.3rem 1rem; padding: 0.8rem 0;
    border-top: 1px solid var(--line); grid-template-columns: minmax(0, 1fr) max-content; }
  tbody tr:first-child { border-top: 1.5px solid var(--text); }
  tbody th, tbody td { width: auto !important; padding: 0; border: 0; }
  .rows tr { grid-template-areas: "id verdict" "says says" "ref ref"; }
  .claims tr { grid-template-areas: "says verdict" "tested tested" "value n"; }
  .id { grid-area: id; } .says { grid-area: says; } td.ref { grid-area: ref; }
  .verdict { grid-area: verdict; } .tested { grid-area: tested; }
  .value { grid-area: value; } td.n { grid-area: n; }
  .tested { color: var(--quiet); }
  td.n::before { content: "n = "; }
  .card { padding: 0.5rem; }
  .rerun a { display: block; margin: 0.5em 0 0; }
  dl { display: block; }
  dd { margin-bottom: 0.6rem; }
}
@media print {
  @page { margin: 16mm; }
  :root { color-scheme: light; --ground: #fff; --link: #1d1d1b; }
  html { font-size: 9.5pt; }
  main { max-width: none; padding: 0; }
  nav, .rerun a, #provenance > p { display: none; }
  section { margin-top: 1.5rem; }
  a { text-decoration: none; }
  h2 { break-after: avoid; }
  h1, h2, tr, figure { break-inside: avoid; }
  figure { break-before: avoid; }
  .badge { border: 1px solid; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .card { border: 0; padding: 0; overflow: visible; }
  .card img { min-width: 0; }
}
"""

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
<style>{_STYLE}</style>
</head>
<body>
<main>
"""
