"""Krylov spaces: of a few common vectors for the large eigenvalues, of single probes for functions.

`Krylov` is block Lanczos. Its basis Q is not only where the large eigenvalues are found: HQ is
known all over it, so that what H is outside can be left to probes, whose own spaces (`Quadratures`)
give vᵀf(C)v by nodes and weights (Golub and Meurant 1994). Both are orthogonalised in full, twice.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipgd.flatness.estimators import Products, orthonormal

Array = NDArray[np.float64]
Function = Callable[[Array], Array]
_TWINS = 1e-4  # relative distance of eigenvalues that are one
_FOUND = 1e-2  # relative residual of one that is there to be compared
_WIDENED = 4  # blocks after which fresh vectors have found what they can
_NEGLIGIBLE = 1000.0  # roundings


class Krylov:
    """Orthonormal rows with their images' coordinates, grown block by block.

    A block of k vectors sees at most k of equal eigenvalues. Where it finds as many as that, fresh
    vectors join and it is twice as wide.
    """

    def __init__(self, products: Products, fresh: Callable[[int, int], Tensor], most: int) -> None:
        """`fresh(first, count)` are random rows; there will be at most `most` in the basis."""
        self._products, self._fresh = products, fresh
        self._asked, self._width, self._settling = 2, 2, 0
        start = fresh(0, 2)
        self._rows = start.new_empty(most, start.shape[1])
        self._count = 0
        self._matrix = np.zeros((most, most))
        self._ends = start.new_zeros(0, start.shape[1])  # of the last block's images
        self._block = orthonormal(start, 0.0)

    def __len__(self) -> int:
        return self._count

    @property
    def basis(self) -> Tensor:
        """Q."""
        return self._rows[: len(self)]

    @property
    def full(self) -> bool:
        """Whether no block more has room."""
        return len(self) + len(self._block) > len(self._rows) or not len(self._block)

    @property
    def next_width(self) -> int:
        """What the next block costs in products."""
        return len(self._block)

    def grow(self) -> None:
        """One block more."""
        first, block = len(self), self._block
        self._count += len(block)
        self._rows[first : len(self)] = block
        image = self._products(block)
        scale = float(image.norm(dim=1).max())
        self._ends, coordinates = _outside(image, self.basis)
        part = coordinates.double().cpu().numpy()
        self._matrix[first : len(self), : len(self)] = part
        self._matrix[: len(self), first : len(self)] = part.T
        own = part[:, first:]
        self._matrix[first : len(self), first : len(self)] = (own + own.T) / 2
        self._block = self._following(scale)

    def _following(self, scale: float) -> Tensor:
        """The directions that the last images add, and fresh ones where those are too few."""
        shortest = _NEGLIGIBLE * torch.finfo(self._rows.dtype).eps * scale
        rows = orthonormal(_outside(self._ends, self.basis)[0], shortest)
        self._settling -= 1
        if self._twins() >= self._width:
            self._width, self._settling = 2 * self._width, _WIDENED
        missing = min(self._width, self._rows.shape[1] - len(self)) - len(rows)
        if missing > 0:
            new, _ = _outside(self._fresh(self._asked, missing), self.basis)
            self._asked += missing
            rows = torch.cat([rows, _outside(new, rows)[0]])
        return orthonormal(_outside(orthonormal(rows, 0.0), self.basis)[0], 0.0)

    def unsettled(self, count: int) -> bool:
        """Whether there may be more than were found of what is equal among the first `count`."""
        return self._settling > 0 and self._twins(count) < count

    def _twins(self, count: int | None = None) -> int:
        """The most eigenvalues that are found and equal, among the first `count`."""
        values, residuals = (part[:count] for part in self.ritz())
        found = values[residuals <= _FOUND * np.abs(values)]
        near = np.abs(found[:, None] - found) <= _TWINS * np.abs(found)
        return int(near.sum(axis=1).max(initial=0))

    def ritz(self) -> tuple[Array, Array]:
        """The eigenvalues of QHQᵀ, descending, and how far Hu is from θu, each an error bar."""
        m = len(self)
        values, vectors = np.linalg.eigh(self._matrix[:m, :m])
        gram = (self._ends @ self._ends.T).double().cpu().numpy()
        last = vectors[m - len(gram) :]
        squares = np.einsum("ki,kl,li->i", last, gram, last)
        return values[::-1], np.sqrt(np.maximum(squares[::-1], 0))


def _outside(rows: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """What of the rows is orthogonal to the basis, and the coordinates of the rest."""
    coordinates = rows @ basis.T
    rows = torch.addmm(rows, coordinates, basis, alpha=-1)
    again = rows @ basis.T
    return torch.addmm(rows, again, basis, alpha=-1), coordinates + again


class Quadratures:
    """Lanczos from several vectors v at once, each for itself: vᵀf(C)v and f(C)v for any f."""

    def __init__(self, products: Products, start: Tensor) -> None:
        self._products = products
        self.lengths = start.norm(dim=1)
        self._vectors = start / self.lengths.clamp(min=torch.finfo(start.dtype).tiny)[:, None]
        self._basis = start.new_zeros(len(start), 0, start.shape[1])
        self._matrix = np.zeros((len(start), 0, 0))
        self._scale = torch.zeros_like(self.lengths)
        self._beta = torch.zeros_like(self.lengths)

    def __len__(self) -> int:
        return self._basis.shape[1]

    def step(self) -> Tensor:
        """One product for each; gives the products. Where a space is exhausted all stays zero."""
        vector, k = self._vectors, len(self)
        image = self._products(vector)
        self._basis = torch.cat([self._basis, vector[:, None]], dim=1)
        alpha, following = (image * vector).sum(dim=1), image
        for _ in range(2):
            coordinates = self._basis @ following[:, :, None]
            following = following - (coordinates.mT @ self._basis)[:, 0]
        self._grow_matrix(k, alpha)
        beta = following.norm(dim=1)
        self._scale = torch.maximum(self._scale, alpha.abs() + beta)
        shortest = _NEGLIGIBLE * torch.finfo(vector.dtype).eps * self._scale
        self._beta = torch.where(beta > shortest, beta, 0)
        inverse = torch.where(self._beta > 0, 1 / beta, 0)
        self._vectors = inverse[:, None] * following
        return image

    def _grow_matrix(self, k: int, alpha: Tensor) -> None:
        grown = np.zeros((len(alpha), k + 1, k + 1))
        grown[:, :k, :k] = self._matrix
        grown[:, k, k] = alpha.double().cpu().numpy()
        if k:
            grown[:, k, k - 1] = grown[:, k - 1, k] = self._beta.double().cpu().numpy()
        self._matrix = grown

    def nodes(self, steps: int | None = None) -> tuple[Array, Array]:
        """Nodes and weights ‖v‖²τ, (vectors, steps) each, after all steps or the first few."""
        k = len(self) if steps is None else steps
        values, vectors = np.linalg.eigh(self._matrix[:, :k, :k])
        squares = self.lengths.double().square().cpu().numpy()
        return values, squares[:, None] * vectors[:, 0] ** 2

    def images(self, function: Function) -> Tensor:
        """f(C)v for each v, as far as the steps tell."""
        values, vectors = np.linalg.eigh(self._matrix)
        coordinates = (vectors * (function(values) * vectors[:, 0])[:, None]).sum(axis=2)
        found = torch.from_numpy(coordinates).to(self._basis) * self.lengths[:, None]
        return (found[:, None] @ self._basis)[:, 0]
