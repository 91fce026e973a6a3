"""Does the law of the draws matter, and when does it diverge?

(Ours; the paper's noise is a coin.) Seven laws of equal variance: rademacher, uniform, gaussian,
laplace, and student-t with 5, 3 and 2.1 degrees of freedom, as Anti-PGD on quadratic regression,
matrix sensing and a student with its teacher, at σ, 2σ and 3σ, GD before and after it. The law of
finite learning rates knows E w² alone, so as long as noise is small any law should do what gaussian
does: level in test loss within 10 % at σ, for λ = 0.95 too, and in the valley with ‖u‖² of the law
to 2 %. Of larger noise it says nothing: there, fourth moments count, and light tails are to do
better than gaussian ones, heavy tails worse. Where a moment of the gradient does not exist, no mean
does: on regression and sensing, whose gradients are cubic, that of student-t needs more than 3
degrees, and in the valley the mean of v² is E w² but its sum over a run converges slowly below 4.
With 2.1 most runs are to diverge on regression and sensing even at σ, with 3 at 2σ, with gaussian
draws none at 3σ. Draws with fewer than 2.001 degrees, which have no variance, are refused.
(After the first run "level" got a verb of its own, with the same samples and the same 10 %: it had
been judged as "ends lower", which counted what contradicts it as holding.)
"""

from collections.abc import Sequence

import numpy as np

from antipgd.noise.taps import ANTI, Taps
from antipgd.paper import figures
from antipgd.paper.claims import FAILS, HOLDS, Claim, equal, mostly, near, smaller
from antipgd.paper.results import Results, Values
from antipgd.paper.simulation.after_noise import PLACES, beside, relative
from antipgd.paper.simulation.spec import Run, make_run
from antipgd.theory.finite_rate import variance_ratio

SHOWS = (
    "Test loss at the end over gaussian noise's, law by law at three σ: geometric means over the "
    "seeds of {seeds} that did not diverge, with two standard errors. Last, the share that "
    "diverged at 2σ."
)
SEEDS = 48
FRESH = 1000  # settings were chosen on the seeds below
GAUSSIAN = "gaussian"
LIGHT, HEAVY = ("rademacher", "uniform"), ("laplace", "student-t:5")
WILD = ("student-t:3", "student-t:2.1")
LAWS = (*LIGHT, GAUSSIAN, *HEAVY, *WILD)
FACTORS = (1, 2, 3)
LEANING = (1.0, -0.95)  # taps off the plateau
MARGIN = 0.1
VALLEY, VALLEY_RATE, VALLEY_SIGMA, VALLEY_STEPS = "widening_valley", 0.5, 0.0055, 40_000
TOLERANCE = 0.02
KEYS = ("regression", "sensing", "student")
COLOURS = {1: "#1f6fb4", 2: "#c27c00", 3: "#c2402a"}


def _valley(law: str, seed: int) -> Run:
    return make_run(VALLEY, {"d": 4, "D": 1.0}, "anti", law=law, lr=VALLEY_RATE, sigma=VALLEY_SIGMA,
                    steps=VALLEY_STEPS, measure=(0,), seed=seed, relax=False)  # fmt: skip


def runs(seeds: int) -> list[Run]:
    some = range(FRESH, FRESH + seeds)
    return [
        *(PLACES[key].run(seed, law=law, factor=factor)
          for key in KEYS for factor in FACTORS for law in LAWS for seed in some),
        *(PLACES["regression"].run(seed, LEANING, law) for law in LAWS for seed in some),
        *(_valley(law, seed) for law in LAWS for seed in some),
    ]  # fmt: skip


def _final(results: Results, key: str, law: str, factor: int = 1, taps: Taps = ANTI) -> Values:
    place = PLACES[key]
    return place.final(results, law=law, sigma=factor * place.sigma, taps=taps)


def curvature() -> float:
    """‖u‖² at the end of the valley's runs by the law, from 1: dh/dn = −2ησ²φ(ηh)h."""
    fall = np.linspace(0.0, 12.0, 24_001)
    pace = 1 / (2 * variance_ratio(VALLEY_RATE * np.exp(-fall)))
    taus = np.concatenate([[0.0], np.cumsum((pace[1:] + pace[:-1]) / 2 * np.diff(fall))])
    return float(np.exp(-np.interp(VALLEY_STEPS * VALLEY_RATE * VALLEY_SIGMA**2, taus, fall)))


def _small_noise(results: Results) -> list[Claim]:
    """At σ, and off the plateau of λ."""
    cases = [(f"small_{key}", key, ANTI, PLACES[key].words) for key in KEYS]
    cases.append(("leaning", "regression", LEANING, "regression, taps (1, −0.95)"))
    return [
        equal(f"which_law.{name}_{law}", f"(ours) {words}, σ = {PLACES[key].sigma:g}: {law} draws "
              "end with the test loss of gaussian ones", "Conclusion",
              "test loss after the noise", _final(results, key, law, taps=taps),
              _final(results, key, GAUSSIAN, taps=taps), MARGIN)
        for name, key, taps, words in cases
        for law in (*LIGHT, *HEAVY)
    ]  # fmt: skip


