"""Is what autograd gives derived from the loss that is evaluated? A look at one batch.

A Hessian is symmetric, and along the gradient the loss rises as fast as that is long. It is told
where one of them clearly does not hold. What is suspected in single precision is looked at again in
double: rounding may be the reason where a loss is nearly zero. Differences of gradients would tell
nothing, for the Hessian of a network of ReLUs leaves its kinks out. Where the loss computes in
several precisions (autocast), nothing is looked at, nor where `memory` would not hold the probes,
or the loss does not exist beside the weights.
"""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antipgd.flatness.inputs import converted, double
from antipgd.flatness.objective import Objective
from antipgd.flatness.probes import HOLDING
from antipgd.flatness.samples import tell

PROBES = 3
ASYMMETRY = 1e-3  # of a Hessian, over its size, that matters
NOTHING = 1e-10  # of a loss over the size of the weights: what is left of it is rounding
STEPS = {torch.float32: (1e-2, 1e-3, 1e-4), torch.float64: (1e-3, 1e-4, 1e-5)}  # over the weights
APART = 0.1  # of a slope
ALIKE = 0.3  # of the distance from the slope that was expected
ROUNDINGS = 20.0  # of losses, that slopes may be apart
Pair = tuple[float, float] | None


def check_derivatives(
    objective: Objective, precisely: Callable[[], AbstractContextManager[Any]]
) -> None:
    """Warn where the first batch's derivatives are not those of its loss.

    Within `precisely()` the parameters, and what belongs to them, are in double precision.
    """
    if any("ToCopy" in name for name in objective.operations):  # autocast
        return
    if 2 * PROBES * objective.size * (4 + 8) > objective.memory:  # rows and images, in double too
        return
    batch = next(objective.batches())[1]
    slopes, pair = _look(objective, batch)
    if (slopes or pair) and objective.dtype != torch.float64:
        try:
            with precisely():
                sure = _look(objective, converted(batch, double))
        except (RuntimeError, TypeError, ValueError):  # a part of the loss is in single precision
            return
        slopes, pair = slopes and sure[0], pair and sure[1]
    if slopes:
        tell(
            f"the gradient is not that of the loss: along it the first batch's loss rises by "
            f"{slopes[0]:.4g} a unit, and the gradient says {slopes[1]:.4g}. A part of the loss "
            f"was detached (detach(), no_grad(), a straight-through estimator), so that what is "
            f"measured by derivatives is of another function than what is measured by values",
            UserWarning,
        )
    if pair:
        tell(
            f"the Hessian that autograd gives is not symmetric: u·Hv is {pair[0]:.4g} and v·Hu "
            f"{pair[1]:.4g} in the first batch. The second derivative of an operation is wrong, as "
            f"that of torch's weight_norm is, and so is what is measured with it; write the "
            f"operation in plain ones",
            UserWarning,
        )


def _look(objective: Objective, batch: Any) -> tuple[Pair, Pair]:
    """Slopes and products of probes that differ, where they do."""
    rows = objective.probes(0, "gaussian").rows(HOLDING, 0, PROBES)
    gradient, images = objective.derivatives_of(batch, rows)
    return _slopes(objective, batch, gradient), _asymmetry(objective, rows, images)


def _asymmetry(objective: Objective, rows: Tensor, images: Tensor) -> Pair:
    """u·Hv and v·Hu of the two probes where they differ most, if they do."""
    forms = (rows.double() @ images.double().T).cpu().numpy()
    apart, norm = np.abs(forms - forms.T), float(images.double().norm())
    mean_square = float(objective.flat().double().square().mean()) or 1.0
    if not apart.max() > ASYMMETRY * norm or norm * mean_square < NOTHING:
        return None
    u, v = np.unravel_index(int(apart.argmax()), apart.shape)
    return float(forms[u, v]), float(forms[v, u])


def _slopes(objective: Objective, batch: Any, gradient: Tensor) -> Pair:
    """How fast the loss rises along the gradient and how fast that says, where they differ.

    At steps of all sizes, and in double precision alike: kinks and rounding spoil some of them,
    each in its own way.
    """
    length = float(gradient.double().norm())
    size = float(objective.flat().double().norm()) or 1.0
    if not length > 0:
        return None
    steps, direction = STEPS[objective.dtype], gradient / length
    try:
        found = [_slope(objective, batch, direction, step * size) for step in steps]
    except (RuntimeError, ValueError, TypeError, ArithmeticError, AssertionError):
        return None  # the loss does not exist there
    slopes = [slope for slope, _ in found]
    apart = [abs(slope - length) for slope in slopes]
    clear = all(
        far > max(APART * max(length, abs(slope)), rounding)
        for far, (slope, rounding) in zip(apart, found, strict=True)
    )
    alike = max(slopes) - min(slopes) < ALIKE * min(apart) or objective.dtype == torch.float32
    return (slopes[-1], length) if clear and alike else None


@contextmanager
def _displaced(objective: Objective, displacement: Tensor) -> Generator[None]:
    """The parameters displaced, in memory of their own: nothing counts that as a change."""
    found = [(tensor, tensor.data) for tensor in objective.tensors]
    try:
        for (tensor, data), part in zip(found, objective.pieces(displacement), strict=True):
            tensor.data = data + part
        yield
    finally:
        for tensor, data in found:
            tensor.data = data


def _slope(objective: Objective, batch: Any, along: Tensor, step: float) -> tuple[float, float]:
    """By a central difference of the loss, and how far rounding may take it.

    What is in a loss, such as logits, is not small where the loss is. Gradients are recorded, since
    a loss may need them.
    """
    losses = []
    for sign in (1, -1):
        with _displaced(objective, sign * step * along):
            losses.append(objective.loss(batch, finite=False).item())
    largest = max(1.0, *map(abs, losses)) if objective.dtype == torch.float64 else 0.0
    rounding = ROUNDINGS * largest * float(torch.finfo(objective.dtype).eps)
    return (losses[0] - losses[1]) / (2 * step), rounding / (2 * step)
