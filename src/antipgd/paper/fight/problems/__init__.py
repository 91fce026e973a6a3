"""The problems of the fight by name."""

import importlib
from types import ModuleType

from antipgd.checks import nearest
from antipgd.paper.fight.problem import TEST, Problem, Sizes

_ROOM = "antipgd.paper.fight.problems"
MODULES = {
    "regression": "small",
    "sensing": "small",
    "student_teacher": "small",
    "digits": "images",
    "fashion": "images",
    "fashion_batch_norm": "images",
    "cifar10": "images",
    "cifar10_batch_norm": "images",
    "char_gpt": "char_gpt",
}
"""Where each is made: a module with `SIZES`, by name, and `make(name, seed, held_out)`."""


def _module(name: str) -> ModuleType:
    if name not in MODULES:
        raise ValueError(f"unknown problem {name!r}; {nearest(name, MODULES)}")
    return importlib.import_module(f"{_ROOM}.{MODULES[name]}")


def sizes(name: str) -> Sizes:
    """What is fixed of a problem; needs none of its data."""
    found: Sizes = _module(name).SIZES[name]
    return found


def make(name: str, seed: int, held_out: str = TEST) -> Problem:
    """The problem of a seed; scores are of the held-out examples "test", while something is tuned
    of others, "validation"."""
    problem: Problem = _module(name).make(name, seed, held_out)
    return problem
