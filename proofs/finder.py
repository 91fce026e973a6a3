"""The rule for σ: what of it is derived. The fraction itself was measured, not derived."""

import numpy as np
import sympy as sp

from antipgd.estimate import Estimate
from antipgd.theory import finder
from proofs.comparing import agrees, close, same, value


def choose_sigma():
    """Between two neighbours of the grid the sharpness is a·σ^p: solved for the target."""
    a, p, s, t, low, high = sp.symbols("a p s t low high", positive=True)
    given = {a: low / sp.Symbol("s_1", positive=True) ** p}
    power = sp.log(high / low) / sp.log(sp.Symbol("s_2") / sp.Symbol("s_1", positive=True))
    (sigma,) = sp.solve(sp.Eq(a * s**p, t), s)
    wanted = sigma.subs(given).subs(p, power)

    def code(s_1, s_2, low, high, t):
        values = [Estimate(low, 0.0, 8), Estimate(high, 0.0, 8)]
        return finder.choose_sigma([s_1, s_2], values, scale=t / 0.0625, fraction=0.0625).sigma

    agrees(wanted, code, {"s_1": 0.25, "s_2": 1.0, "low": 0.5, "high": 3.0, "t": 1.25})


def loss_scale():
    """L(0) − L(w), a definition."""
    a, b = sp.symbols("at_zero here")
    agrees(a - b, finder.loss_scale, {"at_zero": 2.5, "here": 0.25})


def antithetic_sharpness():
    """(L(w+σξ) + L(w−σξ))/2 − L(w): no odd orders are left."""
    w, s, xi = sp.symbols("w s xi")
    loss = 1 + 2 * w + 3 * w**2 + 5 * w**3 + 7 * w**4
    rise = sp.expand((loss.subs(w, w + s * xi) + loss.subs(w, w - s * xi)) / 2 - loss)
    second, fourth = sp.diff(loss, w, 2) / 2, sp.diff(loss, w, 4) / 24
    same(rise, second * (s * xi) ** 2 + fourth * (s * xi) ** 4)
    found = finder.antithetic_sharpness(
        lambda W: sum(c * W[:, 0] ** n for n, c in enumerate((1, 2, 3, 5, 7))),
        [0.5],
        [0.25, 0.5],
        [[1.5], [-1.5]],
    )
    close(found[0].mean, value(rise, w=0.5, s=0.25, xi=1.5))


def flattening_rate():
    """dz/dτ = −½P∇tr gives d ln tr/dτ = −‖P∇tr‖²/(2 tr); two probes' product has no bias."""
    p, q, trace = sp.symbols("p q trace", positive=True)
    move = sp.Matrix([-p / 2, -q / 2])
    rate = -(move.T * sp.Matrix([p, q]))[0] / trace
    same(rate, (p**2 + q**2) / (2 * trace))
    agrees(
        rate,
        lambda p, q, trace: finder.flattening_rate([trace] * 3, np.full((3, 3), p**2 + q**2)).mean,
        {"p": 2.0, "q": 0.5, "trace": 4.0},
    )


def flattening_clock():
    """e^{−rτ} = 1 − change, solved for τ."""
    rate, change, tau = sp.symbols("rate change tau", positive=True)
    (wanted,) = sp.solve(sp.Eq(sp.exp(-rate * tau), 1 - change), tau)
    agrees(wanted, finder.flattening_clock, {"rate": 2.0, "change": 0.25})
