"""The autocorrelation of mini-batches' noise, over all orders in fractions, and what it does."""

from fractions import Fraction
from itertools import permutations

import sympy as sp

from antipgd.theory import batches
from proofs.comparing import close, holds, same, stationary_covariance

M, h = sp.symbols("M h", integer=True, positive=True)


def _deviations(count):
    """Numbers that sum to zero, all different."""
    values = [Fraction(k * k + 1) for k in range(count)]
    mean = sum(values) / count
    return [value - mean for value in values]


def _products(count):
    """E of the product of places i and j of an epoch, over all its orders, over E of a square."""
    orders = list(permutations(_deviations(count)))
    square = sum(one[0] ** 2 for one in orders)
    return [
        [sum(one[i] * one[j] for one in orders) / square for j in range(count)]
        for i in range(count)
    ]


def _mean_over_places(within, lag):
    """Over the places of a period of the product with the place a lag on; other periods have 0."""
    period = len(within)
    return sum(within[i][i + lag] for i in range(period - lag)) / Fraction(period)


def _unfolded(within):
    """Places of two epochs, of which the second is the first from its end to its start."""
    count = len(within)
    place = [*range(count), *reversed(range(count))]
    return [[within[i][j] for j in place] for i in place]


def shuffled_correlation():
    """Σ_i x_i = 0 gives E x_i x_j = −E x²/(M−1); M − h of M places meet their partner.

    The autocorrelation of epoch-based SGD, for all orders of up to six batches.
    """
    rho = sp.Symbol("rho")
    (pair,) = sp.solve(sp.Eq(M + M * (M - 1) * rho, 0), rho)  # E (Σ x)² = 0
    formula = (M - h) / M * pair
    same(formula, -(M - h) / (M * (M - 1)))
    for count in range(2, 7):
        within = _products(count)
        for lag in range(1, count):
            found = _mean_over_places(within, lag)
            same(found, formula.subs({M: count, h: lag}))
            close(batches.shuffled_correlation(count, lag), sp.Rational(found))
        holds(batches.shuffled_correlation(count, count) == 0, "another epoch is independent")


def mirrored_correlation():
    """Within two epochs 2M − h pairs are h apart; for odd h one of them is a batch and itself."""
    odd = sp.Symbol("odd")
    formula = (odd - (2 * M - h - odd) / (M - 1)) / (2 * M)
    same(formula.subs({odd: 1, h: 1}), -1 / (2 * M))
    for count in range(2, 7):
        within = _unfolded(_products(count))
        for lag in range(1, 2 * count):
            found = _mean_over_places(within, lag)
            same(found, formula.subs({M: count, h: lag, odd: lag % 2}))
            close(batches.mirrored_correlation(count, lag), sp.Rational(found))
        holds(batches.mirrored_correlation(count, 2 * count) == 0, "another order is independent")


def _step(rate, momentum):
    """(w, v) ← (w − v′, v′) with v′ = βv + ηh·w + x, x the noise of the gradient times η."""
    A = sp.Matrix([[1 - rate, -momentum], [rate, momentum]])
    return A, sp.Matrix([-1, 1])


def _shuffled_variance(count, rate, momentum):
    """Mean over places of Var w, from the moments over whole epochs, exactly."""
    A, b = _step(rate, momentum)
    within = _products(count)

    def noise(upto):
        """Covariance of what `upto` batches of an epoch have brought."""
        return sum(
            (sp.Rational(within[i][j]) * A ** (upto - 1 - i) * b * (A ** (upto - 1 - j) * b).T
             for i in range(upto) for j in range(upto)), sp.zeros(2, 2),
        )  # fmt: skip

    # S = A^M S (A^M)ᵀ + noise(M): nothing of an epoch is correlated with an earlier one.
    whole, names = A**count, sp.symbols("s_0:3")
    S = sp.Matrix([[names[0], names[1]], [names[1], names[2]]])
    rest = S - whole * S * whole.T - noise(count)
    (found,) = sp.linsolve([rest[0, 0], rest[0, 1], rest[1, 1]], *names)
    S = S.subs(dict(zip(names, found, strict=True)))
    return sum((A**k * S * (A**k).T + noise(k))[0, 0] for k in range(count)) / count


def shuffled_variance_ratio():
    """Σ_h r(h) c(h) for any linear filter; exact moments of whole epochs, with momentum."""
    rate, beta = sp.symbols("rate beta", positive=True)
    A, b = _step(rate, beta)
    S = stationary_covariance(A, b)
    phi = 1 + beta - rate
    same((A * S)[0, 0] / S[0, 0], phi / (1 + beta))  # ρ(1); the rest by the characteristic equation
    same((A**2 * S)[0, 0], phi * (A * S)[0, 0] - beta * S[0, 0])
    for point in ((0.25, 0.0), (0.25, 0.5), (1.5, 0.25), (0.0625, 0.75)):
        at = dict(zip((rate, beta), map(sp.Rational, point), strict=True))
        independent = S[0, 0].subs(at)
        for count in (2, 3, 4, 5):
            exact = _shuffled_variance(count, *at.values()) / independent
            close(batches.shuffled_variance_ratio(count, *point), sp.N(exact, 40), point)
    flat = 1 - 2 * sp.summation((M - h) / (M * (M - 1)), (h, 1, M - 1))  # ρ = 1
    same(flat, 0)
