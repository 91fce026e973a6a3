"""When should noise act: early, late, fading or growing?

(Ours; the paper asks about noise that begins once the loss of another optimizer has stopped
falling.) Anti-PGD for the same number of steps on quadratic regression, matrix sensing and a
student with its teacher: after GD has converged, as `schedule=Plateau` has it; from the first step
on; fading to nought and growing from it in a straight line, both with √3 σ, so that Σσ² is equal.
All take equally many steps and end with a descent. By the law what counts is Σησ², whenever it
comes, as long as the weights are near minima: test loss and trace at the end are to be level with
noise after convergence, within 10 %. And all of them are to end below GD. (After the first run the
statements about equality got a verb of their own, with the same samples and the same 10 %: they had
been judged as "ends lower", which counted what contradicts them as holding.)
"""

from collections.abc import Sequence

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import HOLDS, Claim, equal, smaller
from antipgd.paper.results import Results, Values
from antipgd.paper.simulation.after_noise import PLACES, beside, relative
from antipgd.paper.simulation.spec import Run

SHOWS = (
    "Test loss and trace at the end over those of noise after convergence: geometric means over "
    "{seeds} seeds with two standard errors."
)
SEEDS = 48
FRESH = 2000  # settings were chosen on the seeds below
KEYS = ("regression", "sensing", "student")
MARGIN = 0.1
ROOT = 3**0.5
LATE = "after convergence"
ARMS = {
    LATE: {},
    "from the start": {"first": True},
    "fading": {"shape": "1:0", "factor": ROOT},
    "growing": {"shape": "0:1", "factor": ROOT},
    "no noise": {"taps": ()},
}
COLOURS = {"regression": "#7a4fa3", "sensing": "#17968a", "student": "#555555"}


def runs(seeds: int) -> list[Run]:
    return [
        PLACES[key].run(seed, **arm)  # type: ignore[arg-type]
        for key in KEYS
        for arm in ARMS.values()
        for seed in range(FRESH, FRESH + seeds)
    ]


def _final(results: Results, key: str, arm: str, measure: str) -> Values:
    run = PLACES[key].run(0, **ARMS[arm])  # type: ignore[arg-type]
    return results.final(measure, problem=run.problem, taps=run.taps, start=run.start,
                         schedule=run.schedule)  # fmt: skip


def claims(results: Results) -> list[Claim]:
    found = [
        equal(f"when_to_begin.{measure}_{key}_{arm.replace(' ', '_')}",
              f"(ours) {PLACES[key].words}: noise {arm} ends with the "
              f"{figures.MEASURES[measure]} of noise {LATE}", "Conclusion",
              f"{figures.MEASURES[measure]} after the noise",
              _final(results, key, arm, measure), _final(results, key, LATE, measure), MARGIN)
        for measure in ("test_loss", "trace")
        for key in KEYS
        for arm in ("from the start", "fading", "growing")
    ]  # fmt: skip
    found += [
        smaller(f"when_to_begin.gd_{key}_{arm.replace(' ', '_')}", f"(ours) {PLACES[key].words}: "
                f"noise {arm} ends with a lower test loss than GD", "Conclusion",
                "test loss after the noise", _final(results, key, arm, "test_loss"),
                _final(results, key, "no noise", "test_loss"))
        for key in KEYS
        for arm in ARMS
        if arm != "no noise"
    ]  # fmt: skip
    return found


def _counted(claims: Sequence[Claim], start: str) -> str:
    some = [c for c in claims if c.id.startswith(f"when_to_begin.{start}")]
    return f"of {len(some)} comparisons {beside(some, MARGIN)}"


def words(claims: Sequence[Claim]) -> str:
    """The answer, from what was judged."""
    if not claims:
        return ""
    beaten = [c for c in claims if c.id.startswith("when_to_begin.gd_")]
    return (
        "When should noise act? Noise from the start, fading or growing, with the same Σσ², beside "
        f"noise after convergence: the trace at the end is, {_counted(claims, 'trace')}; the test "
        f"loss, {_counted(claims, 'test_loss')}. In {sum(c.verdict == HOLDS for c in beaten)} of "
        f"{len(beaten)} cases it ends below GD's."
    )


def plot(results: Results) -> figures.Figure:
    arms = [arm for arm in ARMS if arm != "no noise"]
    at = np.arange(len(arms), dtype=float)
    panels = []
    for measure in ("test_loss", "trace"):
        series = [
            relative(at + 0.15 * (i - 1), [_final(results, key, arm, measure) for arm in arms],
                     _final(results, key, LATE, measure), PLACES[key].words, COLOURS[key])
            for i, key in enumerate(KEYS)
        ]  # fmt: skip
        panels.append(
            figures.Panel(figures.MEASURES[measure], series, "", "", "linear", "log",
                          ticks=[*zip(at, arms, strict=True)])
        )  # fmt: skip
    return figures.draw(panels, columns=2, width=5.2)
