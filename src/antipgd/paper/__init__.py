"""The paper, executable: its problems, its methods, and many small runs at once.

`sweep` answers a question of your own; `Problem` is what a problem of your own derives from;
`try_function` runs a training function of your own.
Needs the `paper` extra. Nothing in the library imports this. What is named here is loaded when it
is first used, so that the rooms below can be had one by one.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antipgd.paper.methods import SIMULATED as METHODS
    from antipgd.paper.simulation.problems import PROBLEMS, Problem
    from antipgd.paper.simulation.sweep import plan_sweep, sweep
    from antipgd.paper.simulation.table import summary
    from antipgd.paper.trials.trying import try_function

__all__ = ["METHODS", "PROBLEMS", "Problem", "plan_sweep", "summary", "sweep", "try_function"]

_PLACES = {
    "METHODS": ("methods", "SIMULATED"),
    "PROBLEMS": ("simulation.problems", "PROBLEMS"),
    "Problem": ("simulation.problems", "Problem"),
    "plan_sweep": ("simulation.sweep", "plan_sweep"),
    "summary": ("simulation.table", "summary"),
    "sweep": ("simulation.sweep", "sweep"),
    "try_function": ("trials.trying", "try_function"),
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'antipgd.paper' has no attribute {name!r}")
    room, attribute = _PLACES[name]
    return getattr(importlib.import_module(f"antipgd.paper.{room}"), attribute)


def __dir__() -> list[str]:
    return __all__
