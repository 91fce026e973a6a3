"""The density of the Hessian's eigenvalues, by stochastic Lanczos quadrature.

(Golub and Meurant 1994; Ghorbani, Krishnan and Xiao 2019.) From a start vector v of random signs, m
products give m nodes θ and weights τ with Σ τ f(θ) = vᵀf(H)v/n for every polynomial f of degree
< 2m, and the mean of that over v is tr f(H)/n.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit
from torch import Tensor

from antipgd.checks import number, whole
from antipgd.estimate import Estimate
from antipgd.extras import needed_by
from antipgd.flatness.eigenvalues import check_memory, double_products
from antipgd.flatness.objective import Objective
from antipgd.flatness.probes import LANCZOS
from antipgd.flatness.samples import Samples

Array = NDArray[np.float64]
_NOTHING = 1e-20  # weight of nodes that are none
_ROUNDINGS = 100.0  # of the largest eigenvalue, which nodes at zero may have
_EXACT = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Spectrum:
    """Nodes and weights of the quadrature by probe, and what follows from them.

    The error bars are over the probes. What is finer than the nodes are apart is not resolved; so
    much is the default width. `dataclasses.replace(spectrum, width=…)` smooths anew.
    """

    nodes: Array  # (probes, lanczos_steps)
    weights: Array
    size: int  # n, the number of parameters
    width: float  # standard deviation of the Gaussians that smooth the density
    points: int
    products: int
    batch_norm: str
    seed: int
    rounding: float = 0.0  # relative error of a product

    def __repr__(self) -> str:
        low, high = self._ends
        return (f"Spectrum({self.size} eigenvalues from {low:.4g} to {high:.4g}, trace "
                f"{self.trace}; {len(self.nodes)} probes, {self.products} products, batch norm "
                f"{self.batch_norm})")  # fmt: skip

    def metrics(self) -> dict[str, float]:
        """For a log: trace, mean square, ends and the share below zero (`negative_share`)."""
        low, high = self._ends
        found = {"smallest": low, "largest": high, "products": float(self.products)}
        for name, one in (("trace", self.trace), ("second_moment", self.moment(2)),
                          ("negative_share", self.negative_share)):  # fmt: skip
            found |= {name: one.mean, f"{name}_sem": one.sem}
        return found

    @property
    def _ends(self) -> tuple[float, float]:
        """The smallest and the largest node."""
        seen = self.nodes[self.weights > _NOTHING]
        return float(seen.min()), float(seen.max())

    @cached_property
    def _edges(self) -> Array:
        low, high = self._ends
        return np.linspace(low - 6 * self.width, high + 6 * self.width, self.points + 1)

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
        whole("k", k, 1)
        if k > most and self.nodes.shape[1] < self.size:
            raise ValueError(
                f"{self.nodes.shape[1]} Lanczos steps give moments up to {most}; got k={k}"
            )
        return self._estimate((self.weights * self.nodes**k).sum(axis=1))

    @property
    def trace(self) -> Estimate:
        """tr H; `hessian_trace` gives it with fewer products."""
        return self._estimate((self.weights * self.nodes).sum(axis=1), self.size)

    @property
    def negative_share(self) -> Estimate:
        """The share of eigenvalues below zero, and not by rounding: of the nodes, not smoothed.

        So far as they resolve: a node near zero stands for eigenvalues on both sides of it.
        """
        low, high = self._ends
        rounding = _ROUNDINGS * max(self.rounding, _EXACT) * max(-low, high)
        return self._estimate((self.weights * (self.nodes < -rounding)).sum(axis=1))

    def fraction_below(self, x: float) -> Estimate:
        """The integral of the smoothed density up to x."""
        return self._estimate(self._below(np.array([x]))[:, 0])

    def count_above(self, x: float) -> Estimate:
        """n times the integral from x on: for x in a gap the number of eigenvalues above."""
        return self._estimate(1 - self._below(np.array([x]))[:, 0], self.size)

    def plot(self, axes: Any = None) -> Any:
        """The logarithm of the density with its band, into given matplotlib axes or new ones."""
        if axes is None:
            with needed_by("plot() without axes"):
                import matplotlib.pyplot as plt
            axes = plt.subplots()[1]
        bottom = 0.1 / (self.size * self.width * math.sqrt(2 * math.pi))  # of one eigenvalue's peak
        low, high = (np.maximum(edge, bottom) for edge in self.band())
        axes.semilogy(self.grid, np.maximum(self.density, bottom))
        axes.fill_between(self.grid, low, high, alpha=0.3)
        axes.set(xlabel="eigenvalue of the Hessian", ylabel="density", ylim=(bottom, None))
        return axes


def measured_spectrum(
    objective: Objective,
    *,
    lanczos_steps: int = 64,
    max_probes: int = 8,
    width: float | None = None,
    points: int = 1000,
    seed: int = 0,
) -> Spectrum:
    """Of an objective's Hessian; the arguments are those of `spectrum`."""
    steps = min(whole("lanczos_steps", lanczos_steps, 2), objective.size)
    whole("max_probes", max_probes, 2)
    whole("points", points, 2)
    if width is not None:
        number("width", width, 0, above=True)
    fits = max(2, objective.memory // (8 * objective.size) - 4)
    check_memory(objective, steps + 4, f"use lanczos_steps={fits}")
    nodes, weights = _quadratures(objective, steps, max_probes, seed)
    return Spectrum(
        nodes=nodes,
        weights=weights,
        size=objective.size,
        width=width or _resolution(nodes[weights > _NOTHING], steps),
        points=points,
        products=objective.products_taken,
        batch_norm=objective.batch_norm,
        seed=seed,
        rounding=torch.finfo(objective.dtype).eps,
    )


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
        following = double_products(objective, vector)
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
