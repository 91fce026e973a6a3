"""φ, R and the law along the minima at real learning rates.

Stationary moments come from Lyapunov's equation for the whole state: weights, momentum, last draws;
held and antithetic draws from the autocovariances of what fresh draws make. The code goes another
way (one draw's response, summed), so that the two check each other. σ = 1 and x = ηh throughout.
"""

import sympy as sp

from antipgd.theory.finite_rate import (
    clock,
    flat_diffusion,
    mean_ratio,
    regulariser,
    stability_limit,
    variance_ratio,
)
from antipgd.theory.finite_rate.ratios import gap, label_spread, limit, spread, tail
from proofs.comparing import agrees, close, holds, same, stationary_covariance, value

x, b, z, m = sp.symbols("x b z m", positive=True)
HALF = sp.Rational(1, 2)


def _answer(z, m, nesterov, b=b):
    """z and m after a step at w = z: m ← bm + xz, z ← z − m, or z ← z − xz − bm."""
    after = b * m + x * z
    return (z - x * z - b * after if nesterov else z - after), after


def _system(nesterov, taps=(1, -1), b=b):
    """s ← A s + noise·ξ for s = (w, m, the last len(taps) − 1 draws)."""
    lags = len(taps) - 1
    A, noise = sp.zeros(2 + lags, 2 + lags), sp.zeros(2 + lags, 1)
    for column, (w, momentum) in enumerate([(1, 0), (0, 1)]):
        A[0, column], A[1, column] = _answer(sp.Integer(w), sp.Integer(momentum), nesterov, b)
    noise[0] = taps[0]
    for j in range(lags):
        A[0, 2 + j] = taps[j + 1]
        if j:
            A[2 + j, 1 + j] = 1
    if lags:
        noise[2] = 1
    return A, noise


def _autocovariances(count, nesterov, taps=(1, -1), b=b):
    """C_0, C_1, … of w."""
    A, noise = _system(nesterov, taps, b)
    S, found = stationary_covariance(A, noise), []
    for _ in range(count):
        found.append(sp.factor(S[0, 0]))
        S = A * S
    return found


def _code(steps, nesterov, period=1, remains=0, b=b):
    """What the code computes, with symbols."""
    return spread(x, steps, remains, b, nesterov) / period / gap(x, b, nesterov)


def what_is_left_of_a_draw():
    """`tail`/(x·gap) is Σ z_n²: it is E = z² + E after a step, and no other quadratic form is."""
    A, B, C = sp.symbols("A B C")
    for nesterov in (False, True):
        after = _answer(z, m, nesterov)

        def form(z, m):
            return A * z**2 + 2 * B * z * m + C * m**2

        rest = sp.Poly(sp.expand(z**2 + form(*after) - form(z, m)), z, m)
        (found,) = sp.solve(rest.coeffs(), [A, B, C], dict=True)
        same(form(z, m).subs(found), tail(x, z, m, b, nesterov) / (x * gap(x, b, nesterov)))


def stability_limits():
    """An eigenvalue reaches −1 at x = 2(1+β), Nesterov 2(1+β)/(1+2β), none leaves before."""
    for nesterov in (False, True):
        A = _system(nesterov)[0][:2, :2]
        at_minus_one = sp.solve((A + sp.eye(2)).det(), x)
        same(at_minus_one[0], limit(b, nesterov))
        holds(len(at_minus_one) == 1, "one limit")
        same((A - sp.eye(2)).det(), x)  # +1 only at x = 0
        product = sp.factor(A.det())  # of both: inside the circle, or the roots meet ±1 first
        same(product, b * (1 - x) if nesterov else b)
        agrees(limit(sp.Symbol("momentum"), nesterov),
               lambda momentum, nesterov=nesterov: stability_limit(momentum, nesterov),
               {"momentum": 0.0}, {"momentum": 0.9})  # fmt: skip


def anti_pgd():
    """Lyapunov: φ = 2/(2−x) without momentum."""
    phi = _autocovariances(1, False, b=sp.Integer(0))[0]
    same(phi, 2 / (2 - x))
    same(_code([1], False, b=sp.Integer(0)), phi)
    agrees(phi, lambda x: variance_ratio(x), {"x": 0.25}, {"x": 1.75})


