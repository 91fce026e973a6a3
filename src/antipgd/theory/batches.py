"""How the noise of mini-batches is correlated when every example is taken once an epoch.

The deviations of an epoch's M batches from the full gradient sum to zero. With gradients that do
not change on the way, two batches of an epoch have the correlation −1/(M−1), and batches of
different epochs none. Means are over the places of an epoch. Kühn and Rosenow (arXiv 2306.05300)
were first with the autocorrelation of epoch-based SGD and what it does to the variance of weights
under momentum: none where the curvature is large, less of it the flatter a direction is. What is
here was derived anew; their printed formulas were not at hand. Knows no loss.
"""

from antipgd.theory.linear import require


def _check(batches: int, lag: int) -> None:
    require(batches >= 2, "batches >= 2 an epoch", batches=batches)
    require(lag >= 0, "a lag >= 0", lag=lag)


def shuffled_correlation(batches: int, lag: int) -> float:
    """−(M−h)/(M(M−1)) of batches h steps apart, 0 < h < M; nought farther away.

    Of M places of an epoch M−h have their partner in the same epoch.

    >>> shuffled_correlation(10, 1), shuffled_correlation(10, 10)
    (-0.1, 0.0)
    """
    _check(batches, lag)
    if lag == 0:
        return 1.0
    return -max(batches - lag, 0) / (batches * (batches - 1))


def mirrored_correlation(batches: int, lag: int) -> float:
    """[o − (2M−h−o)/(M−1)]/2M with o = 1 for odd h, 0 < h < 2M, where every second epoch goes
    backwards through the one before; nought farther away.

    Of the pairs within the two epochs, one is a batch and itself if h is odd.

    >>> mirrored_correlation(10, 1), mirrored_correlation(10, 2)
    (-0.05, -0.1)
    """
    _check(batches, lag)
    if lag == 0:
        return 1.0
    if lag >= 2 * batches:
        return 0.0
    itself = lag % 2
    return (itself - (2 * batches - lag - itself) / (batches - 1)) / (2 * batches)


def shuffled_variance_ratio(batches: int, rate: float, momentum: float = 0.0) -> float:
    """Variance of a weight of a quadratic loss with shuffled batches, over that with independent
    ones: 1 + 2 Σ_h r(h) ρ(h).

    `rate` is ηh, r(h) as in `shuffled_correlation`, and ρ that of the walk which independent noise
    makes of heavy-ball SGD: ρ(1) = φ/(1+β), ρ(h) = φ ρ(h−1) − β ρ(h−2), φ = 1 + β − ηh. It goes to
    0 with ηh. The mean is over the places of an epoch, after many. Condition: 0 < ηh < 2(1+β).

    >>> round(shuffled_variance_ratio(100, 1.0), 3), round(shuffled_variance_ratio(100, 1e-4), 3)
    (1.0, 0.003)
    """
    _check(batches, 0)
    require(0 <= momentum < 1, "0 <= momentum < 1", momentum=momentum)
    require(0 < rate < 2 * (1 + momentum), "0 < rate < 2 (1 + momentum)", rate=rate)
    phi = 1 + momentum - rate
    before, now, total = 1.0, phi / (1 + momentum), 1.0
    for lag in range(1, batches):
        total += 2 * shuffled_correlation(batches, lag) * now
        before, now = now, phi * now - momentum * before
    return total
