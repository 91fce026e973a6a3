"""The widening valley L = v²‖u‖²/2, in x = η‖u‖².

Derived: all that follows once v is in equilibrium at the present x. Not derived: that it is (the
separation of time scales for σ² → 0, the condition of the module), and that the discrete walk may
be read as the diffusion with its drift and variance.
"""

import mpmath
import sympy as sp

from antipgd.theory import valley
from proofs.comparing import DIGITS, agrees, close, holds, same, value

x, d, sigma, eta = sp.symbols("x d sigma eta", positive=True)
D, alpha = sp.symbols("D alpha", positive=True)
theta = sp.Symbol("theta", real=True)
delta = 1 + theta
c = theta / delta**2
HERE = {"d": 5, "sigma": 0.125, "theta": -0.5}


def _spread_of_v():
    """Stationary E v² of v ← (1−x)v + ξ′ + θξ: E v² = ρ²E v² + 2ρθσ² + (1+θ²)σ²."""
    s = sp.Symbol("s")
    rho = 1 - x
    (found,) = sp.solve(
        sp.Eq(s, rho**2 * s + 2 * rho * theta * sigma**2 + (1 + theta**2) * sigma**2), s
    )
    return found


def _drift():
    """Of ‖u‖² a step: the noise's d(δσ)², the pull −2ηE v²‖u‖²."""
    return d * (delta * sigma) ** 2 - 2 * x * _spread_of_v()


def drift():
    """σ²(dδ² − 2(δ² − 2θx)/(2−x)); PGD σ²(d − 2/(2−x)), Anti-PGD −4σ²x/(2−x)."""
    same(_drift(), sigma**2 * (d * delta**2 - 2 * (delta**2 - 2 * theta * x) / (2 - x)))
    same(_drift().subs(theta, 0), sigma**2 * (d - 2 / (2 - x)))
    same(_drift().subs(theta, -1), -4 * sigma**2 * x / (2 - x))
    agrees(
        _drift(), valley.drift, {"x": 0.5, **HERE}, {"x": 1.5, "d": 2, "sigma": 1.0, "theta": 0.0}
    )


def _log_slope():
    """2·drift/variance of x a step, drift η·(…) and variance η²·4‖u‖²(δσ)² = 4η(δσ)²x."""
    return sp.apart(sp.simplify(2 * eta * _drift() / (4 * eta * (delta * sigma) ** 2 * x)), x)


def stationary_law():
    """Fokker and Planck without flux: p ∝ x^{(d−3)/2}(2−x)^{1/2−2θ/δ²}, a Beta law of x/2."""
    log_p = (d - 3) / 2 * sp.log(x) + (sp.Rational(1, 2) - 2 * c) * sp.log(2 - x)
    # (variance·p)′/(variance·p) = 2·drift/variance, the variance being proportional to x
    same(sp.diff(log_p, x) + 1 / x, _log_slope())
    a, b = (d - 1) / 2, sp.Rational(3, 2) - 2 * c
    same(2 * a / (a + b), 2 * (d - 1) * delta**2 / ((d + 2) * delta**2 - 4 * theta))
    for name, wanted in (("a", a), ("b", b), ("mean", 2 * a / (a + b))):
        agrees(
            wanted,
            lambda d, theta, name=name: getattr(valley.stationary_law(d, theta), name),
            {"d": 5, "theta": -0.5},
            {"d": 2, "theta": 0.25},
        )


def measured_u2():
    """y = u + θξ walks by δξ′ a step, so u′ = y + ξ′ with ξ′ fresh: E‖u‖² = E‖y‖² + dσ²."""
    y, xi = sp.symbols("y xi", real=True)
    after = sp.expand((y + delta * xi - theta * xi) ** 2)  # u′ = y′ − θξ′, one coordinate of d
    mean = after.coeff(xi, 0) + after.coeff(xi, 2) * sigma**2
    same(mean, y**2 + sigma**2)
    agrees(
        2 * (d - 1) * delta**2 / ((d + 2) * delta**2 - 4 * theta) / eta + d * (mean - y**2),
        lambda d, theta, eta, sigma: valley.stationary_law(d, theta).u2(eta, sigma),
        {"eta": 0.5, **HERE},
        {"d": 2, "theta": 0.25, "eta": 0.125, "sigma": 0.5},
    )


def density_of_the_stationary_law():
    """`pdf` and `cdf` are those of Beta(a, b)."""
    law = valley.stationary_law(5, -0.5)
    with mpmath.workdps(DIGITS):
        a, b, t = mpmath.mpf(law.a), mpmath.mpf(law.b), mpmath.mpf(0.25)
        close(
            law.pdf(0.25), sp.Float(t ** (a - 1) * (1 - t) ** (b - 1) / mpmath.beta(a, b), DIGITS)
        )
        close(law.cdf(0.25), sp.Float(mpmath.betainc(a, b, 0, t, regularized=True), DIGITS))


