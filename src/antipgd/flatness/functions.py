"""One measurement in one call: each function is `at` and a method of the `Place` it gives.

For several measurements of the same weights `at` checks and sets up only once.
"""

from collections.abc import Iterable, Sequence
from typing import Any, overload

from antipgd.estimate import Estimate
from antipgd.flatness.density import Spectrum
from antipgd.flatness.effective import PRODUCTS_AT_MOST, TOLERANCE, EffectiveSharpness
from antipgd.flatness.eigenvalues import Eigenvalues
from antipgd.flatness.inputs import Parameters
from antipgd.flatness.objective import MEMORY, Loss
from antipgd.flatness.place import at
from antipgd.flatness.sharpness import Sharpness
from antipgd.flatness.trace import Trace
from antipgd.noise.laws import Law


def hessian_trace(
    loss: Loss,
    params: Parameters,
    batches: Iterable[Any] | None = None,
    *,
    method: str = "auto",
    tolerance: float | None = None,
    max_probes: int | None = None,
    seed: int = 0,
    batch_norm: str | None = None,
    float64: bool = False,
    memory: float = MEMORY,
    distributed: bool = False,
) -> Trace:
    """tr ∇²L of L = the mean of `loss(batch)` over `batches`, with its error bar.

    The same as `at(loss, params, batches, …).trace(…)`: see `at` for loss, parameters, batches,
    `batch_norm`, `float64`, `memory` and `distributed`, and `Place.trace` for the others.

    >>> import torch
    >>> w = torch.tensor([1.0, 2.0], dtype=torch.float64)
    >>> trace = hessian_trace(lambda: (w**4).sum(), [w])  # 12 w², summed
    >>> print(round(trace.mean, 6), trace.method)
    60.0 exact
    """
    here = at(loss, params, batches, batch_norm=batch_norm, float64=float64, memory=memory,
              distributed=distributed)  # fmt: skip
    return here.trace(method=method, tolerance=tolerance, max_probes=max_probes, seed=seed)


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
    """The `k` largest eigenvalues of ∇²L: `at(loss, params, batches, …).top_eigenvalues(k, …)`.

    >>> import torch
    >>> w = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    >>> top_eigenvalues(lambda: (w**4).sum() / 12, [w], k=2).values  # of diag(w²)
    array([9., 4.])
    """
    here = at(loss, params, batches, batch_norm=batch_norm, float64=float64, memory=memory,
              distributed=distributed)  # fmt: skip
    return here.top_eigenvalues(
        k, which=which, tolerance=tolerance, max_products=max_products, vectors=vectors, seed=seed
    )


@overload
def expected_sharpness(
    loss: Loss, params: Parameters, batches: Iterable[Any] | None, sigma: float, **options: Any
) -> Sharpness: ...
@overload
def expected_sharpness(
    loss: Loss, params: Parameters, batches: Iterable[Any] | None, sigma: Sequence[float],
    **options: Any,
) -> list[Sharpness]: ...  # fmt: skip
def expected_sharpness(  # type: ignore[misc]  # the options are spelled out only here
    loss: Loss,
    params: Parameters,
    batches: Iterable[Any] | None,
    sigma: float | Sequence[float],
    *,
    law: str | Law = "gaussian",
    adaptive: bool = False,
    draws: int | None = None,
    antithetic: bool = True,
    tolerance: float | None = None,
    trace: bool | Estimate | Trace = False,
    seed: int = 0,
    batch_norm: str | None = None,
    float64: bool = False,
    memory: float = MEMORY,
    distributed: bool = False,
) -> Sharpness | list[Sharpness]:
    """E L(w + σξ) − L(w), with its error bar: `at(loss, params, batches, …).sharpness(sigma, …)`.

    >>> import torch
    >>> w = torch.zeros(3, dtype=torch.float64)
    >>> curvatures = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    >>> found = expected_sharpness(
    ...     lambda: (curvatures * w**2).sum() / 2, [w], None, 0.1, law="rademacher")
    >>> print(round(found.mean, 9))  # σ²/2 · 6
    0.03
    """
    here = at(loss, params, batches, batch_norm=batch_norm, float64=float64, memory=memory,
              distributed=distributed)  # fmt: skip
    return here.sharpness(
        sigma, law=law, adaptive=adaptive, draws=draws, antithetic=antithetic,
        tolerance=tolerance, trace=trace, seed=seed,
    )  # fmt: skip


def effective_sharpness(
    loss: Loss,
    params: Parameters,
    batches: Iterable[Any] | None,
    lr: float,
    momentum: float = 0.0,
    nesterov: bool = False,
    *,
    hold: int = 1,
    antithetic: bool = False,
    draws: int = 1,
    tolerance: float = TOLERANCE,
    max_products: int = PRODUCTS_AT_MOST,
    seed: int = 0,
    batch_norm: str | None = None,
    float64: bool = False,
    memory: float = MEMORY,
    distributed: bool = False,
) -> EffectiveSharpness:
    """What Anti-PGD regularises, over σ²/2: `at(loss, params, batches, …).effective_sharpness(…)`.

    >>> import torch
    >>> w = torch.zeros(2, dtype=torch.float64)
    >>> curvatures = torch.tensor([1.0, 10.0], dtype=torch.float64)
    >>> found = effective_sharpness(lambda: (curvatures * w**2).sum() / 2, [w], None, lr=0.1)
    >>> print(round(found.mean, 6), round(found.trace.mean, 6))  # −20·(ln 0.95 + ln 0.5) and 11
    14.888809 11.0
    """
    here = at(loss, params, batches, batch_norm=batch_norm, float64=float64, memory=memory,
              distributed=distributed)  # fmt: skip
    return here.effective_sharpness(
        lr, momentum, nesterov, hold=hold, antithetic=antithetic, draws=draws,
        tolerance=tolerance, max_products=max_products, seed=seed,
    )  # fmt: skip


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
    """The density of the eigenvalues of ∇²L: `at(loss, params, batches, …).spectrum(…)`.

    >>> import torch
    >>> w = torch.arange(1.0, 11.0, dtype=torch.float64)
    >>> found = spectrum(lambda: (w**3).sum() / 6, [w])  # eigenvalues 1 … 10
    >>> print(round(found.trace.mean, 9), round(found.moment(2).mean, 9))
    55.0 38.5
    """
    here = at(loss, params, batches, batch_norm=batch_norm, float64=float64, memory=memory,
              distributed=distributed)  # fmt: skip
    return here.spectrum(
        lanczos_steps=lanczos_steps, max_probes=max_probes, width=width, points=points, seed=seed
    )
