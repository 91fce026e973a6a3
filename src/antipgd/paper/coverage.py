"""What the paper claims and shows, and which experiment answers it: `coverage.toml`, read.

Also the one place where the parts of a row are judged together: with many comparisons in a row,
some would hold or fail by chance.
"""

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files

from antipgd.paper.claims import UNDECIDED, Claim
from antipgd.paper.significance import holm


@dataclass(frozen=True)
class PaperClaim:
    """A row of the verdict table; `parts` are patterns of the ids of claims that decide it."""

    id: str
    reference: str
    says: str
    parts: tuple[str, ...]

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
        PaperClaim(row["id"], row["reference"], row["says"], tuple(row["parts"]))
        for row in _table()["claim"]
    ]


def paper_figures() -> list[PaperFigure]:
    """All figures of the paper, in its order."""
    return [PaperFigure(row["label"], tuple(row["panels"])) for row in _table()["figure"]]


def together(parts: Sequence[Claim]) -> list[Claim]:
    """The parts of a row, undecided where Holm's step-down over all of them does not let them be
    decided. Intervals stay the plain ones; a part without p is no comparison and does not count."""
    compared = [part for part in parts if part.p is not None]
    fallen = holm([part.p for part in compared if part.p is not None])
    kept = {part.id for part, falls in zip(compared, fallen, strict=True) if falls}
    return [
        part if part.p is None or part.verdict == UNDECIDED or part.id in kept
        else replace(part, verdict=UNDECIDED,
                     tested=f"{part.tested} (undecided by Holm over {len(compared)})")
        for part in parts
    ]  # fmt: skip


def judged_together(claims: Sequence[Claim], rows: Sequence[PaperClaim]) -> list[Claim]:
    """All claims in their order, those of each row judged together."""
    found = {claim.id: claim for claim in claims}
    for row in rows:
        found.update({part.id: part for part in together(row.deciding(claims))})
    return [found[claim.id] for claim in claims]
