"""The widening valley: PGD leaves it on the sharp side, Anti-PGD on the flat side

thm:main_tube with α = 0.25, d = 100, rademacher noise: from ‖u‖² = D the first exit of ‖u‖² from
(αD, D/α). Both η = α/D (the figure's caption) and α/2D (the theorem), σ² = αD/20d, 40 seeds.
Dashed: the predicted exit times D(1/α−1)/(dσ²) and ln(1/α)/(2ησ²). The corollary's traces are
measured over 20,000 steps with η = α/2D and the largest noise it allows, σ² = αD/2d. The proof's
bounds on |v| are held against its largest value at the measured steps before the exit, η = α/2D.
"""

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import Claim, above, below, mostly, near
from antipgd.paper.results import Results
from antipgd.paper.simulation.spec import Run, make_run
from antipgd.theory import valley

SHOWS = (
    "‖u‖² of twelve runs of {seeds} until it leaves its interval, for two learning rates, and the "
    "trace in the long run: mean and one standard deviation."
)
SEEDS = 40
ALPHA, D, DIMENSIONS = 0.25, 1.0, 100
STEPS, LONG = 150_000, 20_000
RATES = {"caption": ALPHA / D, "theorem": ALPHA / (2 * D)}
SIGMA = float(np.sqrt(ALPHA * D / (20 * DIMENSIONS)))
SIGMA_LONG = float(np.sqrt(ALPHA * D / (2 * DIMENSIONS)))
PROBLEM, SETTINGS = "widening_valley", {"d": DIMENSIONS, "D": D}
SIDES = {"pgd": "left high", "anti": "left low"}


def runs(seeds: int) -> list[Run]:
    exits = [
        make_run(PROBLEM, SETTINGS, method, lr=lr, sigma=SIGMA, law="rademacher", steps=STEPS,
                 seed=seed, leave=(ALPHA * D, D / ALPHA), relax=False)
        for method in SIDES
        for lr in RATES.values()
        for seed in range(seeds)
    ]  # fmt: skip
    longs = [
        make_run(PROBLEM, SETTINGS, method, lr=RATES["theorem"], sigma=SIGMA_LONG,
                 law="rademacher", steps=LONG, seed=seed, relax=False)
        for method in SIDES
        for seed in range(seeds)
    ]  # fmt: skip
    return exits + longs


def _expected(method: str, lr: float) -> float:
    if method == "pgd":
        return valley.pgd_exit_time(DIMENSIONS, D, ALPHA, SIGMA)
    return valley.anti_exit_time(D, ALPHA, SIGMA, lr, leading=True)


def _largest_v(results: Results, method: str) -> list[float]:
    """By seed, the largest |v| at w of all measured steps; tr ∇²L = dv² + ‖u‖²."""
    found = []
    for record in results.select(method=method, lr=RATES["theorem"], sigma=SIGMA):
        (_, trace), (_, u2) = (record.column(name, "w") for name in ("trace", "watched"))
        found.append(float(np.sqrt(np.clip(trace - u2, 0, None) / DIMENSIONS).max()))
    return found


def _v_claims(results: Results) -> list[Claim]:
    bounds = {"pgd": (2 / ALPHA**2, "2σ/α²"), "anti": (4.0, "4σ")}
    return [
        below(f"valley_exit.v_{method}", f"{figures.NAMES[method]}'s |v| stays below {words}",
              "proof of thm:main_tube", f"largest |v| at w, measured steps, over {words} = "
              f"{factor:g}σ, η = {RATES['theorem']:g}",
              np.array(_largest_v(results, method)) / (factor * SIGMA), 1.0)
        for method, (factor, words) in bounds.items()
    ]  # fmt: skip


def claims(results: Results) -> list[Claim]:
    found = _v_claims(results)
    for method, side in SIDES.items():
        name, edge = figures.NAMES[method], "D/α" if method == "pgd" else "αD"
        for which, lr in RATES.items():
            records = results.select(method=method, lr=lr, sigma=SIGMA)
            found.append(
                mostly(
                    f"valley_exit.{method}_{which}",
                    f"{name} leaves the valley's domain through ‖u‖² = {edge}",
                    "thm:main_tube, fig:tube_verification",
                    f"share of seeds, η = {lr:g}, first exit of w within {STEPS:,} steps",
                    [record.status == side for record in records],
                )
            )
            found.append(
                near(
                    f"valley_exit.time_{method}_{which}",
                    f"(ours) {name} takes the predicted number of steps to leave, to 15 %",
                    "thm:main_tube",
                    f"mean exit step over the prediction {_expected(method, lr):,.0f}, η = {lr:g}",
                    [(r.left_at or np.inf) / _expected(method, lr) for r in records],
                    1.0,
                    0.15,
                )
            )
    cap = 1000 * D  # a run that diverged counts as this much: the mean is then a lower bound
    traces = {m: results.final("trace", method=m, sigma=SIGMA_LONG) for m in SIDES}
    found.append(
        below("valley_exit.trace_anti", "Anti-PGD's expected trace stays below 16αD",
              "corollary:main_tube", f"trace at w, step {LONG:,}, bound {16 * ALPHA * D:g}",
              traces["anti"], 16 * ALPHA * D)
    )  # fmt: skip
    found.append(
        above("valley_exit.trace_pgd", "PGD's expected trace rises above D/α",
              "corollary:main_tube", f"trace at w, step {LONG:,}, bound {D / ALPHA:g}",
              np.minimum(traces["pgd"], cap), D / ALPHA)
    )  # fmt: skip
    return found


def plot(results: Results) -> figures.Figure:
    panels = []
    for which, lr in RATES.items():
        series = []
        for method in SIDES:
            records = results.select(method=method, lr=lr, sigma=SIGMA)
            for i, record in enumerate(records[:12]):
                steps, values = record.column("watched", "w")
                label = figures.NAMES[method] if i == 0 else ""
                series.append(figures.Series(steps, values, label, figures.COLOURS[method]))
            at = _expected(method, lr)
            label = "predicted exit, and the edges αD and D/α"
            series.append(figures.Series([at, at], [ALPHA * D, D / ALPHA], label, dash="--"))
        for edge in (ALPHA * D, D / ALPHA):
            series.append(figures.Series([1, STEPS], [edge, edge], dash="--"))
        panels.append(figures.Panel(f"‖u‖² at w until it leaves, η={lr:g} ({which})", series))
    lines = [{"method": method, "sigma": SIGMA_LONG} for method in SIDES]
    panels += figures.method_panels(results, lines, ("trace",), title="σ²=αD/2d")
    return figures.draw(panels)
