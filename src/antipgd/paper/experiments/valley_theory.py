"""The widening valley as a diffusion: where noise of any colour leaves it, and when

(Ours; what thm:main_tube is about.) For small noise with taps (1, θ) ‖u‖² is a diffusion: the side
of the first exit from (αD, D/α), the law of η‖u‖²/2 without exits, exit times, and the dimension
from which PGD turns to the sharp side, all against `antipgd.theory.valley`. α = 0.25, D = 1, η =
α/2D, rademacher noise, 300 seeds. Exits: σ = 0.02, d = 2 to 10, and d = 10 for taps around (1, −1)
with σ = 0.04. Law: η = 0.5, σ = 0.03 for PGD and 0.05 for θ = −0.5, steps 8,000 to 20,000. Exit
times: PGD at d = 100, σ = 0.01; Anti-PGD at d = 4, σ = 0.01, η = α/D. Floor: d = 10, σ² = 0.005, η
= α/D. Shares of exits are judged by the mean of |error| over dimensions; until results were seen it
was that of the error, in which dimensions can cancel.
"""

import itertools
import math

import numpy as np

from antipgd.estimate import Estimate
from antipgd.paper import figures
from antipgd.paper.claims import Claim, above, below, mostly, near
from antipgd.paper.results import Results, log_ratio
from antipgd.paper.simulation.spec import Run, make_run
from antipgd.theory import valley

SHOWS = (
    "Shares of runs that leave on the sharp side, densities of ‖u‖², and the time to leave, "
    "beside the theory. {seeds} seeds; bars are 95 % intervals, the band one standard deviation."
)
SEEDS = 300
FRESH = 1000  # settings were chosen on the seeds below
ALPHA, D = 0.25, 1.0
LR, CAPTION = ALPHA / (2 * D), ALPHA / D
EDGES = (ALPHA * D, D / ALPHA)
PROBLEM = "widening_valley"

