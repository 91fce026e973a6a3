"""Clean weights from saved files alone: no model and no optimizer is needed."""

from collections.abc import Mapping, Sequence
from math import hypot
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipgd.noise import STREAM_VERSION, as_law, canonical_name, stream_key
from antipgd.noise.injection import carried_coefficients
from antipgd.noise.taps import telescopes
from antipgd.torch import kernel
from antipgd.torch.drawing import draw_of
from antipgd.torch.parts import is_sharded
from antipgd.torch.record import Record
from antipgd.torch.replaced import suspects
from antipgd.torch.sampling import as_row, diagonal, elements
from antipgd.torch.saved import read_groups, saved_groups
from antipgd.torch.shares import from_text, of_part, sampled


def clean_state_dict(
    model_state: Mapping[str, Tensor],
    optimizer_state: Mapping[str, Any],
    names: Sequence[str] | None = None,
) -> dict[str, Tensor]:
    """The clean weights z of a saved model, from the two saved states; no model is needed.

    Where the optimizer had no names (it was made from model.parameters(), and attach had no
    `model=`), `names` are those of its parameters in its own order:
    `[name for name, _ in model.named_parameters()]`.
    """
    _check_model_state(model_state)
    groups = saved_groups(optimizer_state)
    records = read_groups(groups)
    if not records:
        raise ValueError("the optimizer's state has no noise in it: its weights are clean already")
    listed = [entry for group in groups for entry in group["params"]]
    own_names = {} if names is None else _by_position(names, len(listed))
    keys = {canonical_name(key): key for key in model_state}
    clean = dict(model_state)
    kept: list[Kept] = []
    for index, record in enumerate(records):
        _check_removable(record, f"the noise of param group {index}")
        for i, name in enumerate(record.names):
            key = _key_of(own_names.get(name, name), record.shapes[i], keys, model_state, index)
            noisy = model_state[key]
            z = _without_noise(noisy, i, record, index)
            clean |= {key: z for key, other in model_state.items() if _same_memory(other, noisy)}
            if record.samples and record.samples[i] and not is_sharded(noisy):
                carried = carried_coefficients(record.taps, record.sigmas[i])
                sigma = hypot(*carried) * _share(record, i, noisy)
                kept.append((key, as_row(record.samples[i]), diagonal(noisy), sigma))
    _check_together(kept)
    return clean


def _share(record: Record, i: int, noisy: Tensor) -> float:
    """Of σ, the root mean square in the elements that are kept."""
    shares = from_text(record.shares[i]) if record.shares else None
    return sampled(shares, elements(noisy), noisy.shape)


Kept = tuple[str, NDArray[np.float64], Tensor, float]  # key, elements then, elements here, σ


def _check_together(kept: Sequence[Kept]) -> None:
    """Refuse weights that are not those which the optimizer left when its state was saved."""
    now = [here.cpu().to(torch.float64).numpy() for _, _, here, _ in kept]
    found = suspects([then for _, then, _, _ in kept], now, [sigma for *_, sigma in kept])
    if found:
        names = ", ".join(repr(kept[i][0]) for i in found[:3])
        raise ValueError(
            f"the two states do not belong together: the weights of {names} are not those that "
            f"carried the noise when the optimizer's state was saved"
        )


def _check_model_state(state: object) -> None:
    if not isinstance(state, Mapping) or not any(isinstance(v, Tensor) for v in state.values()):
        shown = list(state)[:5] if isinstance(state, Mapping) else type(state).__name__
        raise ValueError(
            f"the first argument is a model's state_dict, tensors by name; got {shown}"
        )


def _by_position(names: Sequence[str], count: int) -> dict[str, str]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"names must be a list of the parameters' names; got {names!r}")
    if len(names) != count:
        raise ValueError(
            f"names must have {count} entries, one for each parameter of the optimizer; "
            f"got {len(names)}"
        )
    return {str(i): canonical_name(name) for i, name in enumerate(names)}


def _key_of(
    name: str,
    shape: tuple[int, ...],
    keys: Mapping[str, str],
    state: Mapping[str, Tensor],
    index: int,
) -> str:
    key = keys.get(name)
    found = None if key is None else state[key]
    fits = isinstance(found, Tensor) and found.is_floating_point()
    if key is None or found is None or not fits or tuple(found.shape) != shape:
        raise ValueError(
            f"the noise of param group {index}: names has {name!r}, but the model's state has no "
            f"{name!r} of shape {shape}; where the optimizer had no names, give names="
        )
    return key


def _same_memory(a: Any, b: Tensor) -> bool:
    """Whether two entries of a state are one tied weight."""
    if a is b:
        return True
    if not isinstance(a, Tensor):
        return False
    return a.numel() > 0 and (a.data_ptr(), a.shape, a.stride()) == (
        b.data_ptr(),
        b.shape,
        b.stride(),
    )


def _check_removable(record: Record, where: str) -> None:
    if record.form == "forward":
        raise ValueError(
            f"{where}: it is in the training passes only (perturb): the weights are clean already"
        )
    if record.stream != STREAM_VERSION:
        raise ValueError(
            f"{where}: stream is version {record.stream}; this package knows {STREAM_VERSION}"
        )
    if not telescopes(record.taps):
        raise ValueError(
            f"{where}: taps {list(record.taps)} do not sum to zero: there are no clean weights"
        )


def _without_noise(weights: Tensor, i: int, record: Record, index: int) -> Tensor:
    name, sigmas = record.names[i], record.sigmas[i]
    full = f"{record.namespace}/{name}" if record.namespace else name
    coefficients = [-c for c in carried_coefficients(record.taps, sigmas)]
    if not all(abs(c) <= torch.finfo(weights.dtype).max for c in coefficients):
        raise ValueError(
            f"the noise of param group {index}: sigmas must be finite in {weights.dtype}; "
            f"got {list(sigmas)} for {name!r}"
        )
    shares = from_text(record.shares[i]) if record.shares else None
    z = weights.detach().clone()
    with torch.no_grad():
        key = stream_key(record.seed, full)
        xi = z if shares is None else torch.zeros_like(z)
        kernel.inject(xi, key, draw_of(record.step, record.hold), coefficients, as_law(record.law))
        if shares is not None:
            z += xi * of_part(shares, z, None)
    return z