def _scale(y, at):
    """The slope of the scale function, exp(−∫2·drift/variance), in y = ‖u‖²/D."""
    power = -(at["d"] - 1) / 2
    other = -0.5 + 2 * at["theta"] / (1 + at["theta"]) ** 2
    return mpmath.mpf(y) ** power * (2 - at["x"] * mpmath.mpf(y)) ** other


def exit_probability():
    """A/(A+B), A and B the scale function from αD to D and from D to D/α."""
    log_s = -(d - 1) / 2 * sp.log(x) + (2 * c - sp.Rational(1, 2)) * sp.log(2 - x)
    same(sp.diff(log_s, x), -_log_slope())
    for dimension, at_theta in ((2, 0.0), (4, -0.5), (9, 0.25)):
        at = {"d": dimension, "theta": at_theta, "x": 0.25}  # η = ¼, D = 1, α = ¼
        with mpmath.workdps(DIGITS):
            below = mpmath.quad(lambda y, at=at: _scale(y, at), [0.25, 0.5, 1])
            above = mpmath.quad(lambda y, at=at: _scale(y, at), [1, 2, 3, 4])
            wanted = sp.Float(below / (below + above), DIGITS)
        close(valley.exit_probability(dimension, 1.0, 0.25, 0.25, at_theta), wanted, at)


def even_delta():
    """Where the two integrals of `exit_probability` are equal."""
    found = valley.even_delta(4, 1.0, 0.25, 0.125)
    at = {"d": 4, "theta": found - 1, "x": 0.125}
    with mpmath.workdps(DIGITS):
        below = mpmath.quad(lambda y: _scale(y, at), [0.25, 0.5, 1])
        above = mpmath.quad(lambda y: _scale(y, at), [1, 2, 3, 4])
    holds(abs(below / (below + above) - 0.5) < 1e-12, "both sides equally probable")


def v_bound():
    """|z| ≤ σ·largest: z ← ρz − (1−ρ)ξ is an average for 0 ≤ ρ ≤ 1; v = z + ξ."""
    rho, top = sp.symbols("rho top", positive=True)
    same(rho * top + (1 - rho) * top, top)  # the bound is kept
    v, xi, new = sp.symbols("v xi new")
    same((rho * v + new - xi) - new, (rho * (v - xi) - (1 - rho) * xi))
    for law, largest in (("rademacher", sp.Integer(1)), ("uniform", sp.sqrt(3))):
        agrees(
            2 * largest * sigma,
            lambda sigma, law=law: valley.v_bound(sigma, 0.5, 1.0, law=law),
            {"sigma": 0.125},
        )
    half_width = sp.Symbol("h", positive=True)  # a uniform law of variance 1 reaches √3
    (reach,) = sp.solve(
        sp.Eq(sp.integrate(x**2 / (2 * half_width), (x, -half_width, half_width)), 1), half_width
    )
    same(reach, sp.sqrt(3))


def long_run_u2():
    """u ← (1−ησ²)u + ξ′ − ξ where v² = σ²: the stationary spread of Anti-PGD at that x."""
    lr = sp.Symbol("lr", positive=True)
    one = sp.simplify(_spread_of_v().subs(theta, -1).subs(x, lr * sigma**2))
    same(d * one, 2 * d * sigma**2 / (2 - lr * sigma**2))
    agrees(d * one, valley.long_run_u2, {"d": 5, "lr": 0.5, "sigma": 0.25})


def long_run_trace():
    """tr∇²L = d·v² + ‖u‖², each at its stationary mean; v's at x = ηE‖u‖²."""
    lr = sp.Symbol("lr", positive=True)
    u, v = sp.symbols("u v")
    same(sp.diff(v**2 * u**2 / 2, u, 2) + sp.diff(v**2 * u**2 / 2, v, 2), v**2 + u**2)
    u2 = 2 * d * sigma**2 / (2 - lr * sigma**2)
    wanted = d * _spread_of_v().subs(theta, -1).subs(x, lr * u2) + u2
    agrees(wanted, valley.long_run_trace, {"d": 5, "lr": 0.5, "sigma": 0.25})


