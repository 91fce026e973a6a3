"""The law: along the minima the weights follow dz/dt = −P∇ΣR(h), t = Σ η/(1−β).

The sum is over the eigenvalues of the Hessian H, so that ∇ΣR = (σ²/2) Σ_ij φ(ηH)_ij ∇H_ij; P
projects on the kernel of H, the tangent of the minima. With many eigenvalues different η take
different paths, and no clock can make them one. Condition: a manifold of minima on which H has
constant rank, and σ small enough that the weights stay near it. Knows no problem: a `Landscape` is
handed over.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Unpack

import numpy as np
from numpy.typing import ArrayLike

from antipgd.checks import number, whole
from antipgd.theory.finite_rate.ratios import Array, Dynamics, Options

KERNEL = 1e-6  # of the largest eigenvalue
_NEWTON = 12  # steps back to the minima
_NEAR = 1e-5  # of max |z|: a Newton step so short leaves its square
_FAR = 1e100
_SHORTEST = 1e-9  # of the whole time: a step so short that leaves the law has left it for good


class _AstrayError(ValueError):
    """A point at which the law does not hold; on the way there a shorter step may avoid it."""


@dataclass(frozen=True)
class Landscape:
    """A loss near its minima: ∇L(z), H(z) and `third(z, M)`_k = Σ_ij ∂_k H_ij M_ij, M symmetric.

    Without `third`, central differences of H: 2d Hessians each time.
    """

    gradient: Callable[[Array], Array]
    hessian: Callable[[Array], Array]
    third: Callable[[Array, Array], Array] | None = None

    def contracted(self, z: Array, M: Array) -> Array:
        """Σ_ij ∂_k H_ij M_ij for every k."""
        if self.third is not None:
            return np.asarray(self.third(z, M), np.float64)
        steps = np.diag(np.cbrt(np.finfo(np.float64).eps) * np.maximum(1.0, np.abs(z)))
        found = [
            ((self.hessian(z + e) - self.hessian(z - e)) * M).sum() / (2 * e.sum()) for e in steps
        ]
        return np.array(found)


class _Spectrum(NamedTuple):
    """Eigenvalues, ascending; the first `free` eigenvectors span the tangent of the minima."""

    values: Array
    vectors: Array
    free: int

    @classmethod
    def at(
        cls, z: Array, landscape: Landscape, kernel: float, free: int | None = None
    ) -> "_Spectrum":
        values, vectors = np.linalg.eigh(landscape.hessian(z))
        if free is None:
            free = int((values <= kernel * np.abs(values).max()).sum())
        return cls(values, vectors, free)

    def tangent(self, vector: Array) -> Array:
        basis = self.vectors[:, : self.free]
        return basis @ (basis.T @ vector)

    def newton(self, gradient: Array) -> Array:
        basis, walls = self.vectors[:, self.free :], self.values[self.free :]
        if not walls.min(initial=math.inf) > 0:
            raise _AstrayError(f"no minimum is near: across it the curvature is {walls[0]:.3g}")
        return basis @ ((basis.T @ gradient) / walls)

    def applied(self, weights: Array) -> Array:
        """Σ weights · vvᵀ over the eigenvectors v."""
        return (self.vectors * weights) @ self.vectors.T


def _checked(z: ArrayLike, landscape: Landscape, kernel: float) -> Array:
    point = np.array(z, np.float64)
    if point.ndim != 1 or not np.isfinite(point).all():
        raise ValueError(f"z must be a vector of finite numbers; got {z!r}")
    number("kernel", kernel, 0, 1)
    shape = np.shape(landscape.hessian(point))
    if shape != (len(point), len(point)):
        raise ValueError(f"the Hessian of {len(point)} weights must be square; got {shape}")
    return point


def _pull(kind: Dynamics, lr: float, landscape: Landscape, z: Array, spectrum: _Spectrum) -> Array:
    """P∇ΣR/(σ²/2); h ≤ 0 has the ratio φ(0), which is to count as it is."""
    ratios = kind.ratio(np.maximum(lr * spectrum.values, 0.0))
    if not np.isfinite(ratios).all():
        raise _AstrayError(_unstable(kind, lr, spectrum))
    return spectrum.tangent(landscape.contracted(z, spectrum.applied(ratios)))


def directions(
    z: ArrayLike, lr: float, landscape: Landscape, kernel: float, kind: Dynamics
) -> tuple[Array, Array]:
    """P∇tr H and P∇ΣR/(σ²/2) at z: where the law goes for η → 0 and where it goes at this η."""
    point, eta = _checked(z, landscape, kernel), number("lr", lr, 0, above=True)
    spectrum = _Spectrum.at(point, landscape, kernel)
    of_trace = landscape.contracted(point, np.eye(len(point)))
    return spectrum.tangent(of_trace), _pull(kind, eta, landscape, point, spectrum)


def _unstable(kind: Dynamics, lr: float, spectrum: _Spectrum) -> str:
    return (
        f"nothing is stationary here: lr·h = {lr * spectrum.values[-1]:.4g}, and the step is "
        f"unstable from {kind.limit:.4g} on; take a smaller lr than {lr:g}"
    )


@dataclass(frozen=True)
class _Law:
    landscape: Landscape
    kind: Dynamics
    lr: float
    sigma: float
    kernel: float
    free: int | None = None  # counted at the first minimum: beside it small eigenvalues are not 0

    def slope(self, z: Array) -> Array:
        """−P∇ΣR."""
        spectrum = _Spectrum.at(z, self.landscape, self.kernel, self.free)
        return -(self.sigma**2) / 2 * _pull(self.kind, self.lr, self.landscape, z, spectrum)

    def back(self, z: Array) -> Array:
        """The minimum near z: Newton's steps across the valley, none along it."""
        for _ in range(_NEWTON):
            spectrum = _Spectrum.at(z, self.landscape, self.kernel, self.free)
            step = spectrum.newton(np.asarray(self.landscape.gradient(z), np.float64))
            z, length = z - step, float(np.abs(step).max())
            if length <= _NEAR * max(1.0, float(np.abs(z).max())):
                return z
            if not length < _FAR:
                break
        raise _AstrayError(
            f"no minimum is near: Newton's steps to it do not end, the last one was as long as "
            f"{length:.3g}; start at a minimum, or take kernel (now {self.kernel:g}) "
            f"between the flat and the other eigenvalues"
        )


