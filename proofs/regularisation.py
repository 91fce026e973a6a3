"""One step of Anti-PGD in z: its mean, its variance, and what many steps come to."""

import itertools

import numpy as np
import sympy as sp

from antipgd.theory import regularisation as code
from proofs.comparing import agrees, close, holds, same, value

eta, sigma, z, h = sp.symbols("eta sigma z h", positive=True)
u, v = sp.symbols("u v")
QUARTIC = (
    1 + u - 2 * v + 3 * u**2 - u * v + v**3 + 2 * u**2 * v + u**4 - 3 * u**3 * v + 2 * u**2 * v**2
)


def _over_signs(expression):
    """The mean over both signs of each draw, σ each."""
    signs = itertools.product((sigma, -sigma), repeat=2)
    return sp.expand(
        sum(expression.subs({u: u + a, v: v + b}, simultaneous=True) for a, b in signs) / 4
    )


def _trace(loss):
    return sp.diff(loss, u, 2) + sp.diff(loss, v, 2)


def _field(expressions):
    """A function of points (…, 2), as the code takes them."""
    plain = [sp.lambdify((u, v), one, "numpy") for one in expressions]

    def field(points):
        at = np.asarray(points, float)
        columns = [one(at[..., 0], at[..., 1]) + 0 * at[..., 0] for one in plain]
        return columns[0] if len(columns) == 1 else np.stack(columns, axis=-1)

    return field


def regularised_loss():
    """def:L_tilde: the loss smoothed over signs ±σ is L + σ²/2 tr∇²L, up to degree three."""
    cubic = sum(c for c in QUARTIC.as_ordered_terms() if sp.Poly(c, u, v).total_degree() <= 3)
    same(_over_signs(cubic), cubic + sigma**2 / 2 * _trace(cubic))
    found = code.regularised_loss(
        np.array([0.5, -1.5]), 0.25, _field([cubic]), _field([_trace(cubic)])
    )
    close(found, value(cubic + sigma**2 / 2 * _trace(cubic), u=0.5, v=-1.5, sigma=0.25))


def conditional_mean():
    """eq:implicit_bias: E∇L(z + ξ) = ∇L + σ²/2 ∇tr∇²L, exact for degree four and draws ±σ."""
    gradient, of_trace = _gradient(QUARTIC), _gradient(_trace(QUARTIC))
    for smoothed, g, t in zip(map(_over_signs, gradient), gradient, of_trace, strict=True):
        same(smoothed, g + sigma**2 / 2 * t)
    at = {"u": 0.5, "v": -1.5, "sigma": 0.25}
    point = np.array([0.5, -1.5])
    means = code.conditional_mean(point, 0.125, 0.25, _field(gradient), _field(of_trace))
    slopes = code.regularised_gradient(point, 0.25, _field(gradient), _field(of_trace))
    steps = code.enumerated_step(_field(gradient), point, 0.125, 0.25)
    for i, (name, smoothed) in enumerate(zip("uv", map(_over_signs, gradient), strict=True)):
        close(means[i], sp.Rational(at[name]) - value(smoothed, **at) / 8)
        close(slopes[i], value(smoothed, **at))
        close(steps.mean[i], sp.Rational(at[name]) - value(smoothed, **at) / 8)


def _gradient(loss):
    return [sp.diff(loss, u), sp.diff(loss, v)]


def enumerated_step():
    """Var and second moment of −η∂L(z + ξ) over all four pairs of signs."""
    g = sp.diff(QUARTIC, u)
    square, mean = _over_signs(g**2), _over_signs(g)
    at = {"u": 0.5, "v": -1.5, "sigma": 0.25}
    found = code.enumerated_step(_field(_gradient(QUARTIC)), np.array([0.5, -1.5]), 0.125, 0.25)
    close(found.second_moment[0], value(square, **at) / 64)
    close(found.variance[0], value(square - mean**2, **at) / 64)


def trace_gradient():
    """∇tr∇²L = (∂_u, ∂_v)(∂_u² + ∂_v²)L; the code's differences agree to nine digits."""
    trace = _trace(QUARTIC)
    found = code.trace_gradient(_field([trace]), np.array([0.5, -1.5]))
    for one, exact in zip(found, _gradient(trace), strict=True):
        wanted = value(exact, u=0.5, v=-1.5)
        holds(abs(one - wanted) <= 1e-9 * abs(wanted), "the gradient of the trace")


def two_point_law():
    """Mean 0, variance 1 on −√o, 1/√o, o = p/(1−p): γ = (1−2p)/√(p(1−p)), κ = 1 + γ²."""
    o = sp.Symbol("o", positive=True)
    p, low, high = o / (1 + o), -sp.sqrt(o), 1 / sp.sqrt(o)
    moments = [(1 - p) * low**n + p * high**n for n in range(5)]
    skewness = (1 - 2 * p) / sp.sqrt(o) * (1 + o)
    same(skewness**2, (1 - 2 * p) ** 2 / (p * (1 - p)))
    for wanted, found in zip((1, 0, 1, skewness, 1 + skewness**2), moments, strict=True):
        same(wanted, found)
    for probability, odds in ((0.2, sp.Rational(1, 4)), (0.9, sp.Integer(9))):
        law = code.TwoPoint(probability)
        found = (law.skewness, law.kurtosis, *law.points)
        for one, wanted in zip(found, (skewness, moments[4], low, high), strict=True):
            close(one, sp.N(wanted.subs(o, odds), 40), probability)


