"""Eigenvalues of the Hessian: the largest one by one, and the density of all of them.

Single eigenvalues come from ARPACK with their residuals ‖Hv − λv‖: H being symmetric, one of its
eigenvalues lies within that distance of λ. The density comes from stochastic Lanczos quadrature
(Golub and Meurant 1994; Ghorbani, Krishnan and Xiao 2019): from a start vector v of random signs,
m products give m nodes θ and weights τ with Σ τ f(θ) = vᵀf(H)v/n for every polynomial f of degree
< 2m, and the mean of that over v is tr f(H)/n.
"""

import inspect
import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from scipy.special import ndtr, stdtrit
from torch import Tensor

from antipgd.estimate import Estimate
from antipgd.flatness.inputs import Parameters
from antipgd.flatness.measuring import measuring
from antipgd.flatness.objective import MEMORY, Loss, Objective
from antipgd.flatness.probes import LANCZOS
from antipgd.flatness.samples import Samples, ToleranceWarning

Array = NDArray[np.float64]
WHICH = ("LM", "LA", "SA")
_DENSE = 64  # parameters up to which the whole Hessian costs no more than ARPACK does
_NOTHING = 1e-20  # weight of nodes that are none
# Older SciPy restarts ARPACK from a fixed seed, newer from the system's entropy.
_REPEATABLE = {"rng": 0} if "rng" in inspect.signature(eigsh).parameters else {}


@dataclass(frozen=True, eq=False)
class Eigenvalues:
    """Eigenvalues in descending order, each with its residual ‖Hv − λv‖ as error bar.

    That holds for H as it was computed: in float32, the more so where the loss is nearly zero, it
    differs from the true one, and `float64=True` tells by how much. `converged` says whether all
    that were asked for met the tolerance. `vectors`, if asked for, holds unit eigenvectors split
    by parameter: one along the first axis for each value.
    """

    values: Array
    residuals: Array
    products: int
    batch_norm: str
    converged: bool
    vectors: dict[str, Tensor] | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Nodes and weights of the quadrature by probe, and what follows from them.

    The error bars are over the probes. What is finer than the nodes are apart is not resolved; so
    much is the default width. `dataclasses.replace(spectrum, width=…)` smooths anew.
    """

    nodes: Array = field(repr=False)  # (probes, lanczos_steps)
    weights: Array = field(repr=False)
    size: int  # n, the number of parameters
    width: float  # standard deviation of the Gaussians that smooth the density
    points: int
    products: int
    batch_norm: str
    seed: int
    rounding: float = field(default=0.0, repr=False)  # relative error of a product

    @cached_property
    def _edges(self) -> Array:
        seen = self.nodes[self.weights > _NOTHING]
        low, high = seen.min() - 6 * self.width, seen.max() + 6 * self.width
        return np.linspace(low, high, self.points + 1)

    @cached_property
    def _by_probe(self) -> Array:
        """Means over the cells of the grid, which miss no peak however narrow: (probes, points)."""
        return np.diff(self._below(self._edges)) / np.diff(self._edges)

    def _below(self, x: Array) -> Array:
        """Σ τ Φ((x − θ)/width) for each probe."""
        return np.array(
            [weights @ ndtr((x - nodes[:, None]) / self.width)
             for nodes, weights in zip(self.nodes, self.weights, strict=True)]
        )  # fmt: skip

    @property
    def grid(self) -> Array:
        """The middles of the cells in which the density is given."""
        return (self._edges[1:] + self._edges[:-1]) / 2

    @property
    def density(self) -> Array:
        """Of the eigenvalues on the grid, smoothed: it integrates to 1."""
        return self._by_probe.mean(axis=0)

    @property
    def sem(self) -> Array:
        """The standard error of the density, over the probes."""
        return self._by_probe.std(axis=0, ddof=1) / math.sqrt(len(self.nodes))

    def band(self, level: float = 0.95) -> tuple[Array, Array]:
        """Student's interval for the density at each point of the grid."""
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1; got {level}")
        half = float(stdtrit(len(self.nodes) - 1, (1 + level) / 2)) * self.sem
        return np.maximum(self.density - half, 0), self.density + half

    def _estimate(self, samples: Array, factor: float = 1.0) -> Estimate:
        spread = Samples(samples[:, None], len(samples), rounding=self.rounding)
        return spread.estimate(np.array([factor]))

    def moment(self, k: int) -> Estimate:
        """tr(Hᵏ)/n."""
        most = 2 * self.nodes.shape[1] - 1
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise ValueError(f"k must be a whole number >= 1; got {k!r}")
        if k > most and self.nodes.shape[1] < self.size:
            raise ValueError(
                f"{self.nodes.shape[1]} Lanczos steps give moments up to {most}; got k={k}"
            )
        return self._estimate((self.weights * self.nodes**k).sum(axis=1))

    @property
    def trace(self) -> Estimate:
        """tr H; `hessian_trace` gives it with fewer products."""
        return self._estimate((self.weights * self.nodes).sum(axis=1), self.size)

    def fraction_below(self, x: float) -> Estimate:
        """The integral of the smoothed density up to x."""
        return self._estimate(self._below(np.array([x]))[:, 0])

    def count_above(self, x: float) -> Estimate:
        """n times the integral from x on: for x in a gap the number of eigenvalues above."""
        return self._estimate(1 - self._below(np.array([x]))[:, 0], self.size)

    def plot(self, axes: Any = None) -> Any:
        """The logarithm of the density with its band, into given matplotlib axes or new ones."""
        if axes is None:
            try:
                import matplotlib.pyplot as plt
            except ImportError as error:
                raise ImportError(
                    "plot needs matplotlib: pip install 'antipgd[paper]', or pass axes"
                ) from error
            axes = plt.subplots()[1]
        bottom = 0.1 / (self.size * self.width * math.sqrt(2 * math.pi))  # of one eigenvalue's peak
        low, high = (np.maximum(edge, bottom) for edge in self.band())
        axes.semilogy(self.grid, np.maximum(self.density, bottom))
        axes.fill_between(self.grid, low, high, alpha=0.3)
        axes.set(xlabel="eigenvalue of the Hessian", ylabel="density", ylim=(bottom, None))
        return axes


