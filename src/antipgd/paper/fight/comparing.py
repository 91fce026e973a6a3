"""Two methods on a problem, seed by seed: better, worse, level or undecided.

By the rules of all verdicts, `antipgd.paper.claims`: Student's interval of paired differences, and
a margin within which two are level. Knows goodness by seed, not bouts.
"""

import numpy as np

from antipgd.paper.claims import (
    FAILS,
    HOLDS,
    LEVEL,
    Claim,
    compare_difference,
    compare_ratio,
)
from antipgd.paper.coverage import verdict_in_row
from antipgd.paper.fight.problem import LOSS
from antipgd.paper.fight.ranking import Array

WORDS = {HOLDS: "better", FAILS: "worse", LEVEL: "level"}


def compared(kind: str, one: Array, other: Array, name: str = "") -> Claim:
    """Claims that `one` is better: by points of accuracy, or the ratio of losses, below 1 then.

    Goodness of seeds that both have, none of which diverged; one seed leaves it undecided.
    """
    said = (name, "better", "", "seed by seed")
    if kind == LOSS:  # goodness is minus the logarithm
        return compare_ratio(*said, np.exp(-one), np.exp(-other))
    return compare_difference(*said, 100 * (one - other))


def verdict(claim: Claim) -> str:
    """In words; where only others beside it leave it undecided, that they do."""
    said = verdict_in_row(claim)
    return WORDS.get(said, said)
