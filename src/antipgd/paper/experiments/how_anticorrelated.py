"""From uncorrelated to anticorrelated: is λ = 1 the best of taps (1, −λ)?

(Ours; the paper's conclusion asks what lies between its two kinds of noise.) λ from 0, which is
PGD, over 1, Anti-PGD, to 1.1, and longer memories (1−B)² and (1−B)³ with σ such that their noise on
the weights has Anti-PGD's variance. Quadratic regression at two learning rates with the same ησ²n,
matrix sensing (10 × 10, rank 2, 15 measurements), and a student of 40 units with a teacher of 2 and
60 examples. GD descends, noise acts, then it is off until the run is at a minimum again; test loss
at the end, level within 10 %. Flat directions diffuse by (1−λ)²σ² a step against a pull of ησ²/2
times the slope of the trace, so the plateau should be as wide as √η: its half-width, where half of
what λ = 1 takes off the logarithm of GD's trace is lost, is to be twice as large at four times the
learning rate, to a quarter.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

import numpy as np

from antipgd.noise.taps import ANTI, Taps
from antipgd.paper import figures
from antipgd.paper.claims import FAILS, HOLDS, LEVEL, UNDECIDED, Claim, compare_ratio, near
from antipgd.paper.results import Results, Values, log_ratio
from antipgd.paper.simulation.after_noise import PLACES, Place, relative
from antipgd.paper.simulation.spec import Run

SHOWS = (
    "Test loss and trace at the end against λ, relative to λ = 1, seed by seed: "
    "geometric means over {seeds} seeds with two standard errors."
)
SEEDS = 48
FRESH = 1000  # settings were chosen on the seeds below
LAMBDAS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 1.005, 1.01, 1.02, 1.05, 1.1)
MEMORIES = {"(1−B)²": (1.0, -2.0, 1.0), "(1−B)³": (1.0, -3.0, 3.0, -1.0)}
MARGIN, TOLERANCE = 0.1, 0.25


def _scale(taps: Taps) -> float:
    """What σ is multiplied by, so that what w carries has the variance of Anti-PGD's."""
    return float(np.sum(np.cumsum(taps) ** 2) ** -0.5) if taps in MEMORIES.values() else 1.0


def _all_taps() -> list[Taps]:
    """No noise, all λ, the memories."""
    return [(), ANTI, *((1.0, -lam) for lam in LAMBDAS), *MEMORIES.values()]


def runs(seeds: int) -> list[Run]:
    return [
        place.run(seed, taps, factor=_scale(taps))
        for place in PLACES.values()
        for taps in _all_taps()
        for seed in range(FRESH, FRESH + seeds)
    ]


def half_widths(results: Results, place: Place) -> Values:
    """By seed, 1−λ where half of the gain in ln trace is lost; an end of the grid where it is not
    between them."""
    lams = [1.0, *(lam for lam in reversed(LAMBDAS) if lam < 1)]
    gd = place.final(results, "trace", taps=())
    gains = np.array([log_ratio(gd, place.final(results, "trace", taps=(1.0, -lam)))
                      for lam in lams])  # fmt: skip
    with np.errstate(invalid="ignore", divide="ignore"):
        kept = np.minimum.accumulate(np.nan_to_num(gains / gains[0], nan=-9.0, neginf=-9.0))
    return np.array([np.interp(-0.5, -column, 1 - np.array(lams)) for column in kept.T])


def _names() -> dict[str, Taps]:
    """What is compared with λ = 1, and how it is called."""
    return {**{f"λ = {lam:g}": (1.0, -lam) for lam in LAMBDAS}, **MEMORIES}


def claims(results: Results) -> list[Claim]:
    found = [
        compare_ratio(f"how_anticorrelated.{key}_{name}",
                      f"(ours) {place.words}: λ = 1 has a lower test loss than {name}",
                      "Conclusion", "test loss after the noise",
                      place.final(results, taps=ANTI), place.final(results, taps=taps), MARGIN)
        for key, place in PLACES.items()
        for name, taps in _names().items()
    ]  # fmt: skip
    wide, narrow = (half_widths(results, PLACES[key]) for key in ("regression", "regression_slow"))
    found.append(
        near("how_anticorrelated.width", "(ours) regression: the plateau is twice as wide at four "
             "times the learning rate", "Conclusion", "half-width in 1−λ at η = 0.1 over that "
             "at η = 0.025", np.exp(log_ratio(wide, narrow)), 2.0, 2.0 * TOLERANCE)
    )  # fmt: skip
    return found


def _level(claims: Sequence[Claim], key: str) -> str:
    """The outermost λ on both sides of 1 up to which all are level with it."""
    found = {c.id: c.verdict for c in claims}
    sides = [lam for lam in reversed(LAMBDAS) if lam < 1], [lam for lam in LAMBDAS if lam > 1]

    def is_level(lam: float) -> bool:
        return found[f"how_anticorrelated.{key}_λ = {lam:g}"] == LEVEL

    ends = [[*takewhile(is_level, side)] for side in sides]
    low, high = ((end[-1] if end else 1) for end in ends)
    return f"{low:g} to {high:g}" if low != high else "none"


def _counted(claims: Sequence[Claim]) -> str:
    """How often λ = 1 is better, level, worse, undecided."""
    words = {HOLDS: "better", LEVEL: f"level within {MARGIN:.0%}", FAILS: "worse",
             UNDECIDED: "undecided"}  # fmt: skip
    count = Counter(c.verdict for c in claims)
    return ", ".join(f"{word} in {count[verdict]}" for verdict, word in words.items())


def words(claims: Sequence[Claim]) -> str:
    """The answer, from what was judged."""
    if not claims:
        return ""
    level = "; ".join(f"{place.words}: {_level(claims, key)}" for key, place in PLACES.items())
    of_lambda = [c for c in claims if "λ = " in c.id]
    longer = [c for c in claims if "(1−B)" in c.id]
    width = next(c for c in claims if c.id == "how_anticorrelated.width")
    return (
        f"Is λ = 1 the best? Of {len(of_lambda)} comparisons with another λ it is "
        f"{_counted(of_lambda)}. Level with it on both sides are the λ of {level}. At four times "
        f"the learning rate the plateau is {width.value:.2f} × as wide [{width.low:.2f}, "
        f"{width.high:.2f}] ({width.verdict}; the law says 2). Beside longer memories of equal "
        f"variance it is {_counted(longer)} of {len(longer)}."
    )


def _panel(results: Results, place: Place, measure: str) -> figures.Panel:
    lams = sorted((*LAMBDAS, 1.0))
    taps = [*((1.0, -lam) for lam in lams), *MEMORIES.values()]
    at = np.arange(len(taps), dtype=float)
    ours = [place.final(results, measure, taps=one) for one in taps]
    series = [
        relative(at, ours, place.final(results, measure, taps=ANTI), "", "#1f6fb4"),
        figures.Series([0, len(taps) - 1], [1, 1], "λ = 1", dash=":"),
    ]
    names = ["" if 0 < abs(1 - lam) < 0.0075 else f"{lam:g}" for lam in lams]  # too near to 1
    ticks = [*zip(at, [*names, *MEMORIES], strict=True)]
    title = f"{place.words}: {figures.MEASURES[measure]}"
    return figures.Panel(title, series, "λ", "", "linear", "log", ticks=ticks)


def plot(results: Results) -> figures.Figure:
    panels = [_panel(results, place, measure) for place in PLACES.values()
              for measure in ("test_loss", "trace")]  # fmt: skip
    return figures.draw(panels, columns=2, width=5.2)