def _whole(name: str, value: object, least: int, most: float = math.inf) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be a whole number; got {value!r}")
    if not least <= value <= most:
        upper = "" if most == math.inf else f" and at most {most}"
        raise ValueError(f"{name} must be at least {least}{upper}; got {value}")
    return int(value)


def _check_memory(objective: Objective, vectors: int, remedy: str) -> None:
    needed = 8 * vectors * objective.size
    if needed > objective.memory:
        raise ValueError(
            f"{vectors} vectors of {objective.size} float64 elements are {needed / 2**20:.0f} MiB; "
            f"memory is {objective.memory / 2**20:.0f} MiB: raise it or {remedy}"
        )


def _products(objective: Objective, rows: Tensor) -> Tensor:
    """Hv in float64 for rows v in float64, computed in the model's precision."""
    return objective.products(rows.to(objective.dtype)).double()


# Single eigenvalues


def top_eigenvalues(
    loss: Loss,
    params: Parameters,
    batches: Iterable[Any] | None = None,
    *,
    k: int = 1,
    which: str = "LM",
    tolerance: float = 1e-4,
    max_products: int = 2000,
    vectors: bool = False,
    seed: int = 0,
    batch_norm: str | None = None,
    float64: bool = False,
    memory: float = MEMORY,
    distributed: bool = False,
) -> Eigenvalues:
    """The `k` eigenvalues of ∇²L that are largest in magnitude ("LM"), largest or smallest.

    "LA" are the largest with their sign, "SA" the smallest. `tolerance` bounds the residuals
    relative to the eigenvalues. If about `max_products` do not suffice, a `ToleranceWarning` says
    what was reached, and that is returned. The other arguments are those of `hessian_trace`.

    >>> import torch
    >>> w = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    >>> top_eigenvalues(lambda: (w**4).sum() / 12, [w], k=2).values  # of diag(w²)
    array([9., 4.])
    """
    if which not in WHICH:
        raise ValueError(f"which must be one of {', '.join(WHICH)}; got {which!r}")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be a relative error between 0 and 1; got {tolerance!r}")
    _whole("k", k, 1)
    with measuring(
        loss, params, batches, batch_norm=batch_norm, float64=float64, memory=memory,
        distributed=distributed,
    ) as objective:  # fmt: skip
        _whole("k", k, 1, objective.size)
        if objective.size <= max(_DENSE, 2 * k):
            values, rows, residuals = _dense(objective, k, which)
            converged = True
        else:
            values, rows, converged = _arpack(objective, k, which, tolerance, max_products, seed)
            residuals = (_products(objective, rows) - values[:, None] * rows).norm(dim=1)
            worst, accepted = float(residuals.max()), tolerance * float(values.abs().max())
            if converged and worst > 2 * accepted:
                converged = False
                warnings.warn(
                    f"rounding in {objective.dtype} leaves residuals of {worst:.2g}, where the "
                    f"tolerance {tolerance:g} accepts {accepted:.2g}: try float64=True",
                    ToleranceWarning, stacklevel=2,
                )  # fmt: skip
        order = values.argsort(descending=True)
        found = Eigenvalues(
            values[order].cpu().numpy(), residuals[order].cpu().numpy(), objective.products_taken,
            objective.batch_norm, converged, _split(objective, rows[order], vectors),
        )  # fmt: skip
    return found


