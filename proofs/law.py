"""R, the law along the minima and its clock, given φ, which proofs/finite_rate.py derives."""

import sympy as sp

from antipgd.theory.finite_rate import clock, mean_ratio, regulariser
from antipgd.theory.finite_rate.ratios import gap, label_spread, limit, spread
from proofs.comparing import agrees, close, same, value

x, b = sp.symbols("x b", positive=True)


def _code(steps, nesterov, period=1):
    """φ as the code computes it, with symbols: proofs/finite_rate.py has it equal to Lyapunov's."""
    return spread(x, steps, 0, b, nesterov) / period / gap(x, b, nesterov)


def _regularises(closed, code, *points):
    """R′ = φ/2 (σ = η = 1), R(0) = 0, and the code's R."""
    formula, phi = closed
    same(sp.diff(formula, x), phi / 2)
    same(formula.subs(x, 0), 0)
    agrees(formula, code, *points)


def regularisers():
    """R by its slope σ²φ/2: Anti-PGD, heavy ball, antithetic, held, label noise."""
    points = ({"x": 0.5, "b": 0.5}, {"x": 2.75, "b": 0.75})
    barrier = -sp.log(1 - x / (2 * (1 + b)))
    _regularises((-sp.log(1 - x / 2), 2 / (2 - x)), lambda x: regulariser(x, 1, 1), {"x": 1.5})
    heavy = -b * x / (1 - b) + (1 + b) ** 2 / (1 - b) * barrier
    _regularises((heavy, _code([1], False)), lambda x, b: regulariser(x, 1, 1, b), *points)
    pairs = 2 * (1 + b) ** 2 * barrier - (1 + 3 * b) * x / 2 - b * x**2 / 4
    _regularises(
        (pairs / (1 - b), _code([1, -1], False, 2)),
        lambda x, b: regulariser(x, 1, 1, b, antithetic=True),
        *points,
    )
    _regularises(
        (x / 2 + b * x**2 / (4 * (1 - b)), _code([1, 1], False, 2)),
        lambda x, b: regulariser(x, 1, 1, b, hold=2),
        *points,
    )
    _regularises(
        ((1 + b) / (1 - b) * barrier, label_spread(x, b, False) / gap(x, b, False)),
        lambda x, b: regulariser(x, 1, 1, b, noise="label"),
        *points,
    )


def regulariser_of_nesterov():
    """[−(1+β)² ln(1 − x/limit) − β(1−β) ln(1 + βx/(1−β))]/(1+3β), two logarithms and no rest."""
    edge = limit(b, True)
    logs = (1 + b) ** 2 * sp.log(1 - x / edge) + b * (1 - b) * sp.log(1 + b * x / (1 - b))
    _regularises(
        (-logs / (1 + 3 * b), _code([1], True)),
        lambda x, b: regulariser(x, 1, 1, b, True),
        {"x": 0.5, "b": 0.5},
        {"x": 1.25, "b": 0.75},
    )


def regulariser_of_several_draws():
    """R_K = σ²h/2 + (R − σ²h/2)/K, φ − 1 being divided by K."""
    K = sp.Symbol("K", positive=True)
    R = x / 2 + (-sp.log(1 - x / 2) - x / 2) / K
    same(sp.diff(R, x), (1 + x / (K * (2 - x))) / 2)
    agrees(R, lambda x, K: regulariser(x, 1, 1, draws=K), {"x": 0.5, "K": 4}, {"x": 1.5, "K": 2})
    agrees(x / 2, lambda x: regulariser(x, 1, 1, noise="two-point"), {"x": 1.5})


def scale_of_the_regulariser():
    """R(h; η, σ) = (σ²/η)·R(ηh; 1, 1), from R′ = σ²φ(ηh)/2."""
    h, lr, sigma = sp.symbols("h lr sigma", positive=True)
    R = -(sigma**2 / lr) * sp.log(1 - lr * h / 2)
    same(sp.diff(R, h), sigma**2 / 2 * (2 / (2 - lr * h)))
    agrees(R, lambda h, lr, sigma: regulariser(h, lr, sigma), {"h": 3.0, "lr": 0.25, "sigma": 0.5})
    close(regulariser(-3.0, 0.25, 0.5), sp.Rational(-3, 8))


