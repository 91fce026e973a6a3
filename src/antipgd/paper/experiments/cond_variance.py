"""The conditional variance of a step: as printed, as corrected, and exactly

Regression with tanh(x·w), 12 examples, six dimensions, ten data sets: the variance of z′ given z
over all 2⁶ draws, for rademacher and for skewed noise (γ = 1.5), at ten random points and at the
end of gradient descent, where ∇L = 0 favours the printed formula. Errors are summed over
coordinates and points and divided by the sum of the variances; σ = 0.005, tolerance 1e-4. Beside it
PGD's step over the same draws, whose mean and variance can hardly be others than printed, and the
paper's guess that Anti-PGD's variance is the larger one, at the η = 0.1 of its regression; there,
too, which was added after the first result was seen. No training run and no Monte Carlo.
"""

from functools import cache, partial
from typing import Any

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import Claim, above, below, near
from antipgd.paper.results import Results, slopes
from antipgd.paper.simulation.problems import make_problem
from antipgd.paper.simulation.problems.problem import Array
from antipgd.paper.simulation.spec import Run
from antipgd.paper.simulation.tanh_regression import (
    LAWS,
    QUADRATIC,
    D,
    generator,
    minimum,
    tanh_regression,
)
from antipgd.theory.regularisation import conditional_variance, enumerated_step

SHOWS = (
    "Relative error of the conditional variance, as printed and as corrected, against σ. Lines "
    "are means over {seeds} data sets, bands one standard deviation."
)
SEEDS = 10
PLACES = {"points": "random points", "minimum": "the end of gradient descent"}
SIGMAS = np.array([0.0025, 0.005, 0.01, 0.02, 0.04])
AT, FITTED = 1, slice(1, 4)  # below, rounding begins to show
TOLERANCE = 1e-4
ETA = 0.1
ROUNDING = 1e-12
REFERENCE = "app:cond_var, eq:conditional_variance_anti"


def runs(seeds: int) -> list[Run]:
    return []


@cache
def _variances(law: str, place: str) -> dict[str, Array]:
    """Var[z′_i | z]/η² by seed, σ, point and coordinate: exact, corrected, printed; and what noise
    adds to the second moment of the step, exactly and as printed."""
    found: dict[str, list[Array]] = {}
    noise: Any = {"kurtosis": LAWS[law].kurtosis, "skewness": LAWS[law].skewness}
    for seed in range(SEEDS):
        problem, points = tanh_regression(seed)
        points = points if place == "points" else minimum(seed)[None]
        derivatives = [problem.derivatives(z) for z in points]
        for sigma in SIGMAS:
            for z, at in zip(points, derivatives, strict=True):
                exact = enumerated_step(problem.gradient, z, 1.0, sigma, LAWS[law])
                printed = conditional_variance(at, 1.0, sigma, **noise, printed=True)
                here = {
                    "exact": exact.variance,
                    "corrected": conditional_variance(at, 1.0, sigma, **noise),
                    "printed": printed,
                    "rise": exact.second_moment - at.gradient**2,
                    "printed rise": printed - at.gradient**2,
                }
                for name, values in here.items():
                    found.setdefault(name, []).append(values)
    return {name: np.reshape(rows, (SEEDS, len(SIGMAS), -1)) for name, rows in found.items()}


def _relative(law: str, place: str, ours: str, truth: str = "exact") -> Array:
    """Σ|ours − truth| / Σ|truth| by seed and σ."""
    variances = _variances(law, place)
    gaps = np.abs(variances[ours] - variances[truth]).sum(axis=2)
    return gaps / np.abs(variances[truth]).sum(axis=2)


def _pgd_errors(law: str) -> tuple[Array, Array]:
    """By seed, the largest errors of PGD's printed mean and variance over all 2⁶ draws, relative
    to ‖ηg‖ and to σ²."""
    found = np.empty((SEEDS, 2))
    xi, probability = LAWS[law].all_draws(D)
    for seed, row in enumerate(found):
        problem, points = tanh_regression(seed)
        sigma, means, variances = SIGMAS[AT], [], []
        for w in points:
            move = -ETA * problem.gradient(w)
            after = w + move + sigma * xi
            mean = probability @ after
            means.append(np.linalg.norm(mean - (w + move)) / np.linalg.norm(move))
            variances.append(np.abs(probability @ (after - mean) ** 2 / sigma**2 - 1).max())
        row[:] = max(means), max(variances)
    return found[:, 0], found[:, 1]


