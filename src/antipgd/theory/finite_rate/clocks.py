"""The clock: the law in one number, dτ = ησ²φ̄/(1−β), for runs whose η, β or σ differ.

`flows` is the law; the clock approximates it by one φ̄ for all eigenvalues, either weighed by the
eigenvalues (`mean_ratio`) or in the direction in which the trace falls (`ratio_by_direction`), and
is exact where one eigenvalue is stiff. `equivalences.clock` is its limit η → 0, φ̄ = 1.
"""

import math
from dataclasses import dataclass
from typing import Unpack

import numpy as np
from numpy.typing import ArrayLike

from antipgd.checks import number, whole
from antipgd.theory.finite_rate.flows import KERNEL, Landscape, directions
from antipgd.theory.finite_rate.ratios import Dynamics, Options, finite

LARGEST_RATIO = 3.0
FEWEST_STEPS = 20  # times 1/(1−β)


def mean_ratio(curvatures: ArrayLike, lr: float, **options: Unpack[Options]) -> float:
    """φ̄ = Σhφ(ηh)/Σh over a spectrum; h ≤ 0 counts as h, an h past the limit makes it infinite.

    >>> round(mean_ratio([1.0, 0.1, 0.0], 0.5), 6)
    1.305361
    """
    h, kind = np.atleast_1d(finite("curvatures", curvatures)), Dynamics(**options).at_rest()
    eta, total = number("lr", lr, 0, above=True), math.fsum(h)
    if not total > 0:
        raise ValueError(f"curvatures must have a sum > 0; got {total:.4g}")
    weighed = h * kind.ratio(np.maximum(eta * h, 0.0))
    return float(weighed[h != 0].sum() / total)


def ratio_by_direction(
    z: ArrayLike,
    lr: float,
    landscape: Landscape,
    *,
    kernel: float = KERNEL,
    **options: Unpack[Options],
) -> float:
    """φ̄ = ⟨P∇tr H, P∇ΣR⟩/(σ²/2·‖P∇tr H‖²) at the minimum z: how much faster the trace falls.

    P projects on the eigenvectors of eigenvalues up to `kernel` times the largest.
    """
    of_trace, of_law = directions(z, lr, landscape, kernel, Dynamics(**options).at_rest())
    square = float(of_trace @ of_trace)
    if square == 0:
        raise ValueError("the trace does not change along the minima here: there is no direction")
    return float(of_trace @ of_law) / square


@dataclass(frozen=True)
class Clock:
    """τ, the φ̄ it was made with, and why it may be wrong, a reason each."""

    tau: float
    ratio: float
    doubts: tuple[str, ...] = ()

    @property
    def within(self) -> bool:
        """Whether it is inside the range in which it was measured."""
        return not self.doubts


def clock(
    lr: float,
    sigma: float,
    steps: int,
    *,
    curvatures: ArrayLike | None = None,
    ratio: float | None = None,
    **options: Unpack[Options],
) -> Clock:
    """τ = nησ²φ̄/(1−β), φ̄ out of the eigenvalues `curvatures` or given as `ratio`.

    Says where it is not to be trusted: φ̄ > 3 (the eigenvalues go different ways), or fewer than
    20/(1−β) steps (nothing is stationary yet). `options` are those of `variance_ratio`.

    >>> clock(0.1, 0.05, 20_000, curvatures=[1.0])
    Clock(tau=5.2631578947368425, ratio=1.0526315789473684, doubts=())
    >>> clock(0.1, 0.05, 100, ratio=3.5, momentum=0.9).doubts
    ('φ̄ = 3.5 is above 3', '100 steps are fewer than 20/(1−β) = 200')
    """
    kind = Dynamics(**options).at_rest()
    eta, s, n = number("lr", lr, 0, above=True), number("sigma", sigma, 0), whole("steps", steps, 0)
    if (curvatures is None) == (ratio is None):
        raise ValueError(f"give curvatures or ratio; got {curvatures!r} and {ratio!r}")
    if ratio is None:
        assert curvatures is not None
        found = mean_ratio(curvatures, eta, **options)
    else:
        found = number("ratio", ratio, 0)
    tau = n * eta * s**2 * found / (1 - kind.momentum) if n and s else 0.0
    return Clock(tau, found, _doubts(kind, n, found))


def _doubts(kind: Dynamics, steps: int, ratio: float) -> tuple[str, ...]:
    fewest = FEWEST_STEPS / (1 - kind.momentum)
    doubts = []
    if not ratio <= LARGEST_RATIO:
        doubts.append(f"φ̄ = {ratio:.4g} is above {LARGEST_RATIO:g}")
    if steps < fewest * (1 - 1e-12):
        doubts.append(f"{steps} steps are fewer than {FEWEST_STEPS}/(1−β) = {fewest:.4g}")
    return tuple(doubts)