EXIT_SIGMA, EXIT_STEPS = 0.02, 400_000
COLOURS = {0.0: figures.COLOURS["pgd"], -0.5: "#7a4fa3", -0.7: "#17968a"}  # by θ
DIMENSIONS = (2, 3, 4, 6, 10)
AROUND_SIGMA, AROUND_D = 0.04, 10
AROUND = (-0.7, -0.8, -0.9, -1.0, -1.1, -1.25, -1.35)
LAW_LR, LAW_STEPS = 0.5, 20_000
LAWS = ((3, 0.0, 0.03), (4, -0.5, 0.05), (6, -0.5, 0.05))  # (d, θ, σ)
LAW_AT = tuple(range(8_000, LAW_STEPS + 1, 1_000))
PGD_D, ANTI_D, TIME_SIGMA = 100, 4, 0.01
ANTI_TIME = valley.anti_exit_time(D, ALPHA, TIME_SIGMA, CAPTION)
ANTI_AT = tuple(round(ANTI_TIME * part) for part in np.linspace(0.02, 1.2, 60))
FLOOR_D, FLOOR_SIGMA, FLOOR_STEPS = 10, math.sqrt(0.005), 12_000
FLOOR_AT = tuple(range(FLOOR_STEPS // 2, FLOOR_STEPS + 1, FLOOR_STEPS // 100))


def _run(
    d: int, theta: float, seed: int, lr: float, sigma: float, steps: int, **rest: object
) -> Run:
    return make_run(PROBLEM, {"d": d, "D": D}, "noise", taps=(1.0, theta), lr=lr, sigma=sigma,
                    law="rademacher", steps=steps, seed=seed, relax=False, **rest)  # type: ignore[arg-type]  # fmt: skip


def _exit(d: int, theta: float, seed: int, sigma: float) -> Run:
    return _run(d, theta, seed, LR, sigma, EXIT_STEPS, leave=EDGES, measure=(0,))


def runs(seeds: int) -> list[Run]:
    found = []
    for seed in range(FRESH, FRESH + seeds):
        found += [_exit(d, theta, seed, EXIT_SIGMA) for theta in COLOURS for d in DIMENSIONS]
        found += [_exit(AROUND_D, theta, seed, AROUND_SIGMA) for theta in AROUND]
        found += [
            _run(d, theta, seed, LAW_LR, sigma, LAW_STEPS, measure=LAW_AT)
            for d, theta, sigma in LAWS
        ]
        found.append(_exit(PGD_D, 0.0, seed, TIME_SIGMA))
        found.append(_run(ANTI_D, -1.0, seed, CAPTION, TIME_SIGMA, ANTI_AT[-1], measure=ANTI_AT))
        found.append(_run(FLOOR_D, -1.0, seed, CAPTION, FLOOR_SIGMA, FLOOR_STEPS, measure=FLOOR_AT))
    return found


def _highs(results: Results, d: int, theta: float, sigma: float) -> np.ndarray:
    """By seed: 1 left through D/α, 0 through αD, ½ where it had not left by the last step."""
    value = {"left high": 1.0, "left low": 0.0, "ok": 0.5, "diverged": 1.0}
    chosen = results.select(d=d, taps=(1.0, theta), sigma=sigma, lr=LR)
    return np.array([value[record.status] for record in chosen])


def _expected(d: int, theta: float) -> float:
    return valley.exit_probability(d, D, ALPHA, LR, theta)


def _half_x(results: Results, d: int, theta: float) -> np.ndarray:
    """η‖u‖²/2 by seed and late step; a run that diverged counts as 1, the end of the law."""
    _, u2 = results.curves("watched", d=d, taps=(1.0, theta), lr=LAW_LR)
    return np.clip(LAW_LR * u2[:, 1:] / 2, 0, 1)


def _anti_times(results: Results) -> np.ndarray:
    """By seed, the step at which ‖u‖² at z reaches αD, interpolated in its logarithm."""
    steps, u2 = results.curves("watched", "z", d=ANTI_D, sigma=TIME_SIGMA)
    fall = log_ratio(np.full_like(u2, D), u2)
    return np.array([np.interp(math.log(1 / ALPHA), row, steps) for row in fall])


def by_worst_signs(surplus: np.ndarray) -> np.ndarray:
    """By seed, surpluses (seeds in columns) averaged with the signs that make the upper end of
    the mean's interval largest. Mean |error| = max over signs of the mean of signed errors, so
    that end bounds it with the confidence of a single interval (the lower end is a little high)."""
    signs = np.array([*itertools.product((-1, 1), repeat=len(surplus))])
    averages = signs @ surplus / len(surplus)
    ends = [Estimate.of(row).interval()[1] for row in averages]
    return averages[int(np.argmax(ends))]


def _exit_claims(results: Results) -> list[Claim]:
    found = []
    for theta in COLOURS:
        surplus = [_highs(results, d, theta, EXIT_SIGMA) - _expected(d, theta) for d in DIMENSIONS]
        found.append(
            below(f"valley_theory.exit_{theta}",
                  f"(ours) taps (1, {theta:g}) leave through D/α as often as predicted, to 0.06",
                  "thm:main_tube", f"mean of |share − prediction| over d = {DIMENSIONS}",
                  by_worst_signs(np.array(surplus)), 0.06)
        )  # fmt: skip
    surplus = [
        _highs(results, AROUND_D, theta, AROUND_SIGMA) - _expected(AROUND_D, theta)
        for theta in AROUND
    ]
    found.append(
        below("valley_theory.taps", "(ours) taps around (1, −1) leave through D/α as often as "
              "predicted, to 0.06", "thm:main_tube", f"mean of |share − prediction| over θ = "
              f"{AROUND}, d = {AROUND_D}", by_worst_signs(np.array(surplus)), 0.06)
    )  # fmt: skip
    delta = valley.even_delta(AROUND_D, D, ALPHA, LR)
    inside = [theta for theta in AROUND if abs(1 + theta) < 0.6 * delta]
    found.append(
        mostly("valley_theory.near_anti", "(ours) Anti-PGD's exit through αD needs no exact −1: "
               f"|δ| below 0.6 of {delta:.3f} suffices", "thm:main_tube",
               f"share of seeds, d = {AROUND_D}, all of θ = {inside}",
               np.all([_highs(results, AROUND_D, t, AROUND_SIGMA) == 0 for t in inside], axis=0),
               0.9)
    )  # fmt: skip
    return found


def _law_claims(results: Results) -> list[Claim]:
    found = []
    for d, theta, _ in LAWS:
        ranks = valley.stationary_law(d, theta).cdf(_half_x(results, d, theta))
        tested = f"d = {d}, θ = {theta:g}, w at {len(LAW_AT)} late steps, averaged by seed"
        found += [
            near(f"valley_theory.law_{d}_{theta}", "(ours) η‖u‖²/2 follows the Beta law F, to "
                 "0.04 in mean rank", "thm:main_tube, remark \"Phase transition\"",
                 f"F(η‖u‖²/2), {tested}", ranks.mean(axis=1), 0.5, 0.04),
            near(f"valley_theory.spread_{d}_{theta}", "(ours) η‖u‖²/2 spreads as the Beta law, to "
                 "0.015 in the ranks' mean square of 1/12", "thm:main_tube, remark \"Phase "
                 "transition\"", f"(F − ½)², {tested}", ((ranks - 0.5) ** 2).mean(axis=1),
                 1 / 12, 0.015),
        ]  # fmt: skip
    return found


def _time_claims(results: Results) -> list[Claim]:
    pgd = valley.pgd_exit_time(PGD_D, D, ALPHA, TIME_SIGMA, LR)
    left = [r.left_at or np.inf for r in results.select(d=PGD_D, sigma=TIME_SIGMA)]
    return [
        near("valley_theory.time_pgd", "(ours) PGD leaves after the predicted number of steps, "
             "to 8 %", "thm:main_tube", f"first exit of w over {pgd:,.0f}, d = {PGD_D}",
             np.array(left) / pgd, 1.0, 0.08),
        near("valley_theory.time_anti", "(ours) Anti-PGD reaches αD after the predicted number of "
             "steps, to 3 %", "thm:main_tube", f"step at which ‖u‖² at z reaches αD over "
             f"{ANTI_TIME:,.0f}, d = {ANTI_D}; without its correction the prediction is "
             f"{valley.anti_exit_time(D, ALPHA, TIME_SIGMA, CAPTION, leading=True):,.0f}",
             _anti_times(results) / ANTI_TIME, 1.0, 0.03),
    ]  # fmt: skip


def _floor_claims(results: Results) -> list[Claim]:
    _, u2 = results.curves("watched", d=FLOOR_D, sigma=FLOOR_SIGMA)
    _, trace = results.curves("trace", d=FLOOR_D, sigma=FLOOR_SIGMA)
    u2, trace = u2[:, 1:], trace[:, 1:]
    floor = valley.long_run_u2(FLOOR_D, CAPTION, FLOOR_SIGMA)
    long_run = valley.long_run_trace(FLOOR_D, CAPTION, FLOOR_SIGMA)
    with np.errstate(invalid="ignore"):  # of a run that diverged, no largest |v| is known
        largest = np.sqrt(np.clip(trace - u2, 0, None) / FLOOR_D).max(axis=1)
    bound = valley.v_bound(FLOOR_SIGMA, CAPTION, D)
    tested = f"w at {len(FLOOR_AT)} late steps, averaged by seed, d = {FLOOR_D}, σ² = 0.005"
    return [
        near("valley_theory.floor", "(ours) Anti-PGD's ‖u‖² ends at 2dσ²/(2−ησ²), half of the "
             "paper's bound 2dσ², to 3 %", "thm:main_tube", f"‖u‖² over {floor:.4g}, {tested}",
             u2.mean(axis=1) / floor, 1.0, 0.03),
        near("valley_theory.trace", "(ours) Anti-PGD's trace ends at about 2dσ², to 3 %",
             "corollary:main_tube", f"trace over {long_run:.4g}, {tested}",
             trace.mean(axis=1) / long_run, 1.0, 0.03),
        below("valley_theory.v_bound", "(ours) Anti-PGD's |v| stays below 2σ (printed: 4σ)",
              "app:wv_proof", f"largest |v| over 2σ, {tested}", largest / bound, 1.0),
    ]  # fmt: skip


def _threshold_claims(results: Results) -> list[Claim]:
    exit_d = valley.dimension_threshold(D, ALPHA, LR, "exit")
    printed = valley.printed_dimension_threshold(ALPHA)
    several = next(d for d in DIMENSIONS if d > exit_d)
    x = 2 * _half_x(results, 3, 0.0).mean(axis=1)
    return [
        mostly("valley_theory.threshold_exit", "(ours) PGD turns to the sharp side from "
               f"d = {exit_d} on, not from 2/α² = {printed:g} or the proof's 2/α⁴ = "
               f"{valley.printed_dimension_threshold(ALPHA, 'proof'):g}", "thm:main_tube",
               f"share of exits through D/α at d = {several}",
               _highs(results, several, 0.0, EXIT_SIGMA) == 1),
        mostly("valley_theory.threshold_below", "(ours) at d = 2 PGD leaves through αD more often "
               "than through D/α", "thm:main_tube", "share of exits through αD, d = 2",
               _highs(results, 2, 0.0, EXIT_SIGMA) == 0),
        above("valley_theory.threshold_mean", "(ours) in expectation d = 3 suffices: PGD's "
              "long-run η‖u‖² lies above its value ½ at D/α for η = α/2D (equal at d = 2)",
              "thm:main_tube", f"η‖u‖² of w at {len(LAW_AT)} late steps, averaged by seed, d = 3",
              x, 0.5),
    ]  # fmt: skip


def claims(results: Results) -> list[Claim]:
    return [
        *_exit_claims(results),
        *_law_claims(results),
        *_time_claims(results),
        *_floor_claims(results),
        *_threshold_claims(results),
    ]


def _dots(x: list[float], tables: list[np.ndarray], label: str, colour: str) -> figures.Series:
    mean = np.array([table.mean() for table in tables])
    reach = np.array([1.96 * table.std() / math.sqrt(len(table)) for table in tables])
    return figures.Series(x, mean, label, colour, "", "o", mean - reach, mean + reach, bars=True)


def _label(theta: float) -> str:
    return f"taps (1, {theta:g})" if theta else "PGD"


def _exit_panel(results: Results) -> figures.Panel:
    series = []
    for theta, colour in COLOURS.items():
        tables = [_highs(results, d, theta, EXIT_SIGMA) for d in DIMENSIONS]
        series.append(_dots(list(DIMENSIONS), tables, _label(theta), colour))
        d = np.arange(1, 41)
        series.append(figures.Series(d, [_expected(int(n), theta) for n in d], "theory", dash="--"))
    printed = valley.printed_dimension_threshold(ALPHA)
    series.append(figures.Series([printed, printed], [0, 1], "printed threshold 2/α²", dash=":"))
    return figures.Panel("share that leaves through D/α", series, "d", "", "log", "linear")


def _taps_panel(results: Results) -> figures.Panel:
    tables = [_highs(results, AROUND_D, theta, AROUND_SIGMA) for theta in AROUND]
    grid = np.linspace(-1.4, -0.6, 161)
    theory = [_expected(AROUND_D, float(theta)) for theta in grid]
    series = [
        _dots(list(AROUND), tables, "taps (1, θ)", figures.COLOURS["noise"]),
        figures.Series(grid, theory, "theory", dash="--"),
    ]
    title = f"share that leaves through D/α, d={AROUND_D}"
    return figures.Panel(title, series, "θ (Anti-PGD: −1)", "", "linear", "linear")


def _law_panels(results: Results) -> list[figures.Panel]:
    panels = []
    grid = np.linspace(0.004, 0.996, 249)
    for d, theta, _ in LAWS:
        half_x = _half_x(results, d, theta)
        height, edges = np.histogram(half_x, bins=25, range=(0, 1), density=True)
        middle = (edges[1:] + edges[:-1]) / 2
        series = [
            figures.Series(middle, height, _label(theta), COLOURS[theta], "", "o"),
            figures.Series(grid, valley.stationary_law(d, theta).pdf(grid), "theory", dash="--"),
        ]
        title = f"density of η‖u‖²/2, d={d}, θ={theta:g}"
        panels.append(figures.Panel(title, series, "η‖u‖²/2", "", "linear", "linear"))
    return panels


def _time_panel(results: Results) -> figures.Panel:
    steps, u2 = results.curves("watched", "z", d=ANTI_D, sigma=TIME_SIGMA)
    share = np.linspace(ALPHA, 1, 100)
    series = [
        figures.spread(steps, u2, 1, label="Anti-PGD, ‖u‖² at z", colour=figures.COLOURS["anti"])
    ]
    for leading, dash in ((False, "--"), (True, ":")):
        at = [
            valley.anti_exit_time(D, float(part), TIME_SIGMA, CAPTION, leading=leading)
            for part in share[:-1]
        ]
        label = "theory, leading order" if leading else "theory"
        series.append(figures.Series(at, share[:-1] * D, label, dash=dash))
    return figures.Panel("‖u‖² down to αD", series, "step", "", "linear", "log")


def plot(results: Results) -> figures.Figure:
    panels = [_exit_panel(results), _taps_panel(results), *_law_panels(results)]
    return figures.draw([*panels, _time_panel(results)])