def _valley_claims(results: Results) -> list[Claim]:
    expected = curvature()
    found = [
        near(f"which_law.valley_{law}", f"(ours) {law} draws: ‖u‖² falls as the law says, to "
             f"{TOLERANCE:.0%}", "def:L_tilde, eq:def_wv", f"‖u‖² at z over the law's, step "
             f"{VALLEY_STEPS:,}", results.final("watched", "z", problem=VALLEY, law=law) / expected,
             1.0, TOLERANCE)
        for law in (*LIGHT, GAUSSIAN, *HEAVY)
    ]  # fmt: skip
    slow = results.final("watched", "z", problem=VALLEY, law=WILD[-1]) > expected * (1 + MARGIN)
    found.append(
        mostly("which_law.valley_slow", f"(ours) {WILD[-1]}: most runs stay more than {MARGIN:.0%} "
               "above the law, which is about a mean that few of them see",
               "def:L_tilde, eq:def_wv", f"‖u‖² at z, step {VALLEY_STEPS:,}", slow)
    )  # fmt: skip
    return found


def _large_noise(results: Results, key: str) -> list[Claim]:
    """At the largest noise: in the order of their tails."""
    place, found = PLACES[key], []
    for law in (*LIGHT, *HEAVY):
        word = "lower" if law in LIGHT else "higher"
        ours, normal = (_final(results, key, one, FACTORS[-1]) for one in (law, GAUSSIAN))
        less, more = (ours, normal) if law in LIGHT else (normal, ours)
        found.append(
            smaller(f"which_law.large_{key}_{law}", f"(ours) {place.words}, σ = "
                    f"{FACTORS[-1] * place.sigma:g}: {law} draws end with a {word} test loss than "
                    "gaussian ones", "Conclusion", "test loss after the noise, the lower over the "
                    "higher", less, more)
        )  # fmt: skip
    return found


def _divergence(results: Results, key: str) -> list[Claim]:
    place = PLACES[key]
    found = [
        mostly(f"which_law.diverges_{key}_{law}", f"(ours) {place.words}, σ = "
               f"{factor * place.sigma:g}: most runs with {law} draws diverge", "Conclusion",
               "share of seeds that diverged", ~np.isfinite(_final(results, key, law, factor)))
        for law, factor in zip(WILD, (2, 1), strict=True)
    ]  # fmt: skip
    stayed = np.isfinite(_final(results, key, GAUSSIAN, FACTORS[-1]))
    found.append(
        mostly(f"which_law.stays_{key}", f"(ours) {place.words}, σ = "
               f"{FACTORS[-1] * place.sigma:g}: more than 9 of 10 runs with gaussian draws do not "
               "diverge", "Conclusion", "share of seeds that did not", stayed, 0.9)
    )  # fmt: skip
    return found


def claims(results: Results) -> list[Claim]:
    found = [*_small_noise(results), *_valley_claims(results)]
    found += [claim for key in KEYS for claim in _large_noise(results, key)]
    return found + [claim for key in KEYS[:2] for claim in _divergence(results, key)]


def words(claims: Sequence[Claim]) -> str:
    """The answer, from what was judged."""
    if not claims:
        return ""

    def among(start: str, verdict: str) -> str:
        some = [c for c in claims if c.id.startswith(f"which_law.{start}")]
        return f"{sum(c.verdict == verdict for c in some)} of {len(some)}"

    small = [c for c in claims if c.id.startswith("which_law.small_")]
    return (
        f"Does the law matter? While noise is small, of {len(small)} comparisons with gaussian "
        f"draws {beside(small, MARGIN)} (off the plateau of λ {among('leaning', HOLDS)} level); "
        f"in the valley {among('valley', HOLDS)} statements of the law of finite learning "
        f"rates hold. With three times the noise light tails end lower and heavy ones higher than "
        f"gaussian in {among('large', HOLDS)} comparisons ({among('large', FAILS)} the other way "
        "round). Student-t draws with 3 degrees of freedom or fewer leave cubic gradients without "
        f"a mean: {among('diverges', HOLDS)} statements that most runs diverge hold, and "
        f"{among('stays', HOLDS)} that runs with gaussian draws do not."
    )


def _panel(results: Results, key: str) -> figures.Panel:
    at = np.arange(len(LAWS), dtype=float)
    series = [
        relative(at + 0.15 * (factor - 2), [_final(results, key, law, factor) for law in LAWS],
                 _final(results, key, GAUSSIAN, factor), f"{factor}σ", COLOURS[factor])
        for factor in FACTORS
    ]  # fmt: skip
    title = f"{PLACES[key].words}, σ = {PLACES[key].sigma:g}: test loss over gaussian's"
    return figures.Panel(
        title, series, "", "", "linear", "log", ticks=[*zip(at, LAWS, strict=True)]
    )


def _diverged_panel(results: Results) -> figures.Panel:
    at = np.arange(len(LAWS), dtype=float)
    series = [
        figures.Series(at, [1 - np.isfinite(_final(results, key, law, 2)).mean() for law in LAWS],
                       PLACES[key].words, colour, "-", "o")
        for key, colour in zip(KEYS, ("#7a4fa3", "#17968a", "#555555"), strict=True)
    ]  # fmt: skip
    ticks = [*zip(at, LAWS, strict=True)]
    return figures.Panel(
        "share that diverged at 2σ", series, "", "", "linear", "linear", ticks=ticks
    )


def plot(results: Results) -> figures.Figure:
    panels = [*(_panel(results, key) for key in KEYS), _diverged_panel(results)]
    return figures.draw(panels, columns=2, width=5.2)
