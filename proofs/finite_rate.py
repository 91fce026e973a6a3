"""φ, the spread of the weights at real learning rates.

Stationary moments come from Lyapunov's equation for the whole state: weights, momentum, last draws;
held and antithetic draws from the autocovariances of what fresh draws make. The code goes another
way (one draw's response, summed), so that the two check each other. σ = 1 and x = ηh throughout.
"""

import sympy as sp

from antipgd.theory.finite_rate import flat_diffusion, stability_limit, variance_ratio
from antipgd.theory.finite_rate.ratios import gap, label_spread, limit, spread, tail
from proofs.comparing import agrees, close, holds, same, stationary_covariance

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
        agrees(
            limit(sp.Symbol("momentum"), nesterov),
            lambda momentum, nesterov=nesterov: stability_limit(momentum, nesterov),
            {"momentum": 0.0},
            {"momentum": 0.9},
        )


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
    agrees(
        phi, lambda x, b: variance_ratio(x, b, True), {"x": 0.25, "b": 0.5}, {"x": 1.25, "b": 0.9}
    )


def antithetic():
    """C_0 − C_1: 1 + x(2(1−β²)+βx)/((1−β)(2(1+β)−x)), (2+x)/(2−x) without momentum."""
    for nesterov in (False, True):
        zero, one = _autocovariances(2, nesterov)
        same(_code([1, -1], nesterov, 2), zero - one)
        agrees(
            zero - one,
            lambda x, b, nesterov=nesterov: variance_ratio(x, b, nesterov, antithetic=True),
            {"x": 0.25, "b": 0.5},
            {"x": 1.25, "b": 0.875},
        )
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
        agrees(
            three,
            lambda x, b, nesterov=nesterov: variance_ratio(x, b, nesterov, hold=3),
            {"x": 0.25, "b": 0.5},
            {"x": 1.25, "b": 0.875},
        )
        same(two, 1 + (b**2 * x / (1 - b + b * x) if nesterov else b * x / (1 - b)))
        if not nesterov:
            agrees(two, lambda x, b: variance_ratio(x, b, hold=2), {"x": 1.5, "b": 0.75})


def any_taps():
    """Lyapunov with three draws in the state: taps (p, q, r), all symbols, and β = ½."""
    p, q, r = sp.symbols("p q r")
    for nesterov in (False, True):
        phi = _autocovariances(1, nesterov, (p, q, r), HALF)[0]
        same(_code([p, p + q], nesterov, 1, p + q + r, HALF), phi)
        agrees(
            phi.subs({p: 1, q: sp.Rational(1, 4), r: -HALF}),
            lambda x, nesterov=nesterov: variance_ratio(x, 0.5, nesterov, (1, 0.25, -0.5)),
            {"x": 0.5},
            {"x": 1.25},
        )


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
        for draws, pairs, variance in (
            (4, False, sp.Rational(1, 4)),
            (2, True, 0),
            (3, True, sp.Rational(1, 9)),
        ):
            signs = [(q // 2, (-1) ** q) if pairs else (q, 1) for q in range(draws)]
            mean = [sum(s for q, s in signs if q == k) / sp.Integer(draws) for k in range(draws)]
            same(sum(c**2 for c in mean), variance)
            agrees(
                phi.subs(share, variance),
                lambda x, b, nesterov=nesterov, draws=draws, pairs=pairs: variance_ratio(
                    x, b, nesterov, draws=draws, antithetic=pairs
                ),
                {"x": 0.5, "b": 0.5},
                {"x": 1.25, "b": 0.75},
            )


def two_point():
    """The mean gradient at z ± ξ is hz: z comes to rest at 0 and E w² is that of ξ."""
    xi, h = sp.symbols("xi h")
    same((h * (z + xi) + h * (z - xi)) / 2, h * z)
    agrees(
        sp.Integer(1),
        lambda x, b: variance_ratio(x, b, noise="two-point"),
        {"x": 0.5, "b": 0.5},
        {"x": 1.75, "b": 0.0},
    )


def label_noise():
    """Gradient noise of variance s²h/n, σ² = ηs²/2n: φ = 2(1+β)/((1−β)(2(1+β)−x))."""
    for nesterov in (False, True):
        A, _ = _system(nesterov, (1,))
        # η² s²h/n = (ηs²/2n)·2x; the draw enters m with 1 and the weights as a gradient does
        noise = sp.sqrt(2 * x) * sp.Matrix([-1 - b if nesterov else -1, 1])
        phi = sp.factor(stationary_covariance(A, noise)[0, 0])
        same(phi, label_spread(x, b, nesterov) / gap(x, b, nesterov))
        agrees(
            phi,
            lambda x, b, nesterov=nesterov: variance_ratio(x, b, nesterov, noise="label"),
            {"x": 0.5, "b": 0.5},
            {"x": 1.25, "b": 0.75},
        )
        below = (1 - b + b * x) * (2 * (1 + b) - (1 + 2 * b) * x)
        if nesterov:
            same(phi, 2 * (1 + b + b * (1 + 2 * b) * x) / below)
        else:
            same(phi, 2 * (1 + b) / ((1 - b) * (2 * (1 + b) - x)))
