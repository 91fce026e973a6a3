"""The terms of the PAC-Bayes bound. Not derived: the change of measure (Donsker–Varadhan)."""

import sympy as sp

from antipgd.theory import pac_bayes
from proofs.comparing import agrees, close, holds, same, value

s = sp.Symbol("s", positive=True)


def _gaussian(polynomial, *draws):
    """The expectation over independent unit gaussians."""
    moments = {n: 0 if n % 2 else sp.factorial2(n - 1) for n in range(9)}
    terms = sp.Poly(sp.expand(polynomial), *draws).terms()
    return sum(c * sp.prod([moments[power] for power in powers]) for powers, c in terms)


def sharpness_from_trace():
    """eq:trace_hess_pac: E of the Taylor polynomial in two weights, with an error of order s⁴."""
    u, v = sp.symbols("u v")
    names = {(i, j): sp.Symbol(f"c_{i}{j}") for i in range(5) for j in range(5 - i)}
    loss = sum(c * u**i * v**j for (i, j), c in names.items())
    rise = _gaussian(loss.subs({u: s * u, v: s * v}), u, v) - names[0, 0]
    trace = (sp.diff(loss, u, 2) + sp.diff(loss, v, 2)).subs({u: 0, v: 0})
    holds(sp.series(rise - s**2 / 2 * trace, s, 0, 4).removeO() == 0, "equal up to s³")
    agrees(s**2 / 2 * sp.Symbol("trace"), pac_bayes.sharpness_from_trace, {"trace": 3.0, "s": 0.25})


def expected_sharpness():
    """Of ½hw² at w: the mean of L(w + sξ) − L(w) is s²h/2 for draws ±1, exactly."""
    w, h = sp.symbols("w h")
    both = sum(h * (w + s * xi) ** 2 / 2 - h * w**2 / 2 for xi in (-1, 1)) / 2
    same(both, s**2 * h / 2)
    found = pac_bayes.expected_sharpness(
        lambda W: 3 * (W**2).sum(axis=1) / 2, [0.5], 0.25, [[-1.0], [1.0]]
    )
    close(found.mean, value(sp.expand(both), s=0.25, h=3))


def gaussian_divergence():
    """E_Q[ln Q − ln P] of two gaussians of equal width: ‖w − w_P‖²/2s²."""
    xi, w, p = sp.symbols("xi w p")
    point = w + s * xi
    log_ratio = (-((point - w) ** 2) + (point - p) ** 2) / (2 * s**2)
    wanted = sp.factor(_gaussian(log_ratio, xi))
    same(wanted, (w - p) ** 2 / (2 * s**2))
    agrees(
        wanted + wanted.subs({w: 1, p: 3}),
        lambda w, p, s: pac_bayes.gaussian_divergence([w, 1.0], [p, 3.0], s),
        {"w": 0.5, "p": -1.0, "s": 0.25},
    )


def pac_bayes_bound():
    """thm:pac: λ/8n by Hoeffding's lemma, ln(1/δ)/λ, a union over the grids, the draws."""
    lam, n, p, t, delta, grid = sp.symbols("lam n p t delta grid", positive=True)
    # ψ(λ) = ln E e^{λ(X−EX)} for X in {0, 1}: ψ″ = q(1−q) ≤ ¼, so ψ ≤ λ²/8, for a mean of n λ²/8n
    psi = sp.log(1 - p + p * sp.exp(lam)) - p * lam
    q = p * sp.exp(lam) / (1 - p + p * sp.exp(lam))
    same(sp.diff(psi, lam, 2), q * (1 - q))
    same(psi.subs(lam, 0), 0)
    same(sp.diff(psi, lam).subs(lam, 0), 0)
    same(sp.Rational(1, 4) - p * (1 - p), (p - sp.Rational(1, 2)) ** 2)
    same(n * (lam / n) ** 2 / 8 / lam, lam / (8 * n))
    same(sp.expand_log(sp.log(grid / delta), force=True), sp.log(1 / delta) + sp.log(grid))
    (allowance,) = sp.solve(sp.Eq(sp.exp(-2 * n * t**2), delta), t)
    _compare_bound(allowance)


def _compare_bound(allowance):
    given = {
        "w": [1.0, 0.0],
        "prior": [0.0, 0.0],
        "s_grid": [0.5, 1.0],
        "lambda_grid": [32.0],
        "n": 128,
    }
    for printed, factor in ((False, 8), (True, 2)):
        found = pac_bayes.pac_bayes_bound(
            lambda s: [0.25, 0.5], delta=0.125, printed=printed, **given
        )
        close(found.lambda_term, sp.Rational(32, factor * 128))
        close(found.confidence, sp.log(1 / (sp.Rational(9, 10) / 8)) / 32)
        close(found.union, sp.log(2) / 32)
        close(found.kl, sp.Rational(1, 2) / sp.Rational(found.s) ** 2)
        close(found.divergence, sp.Rational(found.kl) / 32)
        close(found.empirical, sp.Rational(3, 8))
        close(found.sampling, value(allowance, n=2, delta=sp.Rational(1, 10) / 8 / 2))
        terms = (
            found.empirical,
            found.sampling,
            found.lambda_term,
            found.divergence,
            found.confidence,
            found.union,
        )
        close(found.total, sum(map(sp.Rational, terms)))