def _quadratic_variances(law: str) -> Array:
    """By seed, the mean exact Var[z′ | z]/σ² with η = 0.1 on the paper's quadratic regression in
    six dimensions, at its start, where curvatures are largest."""
    found = np.empty(SEEDS)
    problem, sigma = make_problem("quadratic_regression", QUADRATIC), SIGMAS[AT]
    for seed in range(SEEDS):
        data = problem.data(generator(seed, "quadratic_regression"))
        gradient = partial(problem.gradient, data=data)
        step = enumerated_step(gradient, np.ones(D), ETA, sigma, LAWS[law])
        found[seed] = step.variance.mean() / sigma**2
    return found


def _pgd_claims() -> list[Claim]:
    found = []
    for law in LAWS:
        how = f"{law} noise, σ = {SIGMAS[AT]:.2g}, η = {ETA}, random points, n data sets"
        mean, variance = _pgd_errors(law)
        larger = ETA**2 * _variances(law, "points")["exact"][:, AT].mean(axis=1) / SIGMAS[AT] ** 2
        found += [
            below(f"cond_variance.pgd_mean_{law}", "PGD's conditional mean is GD's step",
                  "app:cond_var", f"largest relative error, {how}; bound {ROUNDING:g}", mean,
                  ROUNDING),
            below(f"cond_variance.pgd_variance_{law}", "PGD's conditional variance is σ²",
                  "eq:conditional_variance_vanilla", f"largest relative error, {how}; bound "
                  f"{ROUNDING:g}", variance, ROUNDING),
            above(f"cond_variance.larger_{law}", "Anti-PGD's conditional variance is larger than "
                  "PGD's", "app:cond_var", f"its exact variance over σ², {how}", larger, 1.0),
            above(f"cond_variance.larger_quadratic_{law}", "also on the paper's own regression",
                  "app:cond_var", f"its exact variance over σ², {law} noise, σ = "
                  f"{SIGMAS[AT]:.2g}, η = {ETA}, w_0 = 1, n data sets", _quadratic_variances(law),
                  1.0),
        ]  # fmt: skip
    return found


def claims(results: Results) -> list[Claim]:
    found = _pgd_claims()
    for law in LAWS:
        for place, words in PLACES.items():
            tested = f"relative error at {words}, {law} noise, σ = "
            tested += f"{SIGMAS[AT]:.2g}, n data sets; bound {TOLERANCE:g}"
            found += [
                below(f"cond_variance.printed_{law}_{place}", "the printed conditional variance "
                      "is right", REFERENCE, tested,
                      _relative(law, place, "printed")[:, AT], TOLERANCE),
                below(f"cond_variance.corrected_{law}_{place}", "the corrected conditional "
                      "variance is right", REFERENCE, tested,
                      _relative(law, place, "corrected")[:, AT], TOLERANCE),
            ]  # fmt: skip
        order = 4.0 if law == "symmetric" else 3.0
        found += [
            near(f"cond_variance.order_{law}", f"the corrected one misses terms of order "
                 f"{order:g} relative to the whole, none before", REFERENCE,
                 f"slope of its relative error for σ from {SIGMAS[FITTED][0]:.2g} to "
                 f"{SIGMAS[FITTED][-1]:.2g}, random points, {law} noise",
                 slopes(SIGMAS[FITTED], _relative(law, "points", "corrected")[:, FITTED]),
                 order, 0.5),
            below(f"cond_variance.second_{law}", "the printed formula is right as the second "
                  "moment of the step, which its derivation expands", REFERENCE,
                  f"relative error of what noise adds to it, at random points, {law} noise, σ = "
                  f"{SIGMAS[AT]:.2g}, n data sets; bound {TOLERANCE:g}",
                  _relative(law, "points", "printed rise", "rise")[:, AT], TOLERANCE),
        ]  # fmt: skip
    return found


def plot(results: Results) -> figures.Figure:
    panels = []
    colours = {"printed": figures.COLOURS["pgd"], "corrected": figures.COLOURS["anti"]}
    for law in LAWS:
        for place, words in PLACES.items():
            series = [
                figures.spread(SIGMAS, _relative(law, place, name), 1, label=name, colour=colour)
                for name, colour in colours.items()
            ]
            title = f"error of the variance, {law} noise\n{words}"
            panels.append(figures.Panel(title, series, "σ", "relative error", "log", depth=1e-16))
    return figures.draw(panels, columns=2)
