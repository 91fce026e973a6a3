"""What an optimizer's checkpoint says about the noise, and clean weights from files alone.

The state is a plain dictionary under `antipgd` in each saved param group: a group key survives
torch.save, `weights_only=True` and torch.distributed.checkpoint, where a top-level key does not.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from antipgd.noise import STREAM_VERSION, as_law, as_taps, canonical_name, stream_key
from antipgd.noise.injection import carried_coefficients
from antipgd.noise.taps import telescopes
from antipgd.torch import kernel
from antipgd.torch.members import Member

KEY = "antipgd"


def group_state(common: Mapping[str, Any], members: Sequence[Member]) -> dict[str, Any]:
    """The state of one param group in plain types."""
    return {
        **common,
        "names": [member.name for member in members],
        "shapes": [list(member.parameter.shape) for member in members],
        "first_lrs": [member.first_lr for member in members],
        "scales": [member.scale for member in members],
        "sigmas": [list(member.sigmas) for member in members],
    }


def check_group_state(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Refuse a saved state that is not about this noise on these parameters."""
    for what in ("version", "law", "taps", "namespace", "relative", "names", "shapes"):
        if saved[what] != current[what]:
            raise ValueError(
                f"the checkpoint's noise does not fit: its {what} is {saved[what]!r}, "
                f"this optimizer's is {current[what]!r}"
            )


def states_of(groups: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The saved states of all groups, [] where the checkpoint has none."""
    states = [group[KEY] for group in groups if KEY in group]
    if states and len(states) != len(groups):
        raise ValueError("the checkpoint has noise in some of its param groups but not in all")
    return states


def clean_state_dict(
    model_state: Mapping[str, Tensor], optimizer_state: Mapping[str, Any]
) -> dict[str, Tensor]:
    """The clean weights z of a saved model, from the two saved states; no model is needed.

    The optimizer must have had names: model.named_parameters() given to it, or `model=` to attach.
    """
    states = states_of(optimizer_state["param_groups"])
    if not states:
        raise ValueError("the optimizer's state has no noise in it: its weights are clean already")
    keys = {canonical_name(key): key for key in model_state}
    clean = dict(model_state)
    for state in states:
        _check_removable(state)
        for name, shape, sigmas in zip(
            state["names"], state["shapes"], state["sigmas"], strict=True
        ):
            if name not in keys or list(model_state[keys[name]].shape) != shape:
                raise ValueError(
                    f"the model's state has no {name!r} of shape {tuple(shape)}; save an optimizer "
                    f"made from model.named_parameters(), or attach with model="
                )
            noisy = model_state[keys[name]]
            z = _without_noise(noisy, name, sigmas, state)
            clean |= {key: z for key, other in model_state.items() if _same_memory(other, noisy)}
    return clean


def _same_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two entries of a state are one tied weight."""
    if a is b:
        return True
    return a.numel() > 0 and (a.data_ptr(), a.shape, a.stride()) == (
        b.data_ptr(),
        b.shape,
        b.stride(),
    )


def _check_removable(state: Mapping[str, Any]) -> None:
    if state["version"] != STREAM_VERSION:
        raise ValueError(
            f"the checkpoint's noise is of stream version {state['version']}, "
            f"this package knows version {STREAM_VERSION}"
        )
    if not telescopes(as_taps(state["taps"])):
        raise ValueError(f"taps {state['taps']} do not sum to zero: there are no clean weights")


def _without_noise(
    weights: Tensor, name: str, sigmas: Sequence[float], state: Mapping[str, Any]
) -> Tensor:
    full = f"{state['namespace']}/{name}" if state["namespace"] else name
    coefficients = [-c for c in carried_coefficients(as_taps(state["taps"]), sigmas)]
    z = weights.detach().clone()
    with torch.no_grad():
        key = stream_key(state["seed"], full)
        kernel.inject(z, key, state["step"], coefficients, as_law(state["law"]))
    return z
