"""Our states in any nest of Optax states, and whether the weights there are z + ξ.

They are not where something follows the noise in its chain, nor where an optimizer pulls the
weights towards an average or an anchor: that takes a share of every draw along.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import jax

from antipgd.optax.leaves import named_leaves
from antipgd.optax.state import CorrelatedNoiseState

# State of an optimizer that pulls → its name, and the field that holds the anchor of
# each leaf that it moves (all of them where there is none).
PULLING = {
    "LookaheadState": ("optax.lookahead", "slow"),  # among the params, so of all leaves
    "MechanicState": ("optax.contrib.mechanize", "x0"),
    "ScheduleFreeState": ("optax.contrib.schedule_free", "z"),
    "MadgradState": ("optax.contrib.madgrad", "x0"),
    "COCOBState": ("optax.contrib.cocob", "init_particles"),
    "SAMState": ("optax.contrib.sam", "cache"),
}


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


def refuse_pulled(state: Any, names: set[str]) -> None:
    """Refuse an optimizer that pulls noisy weights, by their names, towards something."""
    for node in _pulling(state):
        optimizer, field = PULLING[type(node).__name__]
        anchored = names
        if hasattr(node, field):
            anchored = {name for name, _ in named_leaves(getattr(node, field))[0]}
        if names & anchored:
            raise ValueError(
                f"{optimizer} pulls the weights towards an average or an anchor, and a share of "
                f"every draw with them, so the weights are not z + ξ and cannot be cleaned. Use "
                f"antipgd.optax.perturb in place of add_correlated_noise: its params are clean"
            )


def _pulling(state: Any) -> Iterator[Any]:
    if type(state).__name__ in PULLING:
        yield state
    for part in _parts(state):
        yield from _pulling(part)
