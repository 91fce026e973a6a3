"""The second moments of linear dynamics: two formulas, one exponent, one bound

prop:ito_discrete, cor:ito_discrete_const and prop:ito_discrete_all_rho on w_{k+1} = ρ_k w_k + ε_k:
d = 10, σ = 1, ‖w_0‖² = 4dσ², Gaussian draws from the noise stream, 20,000 sample paths, k up to 40,
for ρ = 0.9, ρ = 0.3 and ρ_k uniform on (0.6, 1). Dashed: the theory. No training run is needed.
"""

from functools import cache

import numpy as np

from antipgd.noise import ANTI, WHITE, stream_key
from antipgd.noise.inplace import law_arguments
from antipgd.noise.kernels import draw_into
from antipgd.paper import figures
from antipgd.paper.claims import Claim, above, below, near
from antipgd.paper.results import Results
from antipgd.paper.simulation.spec import Run
from antipgd.theory import linear

SHOWS = (
    "The second moment of linear dynamics against the step, for three sequences ρ. Lines are "
    "means over 20,000 paths, bands hold the middle half of them; dashed: theory."
)
SEEDS = 1
DIMENSIONS, SIGMA, START = 10, 1.0, 40.0  # ‖w_0‖² = 4dσ²
PATHS, STEPS = 20_000, 40
LOW, HIGH = 0.6, 1.0
TAPS = {"pgd": WHITE, "anti": ANTI}
CASES = {"0.9": "ρ = 0.9", "0.3": "ρ = 0.3", "random": f"ρ uniform on ({LOW:g}, {HIGH:g})"}
TOLERANCE = 0.02
FIRST, MIDDLE = 1, 10  # steps at which finite k is judged; the printed exponent matters at k = 0


def runs(seeds: int) -> list[Run]:
    return []


def _draw(law: str, purpose: str, name: str, step: int, count: int) -> np.ndarray:
    xi = np.empty(count, np.float32)
    draw_into(xi, np.uint64(stream_key(0, name, purpose)), step, 0, law_arguments(law))
    return xi.astype(np.float64)


def _factors(case: str, step: int) -> np.ndarray:
    """ρ of every path at a step."""
    if case != "random":
        return np.full(PATHS, float(case))
    unit = _draw("uniform", "data", "moments.rho", step, PATHS)  # of standard deviation 1
    return (LOW + HIGH) / 2 + unit * (HIGH - LOW) / np.sqrt(12)


@cache
def _squares(method: str, case: str) -> np.ndarray:
    """‖w_k‖² by path and step; all methods and cases share the draws ξ_1, ξ_2, …"""
    w = np.full((PATHS, DIMENSIONS), np.sqrt(START / DIMENSIONS))
    before, found = np.zeros_like(w), [np.full(PATHS, START)]
    for step in range(1, STEPS + 1):
        xi = SIGMA * _draw("gaussian", "noise", "moments", step, w.size).reshape(w.shape)
        w = _factors(case, step)[:, None] * w + xi - (before if method == "anti" else 0)
        before = xi
        found.append((w * w).sum(axis=1))
    return np.stack(found, axis=1)


def _theory(method: str, case: str) -> np.ndarray:
    """E‖w_k‖² by step."""
    random = case == "random"
    mean = (LOW + HIGH) / 2 if random else float(case)
    square = mean**2 + ((HIGH - LOW) ** 2 / 12 if random else 0.0)
    return linear.second_moment(
        np.full(STEPS, mean), SIGMA, TAPS[method], d=DIMENSIONS, start_norm2=START,
        rho_squared=np.full(STEPS, square),
    )  # fmt: skip


def _formula(method: str, case: str, step: int, printed: bool = False) -> float:
    """cor:ito_discrete_const at k+1 = step."""
    if method == "pgd":
        return linear.pgd_moment(step - 1, float(case), SIGMA, d=DIMENSIONS, start_norm2=START)
    return linear.anti_moment(
        step - 1, float(case), SIGMA, d=DIMENSIONS, start_norm2=START, printed=printed
    )


def _limit(method: str, case: str) -> float:
    if case != "random":
        return DIMENSIONS * linear.stationary_variance(float(case), SIGMA, TAPS[method])
    mean = (LOW + HIGH) / 2
    square = mean**2 + (HIGH - LOW) ** 2 / 12
    return linear.random_rho_limit(mean, square, SIGMA, TAPS[method], d=DIMENSIONS)


