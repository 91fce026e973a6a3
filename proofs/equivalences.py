"""The clock of small rates, label noise as Anti-PGD, the delay at a saddle."""

import sympy as sp

from antipgd.theory import equivalences
from proofs.comparing import agrees, close, same, value

lr, sigma, h = sp.symbols("lr sigma h", positive=True)


def clock():
    """A step moves z along the valley by −(η/(1−β))(σ²/2)∇tr: ησ²/(1−β) of a common clock.

    A gradient enters the buffer once and leaves it by β a step: its whole push is Σ β^j of it.
    """
    momentum, push, slope = sp.symbols("momentum push slope", positive=True)
    (whole,) = sp.solve(sp.Eq(push, 1 + momentum * push), push)
    a_step = lr * whole * sigma**2 / 2 * slope
    tau = sp.simplify(a_step / (slope / 2))
    same(tau, lr * sigma**2 / (1 - momentum))
    agrees(
        1000 * tau,
        lambda **given: equivalences.clock(steps=1000, **given),
        {"lr": 0.25, "sigma": 0.5, "momentum": 0.75},
    )


def clock_of_adam():
    """Divided by √E g² with g = hξ, the step (σ²/2)∇h becomes σ·(∇h/2h): ησ of a common clock."""
    slope = sp.Symbol("slope", positive=True)
    a_step = lr * (sigma**2 / 2 * slope) / sp.sqrt(h**2 * sigma**2)
    same(a_step / (slope / (2 * h)), lr * sigma)
    agrees(
        1000 * lr * sigma,
        lambda **given: equivalences.clock(steps=1000, optimizer="adam", **given),
        {"lr": 0.25, "sigma": 0.5},
    )


def steps_for():
    """τ over the advance of a step, rounded up."""
    tau = sp.Symbol("tau", positive=True)
    agrees(
        sp.ceiling(tau / (lr * sigma**2)),
        equivalences.steps_for,
        {"tau": 3.0, "lr": 0.25, "sigma": 0.5},
        {"tau": 3.01, "lr": 0.25, "sigma": 0.5},
    )


def sigma_of_label_noise():
    """Stationarity of w ← (1−ηh)w + ην for η → 0, ν the gradient of shifted labels.

    The shift s·ξ_i of label i moves the gradient of c·(f_i−y_i)²/n by 2c·s·ξ_i·∂f_i/n, in all by
    the variance 4c²s²·Σ(∂f_i)²/n² = 2c·s²·h/n, for h = 2c·Σ(∂f_i)²/n at interpolation.
    """
    c, s, n, v, squares = sp.symbols("c s n v squares", positive=True)
    curvature = 2 * c * squares / n
    of_gradient = (2 * c * s / n) ** 2 * squares
    same(of_gradient, 2 * c * s**2 * curvature / n)
    (variance,) = sp.solve(sp.Eq(v, (1 - lr * h) ** 2 * v + lr**2 * 2 * c * s**2 * h / n), v)
    same(variance, 2 / (2 - lr * h) * (c * lr * s**2 / n))  # the spread that the docstring names
    small = sp.limit(variance / lr, h, 0) * lr
    for form, factor in (("quarter", sp.Rational(1, 4)), ("half", sp.Rational(1, 2))):
        wanted = sp.sqrt(small.subs(c, factor))
        agrees(
            wanted,
            lambda s, lr, n, form=form: equivalences.sigma_of_label_noise(s, lr, n, form),
            {"s": 0.5, "lr": 0.25, "n": 40},
        )


def label_noise_of_sigma():
    """σ² = ηs²/4n or ηs²/2n solved for s."""
    s, n = sp.symbols("s n", positive=True)
    for form, factor in (("quarter", 4), ("half", 2)):
        (solved,) = sp.solve(sp.Eq(sigma**2, lr * s**2 / (factor * n)), s)
        agrees(
            solved,
            lambda sigma, lr, n, form=form: equivalences.label_noise_of_sigma(sigma, lr, n, form),
            {"sigma": 0.5, "lr": 0.25, "n": 40},
        )


def saddle_delay():
    """w ← (1+a)w + ε: PGD's Var grows like (1+a)^{2k}/(a²+2a), that of z by a² of it, a step later.

    z ← (1+a)z + aξ_n with ξ_0 = 0 has one draw fewer after k steps. Equal spreads give the lag.
    """
    a, k, lag = sp.symbols("a k lag", positive=True)
    j = sp.Symbol("j", integer=True, nonnegative=True)
    total = ((1 + a) ** (2 * (k + 1)) - 1) / ((1 + a) ** 2 - 1)  # Σ_{j≤k} (1+a)^{2j}
    same(total.subs(k, 0), 1)
    same(total.subs(k, j + 1) - total.subs(k, j), (1 + a) ** (2 * (j + 1)))
    leading = (1 + a) ** (2 * k) / (a**2 + 2 * a)  # k draws so far: the newest is Σ_{j<k}
    same(sp.limit(total.subs({a: 1, k: k - 1}) / leading.subs(a, 1), k, sp.oo), 1)
    later = a**2 * leading.subs(k, k + lag - 1)
    (found,) = sp.solve(sp.expand_log(sp.log(later / leading), force=True), lag)
    same(sp.expand_log(found, force=True), 1 - sp.log(a) / sp.log(1 + a))
    for curvature in (-0.5, -4.0):
        wanted = value(1 - sp.log(a) / sp.log(1 + a), a=-0.25 * curvature)
        close(equivalences.saddle_delay(0.25, curvature), wanted)
        close(equivalences.saddle_delay(0.25, curvature, leading=True), wanted - 1)
