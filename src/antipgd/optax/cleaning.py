"""`clean_params`: the weights without the draws they carry, z = w − Σ_j c_j σ_{n−j} ξ_{n−j}.

Finds our state in any nest of Optax states, and sees there whether it was last in its chain.
"""

from collections import OrderedDict
from typing import Any

import jax

from antipgd.noise.taps import carried, telescopes
from antipgd.optax.adding import CorrelatedNoiseState, add_injection


def clean_params(state: Any, params: Any) -> Any:
    """The clean weights z, where one evaluates, exports and averages.

    `state` is the whole state of the optimizer, or any part of it that holds the state of
    `add_correlated_noise`, which may be there more than once. Works under jit.
    """
    found = _find(state)
    if not found:
        raise ValueError(
            f"no state of add_correlated_noise in this {type(state).__name__}; pass the state of "
            f"the optimizer (arguments are state, params)"
        )
    for ours in found:
        taps = ours.settings.taps
        if not telescopes(taps):
            raise ValueError(
                f"clean weights exist only for taps that sum to zero, such as (1, -1); these are "
                f"{taps}, whose draws stay in the weights for good"
            )
        removed = tuple(-c for c in carried(taps)[:-1])
        params = add_injection(params, ours.settings, ours.count, removed, ours.sigmas)
    return params


def _find(state: Any) -> list[CorrelatedNoiseState]:
    if isinstance(state, CorrelatedNoiseState):
        return [state]
    parts = jax.tree_util.tree_leaves(state, is_leaf=lambda part: part is not state)
    if len(parts) == 1 and parts[0] is state:
        return []
    found = [_find(part) for part in parts]
    if type(state) in (tuple, OrderedDict):  # of optax.chain, of optax.named_chain
        _check_last(parts, found)
    return [ours for some in found for ours in some]


def _check_last(parts: list[Any], found: list[list[CorrelatedNoiseState]]) -> None:
    begun = False
    for part, ours in zip(parts, found, strict=True):
        if begun and not ours:
            raise ValueError(
                f"add_correlated_noise is not last in its chain: the transformation with state "
                f"{type(part).__name__} follows and changes the noise, so the weights are not "
                f"z + ξ. Move the noise to the end of optax.chain"
            )
        begun = begun or bool(ours)
