"""The verdict table as Markdown: what `antipgd paper` writes as verdicts.md, and its short form.

As a script it puts both into documents, between the two marks that each has: all of it into
docs/verdicts.md, what is short into README:
`python -m antipgd.paper.verdict_table results docs/verdicts.md README.md`.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from antipgd.paper.claims import FAILS, HOLDS, SEVERITY, Claim
from antipgd.paper.coverage import KINDS, NOT_JUDGED, Decided, verdict_in_row
from antipgd.paper.files import FilesUsageError, write

MARKS = {
    "all": ("<!-- verdicts.md begins -->", "<!-- verdicts.md ends -->"),
    "short": ("<!-- evidence begins -->", "<!-- evidence ends -->"),
}
_MANY = {HOLDS: "hold", FAILS: "fail"}
NAMED = 3  # parts of a row that do not hold; of more the rest is counted


def tally(rows: Sequence[Decided]) -> str:
    """How many rows of each verdict, best first; those of no row are left out."""
    found = Counter(row.verdict for row in rows)
    return ", ".join(f"{found[name]} {name if found[name] == 1 else _MANY.get(name, name)}"
                     for name in (*SEVERITY, NOT_JUDGED) if found[name])  # fmt: skip


def of_kind(rows: Sequence[Decided], kind: str) -> list[Decided]:
    """The rows of one kind."""
    return [one for one in rows if one.row.kind == kind]


def as_markdown(rows: Sequence[Decided], runs: int, said: Sequence[str] = ()) -> str:
    """One table for each kind of row of which something was judged, with its counts, and what
    experiments say in a sentence."""
    parts = sum(len(one.parts) for one in rows)
    lines = [f"{runs:,} small training runs, {parts:,} statements judged:"]
    for kind in dict.fromkeys(one.row.kind for one in rows if one.parts):
        words, chosen = KINDS[kind], of_kind(rows, kind)
        statements = sum(len(one.parts) for one in chosen)
        lines += [
            "",
            f"| {words}: {len(chosen)}, in {statements} parts; {tally(chosen)} | verdict "
            "| parts that hold | what does not |",
            "|---|---|---|---|",
            *map(_line, chosen),
        ]
    lines += _sentences(rows)
    for sentence in said:
        lines += ["", sentence]
    return "\n".join(lines) + "\n"


def _line(one: Decided) -> str:
    held = f"{one.held} of {len(one.parts)}" if one.parts else ""
    cells = (one.row.title, one.verdict, held, _open_parts(one.parts, one.row.control))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _sentences(rows: Sequence[Decided]) -> list[str]:
    """Of rows that judge another paper: the sentence, and whose it is."""
    quoted = [one for one in rows if one.row.source and one.parts]
    found = [f"- *{one.row.title}*, {one.verdict}; {one.row.source}: “{one.row.quote}”"
             for one in quoted]  # fmt: skip
    return ["", "Sentences of other papers, with their rows:", "", *found] if found else []


def _open_parts(parts: Sequence[Claim], control: str) -> str:
    """What does not hold, worst first: part, value and interval."""
    left = [part for part in parts if part.verdict != HOLDS]
    left.sort(key=lambda part: -SEVERITY.index(part.verdict))
    named = [f"{verdict_in_row(part, control)}: {_name(part)} {_measured(part)}"
             f"{_deciding(part, control, len(parts))}" for part in left[:NAMED]]  # fmt: skip
    rest = len(left) - NAMED
    return "; ".join([*named, f"and {rest} more"] if rest > 0 else named)


def _name(part: Claim) -> str:
    return f"`{part.id.partition('.')[2]}`"


def _measured(part: Claim) -> str:
    shown = f"{part.value:.3g} [{part.low:.3g}, {part.high:.3g}]".replace("-", "−")
    return f"{part.unit} {shown}" if part.unit else shown


def _deciding(part: Claim, control: str, many: int) -> str:
    """The n that would decide a part: in its row, or by itself, which is fewer."""
    if not part.needed:
        return ""
    alone = " it alone" if many > 1 and verdict_in_row(part, control) == part.verdict else ""
    return f", n = {part.needed:,} would decide{alone}"


def in_short(table: str) -> str:
    """Of a whole table: what it counts, and what experiments say in sentences and small tables."""
    lines = table.splitlines()
    heads = [i for i, line in enumerate(lines) if any(_is_head(line, w) for w in KINDS.values())]
    last = next(i for i in range(heads[-1], len(lines) + 1) if i == len(lines) or not lines[i])
    said = "\n".join(lines[last:]).strip()
    counted = lines[heads[0]][2:].partition(" | ")[0]
    counted = counted[0].upper() + counted[1:]
    runs = lines[0].rpartition(", ")[0]
    whole = f"{counted}; from {runs} ([each with its interval](docs/verdicts.md))."
    return "\n\n".join(filter(None, [said, whole])) + "\n"


def _is_head(line: str, words: str) -> bool:
    return line.startswith(f"| {words}: ")


def put_into(document: str, table: str) -> str:
    """The document with another table between its marks, whole or in short as they say."""
    for form, (begin, end) in MARKS.items():
        before, found, rest = document.partition(f"{begin}\n")
        _, ended, after = rest.partition(f"{end}\n")
        if found and ended:
            text = table if form == "all" else in_short(table)
            return f"{before}{found}{text}{ended}{after}"
    lines = " or ".join(f"{begin!r} and {end!r}" for begin, end in MARKS.values())
    raise FilesUsageError(f"the document must have the lines {lines}")


if __name__ == "__main__":
    table = (Path(sys.argv[1]) / "verdicts.md").read_text("utf-8")
    for page in map(Path, sys.argv[2:]):
        write(page, put_into(page.read_text("utf-8"), table).encode())
