"""φ(ηh) = E w²/σ²: how far the weights spread where the curvature is h, at any learning rate.

Near a minimum of curvature h, with x = ηh, each draw moves w by an impulse response g and
φ = Σ_n g_n² / (steps a draw). All that the package offers is of one form: after a draw the weights
carry c_0, c_1, … of it (the taps' running sums, each held; a pair ±ξ counts as one draw), and the
clean weights z answer by m ← βm + xw, z ← z − m (Nesterov: z ← z − xw − βm) with w = z + c. When
no more of the draw comes or goes, what is left of Σ g² is a quadratic form of z and m. Plain
arithmetic throughout, so that exact numbers and symbols go through it: see proofs/finite_rate.py.

Knows no loss and no Hessian. Ours; the paper has the limit η → 0, where φ is 1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipgd.checks import number, one_of, whole
from antipgd.noise.taps import ANTI, Taps, as_taps, carried, telescopes

Array = NDArray[np.float64]
Noise = Literal["weights", "two-point", "label"]
NOISES = ("weights", "two-point", "label")


class Options(TypedDict, total=False):
    """What `variance_ratio` takes beside x."""

    momentum: float
    nesterov: bool
    taps: Taps
    hold: int
    antithetic: bool
    draws: int
    noise: Noise


def limit(momentum: Any, nesterov: bool) -> Any:
    """The x from which on the step without noise is unstable; exact for exact numbers."""
    return 2 * (1 + momentum) / (1 + 2 * momentum) if nesterov else 2 * (1 + momentum)


def stability_limit(momentum: float = 0.0, nesterov: bool = False) -> float:
    """The ηh from which on the step is unstable: 2(1+β), with Nesterov 2(1+β)/(1+2β).

    The step is torch's: v ← βv + g, w ← w − ηv, or w ← w − η(g + βv). Condition: 0 ≤ β < 1.

    >>> stability_limit(), stability_limit(0.5), stability_limit(0.5, nesterov=True)
    (2.0, 3.0, 1.5)
    """
    return float(limit(number("momentum", momentum, 0, 1), _flag("nesterov", nesterov)))


def flat_diffusion(taps: Taps = ANTI, hold: int = 1, antithetic: bool = False) -> float:
    """How much E w² grows a step where there is no curvature, in σ²: (Σ taps)²/hold.

    0 for Anti-PGD and all taps that sum to zero, and for all taps in antithetic pairs; else φ grows
    beyond all bounds for x → 0.

    >>> flat_diffusion(), flat_diffusion((1,)), flat_diffusion((1, -0.5))
    (0.0, 1.0, 0.25)
    """
    kind = Dynamics(taps=taps, hold=hold, antithetic=antithetic)
    return kind.remains**2 / kind.period


def gap(x: Any, momentum: Any, nesterov: bool) -> Any:
    """2(1+β) − x, with Nesterov 2(1+β) − (1+2β)x: what φ is divided by, 0 at the limit.

    In this order of operations nothing is rounded near the limit but Nesterov's product.
    """
    return (2 - x) + 2 * momentum * (1 - x if nesterov else 1)


def tail(x: Any, z: Any, m: Any, momentum: Any, nesterov: bool) -> Any:
    """gap(x)·x·Σ z_n² of the step left to itself, from z_0 = z and m on."""
    b = momentum
    if not nesterov:
        return ((1 + b) * ((1 - b) * z - b * m) ** 2 + 2 * b * x * z * (z + m)) / (1 - b)
    rest = (1 + 2 * b - b * b) * z * z + 2 * b * (1 + b - b * b) * z * m - b**4 * m * m
    return ((1 + b) * ((1 - b) * z - b * b * m) ** 2 + b * x * rest) / (1 - b + b * x)


def spread(x: Any, steps: Sequence[Any], remains: Any, momentum: Any, nesterov: bool) -> Any:
    """gap(x)·Σ g_n²: what one draw does to w, which carries `steps` of it and then `remains`."""
    total, z, m = 0 * x, 0 * x, 0 * x
    for c in steps:
        w = z + c
        total = total + w * w
        m = momentum * m + x * w
        z = z - (x * w + momentum * m if nesterov else m)
    left = tail(x, z + remains, m, momentum, nesterov) / x
    return gap(x, momentum, nesterov) * total + left


def label_spread(x: Any, momentum: Any, nesterov: bool) -> Any:
    """gap(x)·φ(x) of label noise, whose draws enter the gradient with the variance 2σ²h/η."""
    return 2 * tail(x, -1 - momentum if nesterov else -1, 1, momentum, nesterov)


@dataclass(frozen=True)
class Dynamics:
    """A step and its noise, as far as a quadratic minimum tells them apart."""

    momentum: float = 0.0
    nesterov: bool = False
    taps: Taps = ANTI
    hold: int = 1
    antithetic: bool = False
    draws: int = 1
    noise: Noise = "weights"

    def __post_init__(self) -> None:
        number("momentum", self.momentum, 0, 1)
        object.__setattr__(self, "taps", as_taps(self.taps))
        for name in ("nesterov", "antithetic"):
            _flag(name, getattr(self, name))
        for name in ("hold", "draws"):
            whole(name, getattr(self, name), 1)
        one_of("noise", self.noise, NOISES)
        if self.noise != "weights":
            self._refuse_of_weights()
        if self.draws > 1 and not telescopes(self.taps):
            raise ValueError(
                f"several draws a step are of the forward form, whose taps sum to zero; "
                f"got draws={self.draws}, taps={self.taps}"
            )

    def _refuse_of_weights(self) -> None:
        plain = Dynamics(self.momentum, self.nesterov)
        for name in ("taps", "hold", "antithetic", "draws"):
            if getattr(self, name) != getattr(plain, name):
                raise ValueError(
                    f"{self.noise} noise has no {name}; got {name}={getattr(self, name)!r}"
                )

    def at_rest(self) -> "Dynamics":
        """Itself, refused if flat directions diffuse: then there is no regulariser and no law."""
        if self.remains:
            raise ValueError(
                f"taps must sum to zero, else flat directions diffuse by {self.remains**2:g} σ² a "
                f"draw and nothing is regularised; got {self.taps}"
            )
        return self

    @property
    def limit(self) -> float:
        """The x from which on the step is unstable."""
        return float(limit(self.momentum, self.nesterov))

    @property
    def _pairs(self) -> bool:
        """Whether ± pairs follow each other in time, not within a step."""
        return self.antithetic and self.draws == 1

    @property
    def period(self) -> int:
        """Steps from one independent draw to the next."""
        return self.hold * (2 if self._pairs else 1)

    @property
    def steps(self) -> list[float]:
        """What w carries of a draw after 1, 2, … steps, up to where that stays as it is."""
        held = self._held()
        return [c for c in held[:-1] for _ in range(self.hold)]

    @property
    def remains(self) -> float:
        """What w carries of a draw for ever."""
        return self._held()[-1]

    def _held(self) -> list[float]:
        sums = list(carried(self.taps))
        if telescopes(self.taps):
            sums[-1] = 0.0
        if not self._pairs:
            return sums
        return [sums[0], *(b - a for a, b in pairwise(sums)), 0.0]

    @property
    def flat(self) -> float:
        """φ for x → 0."""
        if self.noise == "label":
            return 1 / (1 - self.momentum)
        return math.inf if self.remains else math.fsum(c * c for c in self.steps) / self.period

    @property
    def _mean_share(self) -> float:
        """Var of the mean of a step's draws, in σ²."""
        if self.noise == "two-point":
            return 0.0
        if self._pairs or not self.antithetic:
            return 1 / self.draws
        return self.draws % 2 / self.draws**2

    def scaled(self, x: Any) -> Any:
        """gap(x)·φ(x) for 0 < x < limit: smooth, and finite at the limit."""
        if self.noise == "label":
            return label_spread(x, self.momentum, self.nesterov)
        share, flat = self._mean_share, self.flat * self.gap(x) if self._mean_share < 1 else 0.0
        if share == 0:
            return flat
        alone = spread(x, self.steps, self.remains, self.momentum, self.nesterov) / self.period
        return share * alone + (1 - share) * flat

    def gap(self, x: Any) -> Any:
        """How far x is from the limit, with Nesterov times 1+2β."""
        return gap(x, self.momentum, self.nesterov)

    def inside(self, x: Array) -> NDArray[np.bool_]:
        """Which x lie strictly between 0 and the limit."""
        with np.errstate(invalid="ignore"):
            return (x > 0) & (x < self.limit) & (self.gap(x) > 0)

    def ratio(self, x: Array) -> Array:
        """φ, infinite where nothing is stationary."""
        found = np.full(x.shape, math.inf)
        found[x == 0] = self.flat
        inside = self.inside(x)
        found[inside] = self.scaled(x[inside]) / self.gap(x[inside])
        return found


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False; got {value!r}")
    return bool(value)


