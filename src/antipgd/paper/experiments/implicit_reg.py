"""The regularised gradient converges at the theorem's schedule, if the step is stable

(1) Quadratic regression in 6 dimensions with 4 examples, rademacher noise with σ = 0.2, from w_0 =
1: the mean of ‖∇L̃(z_n)‖² over the N steps of the schedule η = ε/σ², N = σ²/10ε², for five ε; ten
data sets with 4 chains each. (2) Its stationary value on ten quadratics with five random
curvatures, 200 chains each, for two η. (3) What is left for η → 0, from exact enumeration on
regression with tanh(x·w), ten data sets. (4) L = 5z² with η = 1 < 1/β, which meets the printed
assumptions: 10 chains. The theorem is about (1), (3) with symmetric noise and (4); the rest is
ours.
"""

from functools import cache

import numpy as np

from antipgd.paper import figures
from antipgd.paper.claims import Claim, above, near
from antipgd.paper.results import Results, slopes
from antipgd.paper.simulation.problems import make_problem
from antipgd.paper.simulation.problems.problem import Array
from antipgd.paper.simulation.spec import Run
from antipgd.paper.simulation.tanh_regression import (
    LAWS,
    QUADRATIC,
    generator,
    minimum,
    tanh_regression,
)
from antipgd.theory.regularisation import (
    gradient_floor,
    implicit_reg_schedule,
    stationary_gradient,
)

SHOWS = (
    "‖∇L̃‖²: its mean at the theorem's schedule; its stationary value, measured against "
    "predicted; what is left of it for η → 0; and where a step is unstable. Means over {seeds} "
    "data sets, the band one standard deviation."
)
SEEDS = 10
SIGMA, LENGTH, CHAINS = 0.2, 0.1, 4
ETAS = np.geomspace(0.01, 0.05, 5)
EPSILONS = ETAS * SIGMA**2
LARGE, SMALL = 0.2, 0.01
STATIONARY_CHAINS, STATIONARY_STEPS = 200, 2000
FLOOR_SIGMAS = np.array([0.004, 0.01, 0.02, 0.045])
REFERENCE = "thm:implicit_reg"


def runs(seeds: int) -> list[Run]:
    return []


@cache
def _data() -> tuple[Array, Array]:
    """Inputs (seeds, 1, n, d) and labels (seeds, 1, n, 1) of all data sets."""
    problem = make_problem("quadratic_regression", QUADRATIC)
    data = [problem.data(generator(seed, "quadratic_regression")) for seed in range(SEEDS)]
    X, y = np.array([one.X for one in data]), np.array([one.y for one in data])
    return X[:, None], y[:, None, :, None]


def _curvature() -> float:
    """The largest curvature of L̃ at w_0 = 1 over all data sets, where z starts."""
    X, y = _data()
    n, d = X.shape[2:]
    residual = X @ np.ones((d, 1)) - y
    diagonal = (np.swapaxes(X, 2, 3) @ residual)[..., 0] / n + SIGMA**2 / 2 * _trace_slopes()
    hessian = 2 * np.swapaxes(X, 2, 3) @ X / n + diagonal[..., None] * np.eye(d)
    return float(np.linalg.eigvalsh(hessian).max())


def _trace_slopes() -> Array:
    """c with ∇tr∇²L = c⊙w: the trace is quadratic in w."""
    X, _ = _data()
    n = X.shape[2]
    return (2 * (X.sum(axis=3, keepdims=True) * X).sum(axis=2) + 4 * (X**2).sum(axis=2)) / n


@cache
def _averages() -> Array:
    """Mean ‖∇L̃(z_n)‖² over the schedule's steps and the chains, by seed and ε."""
    X, y = _data()
    n, d = X.shape[2:]
    transposed, slopes = np.ascontiguousarray(np.swapaxes(X, 2, 3)), _trace_slopes()
    table = np.empty((SEEDS, len(EPSILONS)))
    curvature = _curvature()

    def gradient(W: Array) -> Array:
        residual = X @ (W * W)[..., None] - y
        return W * (transposed @ residual)[..., 0] / n

    for i, epsilon in enumerate(EPSILONS):
        eta, steps = implicit_reg_schedule(epsilon, SIGMA, curvature, length=LENGTH)
        rng, z = generator(i, "implicit_reg"), np.ones((SEEDS, CHAINS, d))
        total = np.zeros((SEEDS, CHAINS))
        for _ in range(steps):
            regularised = gradient(z) + SIGMA**2 / 2 * slopes * z
            total += (regularised * regularised).sum(axis=2)
            xi = SIGMA * (2.0 * rng.integers(0, 2, z.shape) - 1)
            z = z - eta * gradient(z + xi)
        table[:, i] = total.mean(axis=1) / steps
    return table


