"""Single eigenvalues of the Hessian: the largest or smallest, one by one.

They come from ARPACK with their residuals ‖Hv − λv‖: H being symmetric, one of its eigenvalues lies
within that distance of λ. The density of all of them is in `density`.
"""

import inspect
from dataclasses import dataclass
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
    size, basis = objective.size, min(objective.size, max(2 * k + 1, 20))
    whole("max_products", max_products, basis)
    check_memory(objective, basis + 4, "ask for fewer eigenvalues")

    def product(vector: Array) -> Array:
        row = torch.from_numpy(np.ascontiguousarray(vector.reshape(1, -1)))
        return double_products(objective, row.to(objective.device))[0].cpu().numpy()

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
        tell_tolerance(
            f"{reached} the tolerance {tolerance:g} after {objective.products_taken} products"
        )
    rows = torch.from_numpy(np.ascontiguousarray(columns.T)).to(objective.device)
    return torch.from_numpy(np.array(values)).to(objective.device), rows, converged
