"""Label noise of matched strength is Anti-PGD

(Ours.) For the ¼-mean-square loss near interpolation, fresh label noise of standard deviation s
acts like Anti-PGD with σ² = ηs²/4n: with s = σ√(4n/η) both follow one curve. Quadratic regression,
η = 0.1, σ = 0.05, 20,000 steps, ten seeds. The paper says that the effect of label noise depends
"in general" on model and data where Anti-PGD's does not; that is not judged here, only that the two
coincide in this case.
"""

import math

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import Claim, near, smaller
from antipgd.paper.results import Results, log_ratio
from antipgd.paper.settings import REGRESSION as PROBLEM
from antipgd.paper.settings import REGRESSION_SIGMA as SIGMA
from antipgd.paper.settings import REGRESSION_STEPS as STEPS
from antipgd.paper.simulation.spec import Run, make_run, measured_steps
from antipgd.theory.equivalences import label_noise_of_sigma, steps_for

SHOWS = (
    "Training loss, test loss and trace against the step for Anti-PGD and label noise of matched "
    "strength. Lines are means over {seeds} seeds, bands one standard deviation."
)
SEEDS = 10
ETA, EXAMPLES = 0.1, 40
LABEL_SD = label_noise_of_sigma(SIGMA, ETA, EXAMPLES)
EARLY = steps_for(0.2, ETA, SIGMA)
REFERENCE = "§subsec:Connection_with_label_noise"


def runs(seeds: int) -> list[Run]:
    steps = tuple(sorted({*measured_steps(STEPS), EARLY}))
    return [
        make_run(PROBLEM, {}, method, lr=ETA, sigma=sigma, steps=STEPS, seed=seed, measure=steps,
                 relax=False)
        for method, sigma in (("anti", SIGMA), ("label", LABEL_SD), ("gd", 0.0))
        for seed in range(seeds)
    ]  # fmt: skip


def _at(results: Results, measure: str, method: str, step: int) -> np.ndarray:
    steps, table = results.curves(measure, "z", method=method)
    return table[:, list(steps).index(step)]


def claims(results: Results) -> list[Claim]:
    found = []
    for measure, short in (("test_loss", "test"), ("trace", "trace")):
        anti, label, gd = (_at(results, measure, m, EARLY) for m in ("anti", "label", "gd"))
        name = figures.MEASURES[measure]
        found.append(
            near(f"label_noise.{short}", f"(ours) matched label noise has Anti-PGD's {name}",
                 REFERENCE, f"logarithm of the ratio at z, step {EARLY:,} (τ = 0.2), to 25 %",
                 log_ratio(label, anti), 0.0, math.log(1.25))
        )  # fmt: skip
        found.append(
            smaller(f"label_noise.{short}_gd", f"(ours) label noise lowers the {name} below "
                    "GD's, as in the works the paper builds on", REFERENCE,
                    f"{name} at z, step {EARLY:,}", label, gd)
        )  # fmt: skip
    return found


def plot(results: Results) -> figures.Figure:
    lines = [
        {"method": "gd"},
        {"method": "anti", "detail": f"σ={SIGMA}"},
        {"method": "label", "detail": f"s={LABEL_SD:.3g}", "dash": "--"},
    ]
    return figures.draw(figures.method_panels(results, lines, place="z"))
