"""A contestant from its file: what it declares, checked, and its digest.

The text itself goes to the workers, so that what is run is what the digest is of, on any machine.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from antipgd.checks import number, one_of, whole
from antipgd.paper.fight.bout import Bout
from antipgd.paper.fight.problem import FULL, REPLACEMENT, SHUFFLED

RATE = "rate"
BASES = {FULL: "gd", REPLACEMENT: "sgd_replacement", SHUFFLED: "sgd"}
"""Whose learning rate the others of the same order have; AdamW's where that is the optimizer."""
ADAMW = "adamw"


class ContestantError(ValueError):
    """A file that is no contestant."""


@dataclass(frozen=True)
class Contestant:
    """One method."""

    name: str
    text: str
    title: str
    gradients: int
    grid: tuple[float, ...]
    order: str
    tunes: str
    only: tuple[str, ...]
    step: Callable[[Bout, Tensor], Tensor]
    final: Callable[[Bout, Tensor], Tensor]

    @property
    def source(self) -> str:
        """The digest of its file."""
        return digest(self.text)


def digest(text: str) -> str:
    """Of a file's text."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _executed(name: str, text: str) -> ModuleType:
    module = ModuleType(name)
    try:
        exec(compile(text, f"{name}.py", "exec"), module.__dict__)
    except BaseException as error:  # whatever a stranger's file raises, SystemExit too
        if isinstance(error, KeyboardInterrupt):
            raise
        raise ContestantError(f"{name}: its file cannot be run: {error!r}") from error
    return module


def _declared(module: ModuleType, name: str, default: Any = None) -> Any:
    found = getattr(module, name, default)
    if found is None:
        raise ContestantError(
            f"{module.__name__}: its file has no {name}; a method declares GRADIENTS, GRID and "
            "step(bout, w)"
        )
    return found


@cache
def contestant(name: str, text: str) -> Contestant:
    """The method that a file's text is."""
    module = _executed(name, text)
    step, final = _declared(module, "step"), _declared(module, "final", lambda bout, w: w)
    for function in (step, final):
        if not callable(function):
            raise ContestantError(f"{name}: step and final must be functions; got {function!r}")
    try:
        grid = tuple(number("GRID", value) for value in _declared(module, "GRID"))
        gradients = whole("GRADIENTS", _declared(module, "GRADIENTS"), 1, 4)
        order = one_of("ORDER", _declared(module, "ORDER", SHUFFLED), tuple(BASES))
    except (TypeError, ValueError) as error:
        raise ContestantError(f"{name}: {error}") from error
    if not grid:
        raise ContestantError(f"{name}: GRID needs at least one value")
    title = (module.__doc__ or name).strip().partition("\n")[0].partition(":")[0].rstrip(".")
    tunes = str(_declared(module, "TUNES", "value"))
    only = tuple(map(str, _declared(module, "PROBLEMS", ())))
    return Contestant(name, text, title, gradients, grid, order, tunes, only, step, final)


def built_in() -> dict[str, str]:
    """The texts of the methods that ship, by name."""
    room = files("antipgd.paper.fight").joinpath("methods")
    found = {one.name[:-3]: one for one in room.iterdir() if one.name.endswith(".py")}
    return {name: found[name].read_text("utf-8") for name in sorted(found) if name != "__init__"}


def read(path: Path, taken: Iterable[str]) -> Contestant:
    """A stranger's file."""
    name = path.stem
    if name in taken:
        raise ContestantError(f"{path}: there is a method called {name!r}; rename the file")
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ContestantError(f"{path}: cannot be read: {error}") from error
    return contestant(name, text)