def heavy_ball():
    """Lyapunov: φ = 1 + (1+β)x/((1−β)(2(1+β)−x))."""
    phi = _autocovariances(1, False)[0]
    same(phi, 1 + (1 + b) * x / ((1 - b) * (2 * (1 + b) - x)))
    same(_code([1], False), phi)
    agrees(phi, lambda x, b: variance_ratio(x, b), {"x": 0.25, "b": 0.5}, {"x": 3.5, "b": 0.875})


def nesterov():
    """Lyapunov: φ = 1 + x(1+β+β(1+2β)x)/((1−β+βx)(2(1+β)−(1+2β)x))."""
    phi = _autocovariances(1, True)[0]
    below = (1 - b + b * x) * (2 * (1 + b) - (1 + 2 * b) * x)
    same(phi, 1 + x * (1 + b + b * (1 + 2 * b) * x) / below)
    same(_code([1], True), phi)
    agrees(phi, lambda x, b: variance_ratio(x, b, True), {"x": 0.25, "b": 0.5}, {"x": 1.25, "b": 0.9})


def antithetic():
    """C_0 − C_1: 1 + x(2(1−β²)+βx)/((1−β)(2(1+β)−x)), (2+x)/(2−x) without momentum."""
    for nesterov in (False, True):
        zero, one = _autocovariances(2, nesterov)
        same(_code([1, -1], nesterov, 2), zero - one)
        agrees(zero - one,
               lambda x, b, nesterov=nesterov: variance_ratio(x, b, nesterov, antithetic=True),
               {"x": 0.25, "b": 0.5}, {"x": 1.25, "b": 0.875})  # fmt: skip
        if not nesterov:
            below = (1 - b) * (2 * (1 + b) - x)
            same(zero - one, 1 + x * (2 * (1 - b**2) + b * x) / below)
            same((zero - one).subs(b, 0), (2 + x) / (2 - x))


def held():
    """C_0 + 2Σ_{k<T}(1−k/T)C_k: 2(1−ρ^T)/(T(1−ρ²)) with ρ = 1−x; for T = 2 it is 1 + βx/(1−β)."""
    plain, rho = _autocovariances(6, False, b=sp.Integer(0)), 1 - x
    for T in range(1, 7):
        phi = plain[0] + 2 * sum((1 - sp.Rational(k, T)) * plain[k] for k in range(1, T))
        same(phi, 2 * (1 - rho**T) / (T * (1 - rho**2)))
        same(_code([1] * T, False, T, b=sp.Integer(0)), phi)
    for nesterov in (False, True):
        C = _autocovariances(3, nesterov)
        two, three = C[0] + C[1], C[0] + sp.Rational(4, 3) * C[1] + sp.Rational(2, 3) * C[2]
        same(_code([1] * 3, nesterov, 3), three)
        agrees(three, lambda x, b, nesterov=nesterov: variance_ratio(x, b, nesterov, hold=3),
               {"x": 0.25, "b": 0.5}, {"x": 1.25, "b": 0.875})  # fmt: skip
        if not nesterov:
            same(two, 1 + b * x / (1 - b))
            agrees(two, lambda x, b: variance_ratio(x, b, hold=2), {"x": 1.5, "b": 0.75})


def any_taps():
    """Lyapunov with three draws in the state: taps (p, q, r), all symbols, and β = ½."""
    p, q, r = sp.symbols("p q r")
    for nesterov in (False, True):
        phi = _autocovariances(1, nesterov, (p, q, r), HALF)[0]
        same(_code([p, p + q], nesterov, 1, p + q + r, HALF), phi)
        agrees(phi.subs({p: 1, q: sp.Rational(1, 4), r: -HALF}),
               lambda x, nesterov=nesterov: variance_ratio(x, 0.5, nesterov, (1, 0.25, -0.5)),
               {"x": 0.5}, {"x": 1.25})  # fmt: skip


