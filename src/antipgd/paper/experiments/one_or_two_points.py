"""One perturbed gradient a step, or the mean of two on both sides: who is right?

(Ours; the paper's noise has one point.) arXiv 2306.08553 says that noise before the gradient, which
is Anti-PGD as its clean weights see it, brings little and that the mean of the gradients at z ± σξ
mends it; arXiv 2606.12054 says that one perturbed pass recovers most of the benefit. Compared on
quadratic regression and matrix sensing, without momentum and with β = 0.9 (half the learning rate,
a fifth of the steps), GD before and after the noise: at equal σ and steps, where two points cost
twice the gradients; at equal gradients, one point having twice the noisy steps; and at equal
regulariser. By the law of finite learning rates two points have φ = 1 and one point φ(ηh) > 1, so
equal σ is not equal regulariser: at equal σ one point is to flatten more, and with σ of two points
times √φ̄ both are to be level. There noise is short and small (σ = 0.02, a fifth of the steps), as
after long noise both have arrived; √φ̄ is the law's, its mean along the flow of other seeds. (After
the first run the statement at equal σ was turned round, from "flattens more" to "flattens as two
do"; samples and the 5 % are the same. It and the one at equal gradients are ours: of an estimate in
expectation, and of what one need not resort to, they say nothing.)
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import FAILS, HOLDS, LEVEL, Claim, above, compare_ratio, near, smaller
from antipgd.paper.results import Results, Values, log_ratio
from antipgd.paper.simulation.after_noise import PLACES, relative
from antipgd.paper.simulation.spec import Run, make_run

SHOWS = (
    "Left, test loss after long noise over that of one point at equal steps; right, trace after "
    "short noise, two points over one point at equal σ and at equal regulariser: geometric means "
    "over {seeds} seeds with two standard errors."
)
SEEDS = 24
FRESH = 7000  # settings and factors were chosen on the seeds below
KEYS, MOMENTA = ("regression", "sensing"), (0.0, 0.9)
ONE, TWO = "anti", "two_point"
SHORT, SMALL = 0.2, 0.02  # of the noisy steps, and its σ
# √φ̄ along the flow of R, mean of seeds 0 to 7, by place and momentum.
FACTORS = {("regression", 0.0): 1.158, ("regression", 0.9): 1.312,
           ("sensing", 0.0): 1.050, ("sensing", 0.9): 1.141}  # fmt: skip
MARGIN, LEVEL_TRACE = 0.1, 0.05
DRAWS = 64
NOISY, SIMPLE = "arXiv 2306.08553", "arXiv 2606.12054"


def _lr(key: str, beta: float) -> float:
    return PLACES[key].lr / (2 if beta else 1)


def _steps(key: str, beta: float, share: float) -> tuple[int, int, int]:
    """Of the descent, the noise and the descent after it."""
    place, pace = PLACES[key], 0.2 if beta else 1.0
    return (round(pace * place.descent), round(pace * share * place.noisy),
            round(pace * place.clean))  # fmt: skip


def _run(method: str, key: str, beta: float, share: float, sigma: float, seed: int) -> Run:
    """Long noise is followed by clean steps, short noise is not."""
    place = PLACES[key]
    before, noisy, after = _steps(key, beta, share)
    steps = before + noisy + (after if share >= 1 else 0)
    noise: dict[str, Any] = {"sigma": sigma, "start": before, "stop": before + noisy}
    return make_run(place.problem, place.settings, method, lr=_lr(key, beta), momentum=beta,
                    steps=steps, seed=seed, measure=(0,), relax=False,
                    **(noise if sigma else {}))  # fmt: skip


def _arms(key: str, beta: float) -> dict[str, tuple[str, float, float]]:
    """Method, share of the noisy steps, σ."""
    sigma = PLACES[key].sigma
    return {
        "gd": ("gd", 1.0, 0.0),
        "one": (ONE, 1.0, sigma),
        "one_twice": (ONE, 2.0, sigma),
        "two": (TWO, 1.0, sigma),
        "short_one": (ONE, SHORT, SMALL),
        "short_two": (TWO, SHORT, SMALL),
        "short_equal": (TWO, SHORT, SMALL * FACTORS[key, beta]),
    }


def runs(seeds: int) -> list[Run]:
    return [
        _run(method, key, beta, share, sigma, seed)
        for key in KEYS
        for beta in MOMENTA
        for method, share, sigma in _arms(key, beta).values()
        for seed in range(FRESH, FRESH + seeds)
    ]


def _wanted(key: str, beta: float, arm: str) -> dict[str, Any]:
    method, share, sigma = _arms(key, beta)[arm]
    before, noisy, after = _steps(key, beta, share)
    return {"problem": PLACES[key].problem, "momentum": beta, "method": method, "sigma": sigma,
            "steps": before + noisy + (after if share >= 1 else 0)}  # fmt: skip


def _final(results: Results, key: str, beta: float, arm: str, measure: str) -> Values:
    return results.final(measure, "z", **_wanted(key, beta, arm))


def spreads(run: Run, z: Values) -> tuple[float, float]:
    """E‖g‖² at z of the gradient of one point and of two, over a few draws."""
    problem = run.make_problem()
    data = run.make_data(problem)
    rng = np.random.Generator(np.random.Philox(key=run.seed))
    away = SMALL * rng.standard_normal((DRAWS, len(z)))
    right, left = problem.gradient(z + away, data), problem.gradient(z - away, data)
    return tuple(float((g**2).sum(axis=1).mean()) for g in (right, (right + left) / 2))  # type: ignore[return-value]


def _variance(results: Results, key: str, beta: float) -> Claim:
    found = [spreads(record.run, np.array(record.weights["w"]))
             for record in results.select(**_wanted(key, beta, "gd"))
             if "w" in record.weights]  # fmt: skip
    one, two = np.array(found).T
    return smaller(f"one_or_two_points.variance_{key}_{beta:g}",
                   f"(ours) {_words(key, beta)}: at GD's minimum the mean square of the two-point "
                   "gradient is below a tenth of that of one point", NOISY,
                   f"E‖g‖² at σ = {SMALL:g}, {DRAWS} draws", two, one, 0.1)  # fmt: skip


def _words(key: str, beta: float) -> str:
    return f"{PLACES[key].words}, β = {beta:g}"


def _benefit(results: Results, key: str, beta: float) -> Values:
    """ln(GD/one)/ln(GD/two) of the test losses; nought where two points gain nothing."""
    none, one, two = (_final(results, key, beta, arm, "test_loss") for arm in ("gd", "one", "two"))
    with np.errstate(divide="ignore", invalid="ignore"):  # of those that diverged
        gained = log_ratio(none, two)
        return np.where(gained > 0, log_ratio(none, one) / gained, 0.0)


def _compared(results: Results, key: str, beta: float) -> list[Claim]:
    def beside(name: str, says: str, source: str, measure: str, ours: str, theirs: str,
               margin: float) -> Claim:  # fmt: skip
        return compare_ratio(f"one_or_two_points.{name}_{key}_{beta:g}",
                             f"(ours) {_words(key, beta)}: {says}", source,
                             f"{figures.MEASURES[measure]} at the end",
                             _final(results, key, beta, ours, measure),
                             _final(results, key, beta, theirs, measure), margin)  # fmt: skip

    return [
        _variance(results, key, beta),
        beside("better", "at equal σ and steps two points end with a lower test loss than one",
               NOISY, "test_loss", "two", "one", MARGIN),
        above(f"one_or_two_points.benefit_{key}_{beta:g}", f"(ours) {_words(key, beta)}: one point "
              "has more than half of what two points gain over GD", SIMPLE,
              "ln(GD/one)/ln(GD/two) of the test losses", _benefit(results, key, beta), 0.5),
        beside("gradients", "at equal gradients one point ends with a lower test loss than two",
               SIMPLE, "test_loss", "one_twice", "two", MARGIN),
        near(f"one_or_two_points.sigma_{key}_{beta:g}", f"(ours) {_words(key, beta)}: at equal σ "
             f"one point flattens as two do, to {LEVEL_TRACE:.0%}", NOISY,
             "trace at the end of short noise, one point over two",
             np.exp(log_ratio(_final(results, key, beta, "short_one", "trace"),
                              _final(results, key, beta, "short_two", "trace"))),
             1.0, LEVEL_TRACE),
        beside("regulariser", "at equal regulariser two points end with a lower trace than one",
               NOISY, "trace", "short_equal", "short_one", LEVEL_TRACE),
    ]  # fmt: skip


def claims(results: Results) -> list[Claim]:
    return [one for key in KEYS for beta in MOMENTA for one in _compared(results, key, beta)]


def words(claims: Sequence[Claim]) -> str:
    """The answer, from what was judged."""
    if not claims:
        return ""

    def count(name: str, *verdicts: str) -> str:
        some = [c for c in claims if c.id.startswith(f"one_or_two_points.{name}_")]
        return f"{sum(c.verdict in verdicts for c in some)} of {len(some)}"

    gains = [c.value for c in claims if c.id.startswith("one_or_two_points.sigma_")]
    return (
        "One perturbed gradient a step, or two on both sides? At equal σ and steps two points end "
        f"with a lower test loss in {count('better', HOLDS)} settings (higher in "
        f"{count('better', FAILS)}, level within {MARGIN:.0%} in {count('better', LEVEL)}), and "
        f"one point has more than half of their gain in {count('benefit', HOLDS)}. At equal "
        f"gradients one point ends lower in {count('gradients', HOLDS)}, higher in "
        f"{count('gradients', FAILS)}. Two points do take the variance away "
        f"({count('variance', HOLDS)}), but at equal σ they regularise less: after short noise the "
        f"trace of one point is {min(gains):.2f} to {max(gains):.2f} × theirs; at equal "
        f"regulariser {count('regulariser', LEVEL)} are level within {LEVEL_TRACE:.0%}. Who "
        "compares at equal σ compares regularisers of different strength."
    )


_ORDER = [(key, beta) for key in KEYS for beta in MOMENTA]
_SHIFTED = {"two": (-0.12, "two points, equal steps", "#3d7a3f"),
            "one_twice": (0.12, "one point, equal gradients", "#1f6fb4")}  # fmt: skip


def plot(results: Results) -> figures.Figure:
    at = np.arange(len(_ORDER), dtype=float)
    ticks = [(x, f"{PLACES[key].words}\nβ = {beta:g}")
             for x, (key, beta) in zip(at, _ORDER, strict=True)]  # fmt: skip

    def line(arm: str, beside: str, measure: str, label: str, colour: str, by: float) -> Any:
        ours, theirs = ([_final(results, *one, name, measure) for one in _ORDER]
                        for name in (arm, beside))  # fmt: skip
        return relative(at + by, ours, theirs, label, colour)

    left = [line(arm, "one", "test_loss", label, colour, by)
            for arm, (by, label, colour) in _SHIFTED.items()]  # fmt: skip
    right = [
        line("short_two", "short_one", "trace", "equal σ", "#c27c00", -0.12),
        line("short_equal", "short_one", "trace", "equal regulariser", "#3d7a3f", 0.12),
    ]
    panels = [
        figures.Panel("test loss over one point's", left, "", "", "linear", "log", ticks=ticks),
        figures.Panel("trace, two points over one, short noise", right, "", "", "linear", "linear",
                      ticks=ticks),
    ]  # fmt: skip
    return figures.draw(panels, columns=2, width=5.2)
