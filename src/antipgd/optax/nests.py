"""Our states in any nest of Optax states, and whether the weights there are z + ξ.

They are not where something follows the noise in its chain.
"""

from collections import OrderedDict
from typing import Any

import jax

from antipgd.optax.state import CorrelatedNoiseState


def _parts(state: Any) -> list[Any]:
    """The direct children of a node; none of a leaf."""
    parts = jax.tree_util.tree_leaves(state, is_leaf=lambda part: part is not state)
    return [] if len(parts) == 1 and parts[0] is state else parts


def find(state: Any) -> list[CorrelatedNoiseState]:
    """All states of ours, in order."""
    if isinstance(state, CorrelatedNoiseState):
        return [state]
    return [ours for part in _parts(state) for ours in find(part)]


def refuse_followed(state: Any) -> None:
    """Refuse a chain in which something comes after noise that is added to the updates."""
    if isinstance(state, CorrelatedNoiseState):
        return
    chained = type(state) in (tuple, OrderedDict)  # of optax.chain, of optax.named_chain
    begun = False
    for part in _parts(state):
        refuse_followed(part)
        noisy = any(not ours.settings.forward for ours in find(part))
        if chained and begun and not noisy:
            raise ValueError(
                f"add_correlated_noise is not last in its chain: the transformation with state "
                f"{type(part).__name__} follows and changes the noise, so the weights are not "
                f"z + ξ. Move the noise to the end of optax.chain"
            )
        begun = begun or noisy
