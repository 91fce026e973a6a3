"""Paths in the widening valley: GD stays, PGD drifts to sharper, Anti-PGD to flatter minima

d = 100, ‖u_0‖² = 10, v_0 = 0.3: GD converges first, noise starts at step 1000. The paper's η =
0.01 and σ = 0.005 with both laws for 4·10⁶ steps (one e-fold of ‖u‖² takes 1/(2ησ²) = 2·10⁶), and
three faster settings, since the caption says that the findings hold for all stable parameters.
Three seeds.
"""

from antipgd.paper import figures
from antipgd.paper.claims import Claim, near, smaller
from antipgd.paper.results import Results
from antipgd.paper.simulation.spec import Run, make_run

SHOWS = (
    "‖u‖² against the step for five settings. Lines are means over {seeds} seeds, bands one "
    "standard deviation; noise begins at step 1,000."
)
SEEDS = 3
START = 1000
PROBLEM, SETTINGS = "widening_valley", {"d": 100, "D": 10.0, "v": 0.3}
CASES = (  # η, σ, law, steps
    (0.01, 0.005, "gaussian", 4_000_000),
    (0.01, 0.005, "rademacher", 4_000_000),
    (0.01, 0.05, "gaussian", 100_000),
    (0.05, 0.005, "gaussian", 1_000_000),
    (0.05, 0.02, "rademacher", 100_000),
)


def runs(seeds: int) -> list[Run]:
    return [
        make_run(PROBLEM, SETTINGS, method, lr=lr, sigma=sigma, law=law, steps=steps, seed=seed,
                 start=START, relax=False)
        for lr, sigma, law, steps in CASES
        for method in ("gd", "pgd", "anti")
        for seed in range(seeds)
    ]  # fmt: skip


def _case(lr: float, sigma: float, law: str, steps: int, method: str) -> dict:
    noisy = {} if method == "gd" else {"sigma": sigma, "law": law}
    return {"method": method, "lr": lr, "steps": steps, **noisy}


def claims(results: Results) -> list[Claim]:
    found = []
    for case in CASES:
        lr, sigma, law, steps = case
        end = {m: results.final("watched", **_case(*case, m)) for m in ("gd", "pgd", "anti")}
        name = f"{lr}_{sigma}_{law}"
        tested = f"‖u‖² at w, step {steps:,}, η = {lr}, σ = {sigma}, {law}"
        found += [
            smaller(f"valley_paths.anti_{name}", "Anti-PGD drifts to flatter minima than GD's",
                    "fig:tube_pic", tested, end["anti"], end["gd"]),
            smaller(f"valley_paths.pgd_{name}", "PGD drifts to sharper minima than GD's",
                    "fig:tube_pic", f"{tested}, GD against PGD", end["gd"], end["pgd"]),
        ]  # fmt: skip
    stuck = results.final("watched", **_case(*CASES[0], "gd"))
    expected = SETTINGS["D"] - SETTINGS["v"] ** 2  # ‖u‖² − v² is conserved by the flow
    found.append(
        near("valley_paths.gd", "GD gets stuck where it first touches the valley", "fig:tube_pic",
             "‖u‖² at the end over ‖u_0‖² − v_0²", stuck / expected, 1.0, 0.01)
    )  # fmt: skip
    return found


def plot(results: Results) -> figures.Figure:
    panels = []
    for case in CASES:
        lr, sigma, law, _ = case
        series = []
        for method in ("gd", "pgd", "anti"):
            chosen = _case(*case, method)
            series.append(figures.method_series(results, "watched", **chosen))
        panels.append(figures.Panel(f"‖u‖² at w, η={lr}, σ={sigma}, {law}", series))
    return figures.draw(panels)