def _moment_claims() -> list[Claim]:
    """At finite steps and in the limit, for both methods and every ρ."""
    found = []
    for method, name in (("pgd", "PGD"), ("anti", "Anti-PGD")):
        for case, words in CASES.items():
            squares = _squares(method, case)
            random = case == "random"
            reference = "prop:ito_discrete_all_rho" if random else "cor:ito_discrete_const"
            for step in (FIRST, MIDDLE):
                exact = _theory(method, case)[step]
                right = exact if random else _formula(method, case, step)
                found.append(
                    near(f"moments.{method}_{case}_step{step}",
                         f"{name}, {words}: E‖w_{step}‖² is as derived"
                         + (", with the corrected exponent" if method == "anti" else ""),
                         reference, f"‖w_{step}‖² over {right:.4g}, sample paths",
                         squares[:, step] / right, 1.0, TOLERANCE)
                )  # fmt: skip
            found.append(
                near(f"moments.{method}_{case}_limit",
                     f"{name}, {words}: E‖w_k‖² tends to the predicted limit",
                     reference, f"‖w_{STEPS}‖² over {_limit(method, case):.4g}, sample paths",
                     squares[:, STEPS] / _limit(method, case), 1.0, TOLERANCE)
            )  # fmt: skip
    return found


def _bound_claims() -> list[Claim]:
    """The printed exponent and the printed bound."""
    printed = _formula("anti", "0.3", FIRST, printed=True)
    found = [
        near("moments.printed_exponent", "Anti-PGD, ρ = 0.3: the printed formula holds at finite k",
             "cor:ito_discrete_const", f"‖w_{FIRST}‖² over {printed:.4g}, sample paths",
             _squares("anti", "0.3")[:, FIRST] / printed, 1.0, TOLERANCE)
    ]  # fmt: skip
    bound = linear.anti_bound(SIGMA, d=DIMENSIONS)
    found.append(
        below("moments.bound", "Anti-PGD's second moment ends below 2dσ² for random ρ in (0, 1)",
              "prop:ito_discrete_all_rho", f"‖w_{STEPS}‖² over 2dσ², ρ uniform, sample paths",
              _squares("anti", "random")[:, STEPS] / bound, 1.0)
    )  # fmt: skip
    found.append(
        below("moments.bound_any_rho", "the bound 2dσ² holds for every sequence ρ_k < 1",
              "prop:ito_discrete_all_rho", "‖w_2000‖² over 2dσ² for ρ_k = 1 − 1/(k+2)², "
              "‖w_0‖² = 40dσ², 1,000 sample paths", _vanishing() / bound, 1.0)
    )  # fmt: skip
    return found


def _trend_claims() -> list[Claim]:
    """What a larger ρ does."""
    ends = {(m, case): _squares(m, case)[:, STEPS] for m in TAPS for case in ("0.3", "0.9")}
    tested = f"‖w_{STEPS}‖² at ρ = %s minus that at ρ = %s, over dσ², paired sample paths"
    unit = DIMENSIONS * SIGMA**2
    return [
        above("moments.trend_anti", "the larger ρ, the less of Anti-PGD's noise accumulates",
              "rmk:reversed trend", tested % ("0.3", "0.9"),
              (ends["anti", "0.3"] - ends["anti", "0.9"]) / unit, 0.0),
        above("moments.trend_pgd", "the larger ρ, the more of PGD's noise accumulates",
              "rmk:reversed trend", tested % ("0.9", "0.3"),
              (ends["pgd", "0.9"] - ends["pgd", "0.3"]) / unit, 0.0),
    ]  # fmt: skip


def claims(results: Results) -> list[Claim]:
    return [*_moment_claims(), *_bound_claims(), *_trend_claims()]


@cache
def _vanishing() -> np.ndarray:
    """‖w_2000‖² of Anti-PGD with the ρ_k of the counterexample, 1,000 paths, ‖w_0‖² = 40dσ²."""
    w = np.full((1000, DIMENSIONS), np.sqrt(40 * SIGMA**2))
    before = np.zeros_like(w)
    for step, rho in enumerate(linear.vanishing_rho(2000), 1):
        xi = SIGMA * _draw("gaussian", "noise", "moments.vanishing", step, w.size).reshape(w.shape)
        w, before = rho * w + xi - before, xi
    return (w * w).sum(axis=1)


def plot(results: Results) -> figures.Figure:
    panels, steps = [], np.arange(STEPS + 1)
    for case, words in CASES.items():
        series = []
        for method in TAPS:
            squares = _squares(method, case)
            low, high = np.quantile(squares, [0.25, 0.75], axis=0)
            label = f"{figures.NAMES[method]}, mean and middle half of the paths"
            colour = figures.COLOURS[method]
            series.append(
                figures.Series(steps, squares.mean(axis=0), label, colour, low=low, high=high)
            )
        for method in TAPS:
            series.append(figures.Series(steps, _theory(method, case), "theory", dash="--"))
        if case == "random":
            edge = linear.anti_bound(SIGMA, d=DIMENSIONS)
            series.append(figures.Series([0, STEPS], [edge, edge], "2dσ²", dash=":"))
        panels.append(figures.Panel(f"‖w_k‖², {words}", series, "k", "", "linear", "linear"))
    return figures.draw(panels)
