"""What a data set is to everybody else: its numbers, how it is loaded, and how it is fetched."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from antipgd.paper.networks.data.images import Images

Cache = Path | str | None
Say = Callable[[str], None]


@dataclass(frozen=True)
class DataSet:
    """One data set. `shape` is (channels, height, width) of an image.

    `load` takes the folder that fetched ones lie in. `fetch` puts it there, from a path of the
    user's if one is given, and returns what to tell them; None where there is nothing to fetch.
    `state` says whether it is there.
    """

    name: str
    about: str
    shape: tuple[int, int, int]
    training: int
    testing: int
    load: Callable[[Cache], Images]
    fetch: Callable[[Cache, Path | None, Say], list[str]] | None = None
    state: Callable[[Cache], str] = lambda cache: "nothing to fetch"
