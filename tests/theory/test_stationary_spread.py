"""φ against Monte Carlo: the steps as the package makes them, thousands of lanes at once.

Sample sizes were fixed before looking: 400 steps to become stationary, 240 to measure (a whole
number of every period here), the error from the lanes, which are independent.
"""

import numpy as np
import pytest

from antipgd.noise.reference import perturbed
from antipgd.noise.taps import carried, telescopes
from antipgd.theory.equivalences import sigma_of_label_noise
from antipgd.theory.finite_rate import stability_limit, variance_ratio
from antipgd.torch.drawing import Drawing

WAIT, MEASURE, LANES = 400, 240, 2000
SHARES = np.array([0.1, 0.5, 0.95])
RATES = [(0.0, False), (0.5, False), (0.9, False), (0.5, True), (0.9, True)]
IN_WEIGHTS = [
    {"taps": (1.0, -1.0)},
    {"taps": (1.0,)},
    {"taps": (1.0, -0.6)},
    {"taps": (0.5, 0.5, -1.0, 0.3)},
    {"taps": (1.0, -1.0), "hold": 2},
    {"taps": (1.0, -1.0), "hold": 5},
    {"taps": (1.0, -0.6), "hold": 3},
]
IN_PASSES = [
    {"taps": (1.0, -1.0), "antithetic": True},
    {"taps": (1.0, -2.0, 1.0)},
    {"taps": (1.0, -2.0, 1.0), "hold": 2, "antithetic": True},
    {"taps": (1.0, -1.0), "hold": 5, "antithetic": True},
    {"taps": (1.0, -1.0), "draws": 3},
    {"taps": (1.0, -1.0), "draws": 3, "antithetic": True, "hold": 2},
    {"taps": (1.0, -1.0), "draws": 2, "antithetic": True},
]


def moved(x, gradient, v, momentum, nesterov):
    """What torch's SGD takes off the weights, and its buffer; x is ηh if the gradient is w."""
    v = momentum * v + x * gradient
    return (x * gradient + momentum * v if nesterov else v), v


def in_weights(x, rng, lanes, momentum, nesterov, taps, hold=1):
    """w ← w − ηv + ε, one ε each `hold` steps: time averages of w², one for each x and lane."""
    w, v, total = np.zeros((len(x), lanes)), 0.0, 0.0
    xi = np.zeros((len(taps), lanes))
    for n in range(WAIT + MEASURE):
        step, v = moved(x[:, None], w, v, momentum, nesterov)
        w = w - step
        if n % hold == 0:
            xi = np.concatenate([rng.standard_normal((1, lanes)), xi[:-1]])
            w = w + np.array(taps) @ xi
        total = total + w * w * (n >= WAIT)
    return total / MEASURE


def in_passes(x, rng, lanes, momentum, nesterov, taps, hold=1, antithetic=False, draws=1):
    """z ← z − ηv, the gradient at z + ξ of every pass: time averages of (z + ξ)²."""
    drawing = Drawing(hold, "step" if draws == 1 else "micro-batch", antithetic)
    carry = carried(taps)[:-1]
    passes = [drawing.of_pass(q) if draws > 1 else (0, 1.0) for q in range(draws)]
    z, v, total, known = np.zeros((len(x), lanes)), 0.0, 0.0, {}
    for n in range(1, WAIT + MEASURE + 1):
        newest, coefficients = drawing.terms(n, carry)
        if newest not in known:
            known[newest] = rng.standard_normal((draws, lanes))
            known = {k: known[k] for k in known if k > newest - len(coefficients)}
        terms = enumerate(coefficients)
        xi = sum(c * known[newest - j] for j, c in terms if newest - j in known)
        w = [z + sign * xi[q] for q, sign in passes]
        total = total + sum(one * one for one in w) / draws * (n > WAIT)
        step, v = moved(x[:, None], sum(w) / draws, v, momentum, nesterov)
        z = z - step
    return total / MEASURE