def proof_limit():
    """PGD's spread dσ²/(1−ρ²) at |v| = 2σ/α², η = α/2D; the thresholds that follow for σ → 0."""
    rho = 1 - (alpha / (2 * D)) * (2 * sigma / alpha**2) ** 2
    wanted = d * sigma**2 / (1 - rho**2)
    same(wanted, d * D**2 * alpha**6 / (4 * (D * alpha**3 - sigma**2)))
    point = {"d": 5, "D": 2.0, "alpha": 0.5, "sigma": 0.125}
    agrees(wanted, valley.proof_limit, point)
    agrees(2 * wanted, lambda **given: valley.proof_limit(printed=True, **given), point)
    for where, factor in (("corrected", 1), ("proof", 2)):
        (least,) = sp.solve(sp.Eq(sp.limit(factor * wanted, sigma, 0), D / alpha), d)
        agrees(
            least,
            lambda alpha, where=where: valley.printed_dimension_threshold(alpha, where),
            {"alpha": 0.25},
        )


def pgd_exit_time():
    """∫ dy/drift from D to D/α; with the drift dσ² alone D(1/α−1)/(dσ²)."""
    leading = (D / alpha - D) / (d * sigma**2)
    point = {"d": 9, "D": 2.0, "alpha": 0.5, "sigma": 0.125}
    agrees(leading, valley.pgd_exit_time, point)
    lr, y = sp.Rational(1, 8), sp.Symbol("y", positive=True)
    slope = _drift().subs(theta, 0).subs(x, lr * y).subs({d: 9, sigma: sp.Rational(1, 8)})
    wanted = sp.N(sp.integrate(sp.apart(1 / slope, y), (y, 2, 4)), DIGITS)
    close(valley.pgd_exit_time(**point, lr=0.125), wanted)


def anti_exit_time():
    """∫ dy/drift from D to αD, the drift −4σ²x/(2−x): [ln(1/α) − ηD(1−α)/2]/(2ησ²)."""
    lr, y = sp.symbols("lr y", positive=True)
    slope = _drift().subs(theta, -1).subs(x, lr * y)
    path = sp.integrate(sp.expand(sp.simplify(1 / slope)), y)
    wanted = path.subs(y, alpha * D) - path.subs(y, D)
    point = {"D": 2.0, "alpha": 0.5, "sigma": 0.125, "lr": 0.25}
    agrees(wanted, valley.anti_exit_time, point)
    leading = sp.log(1 / alpha) / (2 * lr * sigma**2)
    agrees(leading, lambda **given: valley.anti_exit_time(leading=True, **given), point)


def drift_delta():
    """Stationary mean at x = ηαD: 2(d−1)δ² = X((d+2)δ² − 4δ + 4), solved; leading √(2X/(d−1))."""
    step, X = sp.symbols("step X", positive=True)
    mean = (2 * (d - 1) * delta**2 / ((d + 2) * delta**2 - 4 * theta)).subs(theta, step - 1)
    equation = sp.together(mean - X).as_numer_denom()[0]
    same(
        sp.expand(equation),
        sp.expand(2 * (d - 1) * step**2 - X * ((d + 2) * step**2 - 4 * step + 4)),
    )
    found = valley.drift_delta(5, 2.0, 0.5, 0.25)
    roots = sp.solve(equation.subs({d: 5, X: sp.Rational(1, 4)}), step)
    close(found, sp.N(max(roots), DIGITS))
    close(valley.drift_delta(5, 2.0, 0.5, 0.25, leading=True), sp.sqrt(sp.Rational(1, 8)))
    small = equation.subs(step, sp.sqrt(2 * X / (d - 1)))
    same(sp.limit(small / X, X, 0), 0)  # it solves the equation to leading order


def dimension_threshold():
    """PGD: mean 2(d−1)/(d+2) ≥ X and drift d > 2/(2−X) at X = ηD/α, solved for d."""
    X = sp.Symbol("X", positive=True)
    (mean,) = sp.solve(sp.Eq(2 * (d - 1) / (d + 2), X), d)
    (grows,) = sp.solve(sp.Eq(_drift().subs({theta: 0, x: X}), 0), d)
    same(mean, (2 + 2 * X) / (2 - X))
    same(grows, 2 / (2 - X))
    for top in (0.5, 1.0, 1.75):
        close(valley.dimension_threshold(1.0, 0.5, top / 2), sp.ceiling(value(mean, X=top)))
        close(
            valley.dimension_threshold(1.0, 0.5, top / 2, "drift"),
            sp.floor(value(grows, X=top)) + 1,
        )
    likelier = valley.dimension_threshold(1.0, 0.25, 0.125, "exit")
    chances = [valley.exit_probability(n, 1.0, 0.25, 0.125) > 0.5 for n in range(1, likelier + 1)]
    holds(chances == [False] * (likelier - 1) + [True], "the first d with more than half")