def between_pgd_and_anti_pgd():
    """Taps (1, −λ): ((1−λ)² + 2λx)/(x(2−x)); flat directions diffuse by (1−λ)² a step."""
    lam = sp.Symbol("lam")
    phi = _autocovariances(1, False, (1, -lam), sp.Integer(0))[0]
    same(phi, ((1 - lam) ** 2 + 2 * lam * x) / (x * (2 - x)))
    agrees(phi, lambda x, lam: variance_ratio(x, taps=(1, -lam)), {"x": 0.5, "lam": 0.75})
    # E w² ← E w² + step² where the curvature is 0; 2x·φ is that step² as x → 0
    diffusion = sp.limit(2 * x * phi, x, 0)
    same(diffusion, (1 - lam) ** 2)
    agrees(diffusion, lambda lam: flat_diffusion((1, -lam)), {"lam": 0.75}, {"lam": 0.0})


def small_rates():
    """x → 0: Σ of the squares of the taps' running sums, 1 for Anti-PGD at any momentum."""
    p, q = sp.symbols("p q")
    for nesterov in (False, True):
        flat = sp.limit(_code([p, p + q], nesterov, 1, 0, HALF), x, 0)
        same(flat, p**2 + (p + q) ** 2)
        for steps, period in (([1], 1), ([1, 1, 1], 3), ([1, -1], 2), ([1, 1, -1, -1], 4)):
            same(sp.limit(_code(steps, nesterov, period), x, 0), 1)
    close(variance_ratio(0.0, 0.5, taps=(1, 2, -3)), sp.Integer(1 + 9))


