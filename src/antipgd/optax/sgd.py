"""Anti-PGD as an optimizer of its own: Optax's SGD, then the noise."""

from collections.abc import Iterable
from typing import Any

import optax

from antipgd.noise import ANTI, Law
from antipgd.optax.adding import add_correlated_noise
from antipgd.optax.filters import FilterAxis


def anti_pgd(
    learning_rate: Any,
    sigma: Any,
    momentum: Any = None,
    *,
    nesterov: bool = False,
    relative: bool | str = False,
    taps: Iterable[float] = ANTI,
    law: Law | str = "gaussian",
    seed: int = 0,
    schedule: Any = None,
    mask: Any = None,
    hold: int = 1,
    antithetic: bool = False,
    layers: str = "all",
    filter_axis: FilterAxis = None,
) -> optax.GradientTransformationExtraArgs:
    """`optax.sgd` plus anticorrelated noise: w ← w − η∇L(w) + (ξ_{n+1} − ξ_n), eq:def_antiPGD."""
    noise = add_correlated_noise(
        sigma, relative=relative, taps=taps, law=law, seed=seed, schedule=schedule, mask=mask,
        hold=hold, antithetic=antithetic, layers=layers, filter_axis=filter_axis,
    )  # fmt: skip
    return optax.chain(optax.sgd(learning_rate, momentum, nesterov), noise)
