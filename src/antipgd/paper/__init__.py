"""The paper, executable: its problems, its methods, and many small runs at once.

`sweep` answers a question of your own; `Problem` is what a problem of your own derives from.
Needs the `paper` extra. Nothing in the library imports this.
"""

from antipgd.paper.problems import PROBLEMS, Problem
from antipgd.paper.spec import METHODS
from antipgd.paper.sweep import plan_sweep, summary, sweep

__all__ = ["METHODS", "PROBLEMS", "Problem", "plan_sweep", "summary", "sweep"]
