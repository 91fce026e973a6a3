"""Second moments of w ← ρw + ε: from sums over the draws, from recursions and from stationarity."""

import itertools

import numpy as np
import sympy as sp

from antipgd.theory import linear
from proofs.comparing import agrees, close, holds, same, value

rho, sigma, d, norm2 = sp.symbols("rho sigma d start_norm2", positive=True)
k = sp.Symbol("k", integer=True, nonnegative=True)


def _expectation(polynomial, draws):
    """Of a polynomial in independent draws of mean 0 and variance σ², of degree two."""
    terms = sp.Poly(sp.expand(polynomial), *draws).terms()
    even = [(powers, c) for powers, c in terms if all(power in (0, 2) for power in powers)]
    return sum(c * sigma ** sum(powers) for powers, c in even)


def _walk(factors, taps, start):
    """w_K with symbols for the draws; the earlier ones are 0 or draws like the others."""
    lags, w = len(taps), sp.Symbol("w_0")
    xi = {
        n: sp.Symbol(f"xi_{n}" if n >= 0 else f"xi_m{-n}")
        for n in range(1 - lags, len(factors) + 1)
    }
    there = {n: s if n >= 1 or start == "drawn" else 0 for n, s in xi.items()}
    for n, factor in enumerate(factors):
        w = factor * w + sum(tap * there[n + 1 - j] for j, tap in enumerate(taps))
    return w, list(xi.values())


def second_moment():
    """prop:ito_discrete: w_4² multiplied out, any ρ_0 … ρ_3, taps (1, p, q), both starts."""
    p, q = sp.symbols("p q")
    factors = sp.symbols("r_0:4")
    numbers = {
        "p": -0.75,
        "q": 0.5,
        "r_0": 0.5,
        "r_1": -0.25,
        "r_2": 0.875,
        "r_3": 1.0,
        "sigma": 0.5,
        "w_0": 1.5,
    }
    for start in ("zero", "drawn"):
        w, draws = _walk(factors, (1, p, q), start)
        wanted = value(_expectation(w**2, draws), **numbers)
        found = linear.second_moment(
            [numbers[r.name] for r in factors],
            0.5,
            (1, -0.75, 0.5),
            start_norm2=1.5**2,
            start=start,
        )
        close(found[-1], wanted, start)


def second_moment_with_random_factors():
    """The same with independent ρ of two values each: all cases, weighed."""
    taps, cases = (1, sp.Rational(-3, 4)), (sp.Rational(1, 2), sp.Rational(-1, 4))
    total = 0
    for factors in itertools.product(cases, repeat=3):
        w, draws = _walk(factors, taps, "zero")
        total += _expectation(w**2, draws).subs({sp.Symbol("w_0"): 1, sigma: 2}) / 8
    mean, square = 0.125, (0.25 + 0.0625) / 2
    found = linear.second_moment(
        [mean] * 3, 2.0, (1, -0.75), start_norm2=1.0, rho_squared=[square] * 3
    )
    close(found[-1], total)


def pgd_moment():
    """cor:ito_discrete_const: the sum Σ_{i≤k} ρ^{2i}, a geometric one, by its recursion."""
    closed = (1 - rho ** (2 * (k + 1))) / (1 - rho**2)
    same(closed.subs(k, 0), 1)
    same(closed.subs(k, k + 1), closed + rho ** (2 * (k + 1)))
    formula = rho ** (2 * (k + 1)) * norm2 + closed * d * sigma**2
    agrees(
        formula,
        linear.pgd_moment,
        {"k": 3, "rho": 0.5, "sigma": 0.25, "d": 3, "start_norm2": 2.0},
        {"k": 0, "rho": 0.875, "sigma": 2.0, "d": 1, "start_norm2": 0.0},
    )


def anti_moment():
    """cor:ito_discrete_const: M ← ρ²M + 2σ²(1−ρ), M_1 = ρ²‖w_0‖² + σ², 2σ² if ξ_0 is drawn.

    The cross term is 2ρE[w_k·(−ξ_k)] = −2ρσ²: of all draws w_k holds the newest once.
    """
    base = 1 + (1 - rho) ** 2 * (1 - rho ** (2 * k)) / (1 - rho**2)
    for start, noise in (("zero", base), ("drawn", base + rho ** (2 * k))):
        moment = rho ** (2 * (k + 1)) * norm2 + noise * d * sigma**2
        recursion = rho**2 * moment + (2 - 2 * rho) * d * sigma**2
        same(moment.subs(k, k + 1), recursion)
        first = 1 if start == "zero" else 2
        same(moment.subs(k, 0), rho**2 * norm2 + first * d * sigma**2)
        agrees(
            moment,
            lambda start=start, **given: linear.anti_moment(start=start, **given),
            {"k": 3, "rho": 0.5, "sigma": 0.25, "d": 3, "start_norm2": 2.0},
            {"k": 0, "rho": 0.875, "sigma": 2.0, "d": 1, "start_norm2": 0.0},
        )


