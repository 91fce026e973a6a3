"""What the page is given: plain values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from antipgd.paper.claims import Claim


@dataclass(frozen=True)
class Item:
    """An experiment as the page shows it: `about` and `caption` are plain text, with code in
    `backticks`. `chapter` is where it stands; `network`: whether a network is trained in it."""

    name: str
    title: str
    about: str
    claims: Sequence[Claim]
    svg: bytes | None
    png: bytes | None
    caption: str = ""
    chapter: str = ""
    network: bool = False


@dataclass(frozen=True)
class Row:
    """A claim, where it is in the paper, its verdict and the experiments that bear on it; what
    kind of claim it is, the paper's own words, the claim in a line, and how many of its parts
    hold."""

    id: str
    reference: str
    claim: str
    verdict: str
    experiments: Sequence[str]
    kind: str = "paper"
    quote: str = ""
    title: str = ""
    held: int = 0
    parts: int = 0


class Erratum(NamedTuple):
    """A slip of the paper and what shows it."""

    where: str
    printed: str
    right: str
    shown_by: str
