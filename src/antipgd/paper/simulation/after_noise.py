"""Descent, noise, descent: what kinds of noise are compared by, at the end, where all are clean."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from antipgd.noise.taps import ANTI, Taps
from antipgd.paper import figures
from antipgd.paper.claims import FAILS, HOLDS, LEVEL, UNDECIDED, Claim
from antipgd.paper.results import Results, Values, log_ratio
from antipgd.paper.settings import REGRESSION, SENSING
from antipgd.paper.simulation.problems import Setting
from antipgd.paper.simulation.spec import Run, make_run

APART = "apart"


class Place(NamedTuple):
    """A problem, and how long noise of which size acts in it between two descents."""

    words: str
    problem: str
    settings: dict[str, Setting]
    lr: float
    sigma: float
    descent: int
    noisy: int
    clean: int

    def run(
        self, seed: int, taps: Taps = ANTI, law: str = "gaussian", factor: float = 1.0, *,
        first: bool = False, shape: str = "", lr: float | None = None, batch: int | None = None,
        optimizer: str = "sgd",
    ) -> Run:  # fmt: skip
        """With noise of `factor` σ, from the first step on if `first`; without taps, plain descent
        all the way. `shape` is where a straight line of factors leads from and to, as "1:0"."""
        plain = "gd" if batch is None else "sgd"
        start = 0 if first else self.descent
        stop = start + self.noisy
        return make_run(self.problem, self.settings, "noise" if taps else plain, taps=taps or None,
                        law=law, lr=lr or self.lr, batch=batch, optimizer=optimizer,
                        sigma=factor * self.sigma if taps else 0.0,
                        start=start, stop=stop, steps=self.descent + self.noisy + self.clean,
                        schedule=f"linear:{start}:{stop}:{shape}" if shape else None,
                        measure=(0,), seed=seed, relax=False)  # fmt: skip

    def final(self, results: Results, measure: str = "test_loss", **wanted: Any) -> Values:
        """By seed, at the end of the runs with these fields."""
        return results.final(measure, problem=self.problem, lr=self.lr, **wanted)


PLACES = {
    "regression": Place("regression", REGRESSION, {}, 0.1, 0.05, 2_000, 12_000, 4_000),
    "regression_slow": Place("regression, η / 4", REGRESSION, {}, 0.025, 0.05,
                             8_000, 48_000, 16_000),
    "sensing": Place("matrix sensing", SENSING, {"n": 10, "rank": 2, "measurements": 15}, 0.02,
                     0.05, 12_000, 20_000, 10_000),
    "student": Place("student and teacher", "student_teacher",
                     {"teacher": 2, "n": 60, "test": 500}, 0.1, 0.08, 1_500, 6_000, 5_000),
}  # fmt: skip


def beside(claims: Sequence[Claim], margin: float) -> str:
    """Of ratios that were claimed to be one: how many are, and on which side the others."""
    found = Counter(map(side, claims))
    names = {LEVEL: f"level within {margin:.0%}", "lower": "lower", "higher": "higher",
             UNDECIDED: UNDECIDED, APART: f"{APART}, with runs that diverged"}  # fmt: skip
    return ", ".join(
        f"{found[one]} {name}" for one, name in names.items() if found[one] or one != APART
    )


def side(claim: Claim) -> str:
    """Of a ratio that was claimed to be one: where it lies."""
    if claim.verdict != FAILS:
        return LEVEL if claim.verdict == HOLDS else UNDECIDED
    return APART if claim.unit else "lower" if claim.value < 1 else "higher"


def relative(
    at: Values, ours: list[Values], theirs: Values | list[Values], label: str, colour: str
) -> figures.Series:
    """Geometric means of ours over theirs, one for all or each its own, with two standard errors,
    of seeds without divergence."""
    beside = theirs if isinstance(theirs, list) else [theirs] * len(ours)
    ratios = [log_ratio(one, other) for one, other in zip(ours, beside, strict=True)]
    ratios = [one[np.isfinite(one)] for one in ratios]
    mean = np.array([one.mean() if len(one) else np.nan for one in ratios])
    error = np.array([2 * one.std(ddof=1) / len(one) ** 0.5 if len(one) > 1 else np.nan
                      for one in ratios])  # fmt: skip
    low, high = np.exp(mean - error), np.exp(mean + error)
    return figures.Series(at, np.exp(mean), label, colour, "", "o", low, high, bars=True)
