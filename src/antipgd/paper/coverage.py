"""What the paper claims and shows, and which experiment answers it: `coverage.toml`, read.

Also the one place where the parts of a row are judged together: with many comparisons in a row,
some would hold or fail by chance.
"""

import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files

from antipgd.paper.claims import HOLDS, UNDECIDED, Claim, worst
from antipgd.paper.significance import benjamini_hochberg, holm, needed_among

NOT_JUDGED = "not judged"
LEVEL_OF_ROWS = 0.05  # the chance that any part of a row is decided wrongly
KINDS = {
    "paper": "claims of the paper",
    "ours": "additions of ours",
    "machine": "checks of the machine",
    "question": "questions of its conclusion",
}  # counted apart: what can hardly fail must not swell the number of claims that hold

CONTROLS: dict[str, Callable[[Sequence[float], float], list[bool]]] = {
    "Holm": holm,
    "false discovery rate": benjamini_hochberg,
}


@dataclass(frozen=True)
class PaperClaim:
    """A row of the verdict table; `parts` are patterns of the ids of claims that decide it.

    `kind` is one of `KINDS`; `quote` are the paper's own words, which a row of kind "paper" must
    have; `title` says it in a line. `control`: how its parts are judged together, a name of
    `CONTROLS`.
    """

    id: str
    reference: str
    says: str
    parts: tuple[str, ...]
    kind: str = "paper"
    title: str = ""
    quote: str = ""
    control: str = "Holm"

    def decides(self, claim: Claim) -> bool:
        """Whether a claim is a part of this row."""
        return any(fnmatchcase(claim.id, pattern) for pattern in self.parts)

    def deciding(self, claims: Iterable[Claim]) -> list[Claim]:
        """The claims that decide this row."""
        return [claim for claim in claims if self.decides(claim)]

    @property
    def experiments(self) -> list[str]:
        """The experiments whose claims decide this row."""
        return list(dict.fromkeys(pattern.partition(".")[0] for pattern in self.parts))


@dataclass(frozen=True)
class Decided:
    """A row of the table with its verdict and the claims that decided it."""

    row: PaperClaim
    verdict: str
    parts: Sequence[Claim]

    @property
    def held(self) -> int:
        """How many parts hold."""
        return sum(part.verdict == HOLDS for part in self.parts)


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper; each panel names an experiment, or why there is none here."""

    label: str
    panels: tuple[str, ...]


@cache
def _table() -> dict[str, list[dict]]:
    return tomllib.loads(files("antipgd.paper").joinpath("coverage.toml").read_text("utf-8"))


def paper_claims() -> list[PaperClaim]:
    """The rows of the verdict table, in the page's order."""
    return [
        PaperClaim(row["id"], row["reference"], row["says"], tuple(row["parts"]), row["kind"],
                   row["title"], row.get("quote", ""), row.get("control", "Holm"))
        for row in _table()["claim"]
    ]  # fmt: skip


def paper_figures() -> list[PaperFigure]:
    """All figures of the paper, in its order."""
    return [PaperFigure(row["label"], tuple(row["panels"])) for row in _table()["figure"]]


def together(parts: Sequence[Claim], control: str = "Holm") -> list[Claim]:
    """The parts of a row, undecided where Holm's step-down over all of them (of a map, the rate of
    false discoveries) does not let them be decided. Intervals stay the plain ones; a part without p
    is no comparison and does not count."""
    compared = [part for part in parts if part.p is not None]
    ps = [part.p for part in compared if part.p is not None]
    fallen = CONTROLS[control](ps, LEVEL_OF_ROWS)
    kept = {part.id for part, falls in zip(compared, fallen, strict=True) if falls}
    return [
        part if part.p is None or part.verdict == UNDECIDED or part.id in kept
        else replace(part, verdict=UNDECIDED, needed=needed_among(part.p, part.n, len(compared)),
                     tested=f"{part.tested} (undecided by {control} over {len(compared)})")
        for part in parts
    ]  # fmt: skip


def verdict_in_row(part: Claim, control: str = "Holm") -> str:
    """A part's verdict in words: by the row's control where its own interval would decide."""
    by_row = part.verdict == UNDECIDED and part.p is not None and part.p < LEVEL_OF_ROWS
    return f"{part.verdict} by {control}" if by_row else part.verdict


def judged_together(claims: Sequence[Claim], rows: Sequence[PaperClaim]) -> list[Claim]:
    """All claims in their order, those of each row judged together."""
    found = {claim.id: claim for claim in claims}
    for row in rows:
        found.update({part.id: part for part in together(row.deciding(claims), row.control)})
    return [found[claim.id] for claim in claims]


def kind_of(claim: Claim) -> str:
    """The kind of the row that a claim belongs to; the paper's where it is in none."""
    return next((row.kind for row in paper_claims() if row.decides(claim)), "paper")


def decided(claims: Sequence[Claim], experiments: Iterable[str]) -> list[Decided]:
    """Every row with the worst verdict of its parts, claims being those of the experiments named;
    not judged where some of its experiments are missing. Questions that were not asked are left
    out."""
    there, found = set(experiments), []
    for row in paper_claims():
        if row.kind == "question" and there.isdisjoint(row.experiments):
            continue
        parts = row.deciding(claims)
        whole = bool(parts) and there.issuperset(row.experiments)
        verdict = worst(part.verdict for part in parts) if whole else NOT_JUDGED
        found.append(Decided(row, verdict, parts))
    return found
