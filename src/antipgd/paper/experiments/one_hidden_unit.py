"""A linear network with one hidden unit: is it a widening valley?

§subsec:wv_sparse says that on the spurious coordinates the loss behaves like the valley. Five
relevant and twenty spurious features; the loss in the population, with 500 samples and with 10;
with signal and without. η = 0.1, σ = 0.05, ‖u_0‖² = 1, v_0 = 0.3, 20,000 steps, ten seeds.
Measured: the squared norm of the spurious part of u, over its start. The paper assumes isotropic
inputs, which ten samples of 25 features are not: those parts are ours. (Until results were seen all
were read as the paper's.)
"""

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import Claim, above, below
from antipgd.paper.results import Results
from antipgd.paper.simulation.spec import Run, make_run

SHOWS = (
    "Squared norm of the spurious part of u over its start, against the step. Lines are means "
    "over {seeds} seeds, bands one standard deviation."
)
SEEDS = 10
STEPS = 20_000
ETA, SIGMA = 0.1, 0.05
PROBLEM = "one_hidden_unit"
START = {"m": 5, "d": 20, "D": 1.0, "v": 0.3}
SPURIOUS = START["D"] * START["d"] / (START["m"] + START["d"])
SAMPLES = {"population": 0, "many": 500, "few": 10}
SIGNALS = {"no_signal": 0.0, "signal": 1.0}
METHODS = ("gd", "pgd", "anti")
REFERENCE = "§subsec:wv_sparse"


def runs(seeds: int) -> list[Run]:
    return [
        make_run(PROBLEM, {**START, "samples": samples, "signal": signal}, method, lr=ETA,
                 sigma=SIGMA, steps=STEPS, seed=seed, relax=False)
        for samples in SAMPLES.values()
        for signal in SIGNALS.values()
        for method in METHODS
        for seed in range(seeds)
    ]  # fmt: skip


def _left(results: Results, method: str, samples: str, signal: str) -> np.ndarray:
    """The share of the spurious squared norm that is left, at z where it exists."""
    place = "w" if method == "pgd" else "z"
    wanted = {"method": method, "samples": SAMPLES[samples], "signal": SIGNALS[signal]}
    return np.minimum(results.final("watched", place, **wanted), 1e6) / SPURIOUS


def claims(results: Results) -> list[Claim]:
    found = []
    for samples in SAMPLES:
        for signal in SIGNALS:
            case = f"{samples} samples" if samples != "population" else "population"
            words = f"({case}, {signal.replace('_', ' ')})"
            name = f"{samples}_{signal}"
            left = {m: _left(results, m, samples, signal) for m in METHODS}
            tested = f"share of ‖u_spurious‖² left at step {STEPS:,}"
            found += [
                above(f"one_hidden_unit.gd_{name}",
                      f"GD leaves most of the spurious weights as they are {words}", REFERENCE,
                      f"{tested}, at w, bound 0.5", left["gd"], 0.5),
                below(f"one_hidden_unit.anti_{name}",
                      f"Anti-PGD removes most of the spurious weights {words}", REFERENCE,
                      f"{tested}, at z, bound 0.5", left["anti"], 0.5),
                above(f"one_hidden_unit.pgd_{name}",
                      f"PGD makes the spurious weights larger {words}", REFERENCE,
                      f"{tested}, at w, bound 1", left["pgd"], 1.0),
            ]  # fmt: skip
    return found


def plot(results: Results) -> figures.Figure:
    panels = []
    for signal, strength in SIGNALS.items():
        for samples, count in SAMPLES.items():
            series = []
            for method in METHODS:
                place = "w" if method == "pgd" else "z"
                series.append(
                    figures.method_series(results, "watched", method, place=place, samples=count,
                                          signal=strength)
                )  # fmt: skip
            title = f"{samples}, {signal.replace('_', ' ')}"
            panels.append(figures.Panel(f"spurious ‖u‖²: {title}", series))
    return figures.draw(panels)