def drift_along_the_minima():
    """−(η/(1−β))·½E[v²]∇h along L = ½h(u)v²: the push of one gradient, over all steps to come."""
    u, v, eta, phi, sigma = sp.symbols("u v eta phi sigma", positive=True)
    h, k = sp.Function("h"), sp.Symbol("k", integer=True)
    mean = sp.diff(h(u) * v**2 / 2, u).subs(v**2, sigma**2 * phi)
    total = sp.summation(b**k, (k, 0, sp.oo)).args[0][0]  # for b < 1
    same(-eta * total * mean, -eta / (1 - b) * (sigma**2 * phi / 2) * sp.diff(h(u), u))
    nesterov = 1 + b * total  # of a gradient: at once, and b times the buffer's push
    same(nesterov, total)


def gradient_of_a_function_of_the_hessian():
    """d/dt Σ_i R(h_i) = Σ_ij R′(H)_ij dH_ij/dt: for powers, hence for all smooth R."""
    t = sp.Symbol("t")
    p, q, r = (sp.Function(name)(t) for name in "pqr")
    H = sp.Matrix([[p, q], [q, r]])
    for n in range(1, 6):
        slope = (n * H ** (n - 1)).multiply_elementwise(sp.diff(H, t))
        same(sp.diff((H**n).trace(), t), sum(slope))


def flow_of_the_valley():
    """dh/dt = −2σ²φh with φ = 2/(2−ηh) keeps ln h − ηh/2 + 2σ²t."""
    t, eta, sigma = sp.symbols("t eta sigma", positive=True)
    h = sp.Function("h")(t)
    kept = sp.log(h) - eta * h / 2 + 2 * sigma**2 * t
    slope = sp.diff(kept, t).subs(sp.diff(h, t), -2 * sigma**2 * (2 / (2 - eta * h)) * h)
    same(slope, 0)
    # which is −∇R along u, h = u²: du/dt = −σ²φu
    u, phi = sp.symbols("u phi", positive=True)
    same(2 * u * (-(sigma**2) / 2 * phi * sp.diff(u**2, u)), -2 * sigma**2 * phi * u**2)


def clock_of_one_eigenvalue():
    """With one eigenvalue dh/dτ = −2h for dτ = ησ²φ/(1−β) a step, whatever η, σ and β are."""
    h, lr, sigma, phi = sp.symbols("h lr sigma phi", positive=True)
    a_step = -lr / (1 - b) * 2 * sigma**2 * phi * h
    tau = lr * sigma**2 * phi / (1 - b)
    same(a_step / tau, -2 * h)
    momentum = sp.Symbol("momentum")
    wanted = (lr * sigma**2 / (1 - momentum)) * _code([1], False).subs({b: momentum, x: lr * h})
    agrees(
        1000 * wanted,
        lambda lr, sigma, h, momentum: (
            clock(lr, sigma, 1000, curvatures=[h, 0.0], momentum=momentum).tau
        ),
        {"lr": 0.25, "sigma": 0.5, "h": 2.0, "momentum": 0.5},
    )


def clock_of_a_spectrum():
    """φ̄ = Σhφ/Σh: what the mean h·φ is of a mean h, h itself counting where h ≤ 0."""
    h, k = sp.symbols("h k", positive=True)
    wanted = (h * 2 / (2 - h) + k * 2 / (2 - k) - 1) / (h + k - 1)
    agrees(wanted, lambda h, k: mean_ratio([h, k, -1.0], 1.0), {"h": 1.5, "k": 0.25})
    close(mean_ratio([0.5], 1.0), value(2 / (2 - h), h=0.5))
