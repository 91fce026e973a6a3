"""What came out, in five sentences made from the rows, so that they are true of any verdicts.

The paper's claims in numbers; its two small problems; networks; its formulas and slips; the law at
real learning rates. Where its conclusion's questions were asked, a sixth. A sentence about what is
not there is not said.
"""

from collections.abc import Mapping, Sequence

from antipgd.paper.claims import FAILS, HOLDS, LEVEL, NOT_AT_MINIMUM, UNDECIDED
from antipgd.paper.report.content import Erratum, Row
from antipgd.paper.report.markup import tally

_ONE = {HOLDS: "holds", LEVEL: "is level", UNDECIDED: "is undecided",
        NOT_AT_MINIMUM: "was not at a minimum", FAILS: "fails"}  # fmt: skip
_MANY = {HOLDS: "hold", LEVEL: "are level", UNDECIDED: "are undecided",
         NOT_AT_MINIMUM: "were not at a minimum", FAILS: "fail"}  # fmt: skip
PROBLEMS = {"regression": "quadratic regression", "sensing": "matrix sensing"}
FORMULAS = (
    "smoothing", "implicit_bias", "cond_variance", "larger_variance", "implicit_reg", "sharpness",
    "valley_exit", "valley_trace", "pgd_diverges", "variations", "moments_formula", "moments_bound",
)  # fmt: skip
BY_READING = "by reading"


def headlines(
    rows: Sequence[Row], errata: Sequence[Erratum] = (), said: Sequence[str] = ()
) -> dict[str, str]:
    """The sentences, in plain text, by what they are about; `said` is what experiments say of
    networks."""
    by = {row.id: row for row in rows}
    found = {
        "The paper's claims": _claims([row for row in rows if row.kind == "paper"]),
        "Small problems": _problems(by),
        "Networks": " ".join(said),
        "Theory": _theory([by[name] for name in FORMULAS if name in by], errata),
        "Learning rates": _law(by.get("finite_rate")),
        "Its conclusion's questions": _questions([row for row in rows if row.kind == "question"]),
    }
    return {about: sentence for about, sentence in found.items() if sentence}


def _judged(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.verdict in _ONE]


def _shares(rows: Sequence[Row]) -> str:
    """Of several claims: "17 hold, 3 are undecided and 1 fails"."""
    parts = [f"{count} {(_MANY if count > 1 else _ONE)[verdict]}"
             for verdict, count in tally([row.verdict for row in rows])]  # fmt: skip
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]


def _claims(rows: Sequence[Row]) -> str:
    judged = _judged(rows)
    if not judged:
        return ""
    all_of_them = "," if len(judged) == len(rows) else f" {len(judged)} were judged here:"
    return f"Of {len(rows)} claims of the paper{all_of_them} {_shares(judged)}."


def _questions(rows: Sequence[Row]) -> str:
    judged = _judged(rows)
    if not judged:
        return ""
    return f"Of {len(judged)} statements that answer them, {_shares(judged)}."


def _verdict(row: Row) -> str:
    return f"{_ONE[row.verdict]} ({row.held} of {row.parts} comparisons)"


def _problems(by: Mapping[str, Row]) -> str:
    there = {words: by[name] for name, words in PROBLEMS.items() if name in by}
    parts = [f"on {words} this {_verdict(row)}" for words, row in there.items() if _judged([row])]
    if not parts:
        return ""
    return (
        "Anti-PGD has the lowest test loss and the lowest trace, at every learning rate and noise "
        f"level tried: {'; '.join(parts)}."
    )


def _theory(rows: Sequence[Row], errata: Sequence[Erratum]) -> str:
    judged = _judged(rows)
    parts = []
    if judged:
        one = "claim of its theory" if len(judged) == 1 else "claims of its theory"
        parts.append(f"of {len(judged)} {one}, {_shares(judged)}")
    if errata:
        computed = sum(slip.shown_by != BY_READING for slip in errata)
        slips = "slip" if len(errata) == 1 else "slips"
        shown = "by a computation" if computed else BY_READING
        if 0 < computed < len(errata):
            shown = f"{computed} of them confirmed by a computation, the others {BY_READING}"
        parts.append(f"we found {len(errata)} {slips} in it, {shown}")
    sentence = "; ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]}." if sentence else ""


def _law(row: Row | None) -> str:
    if row is None or not _judged([row]):
        return ""
    return (
        "The trace is what falls at small learning rates. At those people use it is a sharpness in "
        "which each curvature is weighed by rate and momentum: this law, which is ours, "
        f"{_verdict(row)}."
    )