def printed_anti_moment():
    """The printed exponent 2(k+1) breaks the first step, by (1−ρ)²dσ²; `printed` gives it."""
    printed = 1 + (1 - rho) ** 2 * (1 - rho ** (2 * (k + 1))) / (1 - rho**2)
    same(printed.subs(k, 0) - 1, (1 - rho) ** 2)
    agrees(
        printed * d * sigma**2,
        lambda **given: linear.anti_moment(printed=True, **given),
        {"k": 3, "rho": 0.5, "sigma": 0.25, "d": 3},
    )


def stationary_variance():
    """Σ_j g_j² of the response g_j = Σ_{i≤j} a_i ρ^{j−i}: taps (1, p, q), and ρ → 1."""
    p, q = sp.symbols("p q")
    first, second, third = 1, rho + p, rho**2 + p * rho + q
    total = first + second**2 + third**2 / (1 - rho**2)  # from there on g falls by ρ a step
    double = sum(
        u * v * rho ** abs(i - j) for i, u in enumerate((1, p, q)) for j, v in enumerate((1, p, q))
    )
    same(total, double / (1 - rho**2))
    agrees(
        sigma**2 * total,
        lambda rho, sigma, p, q: linear.stationary_variance(rho, sigma, (1, p, q)),
        {"rho": 0.5, "sigma": 0.25, "p": -0.75, "q": 0.5},
        {"rho": 0.875, "sigma": 2.0, "p": -1.0, "q": 0.0},
    )
    still = sp.limit(total.subs(q, -1 - p), rho, 1)
    same(still, 1 + (1 + p) ** 2)
    close(linear.stationary_variance(1.0, 1.0, (1, -0.75, -0.25)), value(still, p=-0.75))
    same(total.subs({p: -1, q: 0}), 2 / (1 + rho))


def random_rho_limit():
    """M = E ρ²·M + 2·Eρ·(mixed) + σ²Σa²: its fixed point; Anti-PGD 1 + E(1−ρ)²/(1−Eρ²)."""
    mean, square, p, q, M = sp.symbols("rho_mean rho_square p q M")
    # E[w·ξ] of the newest draw is 1, of the one before Eρ + p; taps p and q meet them
    (fixed,) = sp.solve(sp.Eq(M, square * M + 2 * mean * (p + q * (mean + p)) + 1 + p**2 + q**2), M)
    agrees(
        sigma**2 * d * fixed,
        lambda rho_mean, rho_square, sigma, d, p, q: linear.random_rho_limit(
            rho_mean, rho_square, sigma, (1, p, q), d=d
        ),
        {"rho_mean": 0.5, "rho_square": 0.375, "sigma": 0.5, "d": 3, "p": -0.5, "q": 0.25},
    )
    anti = fixed.subs({p: -1, q: 0})
    same(anti, 1 + (1 - 2 * mean + square) / (1 - square))


def anti_bound():
    """1 + E(1−ρ)²/(1−Eρ²) ≤ 2: the difference has the sign of Eρ − Eρ² ≥ 0 for 0 ≤ ρ ≤ 1."""
    mean, square = sp.symbols("rho_mean rho_square")
    room = 2 - (1 + (1 - 2 * mean + square) / (1 - square))
    same(room, 2 * (mean - square) / (1 - square))
    agrees(2 * d * sigma**2, linear.anti_bound, {"sigma": 0.5, "d": 3})


def vanishing_rho():
    """ρ_k = (k+1)(k+3)/(k+2)²: the product telescopes to (K+2)/(2(K+1)) → ½."""
    K = sp.Symbol("K", integer=True, positive=True)
    factor = 1 - 1 / (k + 2) ** 2
    same(factor, (k + 1) * (k + 3) / (k + 2) ** 2)
    product = (K + 2) / (2 * (K + 1))
    same(product.subs(K, 1), factor.subs(k, 0))
    same(product.subs(K, K + 1) / product, factor.subs(k, K))
    same(sp.limit(product, K, sp.oo), sp.Rational(1, 2))
    close(linear.vanishing_rho(7).prod(), value(product, K=7))


