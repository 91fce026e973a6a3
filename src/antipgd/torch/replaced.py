"""Whether weights that changed from outside still carry the noise: were they modified or replaced?

To modify weights in place (a clip, a mask, a norm, a step of another optimizer) is legal, and w − ξ
changes with them. Weights put in their place (a checkpoint, an average) do not have ξ in them, and
w − ξ is wrong by a draw. A sample of the weights before and after tells: of replaced ones nothing
is left as it was, they are at least a draw away, and the way there has −ξ in it. What is neither
nearer than that nor shown to have ξ in it counts as replaced, since w − ξ is not known to be clean.
Knows arrays, no tensors.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Rows = Sequence[NDArray[np.float64]]  # a sample of each tensor

ROUNDING = 1e-6  # relative: a change of type and back is none
KEPT = 1 / 64  # of all elements: by a mask; a replacement leaves none as it was
NEAR = 0.5  # of the noise's σ: a replacement is 1 or more away
LEAST = 0.05  # times which weights may be scaled down; to set them to 0 is to replace them
FITTED = 8  # elements, from which a common factor and shift can be told
ERRORS = 2.0  # standard errors by which ξ must be shown to be there


def is_same(then: Rows, now: Rows) -> bool:
    """Whether nothing has changed but by rounding."""
    pairs = zip(then, now, strict=True)
    return all(a.shape == b.shape and bool(_unchanged(a, b).all()) for a, b in pairs)


def _unchanged(then: NDArray, now: NDArray) -> NDArray[np.bool_]:
    with np.errstate(invalid="ignore"):  # weights that are infinite, or not numbers
        same = (then == now) | (np.isnan(then) & np.isnan(now))
        return same | (np.abs(now - then) <= ROUNDING * np.abs(then))


def changed_ones(then: Rows, now: Rows, sigmas: Sequence[float]) -> list[int]:
    """Which tensors that carry noise have changed."""
    carrying = [i for i, sigma in enumerate(sigmas) if sigma > 0]
    return [i for i in carrying if not is_same(then[i : i + 1], now[i : i + 1])]


def suspects(then: Rows, now: Rows, sigmas: Sequence[float]) -> list[int]:
    """Which tensors may have been replaced, by the size of the change alone."""
    changed = changed_ones(then, now, sigmas)
    same_shape = [i for i in changed if then[i].shape == now[i].shape]
    kept = sum(int((_unchanged(then[i], now[i]) & (then[i] != 0)).sum()) for i in same_shape)
    if kept and kept >= KEPT * sum(len(then[i]) for i in same_shape):
        return [i for i in changed if i not in same_shape]
    return [i for i in changed if not _is_near(then[i], now[i], sigmas[i])]


def _is_near(then: NDArray, now: NDArray, sigma: float) -> bool:
    """Whether the change, but for a common factor and shift, is small beside the noise."""
    if then.shape != now.shape or not np.isfinite(now).all() or not np.isfinite(then).all():
        return False
    change = now - then
    if np.sqrt(np.mean(change**2)) <= NEAR * sigma:
        return True
    if len(then) < FITTED:
        return False
    table = np.stack([then, np.ones_like(then)], axis=1)
    factor, *_ = np.linalg.lstsq(table, change, rcond=None)
    left = change - table @ factor
    times = min(1 + factor[0], 1.0)  # what remains of ξ is that many times smaller
    return bool(times > LEAST and np.sqrt(np.mean(left**2)) <= NEAR * sigma * times)


def slope(then: Rows, now: Rows, xi: Rows) -> tuple[float, float]:
    """The change's slope on ξ and its standard error: −1 where ξ has gone, 0 where it is there.

    Each tensor weighs as much as its change is small.
    """
    change, drawn = [], []
    for a, b, x in zip(then, now, xi, strict=True):
        if a.shape != b.shape or not np.isfinite(b - a).all():
            return -1.0, 0.0
        size = np.sqrt(np.mean((b - a) ** 2))
        change.append((b - a) / size)
        drawn.append(x / size)
    x, y = np.concatenate(drawn), np.concatenate(change)
    return float(x @ y / (x @ x)), float(1 / np.sqrt(x @ x))


def is_gone(suspect: tuple[float, float], every: tuple[float, float]) -> bool:
    """Whether ξ has gone, by the slopes of the tensors under suspicion and of all that changed.

    Where the few under suspicion do not tell, what happened to the others does: most likely the
    same.
    """
    if suspect[0] + ERRORS * suspect[1] < -0.5:
        return True
    return all(found - ERRORS * error <= -0.5 for found, error in (suspect, every))