def _split(objective: Objective, rows: Tensor, wanted: bool) -> dict[str, Tensor] | None:
    """By parameter, with the element of largest magnitude positive."""
    if not wanted:
        return None
    largest = rows.gather(1, rows.abs().argmax(dim=1, keepdim=True))
    pieces = objective.pieces((rows * largest.sign()).to(objective.dtype))
    return {name: piece.clone() for name, piece in zip(objective.names, pieces, strict=True)}


def _dense(objective: Objective, k: int, which: str) -> tuple[Tensor, Tensor, Tensor]:
    """From the whole Hessian, one product for each parameter."""
    _check_memory(objective, 4 * objective.size, "ask for fewer than half of the eigenvalues")
    matrix = _products(objective, torch.eye(objective.size, device=objective.device))
    values, columns = torch.linalg.eigh((matrix + matrix.T) / 2)
    key = values.abs() if which == "LM" else values
    chosen = key.argsort(descending=which != "SA", stable=True)[:k]
    rows = columns.T[chosen]
    return values[chosen], rows, (rows @ matrix - values[chosen, None] * rows).norm(dim=1)


def _arpack(
    objective: Objective, k: int, which: str, tolerance: float, max_products: int, seed: int
) -> tuple[Tensor, Tensor, bool]:
    """Values, vectors in rows, and whether all met the tolerance."""
    size, basis = objective.size, min(objective.size, max(2 * k + 1, 20))
    _whole("max_products", max_products, basis)
    _check_memory(objective, basis + 4, "ask for fewer eigenvalues")

    def product(vector: Array) -> Array:
        row = torch.from_numpy(np.ascontiguousarray(vector.reshape(1, -1)))
        return _products(objective, row.to(objective.device))[0].cpu().numpy()

    # Gaussian, since signs are too often orthogonal to eigenvectors like (1, −1, 0, …, 0).
    start = objective.probes(seed, "gaussian").rows(LANCZOS, 0, 1)[0].double().cpu().numpy()
    options: dict[str, Any] = dict(k=k, which=which, v0=start, ncv=basis, **_REPEATABLE)
    operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
    restarts, converged = max(1, (max_products - basis) // (basis - k)), True
    if not product(start).any():  # H = 0, which ARPACK does not take
        none = torch.zeros(k, dtype=torch.float64, device=objective.device)
        return none, torch.eye(k, size, dtype=none.dtype, device=none.device), True
    try:
        values, columns = eigsh(operator, tol=tolerance, maxiter=restarts, **options)
    except ArpackNoConvergence as error:
        values, columns, converged = error.eigenvalues, error.eigenvectors, False
        reached = f"{len(values)} of {k} eigenvalues met"
        if not len(values):  # what one cycle gives is better than nothing; its residuals tell
            values, columns = eigsh(operator, tol=1e300, maxiter=1, **options)
            reached = "no eigenvalue met"
        warnings.warn(
            f"{reached} the tolerance {tolerance:g} after {objective.products_taken} products",
            ToleranceWarning, stacklevel=3,
        )  # fmt: skip
    rows = torch.from_numpy(np.ascontiguousarray(columns.T)).to(objective.device)
    return torch.from_numpy(np.array(values)).to(objective.device), rows, converged


# The density


def spectrum(
    loss: Loss,
    params: Parameters,
    batches: Iterable[Any] | None = None,
    *,
    lanczos_steps: int = 64,
    max_probes: int = 8,
    width: float | None = None,
    points: int = 1000,
    seed: int = 0,
    batch_norm: str | None = None,
    float64: bool = False,
    memory: float = MEMORY,
    distributed: bool = False,
) -> Spectrum:
    """The density of the eigenvalues of ∇²L, from `max_probes` start vectors.

    Each costs `lanczos_steps` products, and as many vectors of memory. The density is smoothed by
    Gaussians of standard deviation `width`, by default the range of the eigenvalues divided by the
    steps, and given at `points`. The other arguments are those of `hessian_trace`.

    >>> import torch
    >>> w = torch.arange(1.0, 11.0, dtype=torch.float64)
    >>> found = spectrum(lambda: (w**3).sum() / 6, [w])  # eigenvalues 1 … 10
    >>> print(round(found.trace.mean, 9), round(found.moment(2).mean, 9))
    55.0 38.5
    """
    _whole("lanczos_steps", lanczos_steps, 2)
    _whole("max_probes", max_probes, 2)
    _whole("points", points, 2)
    if width is not None and not 0 < width < math.inf:
        raise ValueError(f"width must be None or a finite number > 0; got {width!r}")
    with measuring(
        loss, params, batches, batch_norm=batch_norm, float64=float64, memory=memory,
        distributed=distributed,
    ) as objective:  # fmt: skip
        steps = min(lanczos_steps, objective.size)
        fits = max(2, objective.memory // (8 * objective.size) - 4)
        _check_memory(objective, steps + 4, f"use lanczos_steps={fits}")
        nodes, weights = _quadratures(objective, steps, max_probes, seed)
        return Spectrum(
            nodes, weights, objective.size, width or _resolution(nodes[weights > _NOTHING], steps),
            points, objective.products_taken, objective.batch_norm, seed,
            torch.finfo(objective.dtype).eps,
        )  # fmt: skip


def _resolution(nodes: Array, steps: int) -> float:
    """About the distance of nodes; rounding decides where they are all the same."""
    return max(float(np.ptp(nodes)) / steps, 1e-6 * float(np.abs(nodes).max())) or 1.0


def _quadratures(objective: Objective, steps: int, count: int, seed: int) -> tuple[Array, Array]:
    """Nodes and weights, of as many probes at a time as memory holds the bases of."""
    together = max(1, objective.memory // (8 * objective.size * (steps + 4)))
    probes, found = objective.probes(seed), []
    for first in range(0, count, together):
        start = probes.rows(LANCZOS, first, min(together, count - first)).double()
        found.append(_tridiagonal(objective, start / math.sqrt(objective.size), steps))
    nodes, vectors = np.linalg.eigh(np.concatenate(found))
    return nodes, vectors[:, 0] ** 2


def _tridiagonal(objective: Objective, start: Tensor, steps: int) -> Array:
    """Lanczos' matrices of several unit start vectors at once, fully reorthogonalised.

    Where a Krylov space is exhausted its next vector is zero, and so is the rest of the matrix:
    nodes of no weight.
    """
    basis = start.new_zeros(len(start), steps, objective.size)
    matrix = np.zeros((len(start), steps, steps))
    vector, scale = start, start.new_zeros(len(start))
    for j in range(steps):
        basis[:, j] = vector
        following = _products(objective, vector)
        alpha = (following * vector).sum(dim=1)
        known = basis[:, : j + 1]
        for _ in range(2):  # twice, lest rounding spoil it
            coordinates = known @ following[:, :, None]
            following = following - (coordinates.mT @ known)[:, 0]
        beta = following.norm(dim=1)
        scale = torch.maximum(scale, alpha.abs() + beta)
        beta = torch.where(beta > 1e-14 * steps * scale, beta, 0)
        vector = torch.where(beta > 0, 1 / beta, 0)[:, None] * following
        matrix[:, j, j] = alpha.cpu().numpy()
        if j + 1 < steps:
            matrix[:, j, j + 1] = matrix[:, j + 1, j] = beta.cpu().numpy()
    return matrix