def finite(name: str, values: ArrayLike) -> Array:
    """An array of numbers, none of them missing; infinite ones are let through."""
    found = np.asarray(values, np.float64)
    if np.isnan(found).any():
        raise ValueError(f"{name} must be numbers; got {values!r}")
    return found


def variance_ratio(
    x: ArrayLike,
    momentum: float = 0.0,
    nesterov: bool = False,
    taps: Taps = ANTI,
    hold: int = 1,
    antithetic: bool = False,
    draws: int = 1,
    noise: Noise = "weights",
) -> Any:
    """φ(x) = E w²/σ² of the weights at which gradients are taken, x = ηh; as many as there are x.

    Anti-PGD has 2/(2−x). `hold` keeps a draw for that many steps (φ is then the mean over them);
    `draws` is their number a step (micro-batches or ranks) and `antithetic` takes them in pairs ±ξ,
    over the draws of a step if there are several, else over consecutive draws. `noise` "two-point"
    takes the mean of the gradients at z ± ξ, "label" is label noise with σ² = ηs²/2n
    (`equivalences.sigma_of_label_noise`, form "half").

    Infinite from the limit of stability on and for x < 0, where nothing is stationary. At x = 0 the
    limit x → 0: Σ c_j² with c the taps' running sums, 1 for Anti-PGD, infinite for taps whose sum
    is not zero (`flat_diffusion`). Condition: 0 ≤ β < 1, a quadratic minimum, stationary.

    >>> variance_ratio([0.0, 0.5, 2.0]).tolist()
    [1.0, 1.3333333333333333, inf]
    >>> round(variance_ratio(0.5, momentum=0.9), 6)
    3.878788
    """
    kind = Dynamics(momentum, nesterov, taps, hold, antithetic, draws, noise)
    found = kind.ratio(np.atleast_1d(finite("x", x)))
    return found if np.ndim(x) else float(found[0])
