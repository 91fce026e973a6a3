"""One place in the space of weights, checked once and measured as often as one likes.

`at` sets up and checks; each method of a `Place` is one measurement, which leaves the model as it
found it. Between them the model is the user's: it is in no other mode and in no other precision.
"""

from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np

from antipgd.estimate import Estimate
from antipgd.flatness.density import Spectrum, measured_spectrum
from antipgd.flatness.effective import (
    PRODUCTS_AT_MOST,
    TOLERANCE,
    EffectiveSharpness,
    measured_effective_sharpness,
)
from antipgd.flatness.eigenvalues import Eigenvalues, measured_eigenvalues
from antipgd.flatness.inputs import Parameters
from antipgd.flatness.measuring import Setting
from antipgd.flatness.objective import MEMORY, Loss
from antipgd.flatness.sharpness import Sharpness, measured_sharpness
from antipgd.flatness.trace import Trace, measured_trace
from antipgd.noise.laws import Law


class Place:
    """Loss, model and data at the weights of one moment; made by `at`.

    Weights or buffers that have changed since then are refused by every method: call `at` again.
    Modules are measured in the modes they had then.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def __repr__(self) -> str:
        objective = self._setting.objective
        return f"Place({objective.size:,} parameters, batch_norm={objective.batch_norm!r})"

    def trace(
        self,
        *,
        method: str = "auto",
        tolerance: float | None = None,
        max_probes: int | None = None,
        seed: int = 0,
    ) -> Trace:
        """tr ∇²L, with its error bar.

        `max_probes` bounds the products with the Hessian, by default 96. With a `tolerance` as many
        are spent as half the 95 % interval needs to be within that fraction of the trace, by
        default at most 10,000. "auto" is exact where that costs no more, and otherwise chooses
        between "hutchinson" and "hutch++" by what a first sketch tells of the spectrum.
        "hutchinson" needs at least 32 products and "hutch++" 48; models of less than 32 elements
        are exact with the latter.
        """
        with self._setting.entered() as objective:
            return measured_trace(
                objective, method=method, tolerance=tolerance, max_probes=max_probes, seed=seed
            )

    def top_eigenvalues(
        self,
        k: int = 1,
        *,
        which: str = "LM",
        tolerance: float = 1e-4,
        max_products: int = 2000,
        vectors: bool = False,
        seed: int = 0,
    ) -> Eigenvalues:
        """The `k` eigenvalues of ∇²L that are largest in magnitude ("LM"), largest or smallest.

        "LA" are the largest with their sign, "SA" the smallest. Equal ones count as often as they
        are there: for k > 1 products are spent on looking for others beside those found.
        `tolerance` bounds the residuals relative to the eigenvalues. If about `max_products` do not
        suffice, a `ToleranceWarning` says what was reached, and that is returned.
        """
        with self._setting.entered() as objective:
            return measured_eigenvalues(
                objective, k, which=which, tolerance=tolerance, max_products=max_products,
                vectors=vectors, seed=seed,
            )  # fmt: skip

    @overload
    def sharpness(self, sigma: float, **options: Any) -> Sharpness: ...
    @overload
    def sharpness(self, sigma: Sequence[float], **options: Any) -> list[Sharpness]: ...
    def sharpness(  # type: ignore[misc]  # the options are spelled out only here
        self,
        sigma: float | Sequence[float],
        *,
        law: str | Law = "gaussian",
        adaptive: bool = False,
        draws: int | None = None,
        antithetic: bool = True,
        tolerance: float | None = None,
        trace: bool | Estimate | Trace = False,
        seed: int = 0,
    ) -> Sharpness | list[Sharpness]:
        """E L(w + σξ) − L(w) for draws ξ of a law with standard deviation 1, with its error bar.

        Of several `sigma` a list, all with the same draws. Each of the `draws`, by default 64,
        stands for the pair ±ξ unless `antithetic` is off: two passes over the data for each σ. With
        a `tolerance` as many are made as half the 95 % interval needs to be within that fraction,
        by default at most 10,000.

        `trace=True` adds σ²/2 ξᵀHξ of the same draws, one product each, as `second_order`; an
        estimate of the trace, such as `trace` gives, is used instead. Kinks as those of ReLU have
        no second derivative, but raise the loss all the same. Batch norms that are "estimated" keep
        the statistics of w. Where the rise is not far above the rounding of the loss, use
        `float64`.
        """
        with self._setting.entered() as objective:
            found = measured_sharpness(
                objective, sigma, law=law, adaptive=adaptive, draws=draws, antithetic=antithetic,
                tolerance=tolerance, trace=trace, seed=seed,
            )  # fmt: skip
        return found[0] if np.ndim(sigma) == 0 else found

    def effective_sharpness(
        self,
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
    ) -> EffectiveSharpness:
        """Σ s(h) over the eigenvalues of ∇²L, s(h) = ∫_0^h φ(ηh′)dh′, with its error bar.

        2/σ² times what Anti-PGD regularises at the learning rate `lr`: the trace for lr → 0. The
        noise is described as for `theory.finite_rate.variance_ratio`. h ≤ 0 counts as h. Infinite,
        with a `StabilityWarning`, where an eigenvalue's interval reaches the limit of stability; a
        warning from 0.9 of it on.

        As many products are spent as half the 95 % interval needs to be within the `tolerance`.
        Where `max_products` do not suffice, a `ToleranceWarning` says what was reached.
        """
        with self._setting.entered() as objective:
            return measured_effective_sharpness(
                objective, lr, momentum, nesterov, hold=hold, antithetic=antithetic, draws=draws,
                tolerance=tolerance, max_products=max_products, seed=seed,
            )  # fmt: skip

    def spectrum(
        self,
        *,
        lanczos_steps: int = 64,
        max_probes: int = 8,
        width: float | None = None,
        points: int = 1000,
        seed: int = 0,
    ) -> Spectrum:
        """The density of the eigenvalues of ∇²L, from `max_probes` start vectors.

        Each costs `lanczos_steps` products, and as many vectors of memory. The density is smoothed
        by Gaussians of standard deviation `width`, by default the range of the eigenvalues divided
        by the steps, and given at `points`.
        """
        with self._setting.entered() as objective:
            return measured_spectrum(
                objective, lanczos_steps=lanczos_steps, max_probes=max_probes, width=width,
                points=points, seed=seed,
            )  # fmt: skip


def at(
    loss: Loss,
    params: Parameters,
    batches: Iterable[Any] | None = None,
    *,
    batch_norm: str | None = None,
    float64: bool = False,
    memory: float = MEMORY,
    distributed: bool = False,
) -> Place:
    """The present weights, to be measured: of L = the mean of `loss(batch)` over `batches`.

    `params` is a module (its trainable parameters), or tensors, with names if they come as a
    dictionary or pairs. A batch counts by its number of examples, the length of the first tensor
    or array in it (seen in lists, tuples, dictionaries and dataclasses). Without `batches` the loss
    is called without argument. That loss and data are the same at every look is checked here, once.

    `batch_norm` is None (as found), "eval", "train" or "estimated" (statistics averaged anew over
    the batches, here and once); `float64` measures in double precision (parameters, a module's
    buffers, and the tensors of batches); `memory` bounds the bytes spent on vectors. With
    `distributed`, every rank does the same with the same model and data, and the products are
    shared out. Model, gradients and random number generators are left as they were.

    >>> import torch
    >>> w = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    >>> here = at(lambda: (w**4).sum() / 12, [w])  # of Hessian diag(w²)
    >>> print(round(here.trace().mean, 6), here.top_eigenvalues(2).values)
    14.0 [9. 4.]
    """
    return Place(Setting(
        loss, params, batches, batch_norm=batch_norm, float64=float64, memory=memory,
        distributed=distributed,
    ))  # fmt: skip
