"""The page's small parts: numbers, texts, badges, tables. Whatever comes in as text is escaped."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from antipgd.paper.claims import FAILS, HOLDS, LEVEL, NOT_AT_MINIMUM, UNDECIDED, Claim
from antipgd.paper.references import in_words

SYMBOLS = {HOLDS: "✓", LEVEL: "=", UNDECIDED: "?", NOT_AT_MINIMUM: "⊘", FAILS: "✗"}
_POWER = re.compile(r"\^(\{[^{}]*\}|[−-]?[^\W_]+)")
# Of a single letter: names with an underscore are no formulas.
_INDEX = re.compile(r"(?:(?<=[A-ZΑ-Ωα-ω∂])|(?<=\b[a-z])|(?<=[α-ω][a-z]))_(\{[^{}]*\}|[a-zα-ω0-9]+)")
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


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


def anchor(kind: str, name: str) -> str:
    """An id that a link can name."""
    return f"{kind}-" + re.sub(r"[^\w.-]", "-", name, flags=re.ASCII)


def text(words: str, sections: Mapping[str, int] | None = None) -> str:
    """Escaped, labels of the paper in words, with `code`; the `name` of an experiment on the page
    is a link to its section."""

    def code(found: re.Match[str]) -> str:
        place = (sections or {}).get(found[1])
        if place is None:
            return f"<code>{found[1]}</code>"
        return f'<a href="#{anchor("experiment", found[1])}">section {place}</a>'

    parts = re.split(r"(`[^`]+`)", escape(in_words(words)))
    return "".join(re.sub(r"`([^`]+)`", code, part) if part[:1] == "`" else _formulas(part)
                   for part in parts)  # fmt: skip


def _formulas(words: str) -> str:
    """Indices and powers as such: ξ_{n+1}, w_0, σ^2, 4.00e-04."""
    words = re.sub(r"\b1e([+-]\d+)\b", lambda found: f"10^{int(found[1])}", words)
    words = re.sub(r"\b(\d(?:\.\d+)?)e([+-]\d+)\b", lambda m: f"{m[1]}×10^{int(m[2])}", words)
    return _INDEX.sub(_shift("sub"), _POWER.sub(_shift("sup"), words))


def _shift(tag: str) -> Callable[[re.Match[str]], str]:
    return lambda found: f"<{tag}>{found[1].strip('{}').replace('-', '−')}</{tag}>"


def label(words: str) -> str:
    """An identifier, which may break after a dot, colon, dash or underscore."""
    return re.sub(r"([._:-])(?=\w)", r"\1<wbr>", escape(words))


def sentence(words: str) -> str:
    """Labels in words, with a capital at its beginning, unless that is code or a formula."""
    words = in_words(words)
    return words[:1].upper() + words[1:] if re.match(r"[a-z][a-z ]", words) else words


def paragraphs(words: str, sections: Mapping[str, int]) -> str:
    """One for each block of text between empty lines."""
    parts = (" ".join(part.split()) for part in re.split(r"\n\s*\n", words.strip()))
    return "\n".join(f"<p>{text(part, sections)}</p>" for part in parts if part)


def badge(verdict: str, count: int | None = None) -> str:
    """A verdict as a word and a sign, perhaps with how many there are of it."""
    kind = verdict.replace(" ", "-") if verdict in SYMBOLS else "other"
    many = "" if count is None else f" {count}"
    return (
        f'<span class="badge {kind}"><span aria-hidden="true">{SYMBOLS.get(verdict, "–")}</span>'
        f" {escape(verdict)}{many}</span>"
    )


def tally(verdicts: Sequence[str]) -> list[tuple[str, int]]:
    """How many of each verdict, best first."""
    found = Counter(verdicts)
    order = (*SYMBOLS, *sorted(set(found) - set(SYMBOLS)))
    return [(name, found[name]) for name in order if found[name]]


def counts(verdicts: Sequence[str], of: str = "rows") -> str:
    """A line of badges."""
    badges = "".join(f"<li>{badge(name)} {count}</li>" for name, count in tally(verdicts))
    return f'<ul class="counts"><li>{len(verdicts)} {of}</li>{badges}</ul>'


def shown_for(verdicts: Iterable[str], network: bool) -> str:
    """The classes by which a part of the page is filtered."""
    known = {UNDECIDED: "has-undecided", NOT_AT_MINIMUM: "has-undecided", FAILS: "has-fails"}
    found = sorted({known[verdict] for verdict in verdicts if verdict in known})
    return " ".join(["one", *found, *(["has-network"] if network else [])])


def table(kind: str, heads: Mapping[str, str], bodies: Iterable[str]) -> str:
    """Bodies under heads. Roles keep it a table where narrow screens stack its cells."""
    top = "".join(
        f'<th role="columnheader" scope="col" class="{name}">{title}</th>'
        for name, title in heads.items()
    )
    return (
        f'<table role="table" class="{kind}">\n'
        f'<thead role="rowgroup"><tr role="row">{top}</tr></thead>\n' + "\n".join(bodies) + "\n"
        "</table>"
    )


def body(lines: Iterable[str], shown: str = "") -> str:
    """Lines of a table that belong together."""
    kind = f' class="{shown}"' if shown else ""
    return f'<tbody role="rowgroup"{kind}>\n' + "\n".join(lines) + "\n</tbody>"


def line(cells: str, shown: str = "", id: str = "") -> str:
    """A line of a table."""
    extra = (f' id="{id}"' if id else "") + (f' class="{shown}"' if shown else "")
    return f'<tr role="row"{extra}>{cells}</tr>'


def cell(kind: str, content: str) -> str:
    """A cell of a table."""
    return f'<td role="cell" class="{kind}">{content}</td>'


def head_cell(kind: str, content: str) -> str:
    """The cell that names its line."""
    return f'<th role="rowheader" scope="row" class="{kind}">{content}</th>'
