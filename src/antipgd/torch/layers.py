"""Layers that take turns: with layers="one" each draw is on one layer, and the next on the next.

A layer is a module with parameters of its own: weight and bias together. Known by the parameters'
names, in the optimizer's order, so that nothing is kept. Knows members, not when noise is added.
"""

from collections.abc import Sequence

from antipgd.noise.injection import whose_turn
from antipgd.torch.members import Member


def layer_of(name: str) -> str:
    """The module that a parameter belongs to; an entry of a ParameterList is a layer by itself."""
    owner, parametrized, _ = name.partition(".parametrizations.")
    if parametrized:
        return owner
    module, _, last = name.rpartition(".")
    return name if last.isdigit() else module


def layers_of(members: Sequence[Member]) -> list[str]:
    """The layers that take turns: those with a parameter that is not frozen."""
    return list(dict.fromkeys(layer_of(member.name) for member in members if not member.frozen))


def in_turn(members: Sequence[Member], sigmas: Sequence[float], draw: int) -> list[float]:
    """The σ of those members whose layer takes this draw, 0 for all others."""
    layers = layers_of(members)
    own = layers[whose_turn(draw, len(layers))] if layers else None
    pairs = zip(members, sigmas, strict=True)
    return [sigma if layer_of(member.name) == own else 0.0 for member, sigma in pairs]


def check_layers(members: Sequence[Member]) -> None:
    """Refuse layers that cannot take turns: without names nobody knows them."""
    if any(member.name == member.position for member in members):
        raise ValueError(
            "layers='one' knows layers by the names of their parameters, and this optimizer has "
            "none: give model=, or make the optimizer from model.named_parameters()"
        )
    found = layers_of(members)
    if len(found) < 2:
        raise ValueError(
            f"layers='one' needs two layers or more that take noise; got {found}: a layer is a "
            f"module with parameters of its own"
        )
