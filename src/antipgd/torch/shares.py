"""How a tensor's noise is shared out over its filters, the rows of its first axis, or its elements.

With relative="filter" σ of a row is that of the tensor times its share, the row's root mean square
over the tensor's: the noise is as large beside every filter, and as large in all as with
relative=True. Shares are float32 numbers, measured once. With relative="element" the share of an
element is its size now over the tensor's root mean square at the start. Knows tensors, not when
noise is added.
"""

from collections.abc import Sequence
from math import prod, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipgd.noise.placement import Shard
from antipgd.torch.parts import full_tensor
from antipgd.torch.record import has_filters


def measured(parameter: Tensor, size: float) -> Tensor | None:
    """The shares of a tensor's filters, given its root mean square. Every rank takes part.

    To four digits, lest they depend on how the tensor is sharded.
    """
    if not has_filters(parameter.shape):
        return None
    rows = parameter.shape[0]
    if size == 0:
        return torch.ones(rows)
    values = parameter.detach()
    values = values if values.dtype == torch.float64 else values.float()
    norms = full_tensor(torch.linalg.vector_norm(values, dim=tuple(range(1, values.dim()))))
    unit = size * sqrt(parameter.numel() / rows)
    found = [float(f"{norm / unit:.4g}") for norm in norms.tolist()]
    return torch.tensor(found, dtype=torch.float32)


def of_part(shares: Tensor, part: Tensor, shard: Shard | None) -> Tensor:
    """The shares of the rows that lie in a part of a tensor, as it can be multiplied with them."""
    first = 0 if shard is None else shard.offset[0]
    own = shares[first : first + part.shape[0]].to(part.device, part.dtype)
    return own.reshape(-1, *[1] * (part.dim() - 1))


def of(shares: Tensor | float, part: Tensor, shard: Shard | None) -> Tensor:
    """What draws on a part of clean weights are multiplied with: the shares of its filters, or of
    its elements, given the tensor's root mean square."""
    return of_part(shares, part, shard) if isinstance(shares, Tensor) else part.abs() / shares


def beside(shares: Tensor | None, places: NDArray[np.int64], shape: Sequence[int]) -> NDArray:
    """The shares of the elements at these places of the whole tensor, 1 where it is one filter."""
    if shares is None:
        return np.ones(len(places))
    return shares.double().numpy()[places // prod(shape[1:])]


def sampled(shares: Tensor | None, places: NDArray[np.int64], shape: Sequence[int]) -> float:
    """Their root mean square: what of σ there is in these elements."""
    return float(np.sqrt(np.mean(beside(shares, places, shape) ** 2))) if len(places) else 1.0


def as_text(shares: Tensor | None) -> str:
    """As a checkpoint has them: the text of their bytes, none for a tensor that is one filter."""
    return "" if shares is None else shares.numpy().astype("<f4").tobytes().hex()


def from_text(text: str) -> Tensor | None:
    """From a checkpoint."""
    return torch.from_numpy(np.frombuffer(bytes.fromhex(text), "<f4").copy()) if text else None
