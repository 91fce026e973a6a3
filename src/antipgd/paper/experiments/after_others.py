"""Does noise help after another optimizer?

(Ours; the paper asks about noise that begins once the loss of SGD or of another optimizer has
stopped falling.) SGD with batches of 10 and the learning rate of GD, or Adam with 0.003, on
quadratic regression, matrix sensing and a student with its teacher: first without noise until the
training loss is small, then with Anti-PGD's draws, then without again, beside equally many steps
without any. Test loss and trace are to end lower; and test loss is to end where that of GD with
the same noise does, within 10 %. (After the first run this last statement got a verb of its own,
with the same samples and the same 10 %: it had been judged as "ends lower", which counted what
contradicts it as holding.)
"""

from collections.abc import Sequence

import numpy as np

from antipgd.noise.taps import ANTI, Taps
from antipgd.paper import figures
from antipgd.paper.claims import HOLDS, Claim, equal, smaller
from antipgd.paper.results import Results, Values
from antipgd.paper.simulation.after_noise import PLACES, beside, relative
from antipgd.paper.simulation.spec import Run

SHOWS = (
    "Test loss and trace at the end, with noise over without, for three optimizers: geometric "
    "means over {seeds} seeds with two standard errors."
)
SEEDS = 48
FRESH = 3000  # settings were chosen on the seeds below
KEYS = ("regression", "sensing", "student")
MARGIN = 0.1
OPTIMIZERS = {
    "GD": {},
    "SGD": {"batch": 10},
    "Adam": {"optimizer": "adam", "lr": 0.003},
}
OTHERS = ("SGD", "Adam")
COLOURS = {"regression": "#7a4fa3", "sensing": "#17968a", "student": "#555555"}
MEASURES = ("test_loss", "trace")


def _run(key: str, optimizer: str, taps: Taps, seed: int) -> Run:
    return PLACES[key].run(seed, taps, **OPTIMIZERS[optimizer])  # type: ignore[arg-type]


def runs(seeds: int) -> list[Run]:
    return [
        _run(key, optimizer, taps, seed)
        for key in KEYS
        for optimizer in OPTIMIZERS
        for taps in (ANTI, ())
        for seed in range(FRESH, FRESH + seeds)
    ]


def _final(results: Results, key: str, optimizer: str, measure: str, taps: Taps = ANTI) -> Values:
    run = _run(key, optimizer, taps, 0)
    return results.final(measure, problem=run.problem, taps=run.taps, batch=run.batch,
                         optimizer=run.optimizer, lr=run.lr)  # fmt: skip


def claims(results: Results) -> list[Claim]:
    found = [
        smaller(f"after_others.{measure}_{key}_{optimizer.lower()}",
                f"(ours) {PLACES[key].words}: noise after {optimizer} ends with a lower "
                f"{figures.MEASURES[measure]} than {optimizer} without", "Conclusion",
                f"{figures.MEASURES[measure]} after the noise",
                _final(results, key, optimizer, measure),
                _final(results, key, optimizer, measure, ()))
        for measure in MEASURES
        for key in KEYS
        for optimizer in OTHERS
    ]  # fmt: skip
    found += [
        equal(f"after_others.gd_{key}_{optimizer.lower()}",
              f"(ours) {PLACES[key].words}: noise after {optimizer} ends with the test loss of "
              "noise after GD", "Conclusion", "test loss after the noise",
              _final(results, key, optimizer, "test_loss"),
              _final(results, key, "GD", "test_loss"), MARGIN)
        for key in KEYS
        for optimizer in OTHERS
    ]  # fmt: skip
    return found


def words(claims: Sequence[Claim]) -> str:
    """The answer, from what was judged."""
    if not claims:
        return ""
    gd = [c for c in claims if c.id.startswith("after_others.gd_")]
    helped = [c for c in claims if c not in gd]
    return (
        "Does noise help after another optimizer? After SGD and after Adam test loss and trace end "
        f"lower with noise than without in {sum(c.verdict == HOLDS for c in helped)} of "
        f"{len(helped)} comparisons. Beside noise after GD the test loss is, of "
        f"{len(gd)}, {beside(gd, MARGIN)}."
    )


def plot(results: Results) -> figures.Figure:
    at = np.arange(len(OPTIMIZERS), dtype=float)
    panels = []
    for measure in MEASURES:
        series = [
            relative(at + 0.15 * (i - 1),
                     [_final(results, key, optimizer, measure) for optimizer in OPTIMIZERS],
                     [_final(results, key, optimizer, measure, ()) for optimizer in OPTIMIZERS],
                     PLACES[key].words, COLOURS[key])
            for i, key in enumerate(KEYS)
        ]  # fmt: skip
        panels.append(
            figures.Panel(figures.MEASURES[measure], series, "", "", "linear", "log",
                          ticks=[*zip(at, OPTIMIZERS, strict=True)])
        )  # fmt: skip
    return figures.draw(panels, columns=2, width=5.2)