def conditional_variance():
    """app:cond_var: Var of −η times the Taylor polynomial of ∂_iL in three draws, up to σ⁴."""
    d, rng = 3, np.random.default_rng(1)
    H, T, Q = (_symmetric(rng, d, order) for order in (2, 3, 4))
    xi, kurtosis, skewness = sp.symbols("xi_0:3"), sp.Symbol("kurtosis"), sp.Symbol("skewness")
    moments = (1, 0, 1, skewness, kurtosis)
    at = code.Derivatives(np.zeros(d), H, T, Q)
    for i in range(d):

        def form(tensor, order, i=i):
            indices = itertools.product(range(d), repeat=order - 1)
            return sum(int(tensor[(i, *js)]) * sp.prod([xi[j] for j in js]) for js in indices)

        slope = sigma * form(H, 2) + sigma**2 / 2 * form(T, 3) + sigma**3 / 6 * form(Q, 4)
        variance = _truncated(slope**2, xi, moments) - _truncated(slope, xi, moments) ** 2
        variance = sum(sp.expand(variance).coeff(sigma, n) * sigma**n for n in range(5))
        agrees(
            eta**2 * variance,
            lambda i=i, **given: code.conditional_variance(at, **given)[i],
            {"eta": 0.5, "sigma": 0.015625, "kurtosis": 3.0, "skewness": 0.5},
            {"eta": 0.25, "sigma": 0.03125, "kurtosis": 1.0, "skewness": 0.0},
        )


def _truncated(polynomial, draws, moments):
    """The expectation without what is beyond σ⁴."""
    poly, total = sp.Poly(sp.expand(polynomial), sigma, *draws), 0
    for (order, *powers), c in poly.terms():
        if order <= 4:
            total += c * sigma**order * sp.prod([moments[power] for power in powers])
    return total


def _symmetric(rng, d, order):
    """Whole numbers that do not change when indices are exchanged."""
    tensor = rng.integers(-3, 4, (d,) * order)
    index = np.sort(np.indices(tensor.shape).reshape(order, -1), axis=0)
    return tensor[tuple(index)].reshape(tensor.shape).astype(float)


def implicit_reg_schedule():
    """thm:implicit_reg: η = ε/σ², N = σ²/ε² make both terms of a descent bound, 1/(ηN), ησ², ε."""
    epsilon, rate, steps = sp.symbols("epsilon eta N", positive=True)
    (found,) = sp.solve(
        [sp.Eq(1 / (rate * steps), epsilon), sp.Eq(rate * sigma**2, epsilon)],
        [rate, steps],
        dict=True,
    )
    same(found[rate], epsilon / sigma**2)
    same(found[steps], sigma**2 / epsilon**2)
    schedule = code.implicit_reg_schedule(1 / 64, 0.5, curvature=10)
    close(schedule.eta, value(found[rate], epsilon=1 / 64, sigma=0.5))
    close(schedule.steps, value(found[steps], epsilon=1 / 64, sigma=0.5))


def stationary_gradient():
    """z ← (1−ηh)z − ηhξ: h²·Var z = ησ²h³/(2−ηh), summed over eigenvalues; leading order η."""
    s = sp.Symbol("s")
    (variance,) = sp.solve(sp.Eq(s, (1 - eta * h) ** 2 * s + (eta * h * sigma) ** 2), s)
    one = sp.simplify(h**2 * variance)
    same(one, eta * sigma**2 * h**3 / (2 - eta * h))
    k = sp.Symbol("k", positive=True)
    agrees(
        one + one.subs(h, k),
        lambda h, k, **given: code.stationary_gradient(_with_eigenvalues(h, k), **given),
        {"h": 3.0, "k": 1.0, "eta": 0.25, "sigma": 0.5},
    )
    small = sp.series(one, eta, 0, 2).removeO()
    agrees(
        small,
        lambda h, eta, sigma: code.stationary_gradient([[h]], eta, sigma, leading=True),
        {"h": 3.0, "eta": 0.25, "sigma": 0.5},
    )


def _with_eigenvalues(h, k):
    return [[(h + k) / 2, (h - k) / 2], [(h - k) / 2, (h + k) / 2]]


def gradient_floor():
    """E∇L(z ± σ) − ∇L̃ = cσ⁴ for ∇L = z + cz⁴: where the first is 0, ‖∇L̃‖² is c²σ⁸."""
    c = sp.Symbol("c", positive=True)
    slope = z + c * z**4
    smoothed = (slope.subs(z, z + sigma) + slope.subs(z, z - sigma)) / 2
    tilde = slope + sigma**2 / 2 * sp.diff(slope, z, 2)
    same(sp.expand(smoothed - tilde), c * sigma**4)
    found = code.gradient_floor(np.array([0.0]), 0.5, lambda p: p + p**4 / 4, lambda p: 3 * p**2)
    wanted = value(c**2 * sigma**8, c=0.25, sigma=0.5)
    holds(abs(found.value - wanted) <= 1e-9 * wanted, "the floor, to the root finder's digits")
