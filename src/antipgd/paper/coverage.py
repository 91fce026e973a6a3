"""What the paper claims and shows, and which experiment answers it: `coverage.toml`, read."""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files

from antipgd.paper.claims import Claim


@dataclass(frozen=True)
class PaperClaim:
    """A row of the verdict table; `parts` are patterns of the ids of claims that decide it."""

    id: str
    reference: str
    says: str
    parts: tuple[str, ...]

    def deciding(self, claims: Iterable[Claim]) -> list[Claim]:
        """The claims that decide this row."""
        return [c for c in claims if any(fnmatchcase(c.id, pattern) for pattern in self.parts)]

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