def _matrices(count):
    rng = np.random.default_rng(0)
    return [sp.Matrix(2, 2, rng.integers(-4, 5, 4).tolist()) for _ in range(count)]


def variation():
    """lemma:variations: three steps with letters that do not commute, and with whole numbers."""
    A = sp.symbols("A_0:3", commutative=False)
    eps = sp.symbols("e_0:3", commutative=False)
    start = sp.Symbol("w", commutative=False)
    w = start
    for factor, one in zip(A, eps, strict=True):
        w = factor * w + one
    same(sp.expand(w), A[2] * A[1] * A[0] * start + A[2] * A[1] * eps[0] + A[2] * eps[1] + eps[2])
    numbers, vectors = _matrices(3), [sp.Matrix([1, -2]), sp.Matrix([3, 0]), sp.Matrix([-1, 2])]
    w = sp.Matrix([2, 5])
    for factor, one in zip(numbers, vectors, strict=True):
        w = factor * w + one
    found = linear.variation(
        [_array(one) for one in numbers], [2, 5], [_array(v)[:, 0] for v in vectors]
    )
    holds(found.tolist() == _array(w)[:, 0].tolist(), "the code's variation of constants")


def anti_variation():
    """cor:anti_variations: ε_0 = ξ_0, ε_i = ξ_i − ξ_{i−1} put into lemma:variations."""
    A = sp.symbols("A_0:3", commutative=False)
    xi = sp.symbols("xi_0:3", commutative=False)
    start = sp.Symbol("w", commutative=False)
    w = A[0] * start + xi[0]
    for n in (1, 2):
        w = A[n] * w + xi[n] - xi[n - 1]
    rest = A[2] * (A[1] - 1) * xi[0] + (A[2] - 1) * xi[1]
    same(sp.expand(w), sp.expand(A[2] * A[1] * A[0] * start + xi[2] + rest))
    numbers, vectors = _matrices(3), [sp.Matrix([1, -2]), sp.Matrix([3, 0]), sp.Matrix([-1, 2])]
    w = numbers[0] * sp.Matrix([2, 5]) + vectors[0]
    for n in (1, 2):
        w = numbers[n] * w + vectors[n] - vectors[n - 1]
    found = linear.anti_variation(
        [_array(one) for one in numbers], [2, 5], [_array(v)[:, 0] for v in vectors]
    )
    holds(found.tolist() == _array(w)[:, 0].tolist(), "the code's variation for Anti-PGD")


def _array(matrix):
    return np.array(matrix.tolist(), float)


def momentum_variance():
    """As proofs/finite_rate.py::heavy_ball, here by autocovariances of w alone (Yule and Walker).

    w_{n+1} = (1+β−x)w_n − βw_{n−1} + e_n, e_n = ξ_{n+1} − (1+β)ξ_n + βξ_{n−1}.
    """
    x, b = sp.symbols("x b", positive=True)
    C = sp.symbols("C_0:3")
    g = [1, (1 + b - x) - (1 + b)]  # of ξ in w, as long as e still holds it
    g.append((1 + b - x) * g[1] - b * g[0] + b)
    a, e = (1 + b - x, -b), (1, -(1 + b), b)

    def met(lag):  # E[e_n w_{n+1−lag}]
        return sum(e[j] * g[j - lag] for j in range(lag, 3))

    equations = [
        C[0] - a[0] * C[1] - a[1] * C[2] - met(0),
        C[1] - a[0] * C[0] - a[1] * C[1] - met(1),
        C[2] - a[0] * C[1] - a[1] * C[0] - met(2),
    ]
    phi = sp.solve(equations, C)[C[0]]
    same(phi, 1 + (1 + b) * x / ((1 - b) * (2 * (1 + b) - x)))
    agrees(
        sigma**2 * phi,
        lambda x, b, sigma: linear.momentum_variance(2 * x, 0.5, b, sigma),
        {"x": 0.5, "b": 0.5, "sigma": 0.25},
        {"x": 3.0, "b": 0.75, "sigma": 2.0},
    )


def ema_noise():
    """Σ_j ((1−b)b^j)² of independent draws: the fixed point of s ← b²s + (1−b)²."""
    decay, s = sp.symbols("decay s", positive=True)
    (fixed,) = sp.solve(sp.Eq(s, decay**2 * s + (1 - decay) ** 2), s)
    same(fixed, (1 - decay) / (1 + decay))
    agrees(sigma * sp.sqrt(fixed), linear.ema_noise, {"sigma": 0.5, "decay": 0.75})