def several_draws():
    """K draws a step: 1 + (φ−1)/K; in pairs ±ξ K is K² if it is odd, and nothing is left if even.

    z feels the mean of the draws alone, and each pass adds a draw of its own to z: E w² = E z² + 1.
    """
    share = sp.Symbol("share", positive=True)  # variance of the mean of the draws
    for nesterov in (False, True):
        A, _ = _system(nesterov, (1,))
        one = sp.Matrix(_answer(sp.Integer(1), sp.Integer(0), nesterov)) - sp.Matrix([1, 0])
        of_z = stationary_covariance(A, sp.sqrt(share) * one)[0, 0]
        phi = sp.factor(of_z + 1)
        same(phi, 1 + share * (_code([1], nesterov) - 1))
        for draws, pairs, variance in ((4, False, sp.Rational(1, 4)), (2, True, 0),
                                       (3, True, sp.Rational(1, 9))):  # fmt: skip
            signs = [(q // 2, (-1) ** q) if pairs else (q, 1) for q in range(draws)]
            mean = [sum(s for q, s in signs if q == k) / sp.Integer(draws) for k in range(draws)]
            same(sum(c**2 for c in mean), variance)
            agrees(phi.subs(share, variance),
                   lambda x, b, nesterov=nesterov, draws=draws, pairs=pairs: variance_ratio(
                       x, b, nesterov, draws=draws, antithetic=pairs),
                   {"x": 0.5, "b": 0.5}, {"x": 1.25, "b": 0.75})  # fmt: skip


def two_point():
    """The mean gradient at z ± ξ is hz: z comes to rest at 0 and E w² is that of ξ."""
    xi, h = sp.symbols("xi h")
    same((h * (z + xi) + h * (z - xi)) / 2, h * z)
    agrees(sp.Integer(1), lambda x, b: variance_ratio(x, b, noise="two-point"),
           {"x": 0.5, "b": 0.5}, {"x": 1.75, "b": 0.0})  # fmt: skip


def label_noise():
    """Gradient noise of variance s²h/n, σ² = ηs²/2n: φ = 2(1+β)/((1−β)(2(1+β)−x))."""
    for nesterov in (False, True):
        A, _ = _system(nesterov, (1,))
        # η² s²h/n = (ηs²/2n)·2x; the draw enters m with 1 and the weights as a gradient does
        noise = sp.sqrt(2 * x) * sp.Matrix([-1 - b if nesterov else -1, 1])
        phi = sp.factor(stationary_covariance(A, noise)[0, 0])
        same(phi, label_spread(x, b, nesterov) / gap(x, b, nesterov))
        agrees(phi, lambda x, b, nesterov=nesterov: variance_ratio(x, b, nesterov, noise="label"),
               {"x": 0.5, "b": 0.5}, {"x": 1.25, "b": 0.75})  # fmt: skip
        if not nesterov:
            same(phi, 2 * (1 + b) / ((1 - b) * (2 * (1 + b) - x)))


def _regularises(closed, code, *points):
    """R′ = φ/2 (σ = η = 1), R(0) = 0, and the code's R."""
    formula, phi = closed
    same(sp.diff(formula, x), phi / 2)
    same(formula.subs(x, 0), 0)
    agrees(formula, code, *points)


def regularisers():
    """R by integration of σ²φ/2: Anti-PGD, heavy ball, Nesterov, antithetic, held, label noise."""
    heavy = -b * x / (1 - b) - (1 + b) ** 2 / (1 - b) * sp.log(1 - x / (2 * (1 + b)))
    points = ({"x": 0.5, "b": 0.5}, {"x": 2.75, "b": 0.75})
    _regularises((-sp.log(1 - x / 2), 2 / (2 - x)), lambda x: regulariser(x, 1, 1), {"x": 1.5})
    _regularises((heavy, _code([1], False)), lambda x, b: regulariser(x, 1, 1, b), *points)
    pairs = sp.integrate(sp.apart(_code([1, -1], False, 2) / 2, x), x)
    pairs = pairs.replace(sp.log, lambda u: sp.log(sp.Abs(u)))
    agrees(pairs - pairs.subs(x, 0),
           lambda x, b: regulariser(x, 1, 1, b, antithetic=True), *points)  # fmt: skip
    _regularises((x / 2 + b * x**2 / (4 * (1 - b)), _code([1, 1], False, 2)),
                 lambda x, b: regulariser(x, 1, 1, b, hold=2), *points)  # fmt: skip
    label = -(1 + b) / (1 - b) * sp.log(1 - x / (2 * (1 + b)))
    _regularises((label, label_spread(x, b, False) / gap(x, b, False)),
                 lambda x, b: regulariser(x, 1, 1, b, noise="label"), *points)  # fmt: skip
    _regularises((_nesterov_regulariser(), _code([1], True)),
                 lambda x, b: regulariser(x, 1, 1, b, True), {"x": 0.5, "b": 0.5},
                 {"x": 1.25, "b": 0.75})  # fmt: skip


def _nesterov_regulariser():
    """Partial fractions of φ/2: a constant, a pole at the limit, one at −(1−β)/β."""
    phi, edge, other = _code([1], True), limit(b, True), (1 - b) / b
    at_edge = sp.factor(sp.cancel(phi * (edge - x)).subs(x, edge))
    at_other = sp.factor(sp.cancel(phi * (other + x)).subs(x, -other))
    constant = sp.factor(sp.cancel(phi - at_edge / (edge - x) - at_other / (other + x)))
    holds(not constant.has(x), "the rest is constant")
    logs = -at_edge * sp.log(1 - x / edge) + at_other * sp.log(1 + x / other)
    return (constant * x + logs) / 2


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
    wanted = (lr * sigma**2 / (1 - momentum)) * _autocovariances(1, False)[0].subs(
        {b: momentum, x: lr * h})  # fmt: skip
    agrees(1000 * wanted, lambda lr, sigma, h, momentum: clock(
        lr, sigma, 1000, curvatures=[h, 0.0], momentum=momentum).tau,
        {"lr": 0.25, "sigma": 0.5, "h": 2.0, "momentum": 0.5})  # fmt: skip


def clock_of_a_spectrum():
    """φ̄ = Σhφ/Σh: what the mean h·φ is of a mean h, h itself counting where h ≤ 0."""
    h, k = sp.symbols("h k", positive=True)
    wanted = (h * 2 / (2 - h) + k * 2 / (2 - k) - 1) / (h + k - 1)
    agrees(wanted, lambda h, k: mean_ratio([h, k, -1.0], 1.0), {"h": 1.5, "k": 0.25})
    close(mean_ratio([0.5], 1.0), value(2 / (2 - h), h=0.5))
