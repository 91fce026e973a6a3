"""One step of Anti-PGD descends, in the mean, the loss plus σ²/2 times the trace

The distance of E[z′ | z]/η from z/η − ∇L̃(z) against σ, over all 2⁶ draws of noise on two points:
rademacher, and skewed (γ = 1.5). Two small problems in six dimensions: regression with tanh(x·w),
12 examples, which has derivatives of every order; quadratic regression, 4 examples, a polynomial
of degree four, for which nothing is left with symmetric noise. Ten data sets each, the mean over
ten random points z of each. No training run and no Monte Carlo.
"""

from collections.abc import Callable
from functools import cache

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import Claim, below, near
from antipgd.paper.results import Results, slopes
from antipgd.paper.simulation.problems import make_problem
from antipgd.paper.simulation.problems.problem import Array
from antipgd.paper.simulation.spec import Run
from antipgd.paper.simulation.tanh_regression import (
    LAWS,
    POINTS,
    QUADRATIC,
    D,
    generator,
    tanh_regression,
)
from antipgd.theory.regularisation import (
    conditional_mean,
    enumerated_step,
    trace_gradient,
)

SHOWS = (
    "What is left of the mean step after the regularised gradient, against σ. Lines are means "
    "over {seeds} data sets, bands one standard deviation; the slopes show its order."
)
SEEDS = 10
SIGMAS = np.geomspace(0.001, 0.316, 11)
FITTED = SIGMAS < 0.02  # where the leading order rules: the inputs' norm is about 2.5
REFERENCE = "eq:implicit_bias"

Fields = tuple[Callable[[Array], Array], Callable[[Array], Array], Array]


def _tanh(seed: int) -> Fields:
    problem, points = tanh_regression(seed)
    return problem.gradient, problem.gradient_of_trace, points


def _quadratic(seed: int) -> Fields:
    problem = make_problem("quadratic_regression", QUADRATIC)
    rng = generator(seed, "quadratic_regression")
    data = problem.data(rng)
    points = 1 + 0.5 * rng.standard_normal((POINTS, D))

    def gradient(W: Array) -> Array:
        return problem.gradient(np.atleast_2d(W), data).reshape(W.shape)

    def trace(W: Array) -> Array:
        return problem.trace(np.atleast_2d(W), data).reshape(W.shape[:-1])

    return gradient, lambda W: trace_gradient(trace, W), points


PROBLEMS = {"tanh": _tanh, "quadratic": _quadratic}


@cache
def _errors(problem: str, law: str, regularised: bool = True) -> Array:
    """‖E[z′ | z] − (z − η∇L̃)‖/η by seed and σ; against plain ∇L if not `regularised`."""
    table = np.empty((SEEDS, len(SIGMAS)))
    for seed, row in enumerate(table):
        gradient, of_trace, points = PROBLEMS[problem](seed)
        for i, sigma in enumerate(SIGMAS):
            exact = [enumerated_step(gradient, z, 1.0, sigma, LAWS[law]).mean for z in points]
            shown = sigma if regularised else 0.0
            gaps = exact - conditional_mean(points, 1.0, shown, gradient, of_trace)
            row[i] = np.linalg.norm(gaps, axis=1).mean()
    return table


def runs(seeds: int) -> list[Run]:
    return []


def claims(results: Results) -> list[Claim]:
    def slope(problem: str, law: str, regularised: bool = True) -> Array:
        return slopes(SIGMAS[FITTED], _errors(problem, law, regularised)[:, FITTED])

    tested = f"slope for σ from {SIGMAS[0]:.2g} to {SIGMAS[FITTED][-1]:.2g}, all 2^{D} draws, "
    tested += f"mean over {POINTS} points, n data sets"
    share = _errors("quadratic", "symmetric") / _errors("quadratic", "symmetric", False)
    return [
        near("implicit_bias.skewed", "the remainder is of third order in σ for skewed noise",
             REFERENCE, f"tanh regression, {tested}", slope("tanh", "skewed"), 3.0, 0.1),
        near("implicit_bias.symmetric", "it is of fourth order for symmetric noise",
             REFERENCE, f"tanh regression, {tested}", slope("tanh", "symmetric"), 4.0, 0.1),
        near("implicit_bias.without", "without the regulariser it would be of second order",
             REFERENCE, f"tanh regression, symmetric noise, {tested}",
             slope("tanh", "symmetric", False), 2.0, 0.1),
        near("implicit_bias.quadratic_skewed", "of third order for skewed noise on the paper's "
             "quadratic regression", REFERENCE, f"d = {D}, {tested}",
             slope("quadratic", "skewed"), 3.0, 0.1),
        below("implicit_bias.quadratic_symmetric", "for symmetric noise nothing is left on it: its "
              "loss is a polynomial of degree four", REFERENCE,
              f"d = {D}, largest remainder over σ, relative to that without regulariser, all "
              f"2^{D} draws; bound 1e-7", share.max(axis=1), 1e-7),
    ]  # fmt: skip


def plot(results: Results) -> figures.Figure:
    colours = {"symmetric": figures.COLOURS["anti"], "skewed": figures.COLOURS["label"]}
    panels = []
    for problem, title in (("tanh", "tanh regression"), ("quadratic", "quadratic regression")):
        series = [
            figures.spread(SIGMAS, _errors(problem, law), 1, label=f"{law} noise", colour=colour)
            for law, colour in colours.items()
        ]
        series.append(
            figures.spread(SIGMAS, _errors(problem, "symmetric", False), 1,
                           label="without the regulariser", colour=figures.COLOURS["gd"])
        )  # fmt: skip
        for order, dash, law in ((3, ":", "skewed"), (4, "--", "symmetric")):
            if problem == "tanh" or law == "skewed":
                at = _errors(problem, law).mean(axis=0)[0]
                series.append(
                    figures.Series(SIGMAS, at * (SIGMAS / SIGMAS[0]) ** order, f"slope {order}",
                                   dash=dash)
                )  # fmt: skip
        panels.append(
            figures.Panel(
                f"remainder of the mean step, {title}", series, "σ", "", "log", depth=1e-16
            )
        )
    return figures.draw(panels, width=4.2)
