"""What stands at the end, folded: the paper's slips, and where all of this came from."""

from collections.abc import Mapping, Sequence
from html import escape

from antipgd.paper.report.content import Erratum
from antipgd.paper.report.markup import body, cell, head_cell, line, table, text


def slips(errata: Sequence[Erratum], sections: Mapping[str, int]) -> str:
    """What is printed, what is right, and what shows it."""
    heads = {"says": "printed", "right": "right", "shown": "shown by", "place": "where"}
    lines = (
        line(
            head_cell("says", text(slip.printed, sections))
            + cell("right", text(slip.right, sections))
            + cell("shown", text(slip.shown_by, sections))
            + cell("place", text(slip.where))
        )
        for slip in errata
    )
    return (
        '<section id="errata">\n<h2>Slips in the paper</h2>\n'
        f"<details><summary>{len(errata)} of them, each with what shows it</summary>\n"
        f"{table('errata', heads, [body(lines)])}\n</details>\n</section>"
    )


def provenance(made: Mapping[str, str], command: str) -> str:
    """By which command, code and machine the page was made."""
    pairs = {"command": command, **made}
    lines = "\n".join(f"<dt>{escape(key)}</dt><dd>{escape(pairs[key])}</dd>" for key in pairs)
    return (
        '<section id="provenance">\n<h2>Provenance</h2>\n'
        f"<details><summary>Made by <code>{escape(command)}</code></summary>\n"
        f"<dl>\n{lines}\n</dl>\n</details>\n</section>"
    )
