"""Single eigenvalues of the Hessian: the largest or smallest, one by one.

They come from ARPACK with their residuals ‖Hv − λv‖: H being symmetric, one of its eigenvalues lies
within that distance of λ. Equal ones are looked for outside of those found. The density
of all of them is in `density`.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from antipgd.checks import number, one_of, whole
from antipgd.flatness.objective import Objective
from antipgd.flatness.probes import LANCZOS
from antipgd.flatness.samples import tell_tolerance

Array = NDArray[np.float64]
WHICH = ("LM", "LA", "SA")
_SHOWN = 5  # in a line
_DENSE = 64  # parameters up to which the whole Hessian costs no more than ARPACK does
_LOOK = 0.01  # a coarse tolerance
_ROUNDINGS = 10.0  # of the largest eigenvalue, by which two that are equal may differ
# Older SciPy restarts ARPACK from a fixed seed, newer from the system's entropy.
_REPEATABLE = {"rng": 0} if "rng" in inspect.signature(eigsh).parameters else {}


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
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
    vectors: dict[str, Tensor] | None = None

    def __repr__(self) -> str:
        first = ", ".join(f"{value:.4g}" for value in self.values[:_SHOWN])
        more = f", … {len(self.values)} in all" if len(self.values) > _SHOWN else ""
        met = "" if self.converged else ", tolerance not met"
        return (f"Eigenvalues({first}{more}; largest residual {self.residuals.max():.2g}, "
                f"{self.products} products, batch norm {self.batch_norm}{met})")  # fmt: skip

    def metrics(self) -> dict[str, float]:
        """For a log: every eigenvalue with its residual, counted from 0 in descending order."""
        found = {"products": float(self.products), "converged": float(self.converged)}
        for k, (value, error) in enumerate(zip(self.values, self.residuals, strict=True)):
            found |= {f"eigenvalue_{k}": float(value), f"eigenvalue_{k}_residual": float(error)}
        return found


def check_memory(objective: Objective, vectors: int, remedy: str) -> None:
    """Refuse what would keep more float64 vectors than memory holds."""
    needed = 8 * vectors * objective.size
    if needed > objective.memory:
        raise ValueError(
            f"{vectors} vectors of {objective.size} float64 elements are {needed / 2**20:.0f} MiB; "
            f"memory is {objective.memory / 2**20:.0f} MiB: raise it or {remedy}"
        )


def double_products(objective: Objective, rows: Tensor) -> Tensor:
    """Hv in float64 for rows v in float64, computed in the model's precision."""
    return objective.products(rows.to(objective.dtype)).double()


def measured_eigenvalues(
    objective: Objective,
    k: int = 1,
    *,
    which: str = "LM",
    tolerance: float = 1e-4,
    max_products: int = 2000,
    vectors: bool = False,
    seed: int = 0,
) -> Eigenvalues:
    """Of an objective's Hessian; the arguments are those of `top_eigenvalues`."""
    one_of("which", which, WHICH)
    number("tolerance", tolerance, 0, 1, above=True)
    whole("k", k, 1, objective.size)
    if objective.size <= max(_DENSE, 2 * k):
        values, rows, residuals = _dense(objective, k, which)
        converged = True
    else:
        values, rows, converged = _arpack(objective, k, which, tolerance, max_products, seed)
        residuals = (double_products(objective, rows) - values[:, None] * rows).norm(dim=1)
        worst, accepted = float(residuals.max()), tolerance * float(values.abs().max())
        if converged and worst > 2 * accepted:
            converged = False
            tell_tolerance(
                f"rounding in {objective.dtype} leaves residuals of {worst:.2g}, where the "
                f"tolerance {tolerance:g} accepts {accepted:.2g}: try float64=True"
            )
    order = values.argsort(descending=True)
    return Eigenvalues(
        values=values[order].cpu().numpy(),
        residuals=residuals[order].cpu().numpy(),
        products=objective.products_taken,
        batch_norm=objective.batch_norm,
        converged=converged,
        vectors=_split(objective, rows[order]) if vectors else None,
    )


def _split(objective: Objective, rows: Tensor) -> dict[str, Tensor]:
    """By parameter, with the element of largest magnitude positive."""
    largest = rows.gather(1, rows.abs().argmax(dim=1, keepdim=True))
    pieces = objective.pieces((rows * largest.sign()).to(objective.dtype))
    return {name: piece.clone() for name, piece in zip(objective.names, pieces, strict=True)}


def _dense(objective: Objective, k: int, which: str) -> tuple[Tensor, Tensor, Tensor]:
    """From the whole Hessian, one product for each parameter."""
    check_memory(objective, 4 * objective.size, "ask for fewer than half of the eigenvalues")
    matrix = double_products(objective, torch.eye(objective.size, device=objective.device))
    values, columns = torch.linalg.eigh((matrix + matrix.T) / 2)
    key = values.abs() if which == "LM" else values
    chosen = key.argsort(descending=which != "SA", stable=True)[:k]
    rows = columns.T[chosen]
    return values[chosen], rows, (rows @ matrix - values[chosen, None] * rows).norm(dim=1)


