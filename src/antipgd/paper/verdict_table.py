"""The verdict table as Markdown: what `antipgd paper` writes as verdicts.md and README shows.

As a script it puts the table of a folder of results into a document, between its two marks:
`python -m antipgd.paper.verdict_table results README.md`.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from antipgd.paper.claims import HOLDS, SEVERITY, Claim
from antipgd.paper.coverage import KINDS, NOT_JUDGED, Decided, verdict_in_row
from antipgd.paper.files import FilesUsageError, write

BEGIN, END = "<!-- verdicts.md begins -->", "<!-- verdicts.md ends -->"
NAMED = 3  # parts of a row that do not hold; of more the rest is counted


def tally(rows: Sequence[Decided]) -> str:
    """How many rows of each verdict, best first; those of no row are left out."""
    found = Counter(row.verdict for row in rows)
    return ", ".join(f"{found[name]} {name}" for name in (*SEVERITY, NOT_JUDGED) if found[name])


def of_kind(rows: Sequence[Decided], kind: str) -> list[Decided]:
    """The rows of one kind."""
    return [one for one in rows if one.row.kind == kind]


def as_markdown(rows: Sequence[Decided], runs: int, said: Sequence[str] = ()) -> str:
    """One table for each kind of row, with its counts, and what experiments say in a sentence."""
    parts = sum(len(one.parts) for one in rows)
    lines = [f"{runs:,} small training runs, {parts:,} statements judged:"]
    for kind, words in KINDS.items():
        chosen = of_kind(rows, kind)
        statements = sum(len(one.parts) for one in chosen)
        lines += [
            "",
            f"| {words}: {len(chosen)} rows of {statements} parts; {tally(chosen)} | verdict "
            "| parts that hold | what does not |",
            "|---|---|---|---|",
            *map(_line, chosen),
        ]
    for sentence in said:
        lines += ["", sentence]
    return "\n".join(lines) + "\n"


def _line(one: Decided) -> str:
    held = f"{one.held} of {len(one.parts)}" if one.parts else ""
    cells = (one.row.title, one.verdict, held, _open_parts(one.parts, one.row.control))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _open_parts(parts: Sequence[Claim], control: str) -> str:
    """What does not hold, worst first: part, value and interval."""
    left = [part for part in parts if part.verdict != HOLDS]
    left.sort(key=lambda part: -SEVERITY.index(part.verdict))
    named = [f"{verdict_in_row(part, control)}: {_name(part)} {_measured(part)}"
             for part in left[:NAMED]]  # fmt: skip
    rest = len(left) - NAMED
    return "; ".join([*named, f"and {rest} more"] if rest > 0 else named)


def _name(part: Claim) -> str:
    return f"`{part.id.partition('.')[2]}`"


def _measured(part: Claim) -> str:
    return f"{part.value:.3g} [{part.low:.3g}, {part.high:.3g}]".replace("-", "−")


def put_into(document: str, table: str) -> str:
    """The document with another table between its marks."""
    before, begin, rest = document.partition(f"{BEGIN}\n")
    _, end, after = rest.partition(f"{END}\n")
    if not (begin and end):
        raise FilesUsageError(f"the document must have the lines {BEGIN!r} and {END!r}")
    return f"{before}{begin}{table}{end}{after}"


if __name__ == "__main__":
    table, page = Path(sys.argv[1]) / "verdicts.md", Path(sys.argv[2])
    write(page, put_into(page.read_text("utf-8"), table.read_text("utf-8")).encode())
