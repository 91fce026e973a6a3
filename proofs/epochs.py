"""What an epoch of shuffling adds to the flow and to draws with replacement; and two floors."""

from itertools import permutations, product

import sympy as sp

from antipgd.theory.finite_rate import variance_ratio
from proofs.comparing import close, same, value

lr, w, a, b = sp.symbols("lr w a b", real=True)
LOSSES = (a * w**2 / 2 + w**3, b * (w - 1) ** 2 / 2, w**4 - a * b * w)  # of three examples, any


def _mean_end(orders):
    """The mean of w after these orders, to second order in the learning rate: with
    w + lr·first + lr²·second before a step, g there is g + lr·first·g′."""
    ends = []
    for order in orders:
        first = second = sp.Integer(0)
        for example in order:
            slope = sp.diff(LOSSES[example], w)
            first, second = first - slope, second - first * sp.diff(slope, w)
        ends.append(w + lr * first + lr**2 * second)
    return sp.expand(sum(ends) / len(ends))


def _step(regulariser):
    return -len(LOSSES) * lr * sp.diff(regulariser, w)


def shuffling_beside_flow():
    """E w − flow = −Mη ∂(η/4M)Σ g_i² + O(η³): each pair of examples comes in both orders."""
    M, slopes = len(LOSSES), [sp.diff(loss, w) for loss in LOSSES]
    mean = sum(slopes) / M
    time = M * lr
    flow = w - time * mean + time**2 / 2 * mean * sp.diff(mean, w)
    end = _mean_end(list(permutations(range(M))))
    same(end - flow, _step(lr / (4 * M) * sum(g**2 for g in slopes)))


def shuffling_beside_replacement():
    """E w − E w with replacement = −Mη ∂(η/4M)Σ(g_i − g)² + O(η³)."""
    M, slopes = len(LOSSES), [sp.diff(loss, w) for loss in LOSSES]
    mean = sum(slopes) / M
    shuffled = _mean_end(list(permutations(range(M))))
    drawn = _mean_end(list(product(range(M), repeat=M)))
    same(shuffled - drawn, _step(lr / (4 * M) * sum((g - mean) ** 2 for g in slopes)))


def floors():
    """h/2·E w² with σ = ηs: ηs²/(2(2−x)) for PGD, η²s²h/(2−x) for Anti-PGD, x = ηh."""
    eta, s, h = sp.symbols("eta s h", positive=True)
    at = {"eta": 0.25, "s": 0.5, "h": 1.5}

    def floor(taps):
        sigma = at["eta"] * at["s"]
        return at["h"] / 2 * sigma**2 * float(variance_ratio(at["eta"] * at["h"], taps=taps))

    close(floor((1,)), value(eta * s**2 / (2 * (2 - eta * h)), **at))
    close(floor((1, -1)), value(eta**2 * s**2 * h / (2 - eta * h), **at))