def _arpack(
    objective: Objective, k: int, which: str, tolerance: float, max_products: int, seed: int
) -> tuple[Tensor, Tensor, bool]:
    """Values, vectors in rows, and whether all met the tolerance."""
    basis = _basis(objective, k)
    whole("max_products", max_products, basis)
    kept = basis if k == 1 else max(basis, k + _basis(objective, 1))
    check_memory(objective, kept + 4, "ask for fewer eigenvalues")
    start = _start(objective, seed, 0)
    if not _product(objective, start).any():  # H = 0, which ARPACK does not take
        none = torch.zeros(k, dtype=torch.float64, device=objective.device)
        return none, torch.eye(k, objective.size, dtype=none.dtype, device=none.device), True
    options: dict[str, Any] = dict(k=k, which=which, v0=start, ncv=basis, **_REPEATABLE)
    operator = _operator(objective, partial(_product, objective))
    restarts, converged = _restarts(max_products, basis, k), True
    try:
        values, columns = eigsh(operator, tol=tolerance, maxiter=restarts, **options)
    except ArpackNoConvergence as error:
        values, columns, converged = error.eigenvalues, error.eigenvectors, False
        reached = f"{len(values)} of {k} eigenvalues met"
        if not len(values):  # what one cycle gives is better than nothing; its residuals tell
            values, columns = eigsh(operator, tol=1e300, maxiter=1, **options)
            reached = "no eigenvalue met"
        tell_tolerance(
            f"{reached} the tolerance {tolerance:g} after {objective.products_taken} products"
        )
    values, rows = np.array(values), np.ascontiguousarray(columns.T)
    if converged and k > 1:  # the largest one has no other that should be in its place
        outside = _Outside(objective, values, rows, which, tolerance, max_products)
        converged = outside.take_in(seed)
    device = objective.device
    return torch.from_numpy(values).to(device), torch.from_numpy(rows).to(device), converged


def _basis(objective: Objective, k: int) -> int:
    """How many vectors ARPACK keeps."""
    return min(objective.size, max(2 * k + 1, 20))


def _restarts(products: int, basis: int, k: int) -> int:
    """For how many cycles so many products last."""
    return max(1, (products - basis) // (basis - k))


def _operator(objective: Objective, product: Callable[[Array], Array]) -> LinearOperator:
    return LinearOperator((objective.size, objective.size), matvec=product, dtype=np.float64)


def _product(objective: Objective, vector: Array) -> Array:
    row = torch.from_numpy(np.ascontiguousarray(vector.reshape(1, -1)))
    return double_products(objective, row.to(objective.device))[0].cpu().numpy()


def _start(objective: Objective, seed: int, index: int) -> Array:
    """Gaussian, since signs are too often orthogonal to eigenvectors like (1, −1, 0, …, 0)."""
    rows = objective.probes(seed, "gaussian").rows(LANCZOS, index, 1)
    return rows[0].double().cpu().numpy()


class _Outside:
    """What of H is outside of the eigenvectors that were found; takes in what belongs to them.

    A Krylov space has one vector of each eigenspace: of equal eigenvalues ARPACK finds one, and
    others only where rounding has mixed them in. Outside of what was found, from a fresh start, the
    next one is the largest.
    """

    def __init__(
        self, objective: Objective, values: Array, rows: Array, which: str, tolerance: float,
        max_products: int,
    ) -> None:  # fmt: skip
        self._objective, self._values, self._rows = objective, values, rows
        self._which, self._tolerance, self._budget = which, tolerance, max_products

    def take_in(self, seed: int) -> bool:
        """Put what is larger in the place of the smallest; whether the products sufficed."""
        try:
            for index in range(1, len(self._values) + 2):
                found = self._larger(_start(self._objective, seed, index))
                if found is None:
                    break
                worst = int(self._key(self._values).argmin())
                self._values[worst], self._rows[worst] = found
        except ArpackNoConvergence:
            tell_tolerance(
                f"{self._objective.products_taken} products did not tell whether eigenvalues are "
                f"there more than once: raise max_products"
            )
            return False
        return True

    def _key(self, values: Array) -> Array:
        """What is large where an eigenvalue is asked for."""
        return {"LM": np.abs, "LA": np.positive, "SA": np.negative}[self._which](values)

    def _larger(self, start: Array) -> tuple[float, Array] | None:
        """An eigenvalue that should have been found, with its vector. A coarse look comes first."""
        smallest, accepted = self._key(self._values).min(), max(self._tolerance, _LOOK)
        rounding = _ROUNDINGS * torch.finfo(self._objective.dtype).eps * abs(self._values).max()
        value, row = self._top(start, accepted)
        if self._tolerance < accepted and self._key(value) + accepted * abs(value) > smallest:
            value, row = self._top(row, self._tolerance)
        gain = self._key(value) - smallest
        return (value, row) if gain > self._tolerance * abs(value) + rounding else None

    def _top(self, start: Array, tolerance: float) -> tuple[Any, Array]:
        """The first eigenvalue outside, and its vector."""
        basis, start = _basis(self._objective, 1), self._outside(start)
        if not self._product(start).any():
            return np.float64(0.0), start / np.linalg.norm(start)
        left = self._budget - self._objective.products_taken
        values, columns = eigsh(
            _operator(self._objective, self._product), k=1, which=self._which, v0=start, ncv=basis,
            tol=tolerance, maxiter=_restarts(left, basis, 1), **_REPEATABLE,
        )  # fmt: skip
        row = self._outside(columns[:, 0])
        return values[0], row / np.linalg.norm(row)

    def _product(self, vector: Array) -> Array:
        """H outside; what was found has the least value there that is asked for, or none."""
        vector = vector.reshape(-1)
        within = self._rows @ vector
        worst = {"LM": 0.0, "LA": min(0.0, self._values.min()),
                 "SA": max(0.0, self._values.max())}[self._which]  # fmt: skip
        image = _product(self._objective, vector - within @ self._rows)
        return self._outside(image) + worst * within @ self._rows

    def _outside(self, vector: Array) -> Array:
        return vector - (self._rows @ vector) @ self._rows
