"""Anti-PGD is gradient descent on a smoothed loss

The w-form w ← w − η∇L(w) + (ξ_{n+1} − ξ_n) and the z-form z ← z − η∇L(z + ξ_n) are one algorithm
(200 steps of regression, float64). What it descends in the mean is E L(z + ξ), which L̃ = L + σ²/2
tr ∇²L approximates: compared along the line from GD's end to the relaxed end of Anti-PGD, with
2,000 draws and σ = 0.05. Judged is the mean of |error|; until results were seen it was that of the
error, in which places can cancel.
"""

import math
from typing import Any

import numpy as np

from antipgd.noise import draws
from antipgd.noise.reference import anti_pgd, anti_pgd_clean, clean, gradient_step
from antipgd.paper import figures
from antipgd.paper.claims import Claim, below
from antipgd.paper.experiments import runs_of
from antipgd.paper.record import Spec
from antipgd.paper.results import Results
from antipgd.theory.regularisation import regularised_loss

SHOWS = (
    "The training loss, its mean under noise and L̃ along the line from GD's end to Anti-PGD's, "
    "for the first three seeds of {seeds}. Bars are two standard errors of 2,000 draws."
)
SEEDS = 10
SIGMA, ETA, STEPS, DRAWS = 0.05, 0.1, 200, 2000
PLACES = 21


def runs(seeds: int) -> list[Spec]:
    return [run for run in runs_of("regression", seeds) if run.method in ("gd", "anti")]


def _gap(results: Results, seed: int) -> float:
    """The largest distance between the z of both forms, relative to ‖z‖."""
    run = results.select(method="anti", seed=seed)[0].run
    problem = run.make_problem()
    data, start = run.make_data(problem), run.make_start(problem)
    base = gradient_step(lambda w: problem.gradient(w.astype(np.float64)[None], data)[0], ETA)
    noise: dict[str, Any] = {"draw": lambda k: draws(seed, "w", k, 0, len(start)), "sigma": SIGMA}
    gap = 0.0
    forms = zip(anti_pgd(base, start, STEPS, **noise), anti_pgd_clean(base, start, STEPS, **noise),
                strict=True)  # fmt: skip
    for n, (w, z) in enumerate(forms):
        difference = clean(w, n, **noise) - z
        gap = max(gap, float(np.linalg.norm(difference) / np.linalg.norm(z)))
    return gap


def _has_ends(results: Results, seed: int) -> bool:
    """Whether both methods got to an end between which there is a line."""
    return all("relaxed" in record.weights for record in results.select(seed=seed))


def _profile(results: Results, seed: int) -> tuple[np.ndarray, ...]:
    """Along the line between the two ends: L, L̃, the mean of L(z + ξ), and its standard error."""
    gd, anti = (results.select(method=m, seed=seed)[0] for m in ("gd", "anti"))
    problem = gd.run.make_problem()
    data = gd.run.make_data(problem)
    a, b = (np.array(record.weights["relaxed"]) for record in (gd, anti))
    share = np.linspace(0, 1, PLACES)
    W = a + share[:, None] * (b - a)
    xi = SIGMA * draws(seed, "smoothing", 1, 0, DRAWS * W.shape[1]).reshape(DRAWS, -1)
    plain = problem.loss(W, data)
    samples = np.array([problem.loss(w + xi, data) for w in W])
    sem = samples.std(axis=1, ddof=1) / np.sqrt(DRAWS)
    smooth = regularised_loss(
        W, SIGMA, lambda W: problem.loss(W, data), lambda W: problem.trace(W, data)
    )
    return share, plain, smooth, samples.mean(axis=1), sem


def claims(results: Results) -> list[Claim]:
    seeds = sorted({record.run.seed for record in results.records})
    gaps = [_gap(results, seed) for seed in seeds]
    errors = []
    for seed in seeds:
        if not _has_ends(results, seed):
            errors.append(math.inf)
            continue
        _, plain, smooth, mean, _ = _profile(results, seed)
        errors.append(float(np.mean(np.abs((mean - plain) / (smooth - plain) - 1))))
    return [
        below("smoothing.forms", "the w-form and the z-form are one algorithm",
              "eq:Anti-PGD_z_formulation",
              f"largest relative distance of z over {STEPS} steps, bound 1e-12", gaps, 1e-12),
        below("smoothing.regulariser", "the expected loss under noise is L + σ²/2 tr ∇²L to 5 %",
              "def:L_tilde", f"|(E L(z+ξ) − L)/(σ²/2 tr) − 1|, mean over {PLACES} points of the "
              f"line between GD's and Anti-PGD's ends, {DRAWS} draws", errors, 0.05),
    ]  # fmt: skip


def plot(results: Results) -> figures.Figure:
    seeds = sorted({record.run.seed for record in results.records})
    panels = []
    for seed in [seed for seed in seeds if _has_ends(results, seed)][:3]:
        share, plain, smooth, mean, sem = _profile(results, seed)
        series = [
            figures.Series(share, plain, "L", figures.COLOURS["gd"]),
            figures.Series(share, mean, "E L(z + ξ)", figures.COLOURS["anti"], "", "o",
                           mean - 2 * sem, mean + 2 * sem, bars=True),
            figures.Series(share, smooth, "L̃ = L + σ²/2 tr ∇²L", dash="--"),
        ]  # fmt: skip
        panels.append(
            figures.Panel(f"training loss, seed {seed}", series, "from GD's end to Anti-PGD's", "",
                          "linear", "linear")
        )  # fmt: skip
    return figures.draw(panels)