def _stepped(law: _Law, z: Array, slope: Array, dt: float) -> tuple[Array, Array, Array]:
    """Bogacki and Shampine's step of third order: where it leads, the slope there, its error."""
    second = law.slope(z + dt / 2 * slope)
    third = law.slope(z + 3 / 4 * dt * second)
    there = law.back(z + dt * (2 * slope + 3 * second + 4 * third) / 9)
    ahead = law.slope(there)
    error = dt * (-5 / 72 * slope + second / 12 + third / 9 - ahead / 8)
    return there, ahead, error


def flow(
    z: ArrayLike,
    lr: float,
    sigma: float,
    landscape: Landscape,
    times: Sequence[float] | Array,
    *,
    kernel: float = KERNEL,
    tolerance: float = 1e-6,
    steps: int = 100_000,
    **options: Unpack[Options],
) -> Array:
    """The points z(t) at `times`, one row each: dz/dt = −P∇ΣR(h), from the minimum near z on.

    t = Σ η/(1−β) = n·η/(1−β) after n steps. Eigenvalues up to `kernel` times the largest are the
    tangent there, and as many all along; after each step Newton's method returns to the minima. The
    step is chosen so that its error is below `tolerance`·‖z‖, and there are at most `steps`.
    `options` are those of `variance_ratio`. Refuses places where an eigenvalue is past the limit.

    >>> valley = Landscape(  # v²u²/2: every (u, 0) is a minimum with h = u²
    ...     gradient=lambda z: np.array([z[1] ** 2 * z[0], z[0] ** 2 * z[1]]),
    ...     hessian=lambda z: np.array([[z[1] ** 2, 2 * z.prod()], [2 * z.prod(), z[0] ** 2]]),
    ... )
    >>> flow([1.0, 0.0], 0.1, 0.05, valley, [0.0, 400.0]).round(4) + 0.0  # e^{−σ²t}, and φ > 1
    array([[1.  , 0.  ],
           [0.36, 0.  ]])
    """
    eta, s = number("lr", lr, 0, above=True), number("sigma", sigma, 0)
    point, kind = _checked(z, landscape, kernel), Dynamics(**options).at_rest()
    number("tolerance", tolerance, 0, 1, above=True)
    whole("steps", steps, 1)
    wanted = np.asarray(times, np.float64)
    rising = wanted.ndim == 1 and np.isfinite(wanted).all()
    if not (rising and (np.diff(wanted, prepend=0.0) >= 0).all()):
        raise ValueError(f"times must be finite numbers >= 0 that do not fall; got {times!r}")
    law = _Law(landscape, kind, eta, s, float(kernel))
    start = law.back(point)
    law = replace(law, free=_Spectrum.at(start, landscape, law.kernel).free)
    return _integrated(law, start, wanted, tolerance, steps)


def _integrated(law: _Law, z: Array, times: Array, tolerance: float, steps: int) -> Array:
    t, slope, found = 0.0, law.slope(z), []
    dt = math.inf if not slope.any() else 1e-2 * _length(z) / float(np.linalg.norm(slope))
    for end in times:
        while t < end:
            steps -= 1
            if steps < 0:
                raise ValueError(f"the steps were used up at t = {t:.4g} of {times[-1]:.4g}")
            taken = min(dt, end - t)
            try:
                there, ahead, error = _stepped(law, z, slope, taken)
            except _AstrayError:
                if taken <= _SHORTEST * times[-1]:
                    raise
                dt = taken / 5
                continue
            share = float(np.linalg.norm(error)) / (tolerance * _length(z))
            if share <= 1:
                z, slope, t = there, ahead, end if taken == end - t else t + taken
            dt = taken * min(5.0, max(0.2, 0.9 * max(share, 1e-12) ** (-1 / 3)))
        found.append(z)
    return np.reshape(found, (len(times), len(z)))


def _length(z: Array) -> float:
    return max(float(np.linalg.norm(z)), 1e-12)