@cache
def _stationary(eta: float) -> tuple[Array, Array, Array]:
    """By quadratic: the mean of ‖∇L̃‖² over the second half of all chains, and both formulas."""
    h = np.array([generator(seed, "curvatures").uniform(0.5, 5, 5) for seed in range(SEEDS)])
    rng = generator(0, "stationary")
    z, total = np.zeros((STATIONARY_CHAINS, SEEDS, 5)), np.zeros(SEEDS)
    for step in range(STATIONARY_STEPS):
        xi = SIGMA * (2.0 * rng.integers(0, 2, z.shape) - 1)
        z = z - eta * h * (z + xi)
        if step >= STATIONARY_STEPS // 2:
            total += ((h * z) ** 2).sum(axis=2).mean(axis=0)
    exact, leading = (
        np.array([stationary_gradient(np.diag(one), eta, SIGMA, leading=first) for one in h])
        for first in (False, True)
    )  # fmt: skip
    return total / (STATIONARY_STEPS // 2), exact, leading


@cache
def _floors(law: str) -> Array:
    """‖∇L̃‖² that is left for η → 0, by seed and σ."""
    table = np.empty((SEEDS, len(FLOOR_SIGMAS)))
    for seed, row in enumerate(table):
        problem, _ = tanh_regression(seed)
        for i, sigma in enumerate(FLOOR_SIGMAS):
            row[i] = gradient_floor(
                minimum(seed), sigma, problem.gradient, problem.gradient_of_trace, LAWS[law]
            ).value
    return table


@cache
def _diverging() -> Array:
    """log10 of ‖∇L̃(z_n)‖² on L = 5z² with η = 1, by chain and step: N = 100 = σ²/ε², ε = σ²."""
    xi = 0.1 * (2.0 * generator(0, "diverging").integers(0, 2, (100, SEEDS)) - 1)
    z, table = np.ones(SEEDS), np.empty((SEEDS, 100))
    for n in range(100):
        table[:, n] = 2 * np.log10(np.abs(10 * z))
        z = z - 10 * (z + xi[n])
    return table


def claims(results: Results) -> list[Claim]:
    large, exact, _ = _stationary(LARGE)
    small, _, leading = _stationary(SMALL)
    tested = f"σ = {SIGMA}, rademacher, {STATIONARY_CHAINS} chains, steps "
    tested += f"{STATIONARY_STEPS // 2:,} to {STATIONARY_STEPS:,}, n quadratics with 5 curvatures"
    sigmas = f"slope for σ from {FLOOR_SIGMAS[0]} to {FLOOR_SIGMAS[-1]}, tanh regression, exact"
    return [
        above("implicit_reg.schedule", "at the theorem's schedule the mean of ‖∇L̃‖² is O(ε): it "
              "falls at least about as fast as ε",
             REFERENCE, f"slope over ε from {EPSILONS[0]:.2g} to {EPSILONS[-1]:.2g}, σ = {SIGMA}, "
             f"all z_n, {CHAINS} chains, n data sets; bound 0.75",
              slopes(EPSILONS, _averages()),
             0.75),
        near("implicit_reg.stationary", "(ours) on a quadratic its stationary value is "
             "ησ²Σh³/(2 − ηh)",
             REFERENCE, f"measured/predicted, η = {LARGE}, {tested}", large / exact, 1.0, 0.02),
        near("implicit_reg.leading", "(ours) which is ησ² tr(H³)/2 for small η: the O(ε) "
             "is attained",
             REFERENCE, f"measured/predicted, η = {SMALL}, {tested}", small / leading, 1.0, 0.05),
        above("implicit_reg.floor_symmetric", "what is left for η → 0 is O(σ³)", REFERENCE,
              f"{sigmas}, rademacher (σ⁸ expected)",
              slopes(FLOOR_SIGMAS, _floors("symmetric")), 3.0),
        above("implicit_reg.floor_skewed", "(ours) what is left for η → 0 is O(σ³) for "
              "skewed noise, too",
              REFERENCE, f"{sigmas}, skewed (σ⁶ expected)",
              slopes(FLOOR_SIGMAS, _floors("skewed")), 3.0),
        near("implicit_reg.assumptions", "the printed assumptions suffice: ‖∇L̃‖² stays bounded "
             "on L = 5z² with η = 1 < 1/β", REFERENCE, "log10 of ‖∇L̃(z_n)‖² per step, 100 steps "
             "of n chains, to be nought", (_diverging()[:, -1] - _diverging()[:, 0]) / 99, 0.0,
             0.01),
    ]  # fmt: skip


def plot(results: Results) -> figures.Figure:
    anti, label = figures.COLOURS["anti"], figures.COLOURS["label"]
    averages = _averages()
    middle = averages.mean(axis=0)
    line = middle[len(middle) // 2] * EPSILONS / EPSILONS[len(middle) // 2]
    stationary = []
    for eta, colour in ((LARGE, anti), (SMALL, label)):
        measured, exact, leading = _stationary(eta)
        stationary += [
            figures.Series(exact, measured, f"η = {eta}, exact", colour, "", "o"),
            figures.Series(leading, measured, f"η = {eta}, leading order", colour, "", "x"),
        ]
    ends = [min(leading), max(_stationary(LARGE)[1])]
    floors = [
        figures.spread(FLOOR_SIGMAS, _floors(law), 0, label=f"η → 0, {law} noise", colour=colour)
        for law, colour in (("symmetric", anti), ("skewed", label))
    ]
    return figures.draw([
        figures.Panel("mean ‖∇L̃‖² at the schedule", [
            figures.spread(EPSILONS, averages, 1, label="Anti-PGD", colour=anti),
            figures.Series(EPSILONS, line, "proportional to ε", dash=":")], "ε", "", "log"),
        figures.Panel("stationary ‖∇L̃‖² on quadratics", [
            *stationary, figures.Series(ends, ends, "equal", dash="--")],
            "predicted", "measured", "log"),
        figures.Panel("floor of ‖∇L̃‖² for η → 0", [
            *floors, figures.Series(FLOOR_SIGMAS, FLOOR_SIGMAS**3, "σ³, as printed", dash="-.")],
            "σ", "", "log", depth=1e-16),
        figures.Panel("log10 of ‖∇L̃‖² on L = 5z², η = 1", [
            figures.spread(np.arange(100), _diverging(), 0, label="Anti-PGD", colour=anti)],
            xscale="linear", yscale="linear"),
    ], columns=2)  # fmt: skip
