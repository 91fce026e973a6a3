"""Do mini-batches that anticorrelate the gradients' noise find flatter minima?

(Ours; the paper proposes to choose batches so.) Shuffling anticorrelates already: in an epoch of M
batches the deviations from the full gradient sum to zero, so that any two of an epoch have the
correlation −1/(M−1), and steps h apart −(M−h)/(M(M−1)) on average. Mirrored passes, every second
epoch from the end of the last one to its start, cancel twice as often; their neighbours have
−1/(2M). GraB's pair balance (arXiv 2205.10733, 2302.00845) orders each epoch by the gradients that
single examples had in the one before, so that deviations cancel early. They and batches drawn with
replacement are compared with shuffling where SGD finds minima of loss zero: quadratic regression
with batches of 1 and 4, matrix sensing, a student with its teacher. What is claimed is a lower test
loss and trace than shuffling's, by more than nothing to speak of, 5 %.

Learning rates and steps were chosen with the first three orders, on seeds below FRESH. Pair balance
came later: it has no settings of its own, takes theirs, and had no run on any of the fresh seeds
before the one that judges it.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import FAILS, HOLDS, LEVEL, UNDECIDED, Claim, compare_ratio, near
from antipgd.paper.results import Results, Values
from antipgd.paper.settings import REGRESSION, SENSING
from antipgd.paper.simulation.after_noise import relative
from antipgd.paper.simulation.orders import ORDERS, visited_rows
from antipgd.paper.simulation.problems import Setting
from antipgd.paper.simulation.spec import Run, make_run
from antipgd.theory.batches import mirrored_correlation, shuffled_correlation

SHOWS = (
    "Test loss and trace at the end over those of shuffling, for four orders of the mini-batches: "
    "geometric means over {seeds} seeds with two standard errors."
)
SEEDS = 48
FRESH = 5000  # settings were chosen on the seeds below
MARGIN = 0.05
SHUFFLED = "shuffled"
EXAMPLES, BATCH, EPOCHS, LAGS = 40, 4, 1000, (1, 2, 5)  # of the autocorrelations
NEAR = 0.01


class Course(NamedTuple):
    """SGD on a problem, until it has fitted the data."""

    words: str
    problem: str
    settings: dict[str, Setting]
    lr: float
    batch: int
    steps: int
    colour: str


COURSES = {
    "regression": Course("regression, batches of 1", REGRESSION, {}, 0.01, 1, 40_000, "#7a4fa3"),
    "regression_4": Course("regression, batches of 4", REGRESSION, {}, 0.03, 4, 20_000, "#b07aa1"),
    "sensing": Course("matrix sensing, batches of 3", SENSING,
                      {"n": 10, "rank": 2, "measurements": 15}, 0.02, 3, 40_000, "#17968a"),
    "student": Course("student and teacher, batches of 6", "student_teacher",
                      {"teacher": 2, "n": 60, "test": 500}, 0.1, 6, 20_000, "#555555"),
}  # fmt: skip
MEASURES = ("test_loss", "trace")
RIVALS = {
    "mirrored": "mirrored passes",
    "balanced": "GraB's pair balance",
    "replacement": "batches drawn with replacement",
}


def runs(seeds: int) -> list[Run]:
    return [
        make_run(course.problem, course.settings, "sgd", lr=course.lr, batch=course.batch,
                 order=order, steps=course.steps, seed=seed, measure=(0,), relax=False)
        for course in COURSES.values()
        for order in ORDERS
        for seed in range(FRESH, FRESH + seeds)
    ]  # fmt: skip


def _final(results: Results, key: str, order: str, measure: str) -> Values:
    course = COURSES[key]
    wanted: dict[str, Any] = {"problem": course.problem, "batch": course.batch, "order": order}
    return results.final(measure, **wanted)


def predicted(order: str, length: int, lag: int) -> float | None:
    """The correlation of batches a lag apart, on average over an epoch of that many batches; of
    mirrored passes that of neighbours."""
    if order == SHUFFLED:
        return shuffled_correlation(length, lag)
    return mirrored_correlation(length, lag) if lag == 1 else None


def autocorrelation(order: str, seed: int, lag: int) -> float:
    """Of means over batches of numbers that sum to zero, over many epochs."""
    values = np.random.Generator(np.random.Philox(key=seed)).standard_normal(EXAMPLES)
    values -= values.mean()
    last = EPOCHS * (EXAMPLES // BATCH)
    noise = values[visited_rows(order, seed, EXAMPLES, BATCH, 0, last)].mean(axis=1)
    return float((noise[lag:] * noise[:-lag]).mean() / (noise**2).mean())


def _correlations(seeds: Sequence[int]) -> list[Claim]:
    found = []
    for order in (SHUFFLED, "mirrored"):
        for lag in LAGS:
            expected = predicted(order, EXAMPLES // BATCH, lag)
            if expected is not None:
                found.append(
                    near(f"batches.correlation_{order}_{lag}", f"(ours) {order}: batches {lag} "
                         f"apart have the correlation {expected:.3f}", "Conclusion",
                         f"{EXAMPLES // BATCH} batches an epoch, {EPOCHS} epochs",
                         [autocorrelation(order, seed, lag) for seed in seeds], expected, NEAR)
                )  # fmt: skip
    return found


def claims(results: Results) -> list[Claim]:
    found = _correlations(sorted({record.run.seed for record in results.records}))
    found += [
        compare_ratio(f"batches.{measure}_{key}_{order}",
                      f"(ours) {course.words}: {order} ends with a lower "
                      f"{figures.MEASURES[measure]} than shuffled", "Conclusion",
                      f"{figures.MEASURES[measure]} at the end",
                      _final(results, key, order, measure), _final(results, key, SHUFFLED, measure),
                      MARGIN)
        for measure in MEASURES
        for key, course in COURSES.items()
        for order in RIVALS
    ]  # fmt: skip
    return found


def _told(claim: Claim) -> str:
    """An undecided comparison, and how many seeds would decide it."""
    seeds = f"n = {claim.needed:,} would decide" if claim.needed else "no n is known to decide"
    part = claim.id.removeprefix("batches.")
    return f"`{part}` {claim.value:.3g} [{claim.low:.3g}, {claim.high:.3g}], {seeds}"


def _beside(order: str, claims: Sequence[Claim]) -> str:
    """How an order came out beside shuffling."""
    names = {LEVEL: f"level within {MARGIN:.0%}", HOLDS: "lower", FAILS: "higher",
             UNDECIDED: "undecided"}  # fmt: skip
    some = [claim for claim in claims if claim.id.endswith(f"_{order}")]
    count = Counter(claim.verdict for claim in some)
    said = ", ".join(f"{count[verdict]} {name}" for verdict, name in names.items())
    open_ones = "; ".join(_told(claim) for claim in some if claim.verdict == UNDECIDED)
    return f"{RIVALS[order]}, of {len(some)}: {said}{f' ({open_ones})' if open_ones else ''}"


def words(claims: Sequence[Claim]) -> str:
    """The answer, from what was judged."""
    if not claims:
        return ""
    exact = [c for c in claims if c.id.startswith("batches.correlation_")]
    return (
        "Do batches that anticorrelate the noise of SGD help? Shuffling anticorrelates already "
        f"(its correlations are as derived in {sum(c.verdict == HOLDS for c in exact)} of "
        f"{len(exact)} cases). Test losses and traces beside it at the end: "
        f"{'; '.join(_beside(order, claims) for order in RIVALS)}."
    )


def plot(results: Results) -> figures.Figure:
    at = np.arange(len(ORDERS), dtype=float)
    panels = []
    for measure in MEASURES:
        series = [
            relative(at + 0.15 * (i - 1.5), [_final(results, key, o, measure) for o in ORDERS],
                     _final(results, key, SHUFFLED, measure), course.words, course.colour)
            for i, (key, course) in enumerate(COURSES.items())
        ]  # fmt: skip
        panels.append(
            figures.Panel(figures.MEASURES[measure], series, "", "", "linear", "log",
                          ticks=[*zip(at, ORDERS, strict=True)])
        )  # fmt: skip
    return figures.draw(panels, columns=2, width=5.2)
