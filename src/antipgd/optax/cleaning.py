"""`clean_params`: the weights without the draws they carry, z = w − Σ_j c_j σ_{n−j} ξ_{n−j}."""

from typing import Any

from antipgd.noise.taps import telescopes
from antipgd.optax.adding import add_carried
from antipgd.optax.nests import find, refuse_followed, refuse_pulled


def clean_params(state: Any, params: Any) -> Any:
    """The clean weights z, where one evaluates, exports and averages.

    `state` is the whole state of the optimizer, or any part of it that holds the state of
    `add_correlated_noise`, which may be there more than once. Works under jit. With `perturb` the
    params are clean already, and stay as they are.
    """
    found = find(state)
    if not found:
        raise ValueError(
            f"no state of add_correlated_noise in this {type(state).__name__}; pass the state of "
            f"the optimizer (arguments are state, params)"
        )
    noisy = [ours for ours in found if not ours.settings.forward]
    for ours in noisy:
        if not telescopes(ours.settings.taps):
            raise ValueError(
                f"clean weights exist only for taps that sum to zero, such as (1, -1); these are "
                f"{ours.settings.taps}, whose draws stay in the weights for good"
            )
    refuse_followed(state)
    refuse_pulled(state, {name for ours in noisy for name in ours.settings.names})
    for ours in noisy:
        params = add_carried(params, ours, -1.0)
    return params