def table(lanes, shares):
    """One row a combination: φ, what was measured, its standard error."""
    rows = []
    for simulate, kinds in ((in_weights, IN_WEIGHTS), (in_passes, IN_PASSES)):
        for kind in kinds:
            for momentum, nesterov in RATES:
                x = stability_limit(momentum, nesterov) * shares
                rng = np.random.default_rng(len(rows))
                means = simulate(x, rng, lanes, momentum, nesterov, **kind)
                phi = variance_ratio(x, momentum, nesterov, **kind)
                errors = means.std(axis=1, ddof=1) / np.sqrt(lanes)
                rows += [(kind, *row) for row in zip(phi, means.mean(axis=1), errors, strict=True)]
    return rows


def check(rows):
    """Agreement within 4.5 standard errors of at most 2 %; φ = 1 refused where it must be."""
    apart = 0
    for kind, phi, mean, error in rows:
        assert error < 0.02 * phi, kind
        assert abs(mean - phi) < 4.5 * error + 1e-9, (kind, phi, mean, error)
        trace_only = sum(c * c for c in carried(kind["taps"])[:-1])
        if telescopes(kind["taps"]) and abs(phi - trace_only) > 10 * error:
            assert abs(mean - trace_only) > 5 * error, (kind, phi, mean, error)
            apart += 1
    return apart


def test_every_combination_agrees_with_monte_carlo():
    rows = table(LANES, SHARES)
    assert len(rows) >= 200
    assert check(rows) >= 60


@pytest.mark.slow
def test_a_larger_table():
    assert check(table(10_000, np.array([0.02, 0.1, 0.3, 0.5, 0.8, 0.95]))) >= 250


@pytest.mark.parametrize(("momentum", "nesterov"), RATES)
def test_the_packages_own_reference(momentum, nesterov):
    x, taps, rng = (
        0.6 * stability_limit(momentum, nesterov),
        (1.0, -0.5, -0.5),
        np.random.default_rng(3),
    )
    buffer = [np.zeros(4000)]

    def base(w):
        step, buffer[0] = moved(x, w, buffer[0], momentum, nesterov)
        return w - step

    kept = {}

    def draw(k):
        if k not in kept:
            kept[k] = rng.standard_normal(4000)
        return kept[k]

    path = perturbed(base, np.zeros(4000), WAIT + MEASURE, draw=draw, sigma=0.3, taps=taps)
    squares = np.mean([w * w for w in list(path)[-MEASURE:]], axis=0) / 0.3**2
    phi, error = variance_ratio(x, momentum, nesterov, taps), squares.std() / np.sqrt(4000)
    assert error < 0.02 * phi
    assert abs(squares.mean() - phi) < 4.5 * error


@pytest.mark.parametrize(("momentum", "nesterov"), RATES)
def test_label_noise(momentum, nesterov):
    """Squared loss ½·mean (a_i w − y_i)² with fresh shifts of the labels in every step."""
    a, lr, spread = np.array([1.0, 2.0, 0.5]), 0.3, 0.7
    rng, w, v, total = np.random.default_rng(5), np.zeros(3000), 0.0, 0.0
    for n in range(WAIT + MEASURE):
        residual = a[:, None] * w - spread * rng.standard_normal((3, 3000))
        step, v = moved(lr, (a[:, None] * residual).mean(axis=0), v, momentum, nesterov)
        w = w - step
        total = total + w * w * (n >= WAIT)
    sigma2 = sigma_of_label_noise(spread, lr, 3, "half") ** 2
    squares = total / MEASURE / sigma2
    phi = variance_ratio(lr * (a * a).mean(), momentum, nesterov, noise="label")
    error = squares.std() / np.sqrt(3000)
    assert error < 0.02 * phi
    assert abs(squares.mean() - phi) < 4.5 * error
    anti = variance_ratio(lr * (a * a).mean(), momentum, nesterov)
    assert momentum == 0 or abs(squares.mean() - anti) > 5 * error
